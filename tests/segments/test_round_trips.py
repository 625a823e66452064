"""Entries go into segments and come back as they were, whatever their types."""

from __future__ import annotations

import os
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.entries.segments.segment_reader import FileTable, Uuids
from dolmen.format import bloom_filters
from dolmen.format.entries import Blob, ColumnStats, DataFile, KeysTombstone, Overlay, WhereTombstone, bounds
from dolmen.format.manifest import (
    AppliedId,
    Counts,
    ErasedTable,
    Erasure,
    HistoryEntry,
    Released,
    Segment,
    SegmentKind,
    TableEntry,
)
from dolmen.format.schema import Schema
from dolmen.format.segments import check, check_bloom, decode, encode
from dolmen.predicate.parse import parse
from dolmen.predicate.prune import StatsVerdict, judge
from support.random_entries import random_file, random_vector, uuid
from support.random_tables import random_table

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
ROUNDS = 1_000 if os.environ.get("DOLMEN_LONG") else 60

SCHEMA = Schema.from_arrow(pa.schema([("x", pa.int8()), ("d", pa.decimal128(9, 2)), ("b", pa.binary(20))]))


def entry(stats: dict[int, ColumnStats], name: str = "f", **rest: Any) -> DataFile:
    """An entry of a file that nobody will read."""
    fields = {"size": 100, "rows": 10, "footer": (90, 10, 0), "row_ts": 5, "applied_through": 5} | rest
    return DataFile(path=f"data/t/{name}.parquet", stats=stats, **fields)


def entries(table: FileTable) -> list[DataFile]:
    """All entries of a segment of files."""
    return [file for some in table.entries() for file in some]


@pytest.mark.slow
def test_entries_of_files_of_all_types_come_back_as_they_were() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        rows = random_table(rng, 30)
        schema = Schema.from_arrow(rows.schema)
        files = [
            random_file(rng, rows.slice(rng.randrange(30), rng.randrange(10)), schema)
            for _ in range(rng.randint(1, 12))
        ]
        segment, body = encode("files", files, "segment/files/x", schema)
        check(segment, body)
        assert entries(FileTable(segment, body)) == files


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {1: ColumnStats()},
        {1: ColumnStats(None, None, None, None)},
        {1: ColumnStats(300, 301)},  # no int8: from before or after a change of type
        {1: ColumnStats(1.0, 2.0)},
        {1: ColumnStats(True, True)},
        {1: ColumnStats("a", "b")},
        {2: ColumnStats("1.5", "1.50", 0)},
        {2: ColumnStats("0E-2", "99999999999.99")},
        {2: ColumnStats("1.234", None)},
        {3: ColumnStats("YWI=", "YWM=", 3)},
        {77: ColumnStats(1, 2, 3, 4)},  # a column that the schema has no more
        {1: ColumnStats(1, 2), 2: ColumnStats("NaN", "Infinity"), 77: ColumnStats()},
    ],
)
def test_statistics_that_do_not_fit_their_column_come_back_as_they_were(stats: dict[int, ColumnStats]) -> None:
    files = [entry({1: ColumnStats(1, 2, 3)}), entry(stats), entry({1: ColumnStats(-128, 127, None, None)})]
    for schema in (SCHEMA, None):
        found = entries(FileTable(*encode("files", files, "segment/files/x", schema)))
        assert [repr(file) for file in found] == [repr(file) for file in files]


def test_entries_are_found_by_place_by_name_and_with_some_statistics_only() -> None:
    rng = random.Random(2)
    files = [
        entry({1: ColumnStats(n % 100, n % 100), 2: ColumnStats("1.00", "2.00")}, uuid(rng) if n % 10 else f"short-{n}")
        for n in range(10_000)  # three row groups
    ]
    table = FileTable(*encode("files", files, "segment/files/x", SCHEMA))
    assert table.column("rows").to_pylist() == [10] * 10_000
    wanted = [9_999, 0, 4_096, 4_095, 5_000]
    uuids = Uuids(["nobody", *(files[n].uuid for n in wanted), "x" * 40])
    places, which = table.find(uuids)
    assert places.tolist() == sorted(wanted)
    assert [uuids.names[n] for n in which] == [files[n].uuid for n in sorted(wanted)]
    some = [file for each in table.entries(places, ids={1, 99}) for file in each]
    assert [(file.uuid, file.stats) for file in some] == [
        (files[n].uuid, {1: files[n].stats[1]}) for n in sorted(wanted)
    ]


