"""Keys as bytes: in the order of the values, equal for equal values only."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolmen.entries.index.key_encoding import LONGEST_KEY, KeyEncoding, as_matrix, key_order
from dolmen.errors import InputError

TEXTS = st.text(st.sampled_from("\0\x01aé\U0010ffff"), max_size=6)
BYTES = st.binary(max_size=4) | st.lists(st.sampled_from([b"\0", b"\xff", b"\x01"]), max_size=5).map(b"".join)
DAYS = st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "decimal": (pa.decimal128(20, 2), st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    "date": (pa.date32(), DAYS),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "fixed8": (pa.binary(8), st.binary(min_size=8, max_size=8)),
    "wide": (pa.binary(300), st.binary(min_size=1, max_size=1).map(lambda byte: bytes(150) + byte * 150)),
    "string": (pa.string(), TEXTS),
    "binary": (pa.binary(), BYTES),
}


@st.composite
def tuples(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(VALUES[name][1] for name in names)), max_size=12))
    return names, rows


def arrays_of(names: list[str], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], VALUES[name][0]) for at, name in enumerate(names)]


def in_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@settings(deadline=None)
@given(tuples())
def test_keys_are_in_the_order_of_their_values(case: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    names, rows = case
    arrays = arrays_of(names, rows)
    encoding = KeyEncoding.of([array.type for array in arrays])
    keys = encoding.encode(arrays)
    expected = [tuple(map(in_bytes, row)) for row in rows]
    assert [expected[at] for at in key_order(keys)] == sorted(expected)
    for at, one in enumerate(expected):
        for other_at, other in enumerate(expected):
            assert (keys[at] == keys[other_at]) == (one == other)
            assert (keys[at] < keys[other_at]) == (one < other)


@settings(deadline=None)
@given(tuples(), st.integers(0, 5), st.integers(0, 5))
def test_a_slice_and_another_batch_have_the_same_keys(
    case: tuple[list[str], list[tuple[Any, ...]]], start: int, length: int
) -> None:
    names, rows = case
    arrays = arrays_of(names, rows)
    encoding = KeyEncoding.of([array.type for array in arrays])
    whole = encoding.encode(arrays)[start : start + length]
    part = encoding.encode([array.slice(start, length) for array in arrays])
    assert whole.tolist() == part.tolist()
    blocks = [keys.tolist() for _, keys in encoding.encode_blocks(arrays)]
    assert [key for block in blocks for key in block] == encoding.encode(arrays).tolist()


@pytest.mark.parametrize(("narrow", "wide"), [("int8", "int64"), ("int32", "int64"), ("uint8", "uint64")])
def test_a_wider_column_has_the_same_keys(narrow: str, wide: str) -> None:
    values = [0, 1, 77]
    of = [pa.array(values, VALUES[name][0]) for name in (narrow, wide)]
    assert KeyEncoding.of([of[0].type]) == KeyEncoding.of([of[1].type])
    assert KeyEncoding.of([of[0].type]).encode(of[:1]).tolist() == KeyEncoding.of([of[1].type]).encode(of[1:]).tolist()


def test_decimals_of_more_digits_have_the_same_keys_and_those_of_another_scale_another_encoding() -> None:
    few, many = (pa.array([Decimal("-1.50"), Decimal("2.25")], pa.decimal128(digits, 2)) for digits in (5, 38))
    encoding = KeyEncoding.of([few.type])
    assert encoding == KeyEncoding.of([many.type]) != KeyEncoding.of([pa.decimal128(5, 3)])
    assert encoding.encode([few]).tolist() == encoding.encode([many]).tolist()


def test_days_and_instants_are_encoded_differently() -> None:
    kinds = [
        KeyEncoding.of([each]) for each in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.int64())
    ]
    assert len(set(kinds)) == len(kinds)


def test_long_keys_differ_wherever_they_differ_and_are_cut() -> None:
    text = "x" * 5_000
    rows = [
        text,
        text + "y",
        text[:-1] + "y",
        "x" * (LONGEST_KEY - 1),
        "x" * LONGEST_KEY,
        "x" * (LONGEST_KEY + 1),
        "",
        "y",
    ]
    encoding = KeyEncoding.of([pa.string()])
    keys = encoding.encode([pa.array(rows)])
    assert len(set(keys.tolist())) == len(rows)
    assert keys.dtype.itemsize == LONGEST_KEY
    again = encoding.encode([pa.array(rows[1:2])])
    assert again[0] == keys[1]
    assert max(keys.tolist()) == b"y"
    composite = KeyEncoding.of([pa.string(), pa.int64()])
    pairs = composite.encode([pa.array([text, text, text]), pa.array([1, 2, 1])])
    assert pairs[0] == pairs[2] != pairs[1]


def test_a_short_key_does_not_pass_for_the_digest_of_a_long_one() -> None:
    encoding = KeyEncoding.of([pa.binary()])
    long = encoding.encode([pa.array([b"z" * 9_000], pa.binary())])
    forged = pa.array([as_matrix(long)[0].tobytes(), as_matrix(long)[0].tobytes()[:-1]], pa.binary())
    assert long[0] not in encoding.encode([forged]).tolist()


@pytest.mark.parametrize("wrong", [pa.float64(), pa.float32(), pa.list_(pa.int64())])
def test_floats_and_nested_values_are_no_keys(wrong: pa.DataType) -> None:
    with pytest.raises(InputError, match="can't be"):
        KeyEncoding.of([pa.int64(), wrong])


def test_many_keys_with_equal_beginnings_are_sorted() -> None:
    random = np.random.default_rng(7)
    rows = [f"https://example.com/{number:09d}" for number in random.integers(0, 500, 2_000)]
    keys = KeyEncoding.of([pa.string()]).encode([pa.array(rows)])
    assert keys[key_order(keys)].tolist() == sorted(row.encode() for row in rows)
