"""Actors that do background work with ``dolmen.maintenance``, load large amounts, overwrite, and change settings.

Background work changes no row, except for expiry, and may not hinder others. The ledger checks its commits, and audits
read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dolmen.base.runtime import never
from dolmen.base.units import GIB, MIB
from dolmen.commit.statements.row_changes import Write
from dolmen.errors import TableNotFoundError
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.maintenance.ttl import expire_rows
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.runs import WriteOptions
from dolmen.transactions import row_arguments
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.actors.writers import NAMES, TABLES, Actor, arrow
from dolmen_simulator.judge import model
from dolmen_simulator.judge.model import OperationRun, Row
from dolmen_simulator.world.network import MINUTE_US
from dolmen_simulator.world.process import Process

_ONE_FILE = WriteOptions(file_bytes=1, run_rows=24)


class Upkeep(Actor):
    """Base of actors that do background work."""

    def deadline(self) -> Callable[[], bool]:
        """Draws a deadline: often none, otherwise one that is over after a few checks."""
        if self.random.random() < 0.6:
            return never
        left = [self.random.randint(0, 4)]

        def over() -> bool:
            left[0] -= 1
            return left[0] < 0

        return over


class Resolver(Upkeep):
    """Resolves tombstones."""

    def turn(self, process: Process) -> None:
        """Handles one table."""
        name = self.target(process, NAMES)
        if name is None:
            return
        budget = 1 if self.random.random() < 0.2 else GIB
        process.upkeep(
            "resolve",
            lambda: resolve(process.context, name, deadline=self.deadline(), budget_bytes=budget),
            (name,),
        )


SPLICING: dict[str, Any] = {"run_bytes": 500, "row_group_bytes": 1, "splice_bytes": 1}
"""Options by which small files have several row groups, and each is worth to be copied."""


class Compactor(Upkeep):
    """Compacts tables."""

    def turn(self, process: Process) -> None:
        """Handles one table."""
        name = self.target(process, NAMES)
        if name is None:
            return
        options = CompactionOptions(
            target_file_bytes=self.random.choice((None, 6_000, MIB)),
            growth=self.random.choice((2, 2, 4)),
            group_bytes=self.random.choice((6_000, MIB)),
            deleted_share=self.random.choice((0.1, 0.5)),
            **SPLICING,
        )
        done = process.upkeep(
            "compact", lambda: compact(process.context, name, deadline=self.deadline(), options=options), (name,)
        )
        process.network.counts["groups dropped"] += done.dropped if done else 0
        process.network.counts["spliced compactions"] += bool(done and done.bytes_copied)


class Merger(Upkeep):
    """Merges segments."""

    def turn(self, process: Process) -> None:
        """Runs once."""
        process.upkeep("merge", lambda: merge_segments(process.context, deadline=self.deadline()))


class Collector(Upkeep):
    """Collects unneeded objects, now and then with a full listing."""

    restless = True

    def turn(self, process: Process) -> None:
        """Runs once."""
        if process.ledger.version:
            full = self.random.random() < 0.1
            process.upkeep("gc", lambda: collect(process.context, deadline=self.deadline(), full=full))


class Expirer(Upkeep):
    """Deletes rows that have outlived their table's time to live."""

    def turn(self, process: Process) -> None:
        """Runs once."""
        if process.ledger.version:
            process.upkeep("expire", lambda: expire_rows(process.context, deadline=self.deadline()), TABLES)


