"""Types that files have and tables do not: what becomes of them, and which are refused by name."""

from __future__ import annotations

import datetime as dt
import io
import math
import os
import random
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from dolmen.errors import InputError, LimitError, RowError, SchemaError
from dolmen.format.dialect import Dialect
from dolmen.format.schema import Schema
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, infer, read, survey

KINDS = ("t.parquet", "t.arrow", "t.arrows")
DAY = dt.timedelta(days=1)
ITEM = pa.struct([("h", pa.float16()), ("n", pa.null())])


def _written(table: pa.Table, name: str) -> bytes:
    sink = io.BytesIO()
    if name == "t.parquet":
        parquet.write_table(table, sink)
    else:
        with (ipc.new_file if name == "t.arrow" else ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _source(data: bytes, name: str, **options: Any) -> SourceFile:
    return SourceFile(lambda: io.BytesIO(data), detect(name), name, ReadOptions(**options))


def _read(data: bytes, name: str, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
    table = read(_source(data, name, **options), schema).read_all()
    table.validate(full=True)
    return table


def _list_view(values: pa.Array, offsets: list[int], sizes: list[int], nulls: list[bool] | None = None) -> pa.Array:
    mask = None if nulls is None else pa.array(nulls)
    return pa.ListViewArray.from_arrays(pa.array(offsets), pa.array(sizes), values, mask=mask)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1.5, None, -0.0, 65504.0, 6e-8, math.inf], pa.float16()), pa.float32()),
        (pa.array([[1.5], None, [None]], pa.list_(pa.float16())), pa.list_(pa.float32())),
        (pa.array([[1.5, 2], None], pa.list_(pa.float16(), 2)), pa.list_(pa.float32())),
        (pa.array([[("a", 1.5), ("b", None)], None], pa.map_(pa.string(), pa.float16())),
         pa.map_(pa.string(), pa.float32())),
        (pa.nulls(3), pa.string()),
        (pa.array([[("a", None)], None, []], pa.map_(pa.string(), pa.null())), pa.map_(pa.string(), pa.string())),
        (pa.array([[None], None, []], pa.large_list(pa.null())), pa.list_(pa.string())),
        (pa.array([Decimal("1.50"), None, Decimal(10**35)], pa.decimal256(60, 2)), pa.decimal128(38, 2)),
        (pa.array([Decimal("1.50"), None], pa.decimal256(20, 2)), pa.decimal128(20, 2)),
        (pa.array([Decimal("1.50"), None], pa.decimal32(6, 2)), pa.decimal128(6, 2)),
        (pa.array([Decimal("1.50"), None], pa.decimal64(16, 2)), pa.decimal128(16, 2)),
        (pa.array([[1, None], None, []], pa.list_view(pa.int32())), pa.list_(pa.int32())),
        (pa.array([["x" * 20], None, []], pa.large_list_view(pa.string_view())), pa.list_(pa.string())),
        (pa.array([{"l": [[1], None]}, None], pa.struct([("l", pa.list_view(pa.list_view(pa.int8())))])),
         pa.struct([("l", pa.list_(pa.list_(pa.int8())))])),
        (pa.array([[{"h": 1.5, "n": None}, None], None], pa.list_view(ITEM)),
         pa.list_(pa.struct([("h", pa.float32()), ("n", pa.string())]))),
        (pa.array([[("a", [1, None])], None, [("b", None)]], pa.map_(pa.string(), pa.list_view(pa.int8()))),
         pa.map_(pa.string(), pa.list_(pa.int8()))),
        (pa.array(["a", None, "b" * 30], pa.string_view()), pa.string()),
        (pa.array([b"a", None, b"b" * 30], pa.binary_view()), pa.binary()),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.array([1, None, 2**64 - 1], pa.uint64()), pa.uint64()),
        (pa.array([0, None, 86399], pa.time32("s")), pa.time64("us")),
        (pa.array([0, None, 1700000000], pa.timestamp("s", "Europe/Berlin")), pa.timestamp("us", "UTC")),
        (pa.array([0, None, -5000], pa.timestamp("ns", "+05:30")), pa.timestamp("us", "UTC")),
        (pa.array([0, None, -5], pa.timestamp("ms")), pa.timestamp("us")),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(16)), None], pa.binary(16))), pa.binary(16)),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None])), pa.string()),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, None, 1], pa.int8())), pa.int8()),
        (pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "geometry", "x"), pa.array([b"1", None])), pa.binary()),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
