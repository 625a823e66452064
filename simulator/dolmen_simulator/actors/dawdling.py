"""An actor whose commits take hours: once its uploads may have been collected, its commit must not land."""

from __future__ import annotations

from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.writers import Actor, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.world.network import MINUTE_US
from dolmen_simulator.world.process import Process


class Dawdler(Actor):
    """Appends in a transaction, without an intent, and stalls between the upload and the commit."""

    def turn(self, process: Process) -> None:
        """Makes one append."""
        name, rows = self.target(process), self.rows()
        if name is None:
            return
        longest_us = self.random.choice((0, 20 * MINUTE_US, 180 * MINUTE_US, 300 * MINUTE_US))

        def call() -> Commit:
            with process.db.transaction("append") as transaction:
                transaction.table(name).append(arrow(rows))
                process.network.scheduler.pause(self.random.randint(longest_us // 2, longest_us))
                return transaction.commit()

        process.write("append slowly", [model.AppendEffect(name, rows)], call)