class Settler(Actor):
    """Sets properties: those of the history at its beginning, and later now and then others."""

    def turn(self, process: Process) -> None:
        """Makes one change, seldom."""
        settings = process.ledger.settings[-1]
        if not process.ledger.version:
            return
        if not settings:
            self.set_properties(process, "", dict(self.world.settings))
        elif self.random.random() < 0.04:
            name = self.random.choice(sorted(settings))
            self.set_properties(process, "", {name: self.random.choice(self.world.choices[name])})
        elif self.random.random() < 0.2:
            table = self.target(process)
            changes: dict[str, Any] = self.random.choice(
                (
                    {"ttl": "t 40m"},
                    {"ttl": "t 3h"},
                    {"ttl": None},
                    {"target_file_bytes": 4_096},
                    {"ingest_mode": self.random.choice(("upsert", None))},
                    {"ingest_on_bad_row": self.random.choice(("quarantine", None))},
                    {"ingest_new_columns": self.random.choice(("add", "add", "ignore", None))},
                )
            )
            if table is not None:
                self.set_properties(process, table, changes)

    @staticmethod
    def set_properties(process: Process, table: str, changes: dict[str, Any]) -> None:
        call = process.db.set if not table else lambda **settings: process.db.table(table).set(**settings)
        process.write(f"set {table} {changes}", [model.SettingsEffect(table, changes)], lambda: call(**changes))


class Partitioner(Actor):
    """Changes the partitions of tables, and how their files are compressed."""

    def turn(self, process: Process) -> None:
        """Makes one change, seldom."""
        table = self.target(process)
        if table is None or self.random.random() < 0.7:
            return
        terms = ("v", "bucket[3](k)", "truncate[20](v)", "hour(t)", "hour(t), bucket[2](k)", "k", None)
        files = self.random.choice((1, 2, 64, None))
        codec = self.random.choice(("zstd(3)", "gzip", "snappy", "lz4", "none", None))
        changes = {"partition_by": self.random.choice(terms), "partition_files": files, "compression": codec}
        try:
            is_sorted = bool(process.db.table(table).sort_key)
        except TableNotFoundError:
            return  # renamed in the meantime
        if not is_sorted:
            changes["cluster_by"] = self.random.choice(("v, k", "t", None))
        Settler.set_properties(process, table, changes)


class Overwriter(Actor):
    """Replaces all rows of a table, now and then."""

    def turn(self, process: Process) -> None:
        """Makes one overwrite."""
        name = self.target(process)
        if name is None or self.random.random() < 0.5:
            return
        rows, force = self.rows(), self.random.random() < 0.3

        def overwrite(transaction: Transaction, run: OperationRun) -> None:
            run.effects.append(model.OverwriteEffect(name, rows, force))
            transaction.table(name).overwrite(arrow(rows), force=force)

        def block() -> Commit:
            with process.db.transaction() as transaction:
                process.call_with_base(transaction, process.begin_run(), overwrite)
                return transaction.commit()

        process.write(f"overwrite {name}{' by force' if force else ''}", [], block, reads=True)


class Loader(Actor):
    """Loads many files in one append under an intent, with pauses in which the job may be taken for dead."""

    def turn(self, process: Process) -> None:
        """Makes one load."""
        name = self.target(process)
        if name is None or self.random.random() < 0.4:
            return
        rows = tuple(row for _ in range(self.random.randint(8, 16)) for row in self.rows())
        longest_us = self.random.choice((0, 0, MINUTE_US, 40 * MINUTE_US, 150 * MINUTE_US, 300 * MINUTE_US))
        process.write("load", [model.AppendEffect(name, rows)], lambda: self._load(process, name, rows, longest_us))

    def _load(self, process: Process, name: str, rows: tuple[Row, ...], longest_us: int) -> Commit:
        context, data = process.context, arrow(rows)
        pause = self.random.randrange(data.num_rows)

        def batches() -> Any:
            for first in range(0, data.num_rows, 24):
                yield from data.slice(first, 24).to_batches()
                if longest_us and first <= pause < first + 24:
                    process.network.scheduler.pause(self.random.randint(longest_us // 2, longest_us))

        with process.db.transaction("load") as transaction:
            unit = unit_of(transaction)
            entry = unit.entry(name)
            unit.begin_upload()
            intent = unit.intent()
            data = pa.Table.from_batches(row_arguments.rows_of(entry.schema, data))
            stream = pa.RecordBatchReader.from_batches(data.schema, batches())
            files = write_data_files(
                context.store, name, entry, stream, context.runtime, _ONE_FILE, name=intent.name, beat=intent.beat
            )
            unit.add(Write(name, entry.uuid, tuple(files), schema=entry.schema))
            process.network.counts["files loaded"] += len(files)
            return transaction.commit()
