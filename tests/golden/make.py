"""Makes the golden databases that are missing, and never another one: ``PYTHONPATH=tests python tests/golden/make.py``.

A database that is there was written by an older dolmen, and stays as it is. A new feature of the format gets a new one.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.store.memory import MemoryStore
from dolmen.transactions.merge.clauses import Expression
from support.aging import Place
from support.changes import Change, Feed, File
from support.golden import FOLDER, MOST_BYTES, names, pack, shown_by_dolmen, shown_by_second_reader, to_lines

Make = Callable[[Place], None]
CASES: dict[str, Make] = {}

ID = pa.field("id", pa.int64(), nullable=False)
FLOAT = 0.10000000149011612
"""The float next to 0.1."""


def case(make: Make) -> Make:
    """Registers a database under the name of its function."""
    CASES[make.__name__.replace("_", "-")] = make
    return make


def temporal(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Dates and times of all years, from the integers that are stored."""
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def put(place: Place, key: str, table: pa.Table, **options: Any) -> None:
    """A Parquet file of another program in the database's own folder."""
    body = io.BytesIO()
    pq.write_table(table, body, **options)
    MemoryStore(place.bucket).put(key, body.getvalue())


@case
def types(place: Place) -> None:
    """A column of each type, with NULL, NaN, -0.0, infinities and the ends of each range."""
    integers = {
        f"{sign}int{bits}": pa.array(
            [0 if sign else -(2 ** (bits - 1)), None, 1, 2 ** (bits - (not sign)) - 1],
            pa.type_for_alias(f"{sign}int{bits}"),
        )
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    }
    data = {
        "bool": pa.array([True, None, False, True]),
        **integers,
        "float": pa.array([math.nan, None, -0.0, math.inf], pa.float32()),
        "double": pa.array([-math.inf, None, 5e-324, math.nan], pa.float64()),
        "string": ["", None, "a\nb'\"\\", "🙂 e\u0301 " + "x" * 40],
        "binary": pa.array([b"", None, b"\x00\xff", b"\xff" * 40]),
        "fixed": pa.array([b"ab", None, b"\x00\x00", b"\xff\xff"], pa.binary(2)),
        "decimal": pa.array(
            [Decimal("0.0000000000"), None, Decimal("1e-10"), Decimal(10**28 - 1)], pa.decimal128(38, 10)
        ),
        "digits": pa.array([Decimal("0.07"), None, Decimal("-0.99"), Decimal("0.00")], pa.decimal128(2, 2)),
        "date": temporal([-300_000, None, 0, 3_000_000], pa.date32()),
        "time": temporal([0, None, 1, 86_399_999_999], pa.time64("us")),
        "naive": temporal([-(2**62), None, 0, 2**62], pa.timestamp("us")),
        "zoned": temporal([-1, None, 253_402_300_799_999_999, 2**62], pa.timestamp("us", "UTC")),
    }
    t = place.db.create_table("all_types", pa.table(data).schema)
    t.append(pa.table(data))
    names = ["My column", "a.b", "select", 'quo"te', "ünï", "日本", "_", "1st", " ", "x" * 100, "semi;colon", "a/b\\c"]
    odd = pa.table({name: pa.array([i, None], pa.int32()) for i, name in enumerate(names)})
    place.db.create_table("odd_names", odd.schema).append(odd)
    for name, value in (("string", "''"), ("float", "'nan'::FLOAT"), ("double", "1e-300"), ("fixed", "'\\xff\\xff'")):
        t.delete(f'"{name}" {"=" if name != "double" else ">"} {value}')
        t.append(pa.table(data))
    t.delete("int8 IS NULL AND zoned IS NULL")


@case
def nested(place: Place) -> None:
    """Lists, structs and maps, whose fields are added, dropped, renamed, widened and made nullable."""
    point = pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.float32()), ("tags", pa.list_(pa.string()))])
    schema = pa.schema(
        [ID, ("point", point), ("points", pa.list_(point)), ("named", pa.map_(pa.string(), pa.list_(pa.int16())))]
    )
    one, other = {"x": 1, "y": 0.5, "tags": ["a", None]}, {"x": 2, "y": None, "tags": None}
    t = place.db.create_table("t", schema, primary_key="id")
    rows = [
        {"id": 1, "point": one, "points": [one, None, other], "named": [("k", [1, None]), ("l", None)]},
        {"id": 2, "point": None, "points": None, "named": None},
        {"id": 3, "point": other, "points": [], "named": []},
    ]
    t.append(pa.Table.from_pylist(rows, schema))
    t.widen_column("point.x", pa.int64())
    t.widen_column("point.y", pa.float64())
    t.add_column("point.z", pa.string())
    t.rename_column("point.y", "why")
    t.append([{"id": 4, "point": {"x": 2**40, "why": 0.1, "tags": [], "z": "new"}, "points": None, "named": None}])
    t.drop_column("point.tags")
    t.make_nullable("point.x")
    t.delete("id = 2")
    t.append([{"id": 5, "point": {"x": None, "why": -0.0, "z": None}, "points": [other], "named": [("m", [])]}])
    t.delete("id = 3", mode="positions")
    place.db.compact()


