"""Tables with rows of many types that were deleted in all ways, and rows compared between engines."""

from __future__ import annotations

import random

import pyarrow as pa
from pyspark.sql import DataFrame

import dolmen
from dolmen.errors import PredicateError
from support.random_predicates import random_predicate
from support.random_tables import random_table

ROWS = 80


def rows_of(frame: DataFrame, schema: pa.Schema) -> list[str]:
    """The rows as text, sorted: NaN equals itself so, and -0.0 is not 0.0."""
    return sorted_rows(frame.toArrow().cast(schema))


def sorted_rows(table: pa.Table) -> list[str]:
    for place, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):  # Python's own end at the year 9999
            raw = pa.int32() if field.type.bit_width == 32 else pa.int64()
            table = table.set_column(place, field.name, table.column(place).cast(raw))
    return sorted(repr(tuple(row.values())) for row in table.to_pylist())


class History:
    """A table with rows of many types, deleted from in all ways, at different stages of upkeep."""

    def __init__(self, seed: int, url: str) -> None:
        self.rng = random.Random(seed)
        self.db = dolmen.open(url)
        self.pool = random_table(self.rng, ROWS)
        schema = self.pool.schema.insert(0, pa.field("rid", pa.int64(), nullable=False))
        self.table = self.db.create_table("t", schema, primary_key="rid")
        self.next_rid = 0

    def grow(self) -> None:
        self.append()
        for _ in range(self.rng.randint(3, 8)):
            step = self.rng.choice([self.append, self.append, self.delete, self.delete, self.delete_keys, self.upsert])
            step()
        if self.rng.random() < 0.3:
            self.db.resolve()
            self.append()
            self.delete()
        if self.rng.random() < 0.3:
            self.db.compact()
            self.delete_keys()

    def append(self) -> None:
        count = self.rng.randint(5, 40)
        self.table.append(self.rows(list(range(self.next_rid, self.next_rid + count))))
        self.next_rid += count

    def upsert(self) -> None:
        self.table.upsert(self.rows(self.rng.sample(range(self.next_rid), 3)))

    def delete(self) -> None:
        self.table.delete(self.predicate(), mode=self.rng.choice(["tombstone", "tombstone", "positions"]))

    def delete_keys(self) -> None:
        self.table.delete(keys=self.rng.sample(range(self.next_rid), 3))

    def rows(self, rids: list[int]) -> pa.Table:
        taken = self.pool.take(pa.array([self.rng.randrange(ROWS) for _ in rids], pa.int64()))
        return taken.add_column(0, "rid", pa.array(rids, pa.int64()))

    def predicate(self) -> str:
        while True:
            predicate = random_predicate(self.rng, self.pool)
            try:
                self.table.scan(["rid"], predicate).to_arrow()
            except PredicateError:
                continue
            return predicate

    @property
    def columns(self) -> list[str]:
        """Those that Spark has types for."""
        return [field.name for field in self.table.schema if not pa.types.is_time(field.type)]
