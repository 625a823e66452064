"""Row groups that are read by places of their column chunks alone are the same as by the file's footer."""

from __future__ import annotations

import os
import random

import numpy as np
import pyarrow as pa
import pytest

from dolmen.base.records import replace
from dolmen.format import chunk_locations
from dolmen.format.chunk_locations import ChunkLocations
from dolmen.rows.scan.data_objects import DataFileFooter
from dolmen.rows.scan.file_bytes import FileBytes
from dolmen.rows.write.runs import WriteOptions
from support.random_tables import random_table
from support.written import Written, events, write

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))


def footer_of(written: Written, place: int = 0) -> DataFileFooter:
    file = written.files[place]
    return DataFileFooter.parse(written.body(place)[file.footer[0] :], file)


def places_of(footer: DataFileFooter) -> ChunkLocations:
    found = ChunkLocations.collect(footer.metadata, footer.sums)
    assert found is not None
    return ChunkLocations.decode(found.schema, found.encode())


@pytest.mark.parametrize("number", range(12))
def test_some_row_groups_of_any_type_are_those_of_the_file(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"{SEED}, {number}")
    monkeypatch.setattr("dolmen.rows.write.runs.MIN_GROUP_ROWS", rng.choice([16, 64, 512]))
    options = WriteOptions(run_rows=500, row_group_bytes=1 << 10)
    written = write(random_table(rng, rng.choice([1, 300, 900])), options=options)
    for place, file in enumerate(written.files):
        body, footer = written.body(place), footer_of(written, place)
        places, there = places_of(footer), list(range(len(footer.firsts)))
        assert places.rows.tolist() == [footer.rows(group) for group in there]
        whole = FileBytes.from_ranges([(0, body)], file.size, footer)
        groups = sorted(rng.sample(there, rng.randint(1, min(3, len(there)))))
        placed = DataFileFooter.of_locations(places, groups)
        assert placed.columns == footer.columns
        assert placed.firsts == tuple(footer.firsts[group] for group in groups)
        for at, group in enumerate(groups):
            ids = frozenset(rng.sample(sorted(footer.columns), rng.randint(1, len(footer.columns))))
            assert placed.ranges(at, ids) == footer.ranges(group, ids)
            parts = [(start, body[start:end]) for start, end in placed.ranges(at, ids)]
            fetched = FileBytes.from_ranges(parts, file.size, placed)
            found, expected = fetched.read(at, placed.leaves(ids)), whole.read(group, footer.leaves(ids))
            assert found.schema.equals(expected.schema, check_metadata=True)
            for pair in zip(found.columns, expected.columns, strict=True):
                one, other = (column.to_string(window=1_000) for column in pair)
                assert pair[0].equals(pair[1]) or one == other, "in words NaN equals NaN"


def test_rows_are_in_the_row_groups_that_begin_before_them() -> None:
    footer = footer_of(write(events(100), options=WriteOptions(run_rows=40)))
    places = places_of(footer)
    assert places.rows.tolist() == [34, 34, 32]
    for positions, groups in (([0], [0]), ([33, 34], [0, 1]), ([67, 99], [1, 2]), ([3, 100], []), ([], [])):
        assert places.groups_at(np.array(positions, np.int64)) == groups


@pytest.mark.slow
def test_every_flipped_bit_of_a_placed_chunk_is_found_before_it_is_decoded() -> None:
    written = write(events(40))
    (file,), body = written.files, written.body()
    placed = DataFileFooter.of_locations(places_of(footer_of(written)), [0])
    for id_, column in placed.columns.items():
        for start, end in placed.ranges(0, frozenset([id_])):
            for place in range(start, end):
                changed = bytearray(body)
                changed[place] ^= 1 << place % 8
                with pytest.raises(OSError, match=r"checksum.*chunk"):
                    FileBytes.from_ranges([(0, bytes(changed))], file.size, placed).read(0, list(column.leaves))


def test_places_are_not_kept_of_files_where_they_say_too_little_or_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    footer = footer_of(write(events(40)))
    assert footer.sums is not None
    assert ChunkLocations.collect(footer.metadata, None) is None, "without checksums"
    shifted = replace(footer.sums, states=(footer.sums.states[0]._replace(start=1), *footer.sums.states[1:]))
    assert ChunkLocations.collect(footer.metadata, shifted) is None, "something stands between two chunks"
    monkeypatch.setattr(chunk_locations, "MOST_GROUP_BYTES", 100)
    assert ChunkLocations.collect(footer.metadata, footer.sums) is None, "single pages of large row groups are read"


def test_numbers_that_are_those_of_another_file_or_none_are_refused() -> None:
    places = places_of(footer_of(write(events(40))))
    body = places.encode()
    for wrong in (b"", body[:-1], body[:-4], bytes(4), b"\xff" * len(body), body + bytes(4)):
        with pytest.raises(ValueError, match="numbers"):
            ChunkLocations.decode(places.schema, wrong)
    other = places_of(footer_of(write(pa.table({"x": [1]}))))
    with pytest.raises(ValueError, match="numbers"):
        ChunkLocations.decode(other.schema, body)
    for schema in (b"", b"\0", b"no Thrift", places.schema[:20]):
        with pytest.raises(ValueError, match=r"."):
            ChunkLocations.decode(schema, body)