@case
def predicates(place: Place) -> None:
    """A tombstone for each kind of predicate and each function, in the manifest and outside of it."""
    data = pa.table(
        {
            "n": pa.array([*range(-3, 5), None, 2**62], pa.int64()),
            "small": pa.array([*range(-3, 5), None, 127], pa.int8()),
            "f": pa.array([0.1, -0.0, math.nan, math.inf, 1.5, None, 16777216.0, 3.0, 2.5, 0.0], pa.float32()),
            "d": pa.array([0.1, -0.0, math.nan, -math.inf, 1.5, None, 16777217.0, 3.0, 2.5, 0.0]),
            "s": ["a", "A", "ab%", "b_", "", None, "ÄÖ", "line\nend", "ß", "a\\b"],
            "m": pa.array([Decimal(f"{i}.25") for i in range(9)] + [None], pa.decimal128(9, 2)),
            "b": [True, False, None, True, False, True, False, None, True, True],
            "day": temporal([0, -1, 20_454, 20_455, None, 3_000_000, -300_000, 1, 2, 3], pa.date32()),
            "at": temporal(
                [0, -1, 1_767_225_600_000_000, None, 1, 2, 3, 2**61, -(2**61), 86_400_000_000],
                pa.timestamp("us", "UTC"),
            ),
        }
    )
    t = place.db.create_table("t", data.schema)
    conditions = [
        "n = 2", "n <> 3 AND small < 0", "f = 0.1", "d >= 'nan'::DOUBLE", "n < f", "d IN (1.5, 'nan', NULL)",
        "s IN ('a', '')", "s NOT IN ('A', NULL) OR n = 1", "s LIKE 'a%'", "s LIKE '%!%' ESCAPE '!'", "s ILIKE 'ä_'",
        "s LIKE 'line%end'", "b", "NOT b AND day IS NOT NULL", "b IS NULL", "n + small * 2 > 10", "n - 0.5 = 1.5",
        "-n = 3", "n % 3 = -1", "f * 2 = 3", "d / 0 = 'inf'::DOUBLE", "n / 2 = 1.5", "m * m > 20.5", "m - 0.75 = 0.5",
        "lower(s) = 'äö'", "upper(s) = 'LINE\nEND'", "upper(s) = 'ẞ'", "CAST(n AS DOUBLE) = 4", "n::VARCHAR = '-2'",
        "TRY_CAST(n AS TINYINT) IS NULL", "TRY_CAST(n AS DECIMAL(3, 1)) = 4.0", "CAST(b AS VARCHAR) = 'true'",
        "CAST(at AS DATE) = DATE '2026-01-01'", "year(day) < 1000", "month(at) = 12", "day(day) = 4", "hour(at) = 23",
        "minute(at) = 59", "day > DATE '9000-01-01'", "at < TIMESTAMPTZ '1800-01-01 00:00:00+00'", "f > 16777215.5",
        " OR ".join(f"s = '{'long' * 20} {i}'" for i in range(20)) + " OR n = 1", "n IS DISTINCT FROM 2 AND n > 2",
        "CAST(at AS TIMESTAMP) = TIMESTAMP '1970-01-02 00:00:00'", "TRUE",
    ]  # fmt: skip
    t.append(data)
    version = place.db.version
    for condition in conditions:
        with place.db.transaction() as tx:
            tx.table("t").restore(version)
            tx.table("t").delete(condition)


@case
def keys(place: Place) -> None:
    """Deletes by key: of each type that a key may have, of several columns, few in the manifest, many outside of it."""
    columns: dict[str, Any] = {
        "i": pa.array(range(6), pa.uint64()),
        "s": ["a", "b", "ä", "", None, "z" * 50],
        "y": pa.array([b"a", b"", b"\xff", None, b"\x00", b"b"]),
        "m": pa.array(
            [Decimal("0.000000001"), Decimal(1), None, Decimal(-2), Decimal(3), Decimal(4)], pa.decimal128(20, 9)
        ),
        "d": temporal([0, 1, None, 20_000, -5, 7], pa.date32()),
        "t": temporal([0, 1, 2, None, 4, 5], pa.time64("us")),
        "z": temporal([0, 1, 2, 3, None, 5], pa.timestamp("us", "UTC")),
        "b": [True, False, None, True, False, True],
    }
    data = pa.table(columns)
    t = place.db.create_table("t", data.schema)
    t.append(data)
    for name in columns:
        t.delete(keys=data.select([name]).slice(1, 1), on=[name])
        t.append(data)
    t.delete(keys=data.select(["s", "d", "i"]).slice(0, 2), on=["s", "d", "i"])
    t.append(data)
    many = place.db.create_table("many", pa.schema([ID, ("v", pa.string())]), primary_key="id")
    many.append({"id": list(range(10**9, 10**9 + 240)), "v": [str(i % 7) for i in range(240)]})
    many.delete(keys=list(range(10**9, 10**9 + 200)))
    many.upsert({"id": [10**9 + 230, 7], "v": ["new", "new"]})


