"""Transforms of partitions: the test vectors of Iceberg's specification, and a plain implementation as an oracle."""

from __future__ import annotations

import os
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from dolmen.errors import InputError, SchemaError
from dolmen.format.column_terms import check_partition_columns, parse_partition_by, partition_text
from dolmen.format.schema import Schema
from dolmen.format.transforms import Transform
from dolmen.format.types import Plain, to_plain

MANY = 2**31 - 1
VECTORS: list[tuple[Any, pa.DataType, int]] = [
    (34, pa.int32(), 2017239379),
    (34, pa.int64(), 2017239379),
    (34, pa.uint8(), 2017239379),
    (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
    (date(2017, 11, 16), pa.date32(), -653330422),
    (time(22, 31, 8), pa.time64("us"), -662762989),
    (datetime(2017, 11, 16, 22, 31, 8), pa.timestamp("us"), -2047944441),
    (datetime(2017, 11, 16, 22, 31, 8, 1), pa.timestamp("us"), -1207196810),
    (datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), pa.timestamp("us", "UTC"), -2047944441),
    (datetime(2017, 11, 16, 22, 31, 8, 1, tzinfo=UTC), pa.timestamp("us", "UTC"), -1207196810),
    ("iceberg", pa.string(), 1210000089),
    (UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, pa.binary(16), 1488055340),
    (b"\x00\x01\x02\x03", pa.binary(4), -188683207),
    (b"\x00\x01\x02\x03", pa.binary(), -188683207),
]
"""Values, and their hashes, of Appendix B of Iceberg's specification."""


def values_of(transform: Transform, array: pa.Array) -> list[Plain]:
    """The results, which are those of single values, and of a slice, too."""
    found = to_plain(transform.array(array))
    assert [transform.value(value, array.type) for value in to_plain(array)] == found
    assert to_plain(transform.array(array.slice(1))) == found[1:]
    return found


@pytest.mark.parametrize(("value", "kind", "hashed"), VECTORS, ids=lambda each: str(each))
def test_buckets_are_those_of_icebergs_specification(value: Any, kind: pa.DataType, hashed: int) -> None:
    for size in (1, 16, 1000, MANY):
        expected = (hashed & MANY) % size
        assert values_of(Transform("bucket", size), pa.array([value, None, value], kind)) == [expected, None, expected]


def reference_murmur3(body: bytes) -> int:
    """The hash, byte by byte."""
    value = 0
    for start in range(0, len(body), 4):
        part = body[start : start + 4]
        word = int.from_bytes(part, "little") * 0xCC9E2D51 & 0xFFFFFFFF
        word = (word << 15 | word >> 17) * 0x1B873593 & 0xFFFFFFFF
        value ^= word
        if len(part) == 4:
            value = (value << 13 | value >> 19) & 0xFFFFFFFF
            value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= len(body)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ value >> shift) * factor & 0xFFFFFFFF
    return value & MANY


def test_random_values_hash_as_a_plain_implementation_does() -> None:
    random = np.random.default_rng(int(os.environ["DOLMEN_TEST_SEED"]))
    bodies = [random.bytes(int(length)) for length in random.integers(0, 40, 500)]
    assert values_of(Transform("bucket", MANY), pa.array(bodies)) == [reference_murmur3(body) % MANY for body in bodies]
    numbers = random.integers(-(2**63), 2**63 - 1, 200)
    expected = [reference_murmur3(struct.pack("<q", number)) % MANY for number in numbers]
    assert values_of(Transform("bucket", MANY), pa.array(numbers)) == expected
    digits = [int(number) >> int(shift) for number, shift in zip(numbers, random.integers(0, 63, 200), strict=True)]
    digits += [0, -1, 127, 128, -128, -129, 10**38 - 1, 1 - 10**38]
    decimals = pa.array([Decimal(number).scaleb(-4) for number in digits[:-2]], pa.decimal128(30, 4))
    for array, own in ((decimals, digits[:-2]), (pa.array([Decimal(number) for number in digits]), digits)):
        shortest = [
            number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True) for number in own
        ]
        assert values_of(Transform("bucket", MANY), array) == [reference_murmur3(body) % MANY for body in shortest]


