"""Rows for which any of many predicates is TRUE: the same rows as by evaluating one predicate after the other."""

from __future__ import annotations

import os
import random

import numpy as np
import pyarrow as pa
import pytest

from dolmen.format.schema import Schema
from dolmen.predicate.any_of import Conjunction, Mask, any_of
from dolmen.predicate.evaluate import matches
from dolmen.predicate.parse import parse
from support.random_predicates import random_predicate
from support.random_tables import FLAT, random_table

SEED = int(os.environ["DOLMEN_TEST_SEED"])
ROUNDS = 200 if os.environ.get("DOLMEN_LONG") else 20


def one_by_one(texts: list[str], rows: pa.Table, limits: list[Mask | None]) -> Mask:
    """The rows of any predicate, each evaluated on all rows."""
    schema = Schema.from_arrow(rows.schema)
    arrays = {field.id: rows[field.name] for field in schema.fields}
    found = np.zeros(rows.num_rows, np.bool_)
    for text, limit in zip(texts, limits, strict=True):
        mask = matches(parse(text, schema, now_us=0), arrays, rows.num_rows).to_numpy(zero_copy_only=False)
        found |= mask if limit is None else mask & limit
    return found


def together(texts: list[str], rows: pa.Table, limits: list[Mask | None]) -> Mask:
    """The same by ``any_of``."""
    schema = Schema.from_arrow(rows.schema)
    arrays = {field.id: rows[field.name].combine_chunks() for field in schema.fields}
    predicates = [Conjunction(parse(text, schema, now_us=0)) for text in texts]
    return any_of(predicates, arrays, rows.num_rows, limits)


@pytest.mark.slow
def test_random_predicates_match_the_same_rows_together_as_one_by_one() -> None:
    matched = 0
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        rows = random_table(rng, 80, FLAT)
        texts = [random_predicate(rng, rows) for _ in range(4)]
        texts += [  # most deletes have this form
            " AND ".join(f"({random_predicate(rng, rows, 0)})" for _ in range(rng.randint(1, 4))) for _ in range(16)
        ]
        limits = [
            None if rng.random() < 0.5 else np.array([rng.random() < 0.8 for _ in range(80)], np.bool_) for _ in texts
        ]
        for some in (slice(None), slice(0, 1), slice(4, 12)):
            expected = one_by_one(texts[some], rows, limits[some])
            assert together(texts[some], rows, limits[some]).tolist() == expected.tolist(), (SEED + round_, texts[some])
            matched += int(np.count_nonzero(expected))
    assert matched > ROUNDS * 20


@pytest.mark.parametrize(
    ("values", "equal"),
    [
        (pa.array([1, 2, None, 3, 300], pa.int64()), "v = {}"),
        (pa.array([1, 2, None, 3, 4], pa.int8()), "v = {}00"),
        (pa.array([1.0, -0.0, None, float("nan"), 0.0]), "v = {}"),
        (pa.array(["1", "", None, "ä", "2"]), "v = '{}'"),
        (pa.array(["1", "", None, "ä", "2"]).dictionary_encode(), "v = '{}'"),
        (pa.array([True, False, None, True, False]), "v = TRUE AND id > {}"),
        (pa.array([9, 10, None, 11, 12], pa.int32()).cast(pa.date32()), "v = '1970-01-1{}'"),
        (pa.array([b"1", b"", None, b"2", b"22"], pa.binary()), "v = '{}'::BLOB"),
        (pa.array([b"1" * 16, b"2" * 16, None, b"3" * 16, b"4" * 16], pa.binary(16)), "v = '{0}{0}'::BLOB"),
    ],
)
def test_many_values_of_a_column_are_looked_up_at_once(values: pa.Array, equal: str) -> None:
    plain = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    rows = pa.table({"id": range(5_000), "v": pa.concat_arrays([plain] * 1_000), "s": ["x", "y"] * 2_500})
    texts = [f"{equal.format(n)} AND s = '{s}' AND id % 3 = {n % 3}" for n in range(9) for s in "xy"]
    limits: list[Mask | None] = [None] * len(texts)
    expected = one_by_one(texts, rows, limits)
    if pa.types.is_dictionary(values.type):
        rows = rows.set_column(1, "v", rows["v"].dictionary_encode())
        schema = Schema.from_arrow(rows.schema.set(1, pa.field("v", plain.type)))
        arrays = {field.id: rows[field.name].combine_chunks() for field in schema.fields}
        found = any_of([Conjunction(parse(text, schema, now_us=0)) for text in texts], arrays, 5_000, limits)
    else:
        found = together(texts, rows, limits)
    assert found.tolist() == expected.tolist()
