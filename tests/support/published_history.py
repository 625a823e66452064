"""Random histories of a table that is published as Iceberg again and again, read by real readers of Iceberg.

``python -m support.published_history --histories 2000 --seed 7`` runs many. A difference is raised with the number of
its history, which alone repeats it (``--first NUMBER --histories 1``).
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import dolmen
from dolmen.errors import SchemaError
from dolmen.format.column_terms import check_partition_columns, parse_partition_by
from dolmen.format.schema import Schema
from dolmen.iceberg.publication import IcebergPublication
from support import spark_iceberg
from support.iceberg_readers import READERS, Condition, IcebergReaders, sql
from support.random_tables import TYPES, random_column
from support.spark import SparkProcess
from support.spark_jars import find_jars

STEPS = 12
KEYS = 15
PREDICATES = 20
DEEP: dict[str, pa.DataType] = {
    "deep": pa.struct([("x", pa.int32()), ("y", pa.string()), ("f", pa.float32())]),
    "rooms": pa.struct([("inner", pa.struct([("x", pa.int16())])), ("many", pa.list_(pa.int8()))]),
    "words": pa.list_(pa.string()),
    "counts": pa.map_(pa.string(), pa.int32()),
}
"""Nested columns beside those of ``TYPES``. Lists of structs are left out: pyiceberg takes a NULL one for empty."""

WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.uint8(): (pa.uint16(), pa.uint64()),
    pa.float32(): (pa.float64(),),
    pa.decimal128(9, 2): (pa.decimal128(12, 2), pa.decimal128(30, 2)),
    pa.decimal128(18, 4): (pa.decimal128(20, 4),),
    pa.date32(): (pa.timestamp("us"),),
}
LATE: tuple[tuple[pa.DataType, tuple[Any, ...]], ...] = (
    (pa.int32(), (None, None, 7)),
    (pa.int64(), (None, -3)),
    (pa.string(), (None, "", "ab")),
    (pa.float64(), (None, -0.0, 1.5)),
    (pa.bool_(), (None, True)),
    (pa.decimal128(9, 2), (None, Decimal("1.25"))),
    (DEEP["deep"], (None,)),
)
"""Types of columns that are added, with their defaults."""

CHANGES = ("append", "append", "upsert", "delete", "delete_keys", "positions", "overwrite", "update", "erase")
TRANSFORMS = ("identity", "bucket[3]", "truncate[2]", "year", "month", "day", "hour")
UPKEEP = ("resolve", "compact", "merge", "restore", "alter", "alter", "alter_deep", "alter_deep")
NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())


def draw_column(rng: random.Random, arrow_type: pa.DataType, count: int) -> pa.Array:
    """A column of any type of a history."""
    kind = next((kind for kind, (known, _) in TYPES.items() if known == arrow_type), None)
    if kind is not None and not pa.types.is_nested(arrow_type):
        return random_column(rng, kind, count)
    return pa.array([draw_value(rng, arrow_type) for _ in range(count)], arrow_type)


def _without_negative_zero(rows: pa.Table) -> pa.Table:
    """The rows with 0.0 for -0.0 in columns that were added: their default is published so."""
    for index, field in enumerate(rows.schema):
        if field.name.startswith("late") and pa.types.is_floating(field.type):
            rows = rows.set_column(index, field, pc.add(rows.column(index), pa.scalar(0.0, field.type)))
    return rows


def draw_value(rng: random.Random, arrow_type: pa.DataType) -> Any:
    """A value of a type that ``random_column`` does not draw, often NULL."""
    t = pa.types
    if rng.random() < 0.2:
        return None
    if t.is_struct(arrow_type):
        return {field.name: draw_value(rng, field.type) for field in arrow_type}
    if t.is_map(arrow_type):
        return [(key, draw_value(rng, arrow_type.item_type)) for key in rng.sample("abc", rng.randint(0, 2))]
    if t.is_list(arrow_type):
        return [draw_value(rng, arrow_type.value_type) for _ in range(rng.randint(0, 3))]
    if t.is_decimal(arrow_type):
        return Decimal(rng.randint(-400, 400)).scaleb(-arrow_type.scale)
    if t.is_floating(arrow_type):
        return rng.choice([0.0, -0.0, 0.5, float("nan")])
    return rng.randint(-3, 3) if t.is_integer(arrow_type) else rng.choice(["", "a", "ä"])


class PublishedHistory:
    """A table that anything may happen to.

    Columns that are added are called ``late...``: pyiceberg takes NULL, where a file lacks a column, for unequal to
    each value.

    Args:
        url: of its database, which readers must find.
        partitioned: whether it always has partitions, which change often.
    """

    def __init__(self, rng: random.Random, url: str, *, partitioned: bool = False) -> None:
        self.rng, self.db, self.numbers = rng, dolmen.open(url), iter(range(10**6))
        self.partitioned = partitioned
        if rng.random() < 0.6:
            self.db.set(root_bytes="4KB")  # entries leave the manifest early
        kinds = rng.sample(list(TYPES), rng.randint(2, 5))
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())]
        fields += [pa.field(f"c{place}", TYPES[kind][0]) for place, kind in enumerate(kinds)]
        fields += [pa.field(name, DEEP[name]) for name in rng.sample(list(DEEP), rng.randint(0, 2))]
        self.table = self.db.create_table("t", pa.schema(fields), primary_key="id")
        self.table.set(iceberg=rng.choice(["v2", "v3"]), iceberg_snapshots=rng.choice(["newest", "kept"]))
        self.created = self.db.refresh()
        self.log: list[str] = []
        if partitioned or rng.random() < 0.3:
            self.partition()

    # ---- what happens to it

    def step(self) -> None:
        """Makes one change, or one step of upkeep."""
        what = self.rng.choice([*CHANGES, *CHANGES, *UPKEEP, *["partition"] * (4 if self.partitioned else 1)])
        self.log.append(what)
        getattr(self.db if what in ("resolve", "compact", "merge") else self, what)()
        self.log[-1] += f" -> {self.db.refresh()}"

    def rows(self) -> pa.Table:
        """Some rows, often without some of the columns."""
        rng, count = self.rng, self.rng.randint(1, 12)
        given = [field for field in self.table.schema if field.name == "id" or rng.random() < 0.9]
        columns = {field.name: draw_column(rng, field.type, count) for field in given}
        columns["id"] = pa.array([rng.randrange(KEYS) for _ in range(count)], pa.int64())
        if "n" in columns:
            columns["n"] = pa.array([rng.choice([None, 0, 1, 2]) for _ in range(count)], pa.int64())
        return pa.table(columns)

    def append(self) -> None:
        self.table.append(self.rows())

    def upsert(self) -> None:
        self.table.upsert(self.rows())

    def overwrite(self) -> None:
        self.table.overwrite(self.rows())

    def delete(self) -> None:
        rng = self.rng
        self.table.delete(rng.choice([f"id < {rng.randrange(6)}", f"n = {rng.randrange(3)}", "n IS NULL AND id > 7"]))

    def delete_keys(self) -> None:
        self.table.delete(keys=self.rng.sample(range(KEYS), self.rng.randint(1, 6)))

    def positions(self) -> None:
        self.table.delete(f"id = {self.rng.randrange(KEYS)} OR n = {self.rng.randrange(3)}", mode="positions")

    def update(self) -> None:
        self.table.update({"n": self.rng.choice([None, 0, 5])}, f"id % 4 = {self.rng.randrange(4)}")

    def erase(self) -> None:
        self.table.erase(f"id = {self.rng.randrange(KEYS)}")

    def restore(self) -> None:
        self.table.restore(self.rng.randint(self.created, self.db.refresh()))

    def partition(self) -> None:
        """Sets other partitions, or none, by columns that can have them."""
        rng = self.rng
        terms = [f"{rng.choice(TRANSFORMS)}({field.name})" for field in self.table.schema for _ in range(3)]
        schema = Schema.from_arrow(self.table.schema)
        wanted = [term for term in terms if can_partition(term, schema)]
        chosen = {term.rpartition("(")[2]: term for term in rng.sample(wanted, min(len(wanted), rng.randint(1, 2)))}
        is_none = not self.partitioned and rng.random() < 0.2
        self.table.set(partition_by=None if is_none else ", ".join(chosen.values()) or None)
        self.log[-1:] = [f"{each} {self.table.settings()['partition_by']}" for each in self.log[-1:]]

    def alter(self) -> None:
        """Changes columns: adds, renames, drops, widens or reorders them, or sets a default."""
        rng, table = self.rng, self.table
        others = [field for field in table.schema if field.name not in ("id", "n")]
        field = rng.choice(others) if others else None
        chance = rng.random()
        if field is None or chance < 0.25:
            arrow_type, defaults = rng.choice(LATE)
            table.add_column(self._name("late"), arrow_type, rng.choice(defaults))
        elif chance < 0.6 and field.type in WIDER:
            wider = rng.choice(WIDER[field.type])
            try:
                table.widen_column(field.name, wider)
            except SchemaError:  # there is no such transform of it
                assert pa.types.is_uint64(wider), self.log
                assert re.search(rf"\w\[\d+\]\({field.name}\)", str(table.settings()["partition_by"])), self.log
        elif chance < 0.75:
            table.rename_column(field.name, self._name(field.name.rpartition("_")[0] or field.name))
        elif chance < 0.85 and field.name not in str(table.settings()["partition_by"]):
            table.drop_column(field.name)
        elif chance < 0.93:
            table.reorder([each.name for each in rng.sample(list(table.schema), len(table.schema))])
        elif pa.types.is_integer(field.type):
            table.set_default(field.name, rng.choice([None, 3]))

    def alter_deep(self) -> None:
        """Changes a field inside of a column."""
        rng = self.rng
        paths = [path for field in self.table.schema for path in inner_paths(field.name, field.type)]
        if not paths:
            return
        path, arrow_type, in_struct = rng.choice(paths)
        chance = rng.random()
        if pa.types.is_struct(arrow_type) and chance < 0.6:
            self.table.add_column(f"{path}.{self._name('late')}", rng.choice([pa.int32(), pa.string(), pa.float32()]))
        elif arrow_type in WIDER and "." in path and chance < 0.7:
            self.table.widen_column(path, rng.choice(WIDER[arrow_type]))
        elif in_struct > 1 and chance < 0.4:
            self.table.drop_column(path)
        elif in_struct:
            self.table.rename_column(path, self._name("inner"))

    def _name(self, stem: str) -> str:
        return f"{stem}_{next(self.numbers)}"

    # ---- what readers see of it

    def condition(self, columns: Sequence[pa.Field], depth: int = 1) -> Condition:
        """A random condition on flat columns."""
        rng = self.rng
        if depth and rng.random() < 0.4:
            return [
                rng.choice(["and", "or"]),
                self.condition(columns, depth - 1),
                self.condition(columns, depth - 1),
            ]
        field = rng.choice(columns)
        if field.type not in (*NUMBERS, pa.string(), pa.date32()) or rng.random() < 0.15:
            return [field.name, rng.choice(["null", "present"])]
        literal: Any = rng.choice(["", "a", "ab", "b", "z"])
        if pa.types.is_date(field.type):
            literal = {"date": rng.choice(["1969-12-31", "1970-01-01", "2024-01-01", "1148-08-16"])}
        elif pa.types.is_integer(field.type):
            literal = rng.randint(-4, 12)
        elif pa.types.is_floating(field.type):
            literal = rng.choice([-1.5, 0.0, 0.25, 1.0, 2.0])
        return [field.name, rng.choice(["=", "<>", "<", "<=", ">", ">="]), literal]

    def columns_for_spark(self, found: IcebergPublication) -> list[pa.Field]:
        """The published columns; no nested ones beside unsigned ones and times, as Spark's reader of these refuses
        files that have such columns, even if nobody asks for them."""
        published = [field for field in self.table.schema if field.name not in (found.left_out or {})]
        first = str(self.db.at(self.created).table("t").schema)
        if "uint" not in first and "time64" not in first:
            return published
        return [field for field in published if not pa.types.is_nested(field.type)]

    def check(
        self, readers: IcebergReaders, found: IcebergPublication, predicates: int, spark: SparkProcess | None = None
    ) -> int:
        """Compares all readers with dolmen at the published version: all rows, and those of random conditions. Each
        reader is asked once for all conditions. Returns the number of comparisons."""
        pinned = self.db.at(found.version).table("t")
        schema = [field for field in pinned.schema if field.name not in (found.left_out or {})]
        names = [field.name for field in schema]
        flat = [field for field in schema if not pa.types.is_nested(field.type)]
        floats = {field.name for field in flat if pa.types.is_floating(field.type)}
        conditions = [None, *(self.condition(flat) for _ in range(predicates))]
        texts = [None if each is None else sql(each) for each in conditions]
        folder = found.metadata_location.rpartition("/metadata/")[0]
        names_for_spark = [field.name for field in self.columns_for_spark(found)]
        seen_by_spark = spark and spark.begin(spark_iceberg.read_each, folder, names_for_spark, texts, found.version)
        scans = [_without_negative_zero(pinned.scan(names, where=text).to_arrow()) for text in texts]
        checks = 0

        def compare(reader: str, seen: pa.Table, names: list[str], numbers: Sequence[int]) -> None:
            nonlocal checks
            assert seen.column_names == [*names, "_condition"], (reader, self.log)
            rows = counted(_without_negative_zero(seen), seen.column_names)
            for place, number in enumerate(numbers):
                expected = Counter({(*row, place): count for row, count in counted(scans[number], names).items()})
                assert Counter({row: count for row, count in rows.items() if row[-1] == place}) == expected, (
                    f"{reader} at version {found.version}, where {conditions[number]}, after {self.log}"
                )
                checks += reader != "SQL"

        every = range(len(conditions))
        branches = (
            f"SELECT {', '.join(names)}, {number} AS _condition FROM t AT (VERSION => {found.version})"
            f" WHERE {text or 'TRUE'}"
            for number, text in enumerate(texts)
        )
        compare("SQL", self.db.sql(" UNION ALL ".join(branches)).to_arrow(), names, every)
        for reader in READERS:
            asked = [
                number
                for number, where in enumerate(conditions)
                if reader != "pyiceberg" or where is None or not pyiceberg_differs(where, floats)
            ]
            seen = readers.read_each(reader, found.metadata_location, [conditions[number] for number in asked])
            compare(reader, seen, names, asked)
        if seen_by_spark is not None:
            compare("Spark", seen_by_spark(), names_for_spark, every)
        return checks

    def run(
        self,
        readers: IcebergReaders,
        *,
        predicates: int = PREDICATES,
        steps: int = STEPS,
        readings: int | None = None,
        spark: SparkProcess | None = None,
    ) -> Counter[str]:
        """Runs it to its end; publishes after half of the steps, and compares. Returns counts.

        Args:
            predicates: the number of conditions for each version that is read.
            readings: the number of versions that are read, one of them the last; None for each that is published.
            spark: reads them, too.
        """
        counts: Counter[str] = Counter(histories=1)
        read = range(steps) if readings is None else {*self.rng.sample(range(steps - 1), readings - 1), steps - 1}
        for step in range(steps):
            self.step()
            if self.rng.random() < 0.5 and (readings is None or step not in read):
                continue
            found = self.table.publish_iceberg()
            counts["versions"] += 1
            if step in read:
                counts["readings"] += 1
                counts["conditions"] += predicates
                counts["comparisons"] += self.check(readers, found, predicates, spark)
            assert found.snapshots == 1 or self.table.settings()["iceberg_snapshots"] == "kept"
        assert not self.db.verify().findings, self.log
        return counts


def can_partition(term: str, schema: Schema) -> bool:
    """Whether a table can be partitioned by a term."""
    try:
        check_partition_columns(parse_partition_by(term), schema)
    except SchemaError:
        return False
    return True


def inner_paths(path: str, arrow_type: pa.DataType, in_struct: int = 0) -> list[tuple[str, pa.DataType, int]]:
    """The paths of a nested column and of all fields in it, with their types, and the number of fields of the struct
    that each is in; 0 for those in none."""
    t = pa.types
    if t.is_struct(arrow_type):
        found = [(path, arrow_type, in_struct)]
        for field in arrow_type:
            found += inner_paths(f"{path}.{field.name}", field.type, arrow_type.num_fields)
        return found
    if t.is_map(arrow_type):
        return [(path, arrow_type, in_struct), *inner_paths(f"{path}.value", arrow_type.item_type)]
    if t.is_list(arrow_type):
        return [(path, arrow_type, in_struct), *inner_paths(f"{path}.element", arrow_type.value_type)]
    return [(path, arrow_type, in_struct)] if "." in path else []


def pyiceberg_differs(condition: Condition, floats: set[str]) -> bool:
    """pyiceberg takes NaN for neither less nor greater than a number, and NULL, where a file lacks the column, for
    unequal to each."""
    if condition[0] in ("and", "or"):
        return any(pyiceberg_differs(part, floats) for part in condition[1:])
    column, op, *_ = condition
    return op not in ("null", "present") and (column in floats or column.startswith("late"))


def canonical(column: pa.ChunkedArray) -> list[Any]:
    """Values that are equal only if they have the same bits, whatever the reader's types are."""
    arrow_type = column.type
    if pa.types.is_timestamp(arrow_type):
        return column.cast(pa.timestamp("us", arrow_type.tz)).cast(pa.int64()).to_pylist()
    if pa.types.is_date32(arrow_type):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_floating(arrow_type):
        return [None if value is None else struct.pack("<d", value) for value in column.cast(pa.float64()).to_pylist()]
    if pa.types.is_nested(arrow_type):
        return [repr(plain(value)) for value in column.to_pylist()]
    return column.to_pylist()


