"""Actors that maintain a database in whole rounds, as functions do, or inspect it without changes, as people do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dolmen.errors import UnknownOutcomeError
from dolmen.maintenance.debt import STEPS
from dolmen.maintenance.round import Deadline, Round
from dolmen_simulator.actors.upkeep import Upkeep
from dolmen_simulator.actors.writers import TABLES
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.world.process import Process


class Maintainer(Upkeep):
    """Runs maintenance rounds as the compact function does: all or some tables, all or some steps, with a deadline."""

    def turn(self, process: Process) -> None:
        """Runs one round, seldom, as others run the single steps."""
        if not process.ledger.version or self.random.random() < 0.5:
            return
        tables = None if self.random.random() < 0.5 else self.random.sample(TABLES, 2)
        steps = [step for step in STEPS if self.random.random() < 0.7] or STEPS
        elsewhere = TABLES[:1] if self.random.random() < 0.2 else ()
        process.network.counts["rounds"] += 1
        process.upkeep(
            "maintain",
            lambda: self._round(
                process.db.maintain(
                    tables, steps=steps, compacted_elsewhere=elsewhere, deadline=self._deadline(process)
                )
            ),
            TABLES,
        )

    def _deadline(self, process: Process) -> Deadline | None:
        """Draws a deadline: often none, otherwise that of a function whose time runs out."""
        if self.random.random() < 0.5:
            return None
        runtime, seconds = process.runtime, self.random.choice((11, 30, 120))
        end = runtime.monotonic() + seconds
        return Deadline(runtime, lambda: end - runtime.monotonic())

    @staticmethod
    def _round(done: Round) -> Round:
        """Raises one of a round's failures for the ledger to check: first an unknown outcome, which may still land."""
        errors = [failure.error for failure in done.failures]
        for error in sorted(errors, key=lambda error: not isinstance(error, UnknownOutcomeError)):
            raise error
        return done


class Inspector(Upkeep):
    """Reads debts, rehearses background work and verifies; this must change nothing, and find nothing wrong."""

    def turn(self, process: Process) -> None:
        """Makes one inspection, seldom."""
        if not process.ledger.version or self.random.random() < 0.6:
            return
        asked = self._verify if self.random.random() < 0.15 else self.random.choice((self._debts, self._rehearse))
        process.network.counts["inspections"] += 1
        process.read(lambda: asked(process))

    def _debts(self, process: Process) -> None:
        debts = process.db.stats(exact=self.random.random() < 0.5)
        for name, rows in process.ledger.states[debts.version].items():
            live = debts.tables[name].live_rows  # unresolved tombstones may hide some of them
            if live < len(rows.rows):
                raise ViolationError(
                    Never.LOST, f"version {debts.version} tells of {live} rows in {name!r}, not {len(rows.rows)}"
                )

    def _rehearse(self, process: Process) -> None:
        """Rehearses background work. The ledger takes a commit by a reader for a violation."""
        rehearsals: list[Callable[[], Any]] = [
            lambda: process.db.gc(dry_run=True, full=self.random.random() < 0.5),
            lambda: process.db.compact(dry_run=True),
            process.db.settings,
        ]
        self.random.choice(rehearsals)()

    def _verify(self, process: Process) -> None:
        deep, every = self.random.random() < 0.3, self.random.random() < 0.3
        report = process.db.verify(deep=deep, all_versions=every)
        process.network.counts["databases verified among others"] += 1
        if report.errors:
            raise ViolationError(Never.UNREADABLE, f"verify: {'; '.join(map(str, report.errors[:3]))}")