@case
def vectors(place: Place) -> None:
    """Deletion vectors: of deletes by position, updates, merges and resolution; also beside tombstones."""
    t = place.db.create_table("t", pa.schema([ID, ("v", pa.string())]), primary_key="id")
    for start in (0, 20, 40):
        t.append({"id": list(range(start, start + 20)), "v": ["old"] * 20})
    t.delete("id % 7 = 0", mode="positions")
    t.update({"v": "updated"}, "id BETWEEN 18 AND 23")
    t.merge([{"id": 3, "v": "merged"}, {"id": 100, "v": "inserted"}], "id", "update")
    t.delete("id < 5")
    place.db.resolve()
    t.delete("id > 50")
    t.delete("id = 30", mode="positions")
    t.append({"id": [60], "v": ["after"]})
    place.db.resolve()
    t.delete(keys=[60])


@case
def spilled(place: Place) -> None:
    """Small roots: files, tombstones, overlays, removed files, history and requests are in segments, some merged."""
    db = place.db
    db.set(root_bytes="4KB", keep_versions=8, retention="1s")
    t = db.create_table("t", pa.schema([ID, ("v", pa.string())]), primary_key="id")
    for i in range(20):
        t.append({"id": list(range(i * 10, i * 10 + 10)), "v": [f"v{i}"] * 10}, request=f"append {i}")
        if i % 4 == 1:
            t.delete(f"id % 10 = {i % 10}", request=f"delete {i}")
        if i % 6 == 5:
            t.delete(f"id BETWEEN {i * 9} AND {i * 9 + 3}", mode="positions")
        if i in (9, 17):
            db.resolve()
        if i == 15:
            db.merge()
    t.update({"v": "updated"}, "id < 12")
    t.set(target_file_bytes="4KB")
    db.compact()
    place.pass_hours(1)
    db.gc()
    for i in range(6):
        t.delete(keys=[i, 100 + i], request=f"last {i}")


@case
def idle_tables(place: Place) -> None:
    """Many tables of which most are idle, so that their whole entries are in a segment; one is renamed, one dropped."""
    db = place.db
    db.set(root_bytes="4KB", keep_versions=12, retention="1s")
    for i in range(11):
        db.create_table(f"table_{i}", pa.schema([ID, (f"c{i}", pa.string())]), primary_key="id")
        db.table(f"table_{i}").append({"id": [i, i + 1], f"c{i}": ["a", None]})
        db.table(f"table_{i}").delete(f"id = {i}")
    busy = db.create_table("busy", pa.schema([("n", pa.int64())]))
    for i in range(50):
        busy.append({"n": [i]})
    db.rename_table("table_3", "renamed")
    db.drop_table("table_4")
    db.table("table_5").append({"id": [50], "c5": ["back"]})
    place.pass_hours(1)
    db.gc()
    busy.append({"n": [99]})


@case
def columns(place: Place) -> None:
    """Columns that are added with defaults, dropped, renamed, reordered; tombstones that name dropped columns."""
    t = place.db.create_table("t", pa.schema([ID, ("a", pa.string()), pa.field("b", pa.int32(), nullable=False)]))
    t.append({"id": [1, 2, 3], "a": ["x", None, "z"], "b": [1, 2, 3]})
    defaults: list[tuple[str, pa.DataType, Any]] = [
        ("text", pa.string(), "d"), ("amount", pa.decimal128(9, 7), Decimal("1E-7")), ("raw", pa.binary(), b"\x00"),
        ("day", pa.date32(), date(2026, 2, 28)), ("at", pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)),
        ("ratio", pa.float32(), FLOAT), ("flag", pa.bool_(), False), ("clock", pa.time64("us"), time(12, 30)),
    ]  # fmt: skip
    for name, kind, value in defaults:
        t.add_column(name, kind, value)
    t.append({"id": [4], "a": ["w"], "b": [4], "text": ["given"]})
    t.delete("text = 'd' AND id = 2")
    t.delete("ratio = 0.2")
    t.drop_column("a")
    t.add_column("a", pa.int64(), 7)
    t.rename_column("b", "bee")
    t.make_nullable("bee")
    t.set_default("text", "later")
    t.reorder(["text", "id"])
    t.append({"id": [5], "bee": [None]})
    t.delete("a = 7 AND bee = 3")
    t.drop_column("bee")
    t.comment("id", "a comment")
    t.set_sort_key(["id"])
    t.append({"id": [6, 0], "a": [1, 2]})
    t.drop_column("ratio")


@case
def widening(place: Place) -> None:
    """Each kind of wider type, with tombstones from before and after, by predicate and by key."""
    data = pa.table(
        {
            "i8": pa.array([1, -128, None, 5], pa.int8()),
            "u8": pa.array([1, 255, None, 5], pa.uint8()),
            "f": pa.array([0.1, math.nan, None, 16777216.0], pa.float32()),
            "m": pa.array([Decimal("0.10"), Decimal("9.99"), None, Decimal("5.00")], pa.decimal128(3, 2)),
            "day": temporal([0, -106_000_000, None, 20_000], pa.date32()),
        }
    )
    t = place.db.create_table("t", data.schema)
    t.append(data)
    t.add_column("late", pa.float32(), FLOAT)
    t.append(data)
    t.delete("f = 0.1 AND day IS NULL")
    t.delete("late = 0.1 AND i8 = 1")
    t.delete(keys=pa.table({"day": temporal([20_000], pa.date32()), "i8": pa.array([5], pa.int8())}), on=["day", "i8"])
    t.append(data)
    t.widen_column("i8", pa.int16())
    t.widen_column("i8", pa.int64())
    t.widen_column("u8", pa.uint32())
    t.widen_column("f", pa.float64())
    t.widen_column("m", pa.decimal128(38, 2))
    t.widen_column("day", pa.timestamp("us"))
    t.widen_column("late", pa.float64())
    wide = {
        "i8": [2**40], "u8": pa.array([2**31], pa.uint32()), "f": [0.1], "late": [0.1],
        "m": pa.array([Decimal(10**30)], pa.decimal128(38, 2)), "day": temporal([1], pa.timestamp("us")),
    }  # fmt: skip
    t.append(pa.table(wide))
    t.delete("f = 0.1")
    t.delete("i8 = -128 AND u8 = 255 AND f = 'nan'")
    t.append(data.append_column("late", pa.array([0.5] * 4, pa.float64())))
    t.delete(
        keys=pa.table({"day": temporal([0], pa.timestamp("us")), "i8": pa.array([1], pa.int64())}), on=["day", "i8"]
    )
    place.db.resolve()
    place.db.compact()


