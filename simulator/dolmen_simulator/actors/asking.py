"""An actor that queries: conditions, projections, limits, orders, counts, and now and then SQL."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.predicate.parse import Where
from dolmen.store.memory import MemoryStore
from dolmen_simulator.actors.aftermath import runtime_without_faults
from dolmen_simulator.actors.readers import Reader
from dolmen_simulator.judge.effects import SHAPES
from dolmen_simulator.judge.model import SCHEMA, Matches, Row, struct_of
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable
from dolmen_simulator.world.process import Process

_SQL = 0.04
"""Share of queries in SQL, which is small because starting DuckDB takes as long as twenty other queries."""


class Asker(Reader):
    """Queries a version, and checks the answer."""

    def turn(self, process: Process) -> None:
        """Makes one query."""
        if not process.ledger.version or self.random.random() < 0.3:
            return
        version = self._version(process)
        tables = sorted(process.ledger.states[version])
        if not tables:
            return
        name = self.random.choice(tables)
        kind = self.random.random()
        process.network.counts["questions"] += 1
        if kind < _SQL:
            process.network.counts["questions in SQL"] += 1
            self._sql(process, max(version, process.ledger.retention.horizon, 1), name)
        else:
            process.read(lambda: self._ask(process, version, name), version)

    def _ask(self, process: Process, version: int, name: str) -> None:
        table = process.db.at(version=version).table(name)
        there = process.ledger.visible_state(version, process.db.version)[name]
        where, matches = self._where()
        columns = self.random.choice((None, ["v", "u"], ["u"], ["t", "k", "u"], ["s", "u"]))
        limit = self.random.choice((None, None, None, 1, 7))
        order_by = self.random.choice((None, None, "u", "-u"))
        scan = table.scan(columns, where, limit, order_by=order_by)
        query = f"version {version} of {name!r} where {where}, {columns}, at most {limit}, by {order_by},"
        types = [pa.int64() if field.name in there.widened else field.type for field in SHAPES[there.shape].schema]
        if [table.schema.field(own).type for own in Row._fields] != types[: len(Row._fields)]:
            raise ViolationError(Never.UNREADABLE, f"{query} is stored as {table.schema}")
        if self.random.random() < 0.2:
            scan.explain()
        data = scan.to_arrow()
        if data.column_names != (columns or [column.name for column in there.columns]):
            raise ViolationError(Never.UNREADABLE, f"{query} has columns {data.column_names}")
        expected = {row.u: row for row in there.rows if matches(row)}
        found = data["u"].to_pylist()
        size = len(expected) if limit is None else min(limit, len(expected))
        if len(found) != size or len(set(found)) < size or not expected.keys() >= set(found):
            missing = sorted(expected.keys() - set(found)) if limit is None else "some"
            never = Never.REVIVED if set(found) - expected.keys() else Never.LOST
            raise ViolationError(never, f"{query} shows {sorted(found)}; {missing} of {len(expected)} are missing")
        if order_by and found != sorted(expected, reverse=order_by.startswith("-"))[:size]:
            raise ViolationError(Never.LOST, f"{query} is in no such order: {found}")
        for column in (own for own in data.column_names if own in SCHEMA.names):
            values = [getattr(expected[u], column) for u in found]
            plain = data[column].cast("int64").to_pylist() if column in Row._fields else data[column].to_pylist()
            cells = [struct_of(cell) for cell in plain] if column == "s" else plain
            if cells != values:
                raise ViolationError(Never.HALF, f"{query} shows {column} as {cells}, not {values}")
        if limit is None and scan.count() != len(expected):
            raise ViolationError(Never.LOST, f"{query} counts {scan.count()} rows, not {len(expected)}")

    def _where(self) -> tuple[Where, Matches]:
        if self.random.random() < 0.3:
            return None, lambda row: True
        if self.random.random() < 0.2:
            low = self.random.randrange(100)
            return f"v IS NOT NULL AND NOT (v <> {low} AND v <> {low + 1})", lambda row: row.v in (low, low + 1)
        return self.predicate()

    def _sql(self, process: Process, version: int, name: str) -> None:
        """Queries a kept version in SQL, without faults, because DuckDB reads in its own threads."""
        network, state = process.network, process.ledger.visible_state(version, process.ledger.version)
        if name not in state:
            return
        runtime = runtime_without_faults(network, self.random)
        other, low = self.random.choice(sorted(state)), self.random.randrange(100)
        query = 'SELECT a.k, count(*) FROM "{}" a JOIN "{}" b ON a.k = b.k WHERE a.v >= {} GROUP BY a.k'
        with raising_unreadable(f"SQL over {name!r} and {other!r} in version {version}"):
            snapshot = Database(MemoryStore(network.bucket, runtime), runtime).at(version=version)
            found: dict[int, int] = dict(snapshot.sql(query.format(name, other, low)).fetchall())
        keys, expected = Counter(row.k for row in state[other].rows), Counter[int]()
        for row in state[name].rows:
            if row.v is not None and row.v >= low and keys[row.k]:
                expected[row.k] += keys[row.k]
        if found != expected:
            raise ViolationError(Never.HALF, f"SQL over {name!r} and {other!r} in version {version}: {found}")