@pytest.mark.parametrize("name", KINDS)
def test_values_of_a_type_that_tables_lack_come_back(name: str, array: pa.Array, kind: pa.DataType) -> None:
    table = pa.table({"id": range(len(array)), "c": array})
    data = _written(table, name)
    made = _read(data, name)
    assert made.schema.field("c").type == kind
    assert Schema.from_arrow(made.schema).arrow.field("c").type == kind
    plain = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_timestamp(kind):
        plain = plain.cast(kind)
    assert repr(made["c"].to_pylist()) == repr(plain.to_pylist())
    assert _read(data, name, made.schema).equals(made)
    surveyed = survey(_source(data, name)).field("c").type
    assert surveyed == kind or pa.types.is_null(array.type)


def test_runs_come_back() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1.5, None], pa.float16()))
    made = _read(_written(pa.table({"c": runs}), "t.arrow"), "t.arrow")
    assert (made.schema.types, made["c"].to_pylist()) == ([pa.float32()], [1.5, 1.5, None])


def test_not_a_number_is_one_as_a_half_float_too() -> None:
    made = _read(_written(pa.table({"c": pa.array([np.nan, 1], pa.float16())}), "t.parquet"), "t.parquet")
    assert math.isnan(made["c"][0].as_py())


@pytest.mark.parametrize("name", KINDS)
def test_a_decimal_of_more_digits_than_a_column_has_is_refused_by_row(name: str) -> None:
    wide = pa.array([Decimal(1), Decimal(10**37)], pa.decimal256(60, 2))
    with pytest.raises(RowError, match=rf"'{name}', row 2, column 'c': '1000.*decimal128\(38, 2\) without loss"):
        _read(_written(pa.table({"c": wide}), name), name)


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (
            pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
            "cannot be stored as they are: .* write integers",
        ),
        (pa.array([{"i": (1, 2, 3)}], pa.struct([("i", pa.month_day_nano_interval())])), "interval cannot be stored"),
        (pa.array([Decimal(1)], pa.decimal256(76, 60)), r"decimal256\(76, 60\) cannot be stored"),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_other_types_are_refused_by_name(name: str, array: pa.Array, hint: str) -> None:
    try:
        data = _written(pa.table({"id": range(len(array)), "c": array}), name)
    except pa.ArrowNotImplementedError:
        return  # Parquet has no such type
    with pytest.raises(SchemaError, match=rf"file '{name}', column 'c': .*{hint}"):
        infer(_source(data, name))


def test_intervals_of_parquet_are_refused_by_name(tmp_path: Any) -> None:
    path = tmp_path / "t.parquet"
    query = "SELECT 1 AS id, INTERVAL '1 month 2 days' AS c, {'i': INTERVAL '1 day'} AS s"
    duckdb.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    data = path.read_bytes()
    with pytest.raises(SchemaError, match=r"file 't\.parquet', column 'c': .*interval .* 12 bytes"):
        infer(_source(data, "t.parquet"))
    with pytest.raises(SchemaError, match="column 's': type month_day_nano_interval cannot be stored"):
        survey(_source(data, "t.parquet"))
    twelve = pa.binary(12)
    declared = pa.schema([("id", pa.int32()), ("c", twelve), ("s", pa.struct([("i", twelve)]))])
    assert _read(data, "t.parquet", declared)["c"].to_pylist() == [b"\1\0\0\0\2\0\0\0\0\0\0\0"]


