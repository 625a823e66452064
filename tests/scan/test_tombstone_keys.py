"""The lookup of keys agrees with plain Python sets, for every type that can be a key."""

from __future__ import annotations

import cProfile
import hashlib
import random
from collections.abc import Callable
from pstats import Stats

import numpy as np
import pyarrow as pa
import pytest

from dolmen.entries.segments.row_bounds import RowBounds
from dolmen.format.del_object import keys_from_arrow
from dolmen.format.entries import Blob, Bounds, KeysTombstone, column_stats
from dolmen.format.schema import Schema
from dolmen.format.types import Mask, to_plain
from dolmen.predicate.prune import StatsVerdict
from dolmen.rows.scan.key_codes import codes, is_exact
from dolmen.rows.scan.load_deletes import KeysGathering
from dolmen.rows.scan.tombstone_keys import KeysLookup, Tuples
from support.random_tables import FLAT, random_column

KEYS = [kind for kind in FLAT if not kind.startswith("float")]


def lookup(*lists: tuple[int, pa.Table]) -> KeysLookup:
    """Tombstones with these timestamps over the rows of these tables, in memory."""
    (one,) = lookups(*lists)
    return one


def lookups(*lists: tuple[int, pa.Table]) -> list[KeysLookup]:
    """The same wherever they are."""
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
    gathering = KeysGathering(schema)
    for tombstone, keys in found:
        gathering.add([tombstone], keys)
    (made,) = gathering.finish().values()
    return list(made)


