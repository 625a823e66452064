"""Judging all files of a segment at once, against judging them one by one."""

from __future__ import annotations

import os
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from dolmen.format.entries import DataFile
from dolmen.format.schema import Schema
from dolmen.format.segments import encode
from dolmen.format.statistics import bounds
from dolmen.predicate import Predicate, Verdict, columns, judge, parse
from dolmen.segments.file_table import FileTable
from dolmen.segments.mask import always_mask, may_match_mask
from support.random_entries import random_file
from support.random_predicates import random_predicate
from support.random_tables import FLAT, random_table

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
ROUNDS = 1_500 if os.environ.get("DOLMEN_LONG") else 60


def one_by_one(where: Predicate, files: list[DataFile], schema: Schema) -> list[Verdict]:
    """The verdict on each file."""
    return [
        judge(where, {id_: bounds(f.stats.get(id_), schema.by_id[id_].arrow_type) for id_ in columns(where)}, f.rows)
        for f in files
    ]


def as_table(files: list[DataFile], schema: Schema) -> FileTable:
    """The files in a segment."""
    return FileTable(*encode("files", files, "segment/files/x", schema))


def test_the_mask_has_every_file_that_may_match_whatever_is_known_of_it() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    pruned = 0
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        rows = random_table(rng, 60, FLAT)
        schema = Schema.from_arrow(rows.schema)
        files = []
        for _ in range(25):
            first = rng.randrange(60)
            files.append(random_file(rng, rows.slice(first, rng.choice([0, 1, 2, 5, 60])), schema))
        table = as_table(files, schema)
        for _ in range(12):
            text = random_predicate(rng, rows)
            where = parse(text, schema, now_us=0)
            verdicts = one_by_one(where, files, schema)
            mask, always = may_match_mask(where, table), always_mask(where, table)
            for file, verdict, may, certain in zip(files, verdicts, mask, always, strict=True):
                assert may or verdict is Verdict.NEVER, (SEED + round_, text, file)
                assert not certain or not file.rows or verdict is Verdict.ALWAYS, (SEED + round_, text, file)
            pruned += int(np.count_nonzero(~mask))
    assert pruned > 0, "a mask that prunes nothing is no use"


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
    expected = [verdict is not Verdict.NEVER for verdict in one_by_one(where, files, schema)]
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