@case
def adopted_by_ids(place: Place) -> None:
    """Files of another program, with field ids as Iceberg's writers give them, under keys that have to be quoted."""

    def numbered(name: str, kind: pa.DataType, id_: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)})

    inner = pa.struct([numbered("street", pa.large_string(), 11), numbered("zip", pa.int32(), 12)])
    schema = pa.schema(
        [numbered("id", pa.int64(), 3), numbered("name", pa.large_string(), 5), numbered("home", inner, 7)]
    )
    homes = [{"street": "a", "zip": 1}, None, {"street": None, "zip": 3}]
    put(place, "lake/day 1/ä file #1.parquet", pa.table([[1, 2, 3], ["x", None, "z"], homes], schema=schema))
    narrow = pa.schema([numbered("id", pa.int64(), 3), numbered("other", pa.int8(), 20)])
    put(place, "lake/day 1/~b.parquet", pa.table([[4, 5], [1, 2]], schema=narrow), row_group_size=1)
    db = place.db
    db.adopt("t", "lake", primary_key="id")
    t = db.table("t")
    t.delete("name = 'x'")
    t.rename_column("name", "label")
    t.widen_column("other", pa.int32())
    t.widen_column("home.zip", pa.int64())
    t.update({"label": "updated"}, "id = 5")
    t.append([{"id": 6, "label": "ours", "home": {"street": "s", "zip": 2**40}, "other": 70_000}])
    t.delete(keys=[3])
    db.resolve()


@case
def adopted_by_names(place: Place) -> None:
    """Files without field ids, of dictionaries, large strings and times in other units, adopted by two tables."""
    lists = pa.array(
        [[{"x": 1, "y": "a"}, None], None, []], pa.list_(pa.struct([("x", pa.int32()), ("y", pa.large_string())]))
    )
    first = {
        "Id": pa.array([1, 2, 3], pa.int32()),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "at": temporal([0, 1_000, None], pa.timestamp("ms", "Europe/Berlin")),
        "clock": pa.array([1, None, 3], pa.int32()).view(pa.time32("ms")),
        "things": lists,
        "labels": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        "uuid": pa.array([bytes(16), None, b"\xff" * 16], pa.uuid()),
    }
    put(place, "old/one.parquet", pa.table(first))
    put(place, "old/two.parquet", pa.table({"kind": ["c"], "Id": pa.array([4], pa.int32()), "extra": [math.nan]}))
    db = place.db
    db.adopt("t", "old")
    db.adopt("again", ["old/one.parquet"])
    t = db.table("t")
    t.delete("kind = 'a' AND Id > 1")
    t.rename_column("kind", "type")
    t.widen_column("Id", pa.int64())
    t.drop_column("clock")
    t.add_column("kind", pa.string(), "new")
    t.delete("Id = 4", mode="positions")
    db.table("again").append(pa.table(first).slice(0, 1))


@case
def values_of_folders(place: Place) -> None:
    """Columns whose values are in names of folders: of a new table, of one whose types are wider since, in segments."""
    db = place.db
    db.set(root_bytes="4KB")
    for day in range(1, 31):
        put(place, f"old/day=2026-11-{day:02}/n={day % 3}/f=0.1/0.parquet", pa.table({"id": [day, 100 + day]}))
    put(place, "old/day=__HIVE_DEFAULT_PARTITION__/n=7/f=-0.0/1.parquet", pa.table({"id": [0]}))
    t = db.create_table("t", "id BIGINT, day DATE, n SMALLINT, f FLOAT")
    t.append([{"id": -1, "day": None, "n": 7, "f": 0.5}])
    db.adopt("t", "old", into=True)
    t.delete("f = 0.1 AND day = '2026-11-03'")
    t.widen_column("day", pa.timestamp("us"))
    t.widen_column("n", pa.int64())
    t.widen_column("f", pa.float64())
    t.delete("n = 1 AND id > 100 OR day IS NULL AND f < 0")
    put(place, "more/country=a%2Fb/2.parquet", pa.table({"id": [1, 2]}))
    put(place, "more/country=__HIVE_DEFAULT_PARTITION__/3.parquet", pa.table({"id": [3]}))
    u = db.adopt("u", "more")
    assert u.from_folders == ("country",)
    db.table("u").delete("country = 'a/b' AND id = 1", mode="positions")
    db.table("u").rename_column("country", "land")