def test_dates_and_times_are_rounded_down_also_before_1970() -> None:
    moments = [datetime(2017, 12, 1, 10, 30), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1, 1, 1), None]
    timestamps = pa.array(moments, pa.timestamp("us"))
    dates = pa.array([each and each.date() for each in moments])
    for values in (timestamps, dates, timestamps.cast(pa.timestamp("us", "UTC"))):
        assert values_of(Transform("year"), values) == [47, -1, -1969, None]
        assert values_of(Transform("month"), values) == [575, -1, -1969 * 12, None]
        assert values_of(Transform("day"), values) == [17501, -1, -719_162, None]
    assert values_of(Transform("hour"), timestamps) == [420034, -1, -719_162 * 24, None]
    ends = pa.array([-(2**63), 2**63 - 1]).view(pa.timestamp("us"))
    assert values_of(Transform("hour"), ends) == [-(2**63) // 3_600_000_000, 2**63 // 3_600_000_000]
    far = pa.array([-(2**31), 2**31 - 1], pa.int32()).view(pa.date32())
    assert values_of(Transform("year"), far) == [-5_879_611, 5_879_610]


def test_truncated_values_are_those_of_icebergs_specification() -> None:
    for kind in (pa.int8(), pa.int32(), pa.int64()):
        assert values_of(Transform("truncate", 10), pa.array([1, -1, None, 100], kind)) == [0, -10, None, 100]
    decimals = pa.array([Decimal("10.65"), Decimal("-0.01"), None], pa.decimal128(9, 2))
    assert values_of(Transform("truncate", 50), decimals) == [Decimal("10.50"), Decimal("-0.50"), None]
    assert values_of(Transform("truncate", 3), pa.array(["iceberg", "ä€😀x", "", None])) == ["ice", "ä€😀", "", None]
    assert values_of(Transform("truncate", 2), pa.array([b"\x01\x02\x03", None])) == [b"\x01\x02", None]
    least = pa.array([Decimal(-99)], pa.decimal128(2, 0))
    assert values_of(Transform("truncate", 10), least) == [Decimal(-100)]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("day(at), tenant", "day(at), tenant"),
        ("days(at),bucket(16, id)", "day(at), bucket[16](id)"),
        ("Bucket[ 4 ]( id ) , truncate(id, 10)", "bucket[4](id), truncate[10](id)"),
        ('"a b", month("x, ""y""(")', '"a b", month("x, ""y""(")'),
        ("identity(a)", "a"),
    ],
)
def test_terms_are_read_as_engines_write_them(text: str, canonical: str) -> None:
    assert partition_text(parse_partition_by(text)) == canonical
    assert parse_partition_by(canonical) == parse_partition_by(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "names no partitions"), (" , a", "is not a column"), ("a,", "ends with a comma"),
        ("day(a", "is not a column"),
        ("week(a)", "'week' is not a transform"), ("bucket(a)", "takes a number"), ("day(2, a)", "no number"),
        ("bucket[0](a)", "not from 1"), ("bucket[2](3, a)", "several numbers"), ("a, A", "is there twice"),
        ("bucket[2](a), bucket[3](a)", "is there twice"), (", ".join(f"c{n}" for n in range(17)), "at most 16"),
    ],
)  # fmt: skip
def test_other_terms_are_refused_with_what_to_write(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part.replace("[", r"\[")):
        parse_partition_by(text)


@pytest.mark.parametrize(
    "term", ["hour(d)", "day(i)", "f", "bucket[2](f)", "truncate[2](d)", "l", "bucket[2](b)", "bucket[2](u)", "none"]
)
def test_columns_of_other_types_have_no_such_partitions(term: str) -> None:
    fields = [
        ("d", pa.date32()), ("i", pa.int32()), ("f", pa.float64()), ("l", pa.list_(pa.int8())), ("b", pa.bool_()),
        ("u", pa.uint64()),
    ]  # fmt: skip
    schema = Schema.from_arrow(pa.schema(fields))
    check_partition_columns(parse_partition_by("d, i, b, u, month(d), bucket[3](d), truncate[5](i)"), schema)
    with pytest.raises(SchemaError):
        check_partition_columns(parse_partition_by(term), schema)
