"""Judging all files of a segment at once, against judging them one by one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dolmen.entries.segments.row_bounds import always_mask, may_match_mask
from dolmen.entries.segments.segment_reader import FileTable
from dolmen.format.entries import DataFile, bounds
from dolmen.format.schema import Schema, type_from_json
from dolmen.format.segments import encode
from dolmen.format.types import to_array, to_json
from dolmen.predicate.ast import Column, Compare, In, Literal, Not, Predicate, children, columns, computes, terms_of
from dolmen.predicate.domains import Domain, domain_of
from dolmen.predicate.parse import parse
from dolmen.predicate.prune import StatsVerdict, judge
from support.random_entries import random_file
from support.random_predicates import random_predicate
from support.random_tables import FLAT, random_table

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
SIGNED = frozenset((pa.int8(), pa.int16(), pa.int32(), pa.int64()))
FINER = {("int8", "decimal128(4, 1)"): Decimal("0.5"), ("date32[day]", "timestamp[us]"): 43_200_000_000}
SEARCHED_BY_ENDS = frozenset((Domain.TEXT, Domain.BYTES))
ROUNDS = 1_500 if os.environ.get("DOLMEN_LONG") else 30


def one_by_one(where: Predicate, files: list[DataFile], schema: Schema) -> list[StatsVerdict]:
    """The verdict on each file."""
    return [
        judge(where, {id_: bounds(f.stats.get(id_), schema.by_id[id_].arrow_type) for id_ in columns(where)}, f.rows)
        for f in files
    ]


def as_table(files: list[DataFile], schema: Schema) -> FileTable:
    """The files in a segment."""
    return FileTable(*encode("files", files, "segment/files/x", schema))


def is_exact(where: Predicate) -> bool:
    """Whether the mask is as sharp as the judge: all of the predicate's comparisons are exact in columns."""
    if not isinstance(where, (Compare, In)) or computes(where):
        return all(map(is_exact, children(where)))
    own, other = terms_of(where)[0].arrow_type, (where.right if isinstance(where, Compare) else where).arrow_type
    if isinstance(where, Compare) and not isinstance(where.right, Literal):
        both = {own, other}
        return own == other or both <= SIGNED or all(map(pa.types.is_floating, both))
    if not pa.types.is_floating(own) and pa.types.is_floating(other):
        return bool(pa.types.is_integer(own) and other == pa.float64())
    return isinstance(where, Compare) or len(where.values) <= 32 or domain_of(own) not in SEARCHED_BY_ENDS


@pytest.mark.slow
def test_the_mask_says_of_each_file_what_the_judge_says_of_it_alone() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    exact = pruned = certain = 0
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        rows = random_table(rng, 60, FLAT)
        schema = Schema.from_arrow(rows.schema)
        files = []
        for _ in range(25):
            first = rng.randrange(60)
            files.append(random_file(rng, rows.slice(first, rng.choice([0, 1, 2, 5, 60])), schema))
        table = as_table(files, schema)
        odd = table.column("odd")
        assert odd is not None
        for _ in range(12):
            text = random_predicate(rng, rows)
            where = parse(text, schema, now_us=0)
            verdicts, all_exact = one_by_one(where, files, schema), is_exact(where)
            mask, always = may_match_mask(where, table), always_mask(where, table)
            for place, (file, verdict) in enumerate(zip(files, verdicts, strict=True)):
                case = SEED + round_, text, file
                assert mask[place] or verdict is StatsVerdict.NEVER, case
                assert not always[place] or not file.rows or verdict is StatsVerdict.ALWAYS, case
                if all_exact and file.rows and not odd[place].is_valid:
                    assert mask[place] == (verdict is not StatsVerdict.NEVER), case
                    assert always[place] == (verdict is StatsVerdict.ALWAYS), case
                    exact += 1
            pruned += int(np.count_nonzero(~mask))
            certain += int(np.count_nonzero(always))
    assert exact > ROUNDS * 100, "most predicates are exact in columns"
    assert pruned > ROUNDS * 10, "a mask that prunes nothing is no use"
    assert certain > ROUNDS * 10, "nor is one that is never certain"