@pytest.mark.parametrize("name", KINDS)
def test_a_declared_integer_takes_a_duration_as_microseconds(name: str) -> None:
    for unit, given, micros in (("s", -2, -2_000_000), ("ms", 5, 5000), ("us", 7, 7), ("ns", 9000, 9)):
        table = pa.table({"c": pa.array([given, None], pa.duration(unit))})
        data = _written(table, name)
        assert _read(data, name, pa.schema([("c", pa.int64())])).to_pydict() == {"c": [micros, None]}
        for other in (pa.int32(), pa.string(), pa.float64(), pa.timestamp("us"), pa.uint64()):
            with pytest.raises(SchemaError, match=r"values of type duration.* are never stored as"):
                _read(data, name, pa.schema([("c", other)]))
    for unit, lossy in (("ns", 9001), ("s", 2**62)):
        table = pa.table({"c": pa.array([0, lossy], pa.duration(unit))})
        with pytest.raises(RowError, match=r"row 2, column 'c': .* cannot be stored as int64 without loss"):
            _read(_written(table, name), name, pa.schema([("c", pa.int64())]))
    nested = pa.table({"c": pa.array([[{"d": DAY}, None]], pa.list_(pa.struct([("d", pa.duration("ms"))])))})
    declared = pa.schema([("c", pa.list_(pa.struct([("d", pa.int64())])))])
    assert _read(_written(nested, name), name, declared).to_pydict() == {"c": [[{"d": 86_400_000_000}, None]]}


def test_durations_of_polars_are_microseconds() -> None:
    sink = io.BytesIO()
    polars.DataFrame({"c": [DAY, None]}).write_ipc(sink)
    assert _read(sink.getvalue(), "t.arrow", pa.schema([("c", pa.int64())]))["c"].to_pylist() == [86_400_000_000, None]


@pytest.mark.parametrize("name", KINDS)
def test_a_new_column_of_durations_counts_microseconds(name: str) -> None:
    nested = pa.array([{"d": [1]}, None], pa.struct([("d", pa.list_(pa.duration("s")))]))
    made = _read(_written(pa.table({"c": pa.array([5, None], pa.duration("ms")), "n": nested}), name), name)
    assert made.schema.types == [pa.int64(), pa.struct([("d", pa.list_(pa.int64()))])]
    assert made.to_pydict() == {"c": [5000, None], "n": [{"d": [1_000_000]}, None]}


def _union(mode: str, codes: list[int], *children: pa.Array) -> pa.Array:
    """A union whose values are those of its children, in turn."""
    ids = pa.array(codes, pa.int8())
    offsets = [codes[:index].count(code) for index, code in enumerate(codes)]
    if mode == "dense":
        return pa.UnionArray.from_dense(ids, pa.array(offsets, pa.int32()), list(children))
    places = list(zip(codes, offsets, strict=True))
    spread = [
        child.take(pa.array([offset if code == number else None for code, offset in places], pa.int32()))
        for number, child in enumerate(children)
    ]
    return pa.UnionArray.from_sparse(ids, spread)


@pytest.mark.parametrize("mode", ["dense", "sparse"])
def test_a_union_of_arrow_is_a_struct_with_a_member_for_each_type(mode: str) -> None:
    numbers, texts = pa.array([1, None, 3]), pa.array(["x", "y"])
    union = _union(mode, [0, 1, 2, 0, 1, 0], numbers, texts, pa.nulls(1))
    wrapped = pa.table({"c": union, "s": pa.StructArray.from_arrays([union], ["u"])}).slice(1)
    values = [(1, None), (None, "x"), None, (None, None), (None, "y"), (3, None)][1:]
    members = [value and {"member0": value[0], "member1": value[1]} for value in values]
    made = _read(_written(wrapped, "t.arrow"), "t.arrow")
    assert made["c"].to_pylist() == members
    assert made["s"].to_pylist() == [{"u": each} for each in members]
    lists = pa.ListArray.from_arrays([0, 2, 6], union)
    listed = _read(_written(pa.table({"c": lists}), "t.arrow"), "t.arrow")["c"].to_pylist()
    assert [len(each) for each in listed] == [2, 4]
    assert listed[1][1:] == members[2:]


def test_a_union_of_null_and_one_type_is_that_type() -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.nulls(1)]
    )
    schema = pa.schema([pa.field("c", union.type, nullable=False)])
    made = _read(_written(pa.table([union], schema=schema), "t.arrow"), "t.arrow")
    assert (made.schema.types, made["c"].to_pylist()) == ([pa.int64()], [1, None, 2])


