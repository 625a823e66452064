"""The digest of rows: of what they are, and of nothing else."""

from __future__ import annotations

import random
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolmen.rows.write.row_digest import RowDigest

TYPES = {
    "i": pa.int64(),
    "s": pa.string(),
    "b": pa.binary(),
    "f": pa.float64(),
    "t": pa.bool_(),
    "m": pa.decimal128(20, 2),
    "x": pa.binary(3),
    "d": pa.date32(),
    "l": pa.list_(pa.list_(pa.string())),
    "o": pa.struct([("a", pa.int32()), ("b", pa.list_(pa.bool_()))]),
    "p": pa.map_(pa.string(), pa.int8()),
}
SCHEMA = pa.schema(list(TYPES.items()))


def or_null(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": or_null(st.integers(-(2**63), 2**63 - 1)),
            "s": or_null(st.text(max_size=5)),
            "b": or_null(st.binary(max_size=5)),
            "f": or_null(st.floats(allow_nan=False)),
            "t": or_null(st.booleans()),
            "m": or_null(st.integers(-(10**18), 10**18).map(lambda cents: Decimal(cents).scaleb(-2))),
            "x": or_null(st.binary(min_size=3, max_size=3)),
            "d": or_null(st.dates()),
            "l": or_null(st.lists(or_null(st.lists(or_null(st.text(max_size=2)), max_size=3)), max_size=3)),
            "o": or_null(
                st.fixed_dictionaries(
                    {"a": or_null(st.integers(0, 9)), "b": or_null(st.lists(st.booleans(), max_size=3))}
                )
            ),
            "p": or_null(st.lists(st.tuples(st.text(max_size=2), or_null(st.integers(0, 9))), max_size=3)),
        }
    ),
    max_size=6,
)


def digest(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> str:
    of_rows = RowDigest(schema)
    for batch in batches:
        of_rows.update(batch)
    return of_rows.hexdigest()


def batch_of(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@pytest.mark.slow
@given(rows=ROWS, around=ROWS, cuts=st.lists(st.integers(0, 6), max_size=3))
def test_batches_and_slices_make_no_difference(
    rows: list[dict[str, object]], around: list[dict[str, object]], cuts: list[int]
) -> None:
    whole = batch_of(around + rows + around).slice(len(around), len(rows))
    places = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    parts = [whole.slice(first, last - first) for first, last in pairwise(places)]
    assert digest(*parts) == digest(batch_of(rows)) == digest(whole)


@pytest.mark.slow
@given(one=ROWS, other=ROWS)
def test_other_rows_have_another_digest(one: list[dict[str, object]], other: list[dict[str, object]]) -> None:
    same = batch_of(one).to_pylist() == batch_of(other).to_pylist() and "-0.0" not in repr((one, other))
    if "-0.0" not in repr((one, other)):
        assert (digest(batch_of(one)) == digest(batch_of(other))) == same


@pytest.mark.parametrize("name", TYPES)
def test_a_value_that_moves_beside_a_null_is_told(name: str) -> None:
    values = {
        "i": 1, "s": "", "b": b"", "f": 0.0, "t": False, "m": Decimal(0), "x": b"\0\0\0", "d": 0, "l": [], "p": [],
        "o": {"a": None, "b": None},
    }  # fmt: skip
    schema = pa.schema([(name, TYPES[name])])
    columns = [pa.array(order, TYPES[name]) for order in ([values[name], None], [None, values[name]], [None, None])]
    digests = {digest(pa.record_batch([column], schema), schema=schema) for column in columns}
    assert len(digests) == 3


def test_what_lies_beneath_a_null_makes_no_difference() -> None:
    schema = pa.schema([("i", pa.int64())])
    validity = pa.py_buffer(np.packbits([1, 0, 1], bitorder="little").tobytes())
    clean, dirty = (
        pa.Array.from_buffers(pa.int64(), 3, [validity, pa.py_buffer(np.array([1, beneath, 3]).tobytes())])
        for beneath in (0, 77)
    )
    assert digest(pa.record_batch([clean], schema), schema=schema) == digest(
        pa.record_batch([dirty], schema), schema=schema
    )


def test_bounds_between_strings_count() -> None:
    schema = pa.schema([("s", pa.string())])
    one, other = (pa.record_batch([pa.array(texts)], schema) for texts in (["ab", "c"], ["a", "bc"]))
    assert digest(one, schema=schema) != digest(other, schema=schema)


def test_names_kinds_and_order_of_rows_count_and_order_of_columns_does_not() -> None:
    columns = {"a": pa.array([1, 2]), "b": pa.array([3, 4])}

    def of(columns: dict[str, pa.Array]) -> str:
        batch = pa.record_batch(columns)
        return digest(batch, schema=batch.schema)

    first = of(columns)
    assert of(dict(reversed(columns.items()))) == first
    assert of({"a": pa.array([2, 1]), "b": pa.array([4, 3])}) != first
    assert of({"a": columns["b"], "b": columns["a"]}) != first
    assert of({"a": columns["a"], "c": columns["b"]}) != first
    assert of({"a": columns["a"], "b": columns["b"].cast(pa.float64())}) != first
    assert of({"a": columns["a"], "b": columns["b"].cast(pa.int8())}) == first  # a narrower column, the same values


def test_a_column_of_nothing_but_nulls_makes_no_difference() -> None:
    batch = pa.record_batch({"a": pa.array([1, None])})
    more = batch.append_column("b", pa.nulls(2, pa.string()))
    assert digest(more, schema=more.schema) == digest(batch, schema=batch.schema)
    other = batch.append_column("b", pa.array([None, ""]))
    assert digest(other, schema=other.schema) != digest(batch, schema=batch.schema)


def test_a_field_of_nothing_but_nulls_makes_no_difference() -> None:
    """Else a request that is sent again after its table got the field would be another request."""
    before = pa.schema([("o", pa.struct([("a", pa.int32())]))])
    after = pa.schema([("o", pa.struct([("a", pa.int32()), ("n", pa.struct([("m", pa.int8())]))]))])
    rows: list[dict[str, object]] = [{"o": {"a": 1}}, {"o": None}, {"o": {"a": None}}]
    old, new = (digest(pa.RecordBatch.from_pylist(rows, each), schema=each) for each in (before, after))
    other = digest(pa.RecordBatch.from_pylist([{"o": {"a": 1, "n": {"m": 2}}}, *rows[1:]], after), schema=after)
    assert new == old != other


def test_the_digest_of_known_rows_stays_what_it_is() -> None:
    """It stands in manifests, where later versions of the code compare it with theirs."""
    rows = 200_000
    shuffled = random.Random(4)
    batch = pa.record_batch(
        {
            "i": pa.array(np.arange(rows)),
            "s": pa.array([f"user-{shuffled.randrange(1000)}" if n % 7 else None for n in range(rows)]),
            "t": pa.array([bool(n % 3) for n in range(rows)]),
        }
    )
    assert digest(batch, schema=batch.schema) == "c1-029219206da7de3ed6b8ada93f828c62"