def plain(value: Any) -> Any:
    """A nested value without its field names, as Polars has a list of structs for a map."""
    if isinstance(value, dict):
        return tuple(map(plain, value.values()))
    return [plain(each) for each in value] if isinstance(value, list) else (
        tuple(map(plain, value)) if isinstance(value, tuple) else value
    )  # fmt: skip


def counted(table: pa.Table, names: list[str]) -> Counter[Any]:
    columns = [canonical(table[name]) for name in names]
    return Counter(zip(*columns, strict=True)) if columns else Counter()


def run_history(
    seed: str, readers: IcebergReaders, predicates: int, *, partitioned: bool = False, **how: Any
) -> Counter[str]:
    """Runs the history of a seed in a directory of its own; ``how`` as ``PublishedHistory.run`` takes it."""
    with tempfile.TemporaryDirectory() as folder:
        history = PublishedHistory(random.Random(seed), f"{folder}/db", partitioned=partitioned)
        return history.run(readers, predicates=predicates, **how)


@contextmanager
def spark_with_iceberg(scratch: Path) -> Iterator[SparkProcess]:
    """Spark with Iceberg's runtime, in a process of its own, which compiles little of what it runs once."""
    class_path, missing = find_jars("iceberg")
    assert class_path is not None, missing
    with SparkProcess.start(
        scratch,
        {},
        "local[1]",
        spark__driver__extraClassPath=class_path,
        spark__driver__extraJavaOptions=f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={scratch}",
        spark__sql__session__timeZone="UTC",
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
        spark__sql__adaptive__enabled="false",
    ) as process:
        yield process


def main(arguments: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--predicates", type=int, default=PREDICATES, help="for each version that is read")
    parser.add_argument("--readings", type=int, help="versions of each history that are read; else all published ones")
    parser.add_argument("--partitioned", action="store_true")
    parser.add_argument("--spark", action="store_true", help="Spark reads them, too")
    given = parser.parse_args(arguments)
    until, counts = clock() + given.seconds, Counter[str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        readers = IcebergReaders(folder)
        stack.callback(readers.close)
        spark = stack.enter_context(spark_with_iceberg(folder)) if given.spark else None
        for number in range(given.first, given.first + given.histories):
            if clock() > until:
                break
            try:
                seed, how = f"{given.seed} {number}", {"readings": given.readings, "spark": spark}
                counts += run_history(seed, readers, given.predicates, partitioned=given.partitioned, **how)
            except BaseException:
                print(f"history {number} of seed {given.seed}", flush=True)
                raise
            if counts["histories"] % 20 == 0:
                print(dict(counts), flush=True)
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{dict(counts)}, {used:.0f} s of CPU: no difference", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