@case
def erasures(place: Place) -> None:
    """Rows that are erased from tables, clones and older versions, by predicate and by key; receipts; rewriting."""
    db = place.db
    db.set(root_bytes="4KB")
    t = db.create_table("t", pa.schema([ID, ("who", pa.string())]), primary_key="id")
    t.append({"id": [1, 2, 3, 4], "who": ["ann", "bob", None, "ann"]})
    db.tag("before")
    db.clone("t", "copy")
    db.clone("copy", "copy_of_copy")
    t.append({"id": [5, 6], "who": ["bob", "cid"]})
    t.add_column("note", pa.string(), "none")
    t.append({"id": [7], "who": ["dan"], "note": ["erase me"]})
    t.erase("who = 'ann'", request="ticket 1")
    t.erase("note = 'erase me'")
    t.erase(keys=[2])
    place.pass_hours(1)
    db.maintain()
    db.gc()
    t.append({"id": [8], "who": ["ann"]})
    db.table("copy").erase("who IS NULL", within="1d")
    for i in range(8):
        t.append({"id": [20 + i], "who": [f"person {i}"]})
        t.erase(f"who = 'person {i}' OR who = '{'nobody ' * 20}{i}'")


@case
def erased_clones(place: Place) -> None:
    """An erasure by a column that a clone lacks: there its id belongs to a column that was added later."""
    db = place.db
    t = db.create_table("t", pa.schema([ID]))
    t.append({"id": [1, 2]})
    copy = db.clone("t", "copy")
    t.add_column("owner", pa.string(), "ann")
    copy.add_column("city", pa.string(), "ann")
    db.clone("t", "later_copy")
    t.append({"id": [3], "owner": ["bob"]})
    copy.append({"id": [4], "city": ["ann"]})
    db.tag("before")
    t.erase("owner = 'ann'")
    t.erase("owner IS NULL OR id = 4")


@case
def forgotten_subjects(place: Place) -> None:
    """People who are forgotten in all tables with a subject, and in older versions of a table that was dropped."""
    db = place.db
    schema = pa.schema([ID, ("customer", pa.string()), ("number", pa.int64())])
    for name, subject in (("orders", "customer"), ("visits", "number"), ("dropped", "customer")):
        db.create_table(name, schema, properties={"subject": subject})
        db.table(name).append({"id": [1, 2, 3], "customer": ["7", "ann", None], "number": [7, 8, None]})
    db.table("orders").rename_column("customer", "buyer")
    db.drop_table("dropped")
    db.forget(["ann", 8], request="forget ann")
    db.forget(["7", 7])
    db.table("orders").append({"id": [4], "buyer": ["ann"]})


@case
def tags(place: Place) -> None:
    """Tags that keep expired versions, a cursor that holds the horizon, and collection."""
    db = place.db
    db.set(keep_versions=2, retention="1s", reader_grace="1s", orphan_age="1h")
    t = db.create_table("t", pa.schema([ID, ("v", pa.string())]), primary_key="id")
    for i in range(8):
        t.append({"id": [i], "v": [f"v{i}"]})
        place.pass_hours(1)
        if i in (1, 4):
            db.tag(f"at.{i}")
            db.tag(f"also-{i}", until="365d")
        if i == 5:
            t.delete("id < 4")
            db.compact()
    for _ in range(3):
        place.pass_hours(3)
        db.gc()
    db.cursor("reader", age="30d")
    for i in range(10, 14):
        t.upsert({"id": [i, 4], "v": ["upserted", f"again {i}"]})
        place.pass_hours(2)
    db.gc()
    db.drop_tag("also-1")


@case
def restores(place: Place) -> None:
    """Restored tables and databases, clones of clones, tables that were dropped and came back with other columns."""
    db = place.db
    t = db.create_table("t", pa.schema([ID, ("v", pa.string())]), primary_key="id")
    t.append({"id": [1, 2, 3], "v": ["a", "b", "c"]})
    db.tag("first")
    t.delete("id = 1")
    t.add_column("w", pa.int32(), 5)
    t.append({"id": [4], "v": ["d"], "w": [6]})
    version = db.version
    t.restore(tag="first")
    t.add_column("w", pa.string(), "other")
    t.delete("w = 'other' AND id = 3")
    db.clone("t", "clone", version=version)
    db.clone("clone", "clone_of_clone")
    db.table("clone").delete("w = 5", mode="positions")
    db.table("clone_of_clone").upsert({"id": [2], "v": ["upserted"], "w": [0]})
    db.drop_table("t")
    db.restore(version, tables="t")
    db.create_table("new", pa.schema([("x", pa.bool_())])).append({"x": [True, None]})
    db.restore(tag="first")
    db.restore(version)


