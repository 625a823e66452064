"""The lookup of keys agrees with plain Python sets, for every type that can be a key."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from dolmen.format.entries import Blob, KeysTombstone
from dolmen.format.keys import keys_from_arrow
from dolmen.format.schema import Schema
from dolmen.format.statistics import Bounds, column_stats
from dolmen.format.values import to_plain
from dolmen.scan.key_codes import codes, is_exact
from dolmen.scan.keys_lookup import KeysLookup
from support.random_tables import FLAT, random_column

KEYS = [kind for kind in FLAT if not kind.startswith("float")]


def lookup(*lists: tuple[int, pa.Table]) -> KeysLookup:
    """Tombstones with these timestamps over the rows of these tables."""
    schema = Schema.from_arrow(lists[0][1].schema)
    found = []
    for ts, rows in lists:
        keys = keys_from_arrow(rows, schema.fields)
        ends = [to_plain(column.combine_chunks()) for column in keys.columns]
        stats = [column_stats(min(values), max(values), 0) for values in ends]  # type: ignore[type-var]
        found.append(
            (
                KeysTombstone(
                    columns=tuple(field.id for field in schema.fields),
                    types=tuple(str(column.type) for column in keys.columns),
                    count=keys.num_rows,
                    bounds=tuple((s.min, s.max) for s in stats),
                    blob=Blob("tombstone/t/x.del", 4, 1, ts),
                    ts=ts,
                ),
                keys,
            )
        )
    return KeysLookup(found, [field.arrow_type for field in schema.fields])


def plain(rows: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(to_plain(column.combine_chunks()) for column in rows.columns), strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_hidden_rows_are_those_whose_tuple_is_in_a_newer_list(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(KEYS) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    names = [f"c{place}" for place in range(len(kinds))]
    rows = pa.table([random_column(rng, kind, 200) for kind in kinds], names=names)
    whole = rows.drop_null()
    if whole.num_rows == 0:
        return
    lists = []
    for ts in (10, 20, 30):
        drawn = whole.take(pa.array([rng.randrange(whole.num_rows) for _ in range(rng.randint(1, 30))]))
        lists.append((ts, drawn))
    found = lookup(*lists)
    for applied_through in (0, 10, 15, 29, 30, 99):
        newer = {key for ts, drawn in lists if ts > applied_through for key in plain(drawn)}
        expected = [key in newer and None not in key for key in plain(rows)]
        arrays = [column.combine_chunks() for column in rows.columns]
        assert found.hidden(arrays, applied_through).tolist() == expected
        part = [array.slice(37, 90) for array in arrays]
        assert found.hidden(part, applied_through).tolist() == expected[37:127]


def test_many_keys_and_rows_agree_with_numpy() -> None:
    rng = np.random.default_rng(3)
    for keys, rows in (
        (rng.choice(1_000_000, 20_000, replace=False), np.arange(300_000, 500_000)),
        (rng.integers(-(2**63), 2**63 - 1, 5_000), rng.integers(-(2**63), 2**63 - 1, 50_000)),
        (np.array([2**63 - 1, -(2**63), 0]), np.array([2**63 - 1, -(2**63), 1, 0, -1])),
    ):
        table = pa.table({"k": pa.array(np.unique(keys), pa.int64())})
        rows = np.concatenate([rows, keys[:3]])
        found = lookup((5, table)).hidden([pa.array(rows)], 0)
        assert (found == np.isin(rows, keys)).all()


def test_rows_in_order_are_looked_up_the_other_way_round_with_the_same_result() -> None:
    rng = np.random.default_rng(4)
    for least, greatest in ((0, 50), (-(2**63), 2**63 - 1), (10, 11)):
        old, new = (np.unique(rng.integers(least, greatest, 20, endpoint=True)) for _ in range(2))
        found = lookup((5, pa.table({"k": old})), (9, pa.table({"k": new})))
        for rows in (
            np.sort(np.concatenate([old, new, new, rng.integers(least, greatest, 100)])),
            old[:1],
            np.array([greatest]),
            np.array([], np.int64),
        ):
            for applied_through, keys in ((0, np.union1d(old, new)), (5, new), (9, new[:0])):
                assert (found.hidden([pa.array(rows)], applied_through) == np.isin(rows, keys)).all()


def test_texts_that_share_beginning_and_end_are_told_apart() -> None:
    texts = [f"https://example.org/{n:05}/index.html?utm_source=feed" for n in range(5000)] + [
        "",
        "a",
        "a" * 8,
        "a" * 9,
    ]
    found = lookup((5, pa.table({"k": texts[::3]})))
    assert found.hidden([pa.array(texts)], 0).tolist() == [n % 3 == 0 for n in range(len(texts))]


def test_codes_of_a_tuple_do_not_depend_on_its_neighbours() -> None:
    alone = codes([pa.array(["é"]), pa.array([b"\x00\x00"])])
    among = codes([pa.array(["x" * 50, "é", ""]), pa.array([b"", b"\x00\x00", b"\x00" * 40])])
    assert alone[0] == among[1]
    assert len(set(codes([pa.array([b"", b"\x00", b"\x00\x00", b"\x00" * 8, b"\x00" * 9])]).tolist())) == 5


def test_colliding_codes_are_compared_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dolmen.scan.keys_lookup.codes", lambda arrays: np.array([len(str(v)) for v in arrays[0]], np.int64)
    )
    found = lookup((5, pa.table({"k": ["ab", "cd", "e", "ef"]})), (9, pa.table({"k": ["cd", "gh"]})))
    rows = pa.array(["ab", "xx", "cd", "e", "f", None, "gh", "ef"])
    assert found.hidden([rows], 0).tolist() == [True, False, True, True, False, False, True, True]
    assert found.hidden([rows], 5).tolist() == [False, False, True, False, False, False, True, False]


def test_one_integer_like_column_needs_no_comparison() -> None:
    assert is_exact([pa.timestamp("us", tz="UTC")])
    assert is_exact([pa.uint64()])
    assert not is_exact([pa.string()])
    assert not is_exact([pa.decimal128(9, 2)])
    assert not is_exact([pa.int8(), pa.int8()])


def test_row_groups_without_any_key_between_their_bounds_are_not_asked() -> None:
    found = lookup((5, pa.table({"k": [10, 1000]})), (9, pa.table({"k": [500]})))
    (id_,) = found.columns
    for least, greatest, applied_through, expected in (
        (0, 9, 0, False),
        (0, 10, 0, True),
        (11, 400, 0, False),
        (1001, 2000, 0, False),
        (900, 1000, 4, True),
        (900, 1000, 5, False),
        (400, 600, 5, True),
        (400, 600, 9, False),
        (-(2**63), 2**63 - 1, 0, True),
    ):
        assert found.may_match({id_: Bounds(least, greatest, 0, 0)}, 10, applied_through) is expected
    assert found.may_match({id_: Bounds()}, 10, 0)
    assert not found.may_match({id_: Bounds(nulls=10)}, 10, 0)
