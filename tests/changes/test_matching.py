"""Rows that were taken away and rows that were added, matched in memory and through files, are matched alike."""

from __future__ import annotations

import os
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from dolmen.rows.changes.row_matching import RowMatcher, equal_rows
from dolmen.rows.write.row_digest import row_hashes
from support.random_tables import TYPES, random_column

SEED = os.environ["DOLMEN_TEST_SEED"]
RUNS = 400 if os.environ.get("DOLMEN_LONG") else 20


def batches(rows: pa.Table, rng: random.Random) -> list[pa.RecordBatch]:
    return rows.to_batches(max_chunksize=rng.randint(1, 20))


@pytest.mark.slow
@pytest.mark.parametrize("held_bytes", [1 << 30, 4_000])
@pytest.mark.parametrize("number", range(RUNS))
def test_the_difference_is_exact_and_pairs_by_key(number: int, held_bytes: int) -> None:
    rng = random.Random(f"{SEED} {number} {held_bytes}")
    kinds = rng.sample(sorted(TYPES), rng.randint(1, 4))
    whole = pa.table(
        {"id": pa.array([rng.randrange(40) for _ in range(200)], pa.int64())}
        | {f"c{place}": random_column(rng, kind, 200) for place, kind in enumerate(kinds)}
    )
    # three copies, so that rows are there several times
    deleted = pa.concat_tables([whole.slice(0, 120), whole.slice(60, 60)]).combine_chunks()
    inserted = pa.concat_tables([whole.slice(80, 120), whole.slice(100, 20)]).combine_chunks()
    key = ["id"] if rng.random() < 0.5 else []
    matcher = RowMatcher(whole.schema, key, drop_equal=True, memory_bytes=held_bytes)
    if rng.random() < 0.5:
        found = list(matcher.match(iter(batches(deleted, rng)), batches(inserted, rng)))
    else:
        mixed = [("delete", batch) for batch in batches(deleted, rng)]
        mixed += [("insert", batch) for batch in batches(inserted, rng)]
        rng.shuffle(mixed)
        found = list(matcher.match_mixed(iter(mixed)))  # type: ignore[arg-type]
    gone, new = counts(deleted), counts(inserted)
    taken = sum((counts(rows) for change, rows in found if change in ("delete", "update_before")), Counter[int]())
    added = sum((counts(rows) for change, rows in found if change in ("insert", "update_after")), Counter[int]())
    assert (taken, added) == (gone - new, new - gone)
    if key:
        ids = {
            change: Counter(id_ for what, rows in found if what == change for id_ in rows["id"].to_pylist())
            for change in ("insert", "delete", "update_before", "update_after")
        }
        assert ids["update_before"] == ids["update_after"]
        assert not ids["insert"] & ids["delete"]
    else:
        assert {change for change, _ in found} <= {"insert", "delete"}


def counts(rows: pa.Table | pa.RecordBatch) -> Counter[int]:
    """How often each row is there, by its number: 64 bits, which differ for a few hundred different rows."""
    whole = rows.combine_chunks().to_batches()[0] if isinstance(rows, pa.Table) and rows.num_rows else rows
    return Counter() if not rows.num_rows else Counter(row_hashes(whole).tolist())


@pytest.mark.parametrize("number", range(RUNS))
def test_rows_are_equal_if_their_bits_are(number: int) -> None:
    rng = random.Random(f"{SEED} {number} equal")
    kind = rng.choice(sorted(TYPES))
    column = random_column(rng, kind, 60)
    places = np.array([rng.randrange(60) for _ in range(60)])
    other = column.take(pa.array(places)).slice(7, 40)
    first = column.slice(7, 40)
    expected = [str(a) == str(b) for a, b in zip(plain(first), plain(other), strict=True)]
    assert equal_rows([first], [other]).tolist() == expected
    numbers = row_hashes(pa.record_batch([first], ["c"])), row_hashes(pa.record_batch([other], ["c"]))
    assert [not same or one == two for same, one, two in zip(expected, *numbers, strict=True)] == [True] * 40


def plain(column: pa.Array) -> list[object]:
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values: list[object] = column.to_pylist()
    return values


def test_equal_numbers_of_different_rows_are_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dolmen.rows.changes.row_matching.row_hashes", lambda batch: np.zeros(batch.num_rows, np.uint64)
    )
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    one, other = ([{"id": id_, "v": v}] for id_, v in ((1, 1), (2, 2)))
    matcher = RowMatcher(schema, ["id"], drop_equal=True)
    found = list(
        matcher.match(iter([pa.RecordBatch.from_pylist(one, schema)]), [pa.RecordBatch.from_pylist(other, schema)])
    )
    assert [(change, rows.to_pylist()) for change, rows in found] == [("delete", one), ("insert", other)]