def test_a_segment_of_files_is_parquet_that_anybody_can_read() -> None:
    files = [entry({1: ColumnStats(n, n + 1, 0), 2: ColumnStats("1.50", "2.50", 1)}, f"f{n}") for n in range(3)]
    _, body = encode("files", files, "segment/files/x", SCHEMA)
    read = pq.read_table(pa.BufferReader(body))
    assert read["path"].to_pylist() == [file.path for file in files]
    assert read["max_1"].type == pa.int8()
    assert read["max_1"].to_pylist() == [1, 2, 3]
    assert read["min_2"].to_pylist() == [Decimal("1.50")] * 3


def test_the_root_knows_bounds_sums_and_times_of_a_segment() -> None:
    rng = random.Random(4)
    vector = random_vector(rng, 10)
    files = [
        entry({1: ColumnStats(5, 9, 1), 2: ColumnStats("1.00", "2.00", 0)}, row_ts=7, applied_through=9),
        entry({1: ColumnStats(None, None, 10), 3: ColumnStats("YQ==", "Yg==")}, row_ts=3, applied_through=4),
        entry(
            {1: ColumnStats(-3, 6, 2), 2: ColumnStats("0.50", "0.60", 0)},
            row_ts=None, row_ts_bounds=(2, 11), applied_through=12, vector=vector,
        ),
    ]  # fmt: skip
    segment, body = encode("files", files, "segment/files/x", SCHEMA)
    assert segment == Segment(
        "files", "segment/files/x", len(body), segment.crc32, 3, least=2, greatest=11, least_applied_through=4,
        rows=30, bytes=300, deleted=vector.cardinality, stats={1: ColumnStats(-3, 9, 13, 0)},
    )  # fmt: skip
    unknown = encode("files", [*files, entry({1: ColumnStats(None, 3, None, 0)})], "segment/files/x", SCHEMA)[0]
    assert unknown.stats == {1: ColumnStats(None, 9, None, 0)}


@pytest.mark.slow
def test_bounds_in_the_root_never_prune_what_a_file_may_hold() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    for round_ in range(ROUNDS):
        rng = random.Random(SEED + round_)
        rows = random_table(rng, 30, ["int64", "float64", "string", "decimal_9_2", "naive"])
        schema = Schema.from_arrow(rows.schema)
        files = [random_file(rng, rows.slice(rng.randrange(30), rng.randint(1, 6)), schema) for _ in range(5)]
        segment, _ = encode("files", files, "segment/files/x", schema)
        for field in schema.fields:
            for text in ("IS NULL", "IS NOT NULL"):
                where = parse({field.name: None}, schema, now_us=0)
                if text == "IS NOT NULL":
                    where = parse(f'NOT ("{field.name}" IS NULL)', schema, now_us=0)
                whole = judge(where, {field.id: bounds(segment.stats.get(field.id), field.arrow_type)}, segment.rows)
                each = [
                    judge(where, {field.id: bounds(f.stats.get(field.id), field.arrow_type)}, f.rows) for f in files
                ]
                assert whole is not StatsVerdict.NEVER or set(each) == {StatsVerdict.NEVER}
            own = segment.stats.get(field.id)
            for file in files if own else ():
                inner, outer = bounds(file.stats[field.id], field.arrow_type), bounds(own, field.arrow_type)
                if inner.nulls is not None and inner.nans is not None and inner.nulls + inner.nans == file.rows:
                    continue  # it has no value between any bounds
                assert outer.min is None or (inner.min is not None and outer.min <= inner.min)  # type: ignore[operator]
                assert outer.max is None or (inner.max is not None and outer.max >= inner.max)  # type: ignore[operator]