@pytest.fixture(params=["in memory", "in files", "both"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where keys are: the files' samples, spans and blocks are so small that a few keys have many of them."""
    if request.param != "in memory":
        monkeypatch.setattr("dolmen.rows.scan.load_deletes.MEMORY_BYTES", 0 if request.param == "in files" else 1_400)
        for name, value in (
            ("_SAMPLE_STEP", 3),
            ("_SPAN", 6),
            ("_BLOCK_BYTES", 50),
            ("_MAX_BUCKET_BITS", 2),
            ("_MOST_STEPS", 1),
        ):
            monkeypatch.setattr(f"dolmen.rows.scan.tombstone_keys.{name}", value)
    return str(request.param)


def any_hidden(found: list[KeysLookup], arrays: list[pa.Array], applied_through: int) -> list[bool]:
    """Which rows any of some lookups hides."""
    rows = Tuples(arrays, found[0].types)
    return np.logical_or.reduce([each.hidden_mask(rows, applied_through) for each in found]).tolist()  # type: ignore[no-any-return]


def hidden(found: KeysLookup, arrays: list[pa.Array], applied_through: int) -> Mask:
    """Which rows are hidden."""
    return found.hidden_mask(Tuples(arrays, found.types), applied_through)


def plain(rows: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(to_plain(column.combine_chunks()) for column in rows.columns), strict=True))


def draw_rows(rng: random.Random, kinds: list[str], count: int) -> pa.Table:
    """Random rows, some of them without NULL."""
    while True:
        columns = {f"c{number}": random_column(rng, kind, count) for number, kind in enumerate(kinds)}
        if (rows := pa.table(columns)).drop_null().num_rows > 1:
            return rows


@pytest.mark.parametrize("seed", range(40))
def test_hidden_rows_are_those_whose_tuple_is_in_a_newer_list(seed: int, place: str) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(KEYS) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    rows = draw_rows(rng, kinds, 200)
    names, whole = rows.column_names, rows.drop_null()
    lists = []
    for ts in (10, 20, 30):
        drawn = whole.take(pa.array([rng.randrange(whole.num_rows) for _ in range(rng.randint(1, 30))]))
        lists.append((ts, drawn))
    found = lookups(*lists)
    assert len(found) == 3 or place != "in files"
    for applied_through in (0, 10, 15, 29, 30, 99):
        newer = {key for ts, drawn in lists if ts > applied_through for key in plain(drawn)}
        expected = [key in newer and None not in key for key in plain(rows)]
        arrays = [column.combine_chunks() for column in rows.columns]
        assert any_hidden(found, arrays, applied_through) == expected
        part = [array.slice(37, 90) for array in arrays]
        assert any_hidden(found, part, applied_through) == expected[37:127]
        told = set()
        for each in found:
            keys, younger = each.keys(applied_through)
            assert (younger > applied_through).all()
            assert len(keys[0]) == len(younger) <= each.count
            told.update(plain(pa.table(keys, names)))
        assert told == newer


def test_many_keys_and_rows_agree_with_numpy(place: str) -> None:
    rng = np.random.default_rng(3)
    for keys, rows in (
        (rng.choice(1_000_000, 20_000, replace=False), np.arange(300_000, 500_000)),
        (rng.choice(1_000_000, 20_000, replace=False), rng.integers(0, 1_000_000, 100_000)),
        (rng.integers(-(2**63), 2**63 - 1, 5_000), rng.integers(-(2**63), 2**63 - 1, 50_000)),
        (np.array([2**63 - 1, -(2**63), 0]), np.array([2**63 - 1, -(2**63), 1, 0, -1])),
    ):
        table = pa.table({"k": pa.array(np.unique(keys), pa.int64())})
        rows = np.concatenate([rows, keys[:3]])
        assert any_hidden(lookups((5, table)), [pa.array(rows)], 0) == np.isin(rows, keys).tolist()


@pytest.mark.parametrize("shape", ["dense", "sparse", "texts", "tuples"])
@pytest.mark.parametrize("count", [1, 8, 9, 60, 1_024, 1_025])
def test_any_number_of_keys_hides_the_same_rows_however_they_are_looked_up(shape: str, count: int) -> None:
    rng = np.random.default_rng(count)
    step = 1_000_003 if shape == "sparse" else 1
    drawn = rng.integers(0, 2 * count, 5_000) * step
    nulls = rng.random(5_000) < 0.1

    def columns(values: Mask, mask: Mask | None = None) -> pa.Table:
        texts = pa.array(np.char.add("tenant-", values.astype(str)), mask=mask)
        numbers = pa.array(values, pa.int64(), mask=mask)
        return pa.table({"texts": {"k": texts}, "tuples": {"k": numbers, "l": texts}}.get(shape, {"k": numbers}))

    old, new = (rng.permutation(2 * count)[: (count + 1) // 2] * step for _ in range(2))
    found = lookup((5, columns(old)), (9, columns(new)))
    for mask in (None, nulls):
        arrays = [column.combine_chunks() for column in columns(drawn, mask).columns]
        there = np.ones(5_000, np.bool_) if mask is None else ~mask
        for applied_through, keys in ((0, np.union1d(old, new)), (5, new), (9, new[:0])):
            expected = np.isin(drawn, keys) & there
            assert (hidden(found, arrays, applied_through) == expected).all()
            part = [array.slice(13, 700) for array in arrays]
            assert (hidden(found, part, applied_through) == expected[13:713]).all()


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
                assert (hidden(found, [pa.array(rows)], applied_through) == np.isin(rows, keys)).all()


def calls(function: Callable[[], object]) -> int:
    """How many functions it calls, those of numpy among them."""
    profile = cProfile.Profile()
    profile.enable()
    function()
    profile.disable()
    return sum(count for _, count, *_ in Stats(profile).stats.values())  # type: ignore[attr-defined]


def test_a_key_of_many_rows_takes_as_many_steps_as_a_key_of_one() -> None:
    found = lookup((5, pa.table({"k": [1, 3, 4, 6]})))
    for frequent in (2, 100_000):
        rows = np.repeat(np.arange(8), [3, frequent, 2, frequent, 1, 4, 1, 2])
        assert (hidden(found, [pa.array(rows)], 0) == np.isin(rows, [1, 3, 4, 6])).all()
    few, many = (pa.array(np.repeat(np.arange(8), times)) for times in (2, 50_000))
    assert calls(lambda: hidden(found, [many], 0)) == calls(lambda: hidden(found, [few], 0))


def test_texts_of_very_different_lengths_are_told_apart_in_few_steps() -> None:
    long = "x" * 1_000_000
    texts = ["", "x", "x" * 1023, "x" * 1024, "x" * 1025, "x" * 1032, "x" * 2000, long, long + "y", long + "z"]
    assert len(set(codes([pa.array(texts)]).tolist())) == len(texts)
    assert codes([pa.array(texts)])[2:9].tolist() == codes([pa.array(texts[2:9])]).tolist()
    for place, text in enumerate(texts):
        assert hidden(lookup((5, pa.table({"k": [text]}))), [pa.array(texts)], 0).tolist() == [
            other == place for other in range(len(texts))
        ]
    short = calls(lambda: codes([pa.array(["x" * 2_000] * 3)]))
    assert calls(lambda: codes([pa.array([long] * 3)])) == short


def test_texts_that_share_beginning_and_end_are_told_apart() -> None:
    texts = [f"https://example.org/{n:05}/index.html?utm_source=feed" for n in range(5000)] + [
        "",
        "a",
        "a" * 8,
        "a" * 9,
    ]
    found = lookup((5, pa.table({"k": texts[::3]})))
    assert hidden(found, [pa.array(texts)], 0).tolist() == [n % 3 == 0 for n in range(len(texts))]


def test_codes_of_a_tuple_do_not_depend_on_its_neighbours() -> None:
    alone = codes([pa.array(["é"]), pa.array([b"\x00\x00"])])
    among = codes([pa.array(["x" * 50, "é", ""]), pa.array([b"", b"\x00\x00", b"\x00" * 40])])
    assert alone[0] == among[1]
    assert len(set(codes([pa.array([b"", b"\x00", b"\x00\x00", b"\x00" * 8, b"\x00" * 9])]).tolist())) == 5


def test_colliding_codes_are_compared_by_value(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(
        "dolmen.rows.scan.tombstone_keys.codes", lambda arrays: np.array([len(str(v)) for v in arrays[0]], np.int64)
    )
    found = lookups((5, pa.table({"k": ["ab", "cd", "e", "ef"]})), (9, pa.table({"k": ["cd", "gh"]})))
    rows = pa.array(["ab", "xx", "cd", "e", "f", None, "gh", "ef"])
    assert any_hidden(found, [rows], 0) == [True, False, True, True, False, False, True, True]
    assert any_hidden(found, [rows], 5) == [False, False, True, False, False, False, True, False]
    many = [f"{n:04}" for n in range(50)]  # all of one code, before and after each sample
    found = lookups((5, pa.table({"k": many[::2]})), (9, pa.table({"k": many[::3]})))
    assert any_hidden(found, [pa.array(many)], 0) == [n % 2 == 0 or n % 3 == 0 for n in range(50)]
    assert any_hidden(found, [pa.array(many)], 5) == [n % 3 == 0 for n in range(50)]


def test_one_integer_like_column_needs_no_comparison() -> None:
    assert is_exact([pa.timestamp("us", tz="UTC")])
    assert is_exact([pa.uint64()])
    assert not is_exact([pa.string()])
    assert not is_exact([pa.decimal128(9, 2)])
    assert not is_exact([pa.int8(), pa.int8()])


def test_row_groups_without_any_key_between_their_bounds_are_not_asked(place: str) -> None:
    found = lookups((5, pa.table({"k": [10, 1000]})), (9, pa.table({"k": [500]})))
    (id_,) = found[0].columns

    def verdict(known: Bounds, applied_through: int) -> StatsVerdict:
        return (
            StatsVerdict.MAYBE
            if StatsVerdict.MAYBE in {each.judge(RowBounds({id_: known}, 10, applied_through)) for each in found}
            else StatsVerdict.NEVER
        )

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
        judged = verdict(Bounds(least, greatest, 0, 0), applied_through)
        # between the samples of a file there may be keys or not
        assert judged is (
            StatsVerdict.MAYBE if expected or (place == "in files" and least == 11) else StatsVerdict.NEVER
        )
    assert verdict(Bounds(), 0) is StatsVerdict.MAYBE
    assert verdict(Bounds(nulls=10), 0) is StatsVerdict.NEVER


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_all_have_one_deleted_tuple_need_not_be_read(seed: int, place: str) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(KEYS) for _ in range(rng.choice([1, 1, 2]))]
    rows = draw_rows(rng, kinds, 40).drop_null()
    keys = rows.slice(0, rows.num_rows // 2)
    (found,) = lookups((5, keys))
    for row in plain(rows):
        expected = row in set(plain(keys))
        known = {id_: Bounds(value, value, 0, 0) for id_, value in zip(found.columns, row, strict=True)}
        assert found.judge(RowBounds(known, 7, 4)) is (StatsVerdict.ALWAYS if expected else StatsVerdict.NEVER)
        assert found.judge(RowBounds(known, 7, 5)) is StatsVerdict.NEVER
        for id_ in known:
            for unsure in (Bounds(known[id_].min, known[id_].max, 1), Bounds(known[id_].min, known[id_].max), Bounds()):
                verdict = found.judge(RowBounds({**known, id_: unsure}, 7))
                assert verdict is StatsVerdict.MAYBE if expected else verdict is not StatsVerdict.ALWAYS


@pytest.mark.parametrize("width", [1, 7, 8, 9, 15, 16, 32, 36, 1024, 1030])
def test_a_text_has_the_same_code_beside_texts_of_its_length_and_of_others(width: int) -> None:
    texts = [hashlib.shake_128(bytes([n])).hexdigest(width)[:width] for n in range(5)]
    mixed = [*texts, "", "x" * (width + 3)]
    for kind in (pa.string(), pa.binary()):
        alone = codes([pa.array(["", *texts], kind).slice(1)])
        assert alone.tolist() == codes([pa.array(mixed, kind)])[:5].tolist()
        assert len({*alone.tolist()}) == 5
    fixed = pa.array([text.encode() for text in texts], pa.binary(width))
    assert codes([fixed]).tolist() == codes([pa.array(mixed)])[:5].tolist()