@pytest.mark.parametrize(
    ("bound", "members", "draw"),
    [
        ("int8", ("int16", "double", "decimal128(4, 1)"), lambda rng: rng.randint(-128, 127)),
        ("int64", ("int64", "double"), lambda rng: 2**53 + rng.randint(-200, 200)),
        ("uint64", ("uint64",), lambda rng: 2**64 - rng.randint(1, 400)),
        ("float", ("float", "double"), lambda rng: rng.choice([float("nan"), *(n / 8 for n in range(-99, 99))])),
        ("double", ("double", "float"), lambda rng: rng.choice([float("inf"), *(n / 8 for n in range(-99, 99))])),
        ("date32[day]", ("date32[day]", "timestamp[us]"), lambda rng: rng.randint(-200, 200)),
        ("timestamp[us, tz=UTC]", ("timestamp[us, tz=UTC]",), lambda rng: rng.randint(0, 400)),
        ("string", ("string",), lambda rng: "ä" * rng.randint(0, 20) + str(rng.randint(0, 200))),
        ("decimal128(9, 2)", ("decimal128(9, 2)",), lambda rng: Decimal(rng.randint(0, 400)).scaleb(-2)),
    ],
)
def test_long_lists_leave_out_files_between_their_members(
    bound: str, members: tuple[str, ...], draw: Callable[[random.Random], Any]
) -> None:
    arrow_type = type_from_json(bound)
    exact = domain_of(arrow_type) is not Domain.TEXT and not pa.types.is_decimal(arrow_type)
    schema = Schema.from_arrow(pa.schema([("x", arrow_type)]))
    left_out = 0
    for round_ in range(ROUNDS // 10):
        rng = random.Random(SEED + round_)
        values = [
            to_array([rng.choice([draw(rng), None]) for _ in range(rng.randint(1, 3))], arrow_type) for _ in range(40)
        ]
        files = [random_file(rng, pa.table({"x": each}), schema) for each in values]
        table = as_table(files, schema)
        for name in members:
            drawn = {draw(rng) * FINER.get((bound, name), 1) for _ in range(90)}
            nan = [value for value in drawn if value != value][:1]
            listed = [*sorted(value for value in drawn if value == value), *nan]
            where = In(Column(1, bound), name, tuple(map(to_json, listed)), null=rng.random() < 0.2)
            for p in (where, Not(where)):
                may, certain = may_match_mask(p, table), always_mask(p, table)
                verdicts = one_by_one(p, files, schema)
                for place, verdict in enumerate(verdicts):
                    case = SEED + round_, p, files[place]
                    assert may[place] or verdict is StatsVerdict.NEVER, case
                    assert not certain[place] or verdict is StatsVerdict.ALWAYS, case
                    assert not exact or may[place] == (verdict is not StatsVerdict.NEVER), case
                    assert not exact or certain[place] == (verdict is StatsVerdict.ALWAYS), case
                left_out += int(np.count_nonzero(~may))
    assert left_out > 0


@pytest.mark.parametrize(
    ("arrow_type", "values", "text"),
    [
        (pa.int64(), [2**53, 2**53 + 1, 2**53 + 2, None], f"x = {2**53 + 1}"),
        (pa.uint64(), [0, 2**63, 2**64 - 1], f"x > {2**63}"),
        (pa.uint64(), [0, 2**63, 2**64 - 1], "x < 1.5"),
        (pa.int8(), [-128, 5, 127], "x = 300"),
        (pa.int32(), [1, 2, 3], "x IN (0, 2, 9)"),
        (pa.int32(), [1, 2, 3], "x BETWEEN 2 AND 9 OR x IS NULL"),
        (pa.int32(), [1, 2, 300], "x IN (" + ", ".join(str(n) for n in range(100, 200)) + ")"),
        (pa.float32(), [0.1, float("nan"), 1.5], "x = 0.1"),
        (pa.float64(), [float("-inf"), float("inf"), float("nan")], "x > 1e300"),
        (pa.float64(), [1.0, float("nan")], "x = 'nan'::DOUBLE"),
        (pa.float64(), [-0.0, 1.0], "x = 0"),
        (pa.decimal128(9, 2), [Decimal("1.25"), Decimal("1.26")], "x <= 1.255"),
        (pa.string(), ["a" * 40, "b" * 40, "日" * 17], "x LIKE 'aaaa%'"),
        (pa.string(), ["a", "b", None], "x = 'b'"),
        (pa.string(), ["a", "b"], "x > 'a'"),
        (pa.binary(2), [b"aa", b"\xff\xff"], "x = 'aa'::BLOB"),
        (pa.bool_(), [True, False, None], "x"),
        (pa.bool_(), [True, False, None], "NOT x"),
        (pa.date32(), [0, 1, 20_000], "x > DATE '1970-01-02'"),
        (pa.date32(), [0, 1, 20_000], "x > TIMESTAMP '1970-01-02 12:00:00'"),
        (pa.timestamp("us"), [0, 10**15], "x < TIMESTAMP '1980-01-01'"),
        (pa.timestamp("us", "UTC"), [0, 10**15], "x < TIMESTAMPTZ '1980-01-01 00:00:00+00'"),
        (pa.time64("us"), [0, 10**9], "x > TIME '00:00:01'"),
    ],
)
def test_the_mask_is_as_sharp_as_the_judge_for_plain_conditions(
    arrow_type: pa.DataType, values: list[object], text: str
) -> None:
    if pa.types.is_temporal(arrow_type):
        column = pa.array(values, pa.int32() if arrow_type.bit_width == 32 else pa.int64()).view(arrow_type)
    else:
        column = pa.array(values, arrow_type)
    rows = pa.table({"x": column})
    schema = Schema.from_arrow(rows.schema)
    rng = random.Random(1)
    files = [random_file(rng, rows.slice(place, 1), schema, gaps=False) for place in range(len(values))]
    where = parse(text, schema, now_us=0)
    expected = [verdict is not StatsVerdict.NEVER for verdict in one_by_one(where, files, schema)]
    assert may_match_mask(where, as_table(files, schema)).tolist() == expected
    assert False in expected or values == [], "the case proves nothing"


def test_files_whose_statistics_do_not_fit_their_columns_are_never_left_out() -> None:
    rows = pa.table({"x": pa.array([5], pa.int8())})
    wide = Schema.from_arrow(pa.schema([("x", pa.int64())]))
    narrow = Schema.from_arrow(rows.schema)
    file = random_file(random.Random(1), pa.table({"x": pa.array([300], pa.int64())}), wide, gaps=False)
    table = as_table([file], narrow)  # 300 is no int8: it stands in the column "odd"
    where = parse("x = 300", wide, now_us=0)
    assert may_match_mask(where, table).tolist() == [True]
    assert [entry for some in table.entries() for entry in some] == [file]
