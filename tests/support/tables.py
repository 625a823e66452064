"""Tables of many small files and row groups, written by the production writer with smaller sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dolmen import Database
from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context, Head
from dolmen.commit.statements.row_changes import Write
from dolmen.format.entries import DataFile
from dolmen.format.layout import data_key
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.predicate.ast import Predicate
from dolmen.predicate.parse import parse
from dolmen.rows.scan.plan import View
from dolmen.rows.scan.scan import Scan
from dolmen.rows.write.conform import conform
from dolmen.rows.write.runs import DEFAULT, WritePlan, make_run, write_object
from dolmen.store.base import ObjectStore
from dolmen.store.cache import ObjectCache
from dolmen.store.memory import MemoryStore
from dolmen.transactions.transaction import unit_of
from dolmen_simulator.counting import CountingStore


class World:
    """A database in memory that counts requests.

    Args:
        store: another store to use.
    """

    def __init__(self, store: ObjectStore | None = None, runtime: Runtime | None = None) -> None:
        self.runtime = runtime or Runtime()
        self.store = store or CountingStore(MemoryStore(runtime=self.runtime))
        self.db = Database(self.store, self.runtime)

    def create(
        self, data: pa.Table, name: str = "t", *, group_rows: int = 10, files: int = 1, key: Sequence[str] = ()
    ) -> None:
        """Creates a table with ``data`` in files of small row groups."""
        self.db.create_table(name, data.schema, primary_key=list(key) or None)
        step = -(-data.num_rows // files)
        for start in range(0, data.num_rows, max(1, step)):
            self.append(data.slice(start, step), name, group_rows=group_rows)

    def append(self, data: pa.Table, name: str = "t", *, group_rows: int = 10) -> None:
        """Appends one file, in a commit of its own."""
        with self.db.transaction() as tx:
            entry = unit_of(tx).entry(name)
            unit_of(tx).begin_upload()
            file = write_file(self.store, name, entry, data, group_rows)
            unit_of(tx).add(Write(name, entry.uuid, files=(file,)))

    @property
    def manifest(self) -> Manifest:
        """The newest version's manifest."""
        return self.db._context.head.refresh().manifest

    def entry(self, name: str = "t") -> TableEntry:
        """The table in the newest version."""
        return self.manifest.table(name)

    def view(self, manifest: Manifest | None = None, name: str = "t", cache: ObjectCache | None = None) -> View:
        """A table in the newest version, or in another one, with an empty cache unless one is given."""
        return view(self.store, self.runtime, cache or ObjectCache(), manifest or self.manifest, name)

    def predicate(self, text: str, name: str = "t") -> Predicate:
        """Parses and binds a predicate."""
        return parse(text, self.entry(name).schema, now_us=0)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        *,
        manifest: Manifest | None = None,
        name: str = "t",
        cache: ObjectCache | None = None,
        order_by: str | Sequence[str] | None = None,
        with_commit_ts: bool = False,
    ) -> Scan:
        """Makes a scan, by default with an empty cache."""
        return Scan(
            self.view(manifest, name, cache),
            columns=columns,
            where=None if where is None else self.predicate(where, name),
            limit=limit,
            order_by=order_by,
            with_commit_ts=with_commit_ts,
        )

    def rows(self, where: str | None = None, name: str = "t") -> list[dict[str, object]]:
        """All rows of the newest version."""
        found: list[dict[str, object]] = self.scan(where=where, name=name).to_arrow().to_pylist()
        return found


def view(store: ObjectStore, runtime: Runtime, cache: ObjectCache, manifest: Manifest, name: str = "t") -> View:
    """Makes a view of a table in a version, with this cache."""
    return View(Context(store, runtime, Head(store, runtime, cache=cache)), manifest, name)


def write_file(store: ObjectStore, name: str, entry: TableEntry, data: pa.Table, group_rows: int) -> DataFile:
    """Writes one data file with row groups of at most so many rows; returns its entry, not stamped."""
    (*batches,) = conform(data.to_reader(), entry.schema)
    columns = pa.Table.from_batches(batches, entry.schema.arrow).columns
    run = make_run(list(columns), entry)
    plan = replace(WritePlan.of(run, DEFAULT), group_rows=group_rows)
    key = data_key(name, store.clock.now_us, Runtime().uuid())
    return write_object(store.open_output(key), key, entry, plan, run)