def test_a_struct_without_fields_is_text() -> None:
    made = _read(_written(pa.table({"c": pa.array([{}, None], pa.struct([]))}), "t.arrow"), "t.arrow")
    assert made["c"].to_pylist() == ["{}", None]


def test_views_of_lists_may_lie_in_any_order_and_share_values() -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(30):
        values = pa.array([rng.choice([None, "x", "y" * 20]) for _ in range(rng.randint(1, 9))])
        inner = _list_view(values, *_views(rng, len(values), rng.randint(1, 9)))
        outer = _list_view(inner, *_views(rng, len(inner), rng.randint(1, 9)))
        table = pa.table({"a": outer, "b": pa.StructArray.from_arrays([outer], names=["s"])})
        table = table.slice(rng.randint(0, len(outer)))
        made = _read(_written(table, "t.arrow"), "t.arrow")
        assert made.to_pylist() == table.to_pylist()


def _views(rng: random.Random, values: int, lists: int) -> tuple[list[int], list[int], list[bool]]:
    offsets = [rng.randint(0, values) for _ in range(lists)]
    sizes = [rng.randint(0, values - offset) for offset in offsets]
    return offsets, sizes, [rng.random() < 0.2 for _ in range(lists)]


@pytest.mark.parametrize("value", ["x" * 2000, 5, [1, 2]])
def test_views_of_lists_that_share_too_much_are_refused(value: Any) -> None:
    """A few kilobytes of a file would take gigabytes of memory."""
    bomb = _list_view(pa.array([value] * 4000), [0] * 4000, [4000] * 4000)
    data = _written(pa.table({"id": range(4000), "c": bomb}), "t.arrow")
    with pytest.raises(LimitError, match=r"file 't\.arrow', column 'c': its lists are views of 16,000,000 items"):
        _read(data, "t.arrow")


def test_damaged_views_of_lists_are_refused() -> None:
    bad = _list_view(pa.array([1, 2]), [0, 5], [1, 9])
    with pytest.raises(InputError, match=r"'t\.arrow' is not a readable Arrow file"):
        _read(_written(pa.table({"c": bad}), "t.arrow"), "t.arrow", pa.schema([("c", pa.list_(pa.int64()))]))


@pytest.mark.parametrize("name", KINDS)
def test_columns_without_a_name_of_their_own_are_refused_or_numbered(name: str) -> None:
    dialect = Dialect(names="number")
    for names, numbered, problem in (
        (["a", "a", "A"], ["a", "a_2", "A_3"], "column 'a' is there twice"),
        (["a", "A", "a_2"], ["a", "A_3", "a_2"], "columns 'a' and 'A' differ in case only, .*"),
        (["a", "", " "], ["a", "column_2", "column_3"], "column 2 has no name"),
    ):
        table = pa.table([[1], ["x"], [True]], names=names)
        data = _written(table, name)
        with pytest.raises(SchemaError, match=rf"file '{name}': {problem}; ingest_names: number"):
            infer(_source(data, name))
        made = _read(data, name, dialect=dialect)
        assert made.to_pylist() == [dict(zip(numbered, [1, "x", True], strict=True))]
        assert survey(_source(data, name, dialect=dialect)).names == numbered
        assert _read(data, name, made.schema, dialect=dialect).equals(made)
        some = made.schema.remove(1)
        assert _read(data, name, some, dialect=dialect, extra="ignore").equals(made.select(some.names))
        with pytest.raises(SchemaError):
            _read(data, name, made.schema)


def test_extra_fields_in_views_of_lists_are_ignored_where_asked() -> None:
    kind = pa.list_view(pa.struct([("x", pa.int64()), ("y", pa.float16())]))
    table = pa.table({"c": pa.array([[{"x": 1, "y": 2}]], kind), "z": [1]})
    schema = pa.schema([("c", pa.list_(pa.struct([("x", pa.int64())])))])
    for name in KINDS:
        assert _read(_written(table, name), name, schema, extra="ignore").to_pylist() == [{"c": [{"x": 1}]}]