@case
def changes_of_a_source(place: Place) -> None:
    """Change data capture: files in and out of order, deletes that are remembered, erased keys in the memory."""
    feed = Feed(place)
    place.db.set(keep_versions=30)
    feed.create()
    made = [
        [Change(1, 1, "a"), Change(2, 2, "b"), Change(3, 3, "c")],
        [Change(1, 10, None), Change(4, 11, "d"), Change(2, 12, "b2")],
        [Change(1, 5, "late"), Change(3, 9, "c2"), Change(5, 4, None)],
        [Change(2, 20, None), Change(6, 21, "f")],
    ]
    for number, each in enumerate(made):
        feed.deliver(File(f"file {number}", tuple(each)))
        place.pass_hours(12)
    t = place.db.table("t")
    t.erase(keys=[1, 4])
    t.erase("id = 2")
    place.pass_hours(24 * 9)
    feed.deliver(File("file 8", (Change(7, 30, "g"), Change(3, 31, None))))
    place.pass_hours(24 * 9)
    feed.deliver(File("file 9", (Change(8, 40, "h"),)))
    place.db.maintain()


@case
def erased_memories(place: Place) -> None:
    """Erased keys in the memory of an older version, which is another table than that of the time of the erasure."""
    feed = Feed(place)
    feed.create(pa.schema([("id", pa.int32()), ("v", pa.string()), ("seq", pa.int64())]), subject="id")
    db, t = place.db, place.db.table("t")
    early = db.version
    feed.deliver(File("a", (Change(5, 50, None), Change(6, 51, None), Change(7, 52, "v"), Change(8, 53, None))))
    late = db.version
    t.restore(early)
    t.widen_column("id", pa.int64())
    t.erase(keys=[5])
    t.erase("id = 6 AND id > 0")
    t.erase("v = 'v'")
    db.create_table("people", pa.schema([ID]), properties={"subject": "id"})
    db.drop_table("t")
    db.forget(8)
    db.clone("t", "copy", late)


@case
def compaction(place: Place) -> None:
    """Files of several commits, whose rows have timestamps of their own; copied row groups; sorted runs; upserts."""
    db = place.db
    fields = [ID, ("group", pa.string()), ("x", pa.float64())]
    t = db.create_table("t", pa.schema(fields), primary_key="id", sort_key=["group", "x"])
    for start in range(0, 60, 10):
        data = {"id": list(range(start, start + 10)), "group": [f"g{i % 3}" for i in range(10)]}
        t.append({**data, "x": [math.nan if i == 4 else None if i == 5 else -i / 2 for i in range(10)]})
    t.delete("id % 10 = 3")
    db.compact()
    t.upsert({"id": [0, 61, 62], "group": ["g9", None, ""], "x": [0.5, 1.0, -0.0]})
    db.compact()
    t.delete(keys=[5, 62])
    t.append({"id": [70], "group": ["g1"], "x": [7.0]})
    t.set(target_file_bytes="4KB")
    db.maintain()
    t.overwrite({"id": [1], "group": ["only"], "x": [1.0]})


