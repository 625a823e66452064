"""What a write may do to values so that they fit a table, and what it refuses."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dolmen.errors import RowError, SchemaError
from dolmen.format.schema import Schema
from dolmen.rows.write import conform as conform_module
from dolmen.rows.write.conform import conform


def _conform(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    target = Schema.from_arrow(schema)
    reader = pa.table(table).to_reader()
    batches = list(conform(reader, target))
    for batch in batches:
        assert batch.schema.equals(target.arrow, check_metadata=True)
        batch.validate(full=True)
    return pa.Table.from_batches(batches, target.arrow)


def _cast(array: pa.Array, target: pa.DataType, *, nullable: bool = True) -> list[Any]:
    values: list[Any] = _conform(pa.table({"c": array}), pa.schema([pa.field("c", target, nullable)]))["c"].to_pylist()
    return values


UTC = dt.UTC
LISTS = pa.array([[1, 2], None, [], [3]], pa.list_(pa.int64()))


@pytest.mark.parametrize(
    ("array", "target", "values"),
    [
        (pa.array([1, None, -128], pa.int64()), pa.int8(), [1, None, -128]),
        (pa.array([0, 2**63 - 1], pa.uint64()), pa.int64(), [0, 2**63 - 1]),
        (pa.array([2**53, -(2**53)]), pa.float64(), [2.0**53, -(2.0**53)]),
        (pa.array([2**24]), pa.float32(), [2.0**24]),
        (pa.array([999, None], pa.int64()), pa.decimal128(5, 2), [Decimal("999.00"), None]),
        (pa.array([0.5, None, float("inf")], pa.float64()), pa.float32(), [0.5, None, float("inf")]),
        (pa.array([0.1], pa.float32()), pa.float64(), [float(np.float32(0.1))]),
        (pa.array([1.5], pa.float16()), pa.float32(), [1.5]),
        (pa.array([Decimal("1.20")]), pa.decimal128(4, 1), [Decimal("1.2")]),
        (pa.array([Decimal("12.0")]), pa.int32(), [12]),
        (pa.array([Decimal("1.5")], pa.decimal256(60, 1)), pa.decimal128(9, 3), [Decimal("1.500")]),
        (pa.array(["a", None], pa.large_string()), pa.string(), ["a", None]),
        (pa.array(["a", None], pa.string_view()), pa.string(), ["a", None]),
        (pa.array([b"a", None], pa.binary_view()), pa.binary(), [b"a", None]),
        (pa.array([b"ab"], pa.large_binary()), pa.binary(2), [b"ab"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array(["b", "a", None, "b"]).dictionary_encode(), pa.string(), ["b", "a", None, "b"]),
        (pa.DictionaryArray.from_arrays([0, 1], ["x", None]), pa.string(), ["x", None]),
        (pa.array([1, 1, 2]).dictionary_encode(), pa.int8(), [1, 1, 2]),
        (
            pa.DictionaryArray.from_arrays([1, None, 0], pa.array(["x", "y"], pa.string_view())),
            pa.string(),
            ["y", None, "x"],
        ),
        (pc.run_end_encode(pa.array([7, 7, 8])), pa.int64(), [7, 7, 8]),
        (pa.nulls(2), pa.list_(pa.int8()), [None, None]),
        (pa.array([0], pa.date64()), pa.date32(), [dt.date(1970, 1, 1)]),
        (pa.array([1], pa.date32()), pa.timestamp("us"), [dt.datetime(1970, 1, 2)]),
        (pa.array([1], pa.timestamp("s")), pa.timestamp("us"), [dt.datetime(1970, 1, 1, 0, 0, 1)]),
        (pa.array([1000], pa.timestamp("ns")), pa.timestamp("us"), [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]),
        (
            pa.array([0], pa.timestamp("ms", "America/New_York")),
            pa.timestamp("us", "UTC"),
            [dt.datetime(1970, 1, 1, tzinfo=UTC)],
        ),
        (pa.array([1], pa.time32("s")), pa.time64("us"), [dt.time(0, 0, 1)]),
        (LISTS, pa.list_(pa.int8()), [[1, 2], None, [], [3]]),
        (LISTS.cast(pa.large_list(pa.int64())), pa.list_(pa.int64()), [[1, 2], None, [], [3]]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), pa.list_(pa.int32()), [[1, 2], None]),
        (
            pa.array([{"b": 1, "a": "x"}, None, {"b": None, "a": None}]),
            pa.struct([("a", pa.string()), ("b", pa.int8()), ("c", pa.float64())]),
            [{"a": "x", "b": 1, "c": None}, None, {"a": None, "b": None, "c": None}],
        ),
        (
            pa.array([[("k", 1)], None, []], pa.map_(pa.large_string(), pa.int64())),
            pa.map_(pa.string(), pa.int16()),
            [[("k", 1)], None, []],
        ),
        (
            pa.array([None, {"a": 1}], pa.struct([("a", pa.int64())])),
            pa.struct([pa.field("a", pa.int32(), nullable=False)]),
            [None, {"a": 1}],
        ),
    ],
    ids=lambda value: str(value.type if isinstance(value, pa.Array) else value)[:40],
)
def test_values_that_lose_nothing_are_cast(array: pa.Array, target: pa.DataType, values: list[Any]) -> None:
    assert _cast(array, target) == values
    twice = pa.concat_arrays([array, array]) if not pa.types.is_run_end_encoded(array.type) else array
    assert _cast(twice.slice(1), target) == ((values + values)[1:] if twice is not array else values[1:])


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([1, 128, 0], pa.int64()), pa.int8()),
        (pa.array([1, 2**63], pa.uint64()), pa.int64()),
        (pa.array([1, -1]), pa.uint64()),
        (pa.array([1, 2**53 + 1]), pa.float64()),
        (pa.array([1, 2**24 + 1]), pa.float32()),
        (pa.array([1, 1000]), pa.decimal128(5, 2)),
        (pa.array([0.5, 0.1]), pa.float32()),
        (pa.array([0.5, 1e300]), pa.float32()),
        (pa.array([Decimal("1.20"), Decimal("1.25")]), pa.decimal128(4, 1)),
        (pa.array([Decimal("1.0"), Decimal("1.5")]), pa.int32()),
        (pa.array([1000, 1001], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1, 2**60], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([1000, 1001], pa.time64("ns")), pa.time64("us")),
        (pa.array([0, 1], pa.date64()), pa.date32()),
        (pa.array([b"ab", b"abc"]), pa.binary(2)),
        (pa.array([[1], [2, 300]]), pa.list_(pa.int8())),
        (pa.array([{"a": 1}, {"a": 300}]), pa.struct([("a", pa.int8())])),
        (pa.array([{"a": 1}, {"a": None}]), pa.struct([pa.field("a", pa.int64(), nullable=False)])),
        (pa.array([[1], [None]]), pa.list_(pa.field("item", pa.int64(), nullable=False))),
        (pa.array([[("k", 1)], [("k", 300)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int8())),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused_by_row_and_column(array: pa.Array, target: pa.DataType) -> None:
    table = pa.table({"c": pa.chunked_array([array[:1], array[:1], array])})
    with pytest.raises(RowError) as caught:
        _conform(table, pa.schema([("c", target)]))
    assert (caught.value.row, caught.value.column) == (4, "c")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.string(), pa.int64()),
        (pa.large_string(), pa.timestamp("us")),
        (pa.int64(), pa.string()),
        (pa.float64(), pa.int64()),
        (pa.float64(), pa.decimal128(9, 2)),
        (pa.decimal128(9, 2), pa.float64()),
        (pa.bool_(), pa.int8()),
        (pa.int8(), pa.bool_()),
        (pa.binary(), pa.string()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.date32()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.int64(), pa.timestamp("us")),
        (pa.list_(pa.int64()), pa.struct([("a", pa.int64())])),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.int64(), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int64()), ("z", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("b", pa.int64())]), pa.struct([pa.field("a", pa.int64(), nullable=False)])),
        (pa.dictionary(pa.int8(), pa.string()), pa.int64()),
    ],
    ids=str,
)
def test_another_kind_is_refused_before_any_row(source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="column 'c'"):
        conform(pa.schema([("c", source)]).empty_table().to_reader(), Schema.from_arrow(pa.schema([("c", target)])))


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int8()))])
    assert _conform(pa.table({"b": ["x"], "a": [1]}), schema).to_pylist() == [{"a": 1, "b": "x", "c": None}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a", "b", "z"], r"column 'z'.*a, b"),
        (["A", "a"], r"columns 'A'.*'a'"),
        (["b"], r"column 'a'.*missing"),
        (["a", "a"], r"column 'a'.*twice"),
    ],
)
def test_columns_that_do_not_match_are_refused_before_any_row(columns: list[str], message: str) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    reader = pa.table([pa.array([1])] * len(columns), names=columns).to_reader()
    with pytest.raises(SchemaError, match=message):
        conform(reader, Schema.from_arrow(schema))


@pytest.mark.parametrize("nulls", [pa.array([1, 2, None]), pa.nulls(3), pa.array([1, 1, None]).dictionary_encode()])
def test_null_where_none_may_be_is_refused_by_row(nulls: pa.Array) -> None:
    with pytest.raises(RowError, match="not nullable") as caught:
        _cast(nulls, pa.int64(), nullable=False)
    assert caught.value.row == (1 if pa.types.is_null(nulls.type) else 3)


def test_of_several_faults_the_first_row_is_named() -> None:
    table = pa.table({"a": [1, 2, 300], "b": [1, 300, 300]})
    with pytest.raises(RowError) as caught:
        _conform(table, pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    assert (caught.value.row, caught.value.column) == (2, "b")


def test_batches_are_handed_out_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conform_module, "MAX_BATCH_ROWS", 100)
    monkeypatch.setattr(conform_module, "MAX_BATCH_BYTES", 1000)
    table = pa.table({"a": pa.array(["x" * (n % 90) for n in range(1000)], pa.large_string())})
    schema = Schema.from_arrow(pa.schema([("a", pa.string())]))
    batches = list(conform(table.to_reader(), schema))
    assert pa.Table.from_batches(batches)["a"].to_pylist() == table["a"].to_pylist()
    assert max(batch.num_rows for batch in batches) <= 100
    assert max(batch.nbytes for batch in batches) <= 1000


def test_slices_of_views_are_not_taken_for_all_the_bytes_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conform_module, "MAX_BATCH_ROWS", 100)
    monkeypatch.setattr(conform_module, "MAX_BATCH_BYTES", 10_000)
    frame = polars.DataFrame({"a": [f"{n:050}" for n in range(1000)], "b": [[f"{n:030}", None] for n in range(1000)]})
    reader = pa.RecordBatchReader.from_stream(frame)
    assert reader.schema.field("a").type == pa.string_view()
    schema = Schema.from_arrow(pa.schema([("a", pa.string()), ("b", pa.list_(pa.string()))]))
    batches = list(conform(reader, schema))
    assert len(batches) <= 20
    assert pa.Table.from_batches(batches).to_pylist() == frame.to_dicts()


def test_batches_that_fit_already_are_not_copied() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))])
    table = pa.table({"a": [1, 2], "b": [[{"c": "x"}], None]}, schema=schema)
    result = _conform(table, schema)
    for name in schema.names:
        before, after = table[name].chunk(0), result[name].chunk(0)
        assert [b and b.address for b in before.buffers()] == [b and b.address for b in after.buffers()]


def test_extension_types_are_stored_as_what_they_hold() -> None:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
    assert _cast(ids, pa.binary(16)) == [b"0123456789abcdef"]