_BLOB = Blob("tombstone/t/x.del", 4, 5, 6)
_OTHERS: list[tuple[SegmentKind, list[Any], tuple[int, int]]] = [
    ("overlays", [Overlay("a", 9), Overlay("b", 3, random_vector(random.Random(1), 9))], (3, 9)),
    ("removed", ["a", "b", "c"], (0, 0)),
    (
        "tombstones",
        [
            WhereTombstone((1,), _BLOB, {"kind": "constant", "value": True}, 4),
            KeysTombstone((1, 2), ("int8", "string"), 1, ((1, 1), ("a", None)), _BLOB, ((1,), ("a",)), 9),
        ],
        (4, 9),
    ),
    ("applied", [AppliedId(f"id {n}", "d", 5 + n) for n in range(100)], (5, 104)),
    (
        "released",
        [
            Released(3, ("data/t/x.parquet", "manifest/v00000000000000000001-0123abcd.json")),
            Released(8, (), (Segment("files", "segment/files/y", 1, 2, 3),)),
        ],
        (3, 8),
    ),
    ("history", [HistoryEntry(n, "0123abcd", "c", 1, 2, "append", Counts(rows_added=n)) for n in (7, 8)], (7, 8)),
    ("table", [TableEntry("u", 3, SCHEMA, files=(entry({1: ColumnStats(1, 2)}),))], (0, 0)),
    (
        "erasures",
        [
            Erasure(id="0" * 32, ts=4, version=2, requested_at=1, due_at=9, subject=(42, "bob")),
            Erasure(
                id="1" * 32,
                ts=8,
                version=3,
                requested_at=2,
                due_at=9,
                tables=(ErasedTable("u", WhereTombstone((1,), _BLOB, None, 8), SCHEMA.fields[:1]),),
                request="r",
                digest="d",
            ),
        ],
        (4, 8),
    ),
]


@pytest.mark.parametrize(("kind", "held", "times"), _OTHERS, ids=[kind for kind, _, _ in _OTHERS])
def test_other_entries_come_back_as_they_were(kind: SegmentKind, held: list[Any], times: tuple[int, int]) -> None:
    segment, body = encode(kind, held, f"segment/{kind}/x")
    check(segment, body)
    assert decode(segment, body) == tuple(held)
    assert (segment.kind, segment.count, segment.size, (segment.least, segment.greatest)) == (
        kind, len(held), len(body), times
    )  # fmt: skip


def test_the_bloom_filter_knows_every_id_and_hardly_any_other() -> None:
    ids = [f"s3://bucket/landing/{n}" for n in range(20_000)]
    segment, body = encode("applied", [AppliedId(id_, "d", 1) for id_ in ids], "segment/applied/x")
    assert segment.bloom is not None
    offset, length, _ = segment.bloom
    filter_ = body[offset : offset + length]
    check_bloom(segment, filter_)
    assert bloom_filters.possible_ids(filter_, ids) == ids
    assert len(bloom_filters.possible_ids(filter_, [f"other {n}" for n in range(20_000)])) < 400
    assert bloom_filters.possible_ids(filter_, []) == []


def test_bloom_filters_are_the_same_for_ever() -> None:
    assert bloom_filters.build(["a", "b"]).hex() == "00008010080000100000080410400000000002010000000c2000000200001200"


def test_a_segment_without_erased_rows_has_no_column_for_them_and_one_with_them_names_the_earliest() -> None:
    plain, early, late = entry({}), entry({}, "g", erasing=7), entry({}, "h", erasing=9)
    for files, least in (((plain,), 0), ((plain, late), 9), ((late, plain, early), 7)):
        segment, body = encode("files", files, "segment/files/x", SCHEMA)
        assert segment.erasing == least
        assert ("erasing" in pq.ParquetFile(pa.BufferReader(body)).schema_arrow.names) == bool(least)
        assert entries(FileTable(segment, body)) == list(files)