@case
def time_to_live(place: Place) -> None:
    """Rows that expire by a time and by a date."""
    db = place.db
    day_us = 86_400_000_000
    t = db.create_table("t", pa.schema([ID, ("at", pa.timestamp("us", "UTC"))]), properties={"ttl": "at 2d"})
    days = db.create_table("days", pa.schema([("day", pa.date32())]), properties={"ttl": "day 2d"})
    for i in range(4):
        t.append(pa.table({"id": [i, i + 10], "at": temporal([place.now_us, None], pa.timestamp("us", "UTC"))}))
        days.append(pa.table({"day": temporal([place.now_us // day_us, None], pa.date32())}))
        place.pass_hours(24)
        db.expire()
    db.maintain()


@case
def key_index(place: Place) -> None:
    """A table with an index of its keys and Bloom filters of its own size, whose deletes are resolved through it."""
    db = place.db
    t = db.create_table(
        "t", pa.schema([ID, ("v", pa.string())]), primary_key="id", properties={"index": True, "key_filter_bits": 16}
    )
    for start in range(0, 240, 80):
        t.append({"id": list(range(start, start + 80)), "v": [f"{i * i}" for i in range(80)]})
    db.maintain()
    t.delete(keys=[5, 105, 239])
    t.insert({"id": [5, 1_000], "v": ["again", "new"]})
    db.maintain()
    t.delete("id BETWEEN 10 AND 12")
    db.maintain()


@case
def applied_once(place: Place) -> None:
    """Requests that are applied once, transactions over tables, messages, renamed and recreated tables, conflicts."""
    db = place.db
    db.set(root_bytes="4KB", keep_versions=20, applied_retention="1d")
    schema = pa.schema([ID, ("v", pa.string())])
    a = db.create_table("a", schema, primary_key="id", request="create a")
    db.create_table("b", schema, primary_key="id")
    for i in range(40):
        a.append({"id": [i], "v": [None]}, request=f"request {i} " + "x" * 50, message=f"number {i}")
    a.append({"id": [3], "v": [None]}, request="request 3 " + "x" * 50)
    with db.transaction(message="both") as tx:
        tx.table("a").delete("id < 20")
        tx.table("b").append({"id": [1, 2], "v": ["b", "b"]})
        tx.table("b").update({"v": "c"}, "id = 2")
        tx.rename_table("a", "c")
    db.create_table("a", pa.schema([("other", pa.bool_())])).append({"other": [True]})
    db.table("c").upsert({"id": [25, 100], "v": ["late", None]})
    db.drop_table("a")


@case
def long_history(place: Place) -> None:
    """So many commits that the history of the first is in a segment."""
    t = place.db.create_table("t", pa.schema([ID, ("v", pa.string())]), primary_key="id")
    for i in range(12):
        t.upsert({"id": [i % 5], "v": [f"v{i}"]}, message=f"upsert {i}")
        for j in range(7):
            t.comment("v", f"comment {i} {j}", message="no row changes " * 10)


@case
def published(place: Place) -> None:
    """A table that is published in Iceberg's format, whose versions are kept by tags."""
    db = place.db
    properties = {"iceberg": "v2"}
    t = db.create_table("t", pa.schema([ID, ("v", pa.string())]), primary_key="id", properties=properties)
    t.append({"id": [1, 2, 3], "v": ["a", None, "c"]})
    t.publish_iceberg()
    t.delete("id = 2", mode="positions")
    t.append({"id": [4], "v": ["d"]})
    t.publish_iceberg()
    t.delete("v = 'a'")


@case
def checks(place: Place) -> None:
    """Checks and NOT NULL that came later, on columns that were renamed and widened; an older version without them."""
    table = place.db.create_table("sales", pa.table({"id": [1, 2, 3], "n": pa.array([1, None, 3], pa.int32())}))
    table.add_check("small", "n < 100")
    table.add_check("odd or none", "n % 2 = 1 OR n IS NULL")
    table.widen_column("n", pa.int64())
    table.rename_column("n", "count")
    table.append([{"id": 4, "count": 99}])
    table.delete("count IS NULL")
    table.set_not_null("count")
    table.add_primary_key("id")


@case
def partitions(place: Place) -> None:
    """Files of one partition and of several, with hashes and long texts in entries and segments; another setting."""
    place.db.set(root_bytes="4KB")
    columns = pa.schema([ID, ("at", pa.timestamp("us")), ("day", pa.date32()), ("name", pa.string())])
    t = place.db.create_table("t", columns, partition_by="month(at), bucket[4](id)", properties={"partition_files": 6})
    rows = {"id": [*range(40)], "name": [None, "n" * 40, "m" * 40, ""] * 10}
    rows |= {"at": [temporal([n * 10**12], pa.timestamp("us"))[0] for n in range(40)]}
    rows |= {"day": [temporal([n // 9], pa.date32())[0] for n in range(40)]}
    t.append(pa.table(rows, columns))
    t.set(partition_by="name, bucket[3](day)")
    t.append(pa.table(rows, columns).slice(0, 9))
    place.db.compact()
    t.widen_column("day", pa.timestamp("us"))
    t.rename_column("name", "Long Name")
    t.delete("id = 7")
    t.append(pa.table({"id": [40], "day": temporal([0], pa.timestamp("us"))}))


@case
def sort_orders(place: Place) -> None:
    """Files of several orders, of each kind of term, and one that compaction merged; compressed in several ways."""
    columns = pa.schema([ID, ("at", pa.timestamp("us")), ("name", pa.string()), ("x", pa.float64())])
    t = place.db.create_table("t", columns, sort_key="day(at) DESC NULLS FIRST, id")
    rows = {"id": [*range(40)], "name": [None, "n\0", "n", ""] * 10, "x": [None, -0.0, 1.5, float("nan"), 0.0] * 8}
    rows |= {"at": [temporal([n * 10**10], pa.timestamp("us"))[0] for n in range(39)] + [None]}
    t.append(pa.table(rows, columns))
    t.set_sort_key(["name DESC", "x DESC NULLS FIRST"])
    for codec in ("snappy", "gzip(9)", "none", "lz4", "zstd(3)"):
        t.set(compression=codec)
        t.append(pa.table(rows, columns))
    t.delete("id < 20")
    place.db.compact()
    t.set_sort_key("bucket[4](id), truncate[1](name) DESC")
    t.rename_column("name", "Long Name")
    t.append(pa.table({"id": [41, 40], "Long Name": ["a", "b"]}))


@case
def computed_defaults(place: Place) -> None:
    """Columns whose defaults writers compute. Rows older than the column have the time of the commit, or NULL."""
    table = place.db.create_table("logins", pa.table({"id": [1, 2]}))
    table.add_column("made", pa.timestamp("us", "UTC"), Expression("now()"))
    table.add_column("day", pa.date32(), Expression("now()"))
    table.add_column("key", pa.string(), Expression("uuid()"))
    table.append({"id": [3], "made": [None], "key": ["k"]})
    table.append({"id": [4], "key": ["l"]})


@case
def metadata_of_commits(place: Place) -> None:
    """Metadata of commits, in the manifests and in a segment of the history."""
    t = place.db.create_table("t", pa.schema([ID, ("v", pa.string())]), primary_key="id", metadata={"job": "create"})
    for i in range(50):
        t.comment("v", f"comment {i}", metadata={"job": "nightly " * 125, "run": str(i)})
    t.upsert({"id": [1], "v": ["a"]}, metadata={f"key.{i}": str(i) for i in range(100)})
    t.delete("id = 1", message="both", metadata={"job": ""})


@case
def fields_and_functions(place: Place) -> None:
    """Tombstones that name fields of structs, renamed, widened and dropped ones too, and that call later functions."""
    inner = pa.struct([("zip", pa.string()), ("n", pa.int32()), ("geo", pa.struct([("x", pa.float64())]))])
    homes = [
        {"zip": "1", "n": 1, "geo": {"x": 0.5}}, {"zip": "2", "n": None, "geo": None}, None,
        {"zip": None, "n": 4, "geo": {"x": math.nan}}, {"zip": "äb", "n": -5, "geo": {"x": -0.0}},
    ]  # fmt: skip
    data = pa.table(
        {
            "id": pa.array(range(5), pa.int64()),
            "s": ["a_b", None, "", "äö", "%"],
            "home": pa.array(homes, inner),
            "day": temporal([0, 30, None, -719_528, 20_454], pa.date32()),
            "at": temporal([0, 2_505_600_000_000, None, -1, 1], pa.timestamp("us", "UTC")),
        }
    )
    t = place.db.create_table("t", data.schema)
    t.append(data)
    version = place.db.version
    for condition in (
        "home.zip = '1'", "home.geo.x = 0", "isnan(home.geo.x)", "home.n IS NULL AND id > 1", "abs(home.n) = 5",
        "length(s) = 3 OR length(home.zip) = 2", "starts_with(s, 'a_')", "ends_with(s, 'b') OR contains(s, '%')",
        "coalesce(home.zip, s, 'x') = 'x'", "day + INTERVAL 1 MONTH = DATE '1970-02-28'",
        "at - INTERVAL 1 HOUR < TIMESTAMPTZ '1969-12-31 23:00:00+00'",
    ):  # fmt: skip
        with place.db.transaction() as tx:
            tx.table("t").restore(version)
            tx.table("t").delete(condition)
    t.restore(version=version)
    t.delete("home.n = 4")
    t.rename_column("home", "house")
    t.delete("house.zip = '2'")
    t.drop_column("house")


@case
def elements_of_lists(place: Place) -> None:
    """Tombstones that ask for an element of a list: of each kind of value, in structs, of columns that change."""
    lists = {
        "texts": pa.array([["a", None], [], None, ["ä", "a"], [None]], pa.list_(pa.string())),
        "floats": pa.array([[0.1], [math.nan, -0.0], None, [None], []], pa.list_(pa.float32())),
        "numbers": pa.array([[1, 2], [None], None, [-128], [127]], pa.list_(pa.int8())),
        "amounts": pa.array([[Decimal("0.10")], [], None, [None], [Decimal("-9.99")]], pa.list_(pa.decimal128(9, 2))),
    }
    times = temporal([0, -1, 2_505_600_000_000, 1], pa.timestamp("us", "UTC"))
    days = temporal([0, -719_528, 30, 1], pa.date32())
    offsets = pa.array([0, 2, 2, 3, 3, 4], pa.int32())
    homes = [{"zip": ["1", None]}, {"zip": None}, None, {"zip": []}, {"zip": ["1", "2"]}]
    data = pa.table(
        {
            "id": pa.array(range(5), pa.int64()),
            **lists,
            "times": pa.ListArray.from_arrays(offsets, times),
            "days": pa.ListArray.from_arrays(offsets, days),
            "home": pa.array(homes, pa.struct([("zip", pa.list_(pa.string()))])),
        }
    )
    t = place.db.create_table("t", data.schema)
    t.append(data)
    version = place.db.version
    for condition in (
        "list_contains(texts, 'a')", "NOT list_contains(texts, 'a')", "list_contains(floats, 0.1)",
        "list_contains(floats, 'nan')", "list_contains(floats, 0)", "list_contains(numbers, 127)",
        "list_contains(numbers, 300) OR NOT list_contains(numbers, 2e0)", "list_contains(amounts, 0.1)",
        "list_contains(amounts, -9.99e0)", "list_contains(times, TIMESTAMPTZ '1970-01-01 00:00:00+00')",
        "list_contains(days, DATE '1970-01-31')", "list_contains(home.zip, '2')",
    ):  # fmt: skip
        with place.db.transaction() as tx:
            tx.table("t").restore(version)
            tx.table("t").delete(condition)
    t.restore(version=version)
    t.delete("list_contains(numbers, 127)")
    t.widen_column("numbers.element", pa.int64())
    t.rename_column("home.zip", "codes")
    t.delete("list_contains(home.codes, '2') OR list_contains(numbers, 1)")
    t.drop_column("home")
    t.rename_column("texts", "words")


def main() -> None:
    for name, make in CASES.items():
        if name in names():
            continue
        place = Place()
        make(place)
        objects = {key: there.body for key, there in place.bucket.objects.items()}
        versions = sorted({line["version"] for line in shown_by_second_reader(objects)})
        lines = to_lines(shown_by_dolmen(place.open(), versions))
        assert lines == to_lines(shown_by_second_reader(objects)), f"{name}: the two readers differ"
        packed = pack(objects)
        assert len(packed) <= MOST_BYTES, f"{name}: {len(packed):,} bytes are too many"
        assert place.open().verify(deep=True, all_versions=True).ok, name
        with (FOLDER / f"{name}.jsonl").open("x", encoding="utf-8", newline="\n") as rows:
            rows.write(lines)
        with (FOLDER / f"{name}.tar.gz").open("xb") as archive:
            archive.write(packed)
        print(
            f"{name}: {len(objects)} objects, {len(versions)} versions, {len(packed):,} bytes, {len(lines):,} of rows"
        )


if __name__ == "__main__":
    main()
