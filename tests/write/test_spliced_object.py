"""Row groups that become part of another file: their places and checksums there, and what readers make of it."""

from __future__ import annotations

import random
import zlib
from typing import Any

import duckdb
import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.base.records import replace
from dolmen.format.chunk_locations import SpliceSource, shift_difference, shift_states
from dolmen.format.entries import DataFile
from dolmen.format.page_locations import ChunkSums, PageLocations, chunk_range
from dolmen.format.parquet_footer import FooterParts, ThriftCursor, ThriftStruct
from dolmen.rows.write.data_file import CopiedGroup, CopiedGroups, EncodedGroups, SplicedObject, written_footer
from dolmen.rows.write.runs import Run, WriteOptions, WritePlan, make_run
from support.random_tables import random_table
from support.written import Written, write

SEED = random.randrange(1 << 32)
SMALL = WriteOptions(run_bytes=16 << 10, run_rows=100, row_group_bytes=1)


def test_states_carried_over_are_those_of_the_bytes_behind_others() -> None:
    rng = random.Random(1)
    for _ in range(50):
        old, new = rng.randbytes(rng.randint(0, 99)), rng.randbytes(rng.randint(0, 99))
        piece = rng.randbytes(rng.choice([0, 1, 7, 8, 1000, 70_000]))
        cuts = sorted(rng.randint(0, len(piece)) for _ in range(5))
        states = np.array([zlib.crc32(old + piece[:cut]) for cut in cuts], np.int64)
        difference = zlib.crc32(old) ^ zlib.crc32(new)
        moved = shift_states(states, np.array(cuts, np.int64), np.full(len(cuts), difference))
        assert moved.tolist() == [zlib.crc32(new + piece[:cut]) for cut in cuts]
        whole = zlib.crc32(old + piece) ^ shift_difference(difference, len(piece))
        assert whole == zlib.crc32(new + piece)


def test_states_are_carried_over_gigabytes() -> None:
    """By steps: the state after the second half follows from that after the first."""
    distance, difference = 3 << 40, 0x12345678
    ends = shift_states(np.zeros(2, np.int64), np.array([distance, distance // 2]), np.full(2, difference))
    assert ends.tolist() == [shift_difference(difference, distance), shift_difference(difference, distance // 2)]
    assert shift_difference(int(ends[1]), distance // 2) == ends[0]


def footer_of(body: bytes) -> bytes:
    """The Thrift metadata."""
    return body[-8 - int.from_bytes(body[-8:-4], "little") : -8]


@pytest.mark.parametrize("number", range(10))
def test_a_footer_taken_apart_and_put_together_is_the_same_bytes(number: int) -> None:
    written = write(random_table(random.Random(SEED + number), 300), options=SMALL)
    metadata = footer_of(written.body())
    parts = FooterParts.parse(metadata)
    assert len(parts.groups) == written.parquet().metadata.num_row_groups > 1
    assert parts.fill(300, parts.groups) == metadata
    assert parts.frame == written_footer(written.entry.schema.arrow).frame


def test_columns_of_equal_names_and_other_ids_are_written_with_their_own_ids() -> None:
    rows = pa.table({"id": range(250), "name": [str(number) for number in range(250)]})
    first = write(rows, options=SMALL)
    renumbered = msgspec.structs.replace(first.entry.schema, fields=tuple(
        msgspec.structs.replace(field, id=field.id + 5) for field in first.entry.schema.fields
    ))  # fmt: skip
    other = write(rows, options=SMALL, entry=msgspec.structs.replace(first.entry, schema=renumbered))
    files = (first.parquet(), other.parquet())
    ids = [[int(field.metadata[b"PARQUET:field_id"]) for field in file.schema_arrow] for file in files]
    assert ids == [[1, 2], [6, 7]]
    assert other.rows().equals(rows)


def test_bytes_that_are_no_footer_are_refused() -> None:
    body = footer_of(write(random_table(random.Random(1), 100)).body())
    rng = random.Random(2)
    for length in {0, 1, len(body) - 1, *(rng.randrange(len(body)) for _ in range(200))}:
        with pytest.raises(ValueError, match="inside of"):
            FooterParts.parse(body[:length])
    refused = 0
    for _ in range(300):
        damaged = bytearray(body)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            parts = FooterParts.parse(bytes(damaged))
        except ValueError:
            refused += 1
        else:  # a value was changed, which is none of its business: it keeps all of them
            again = FooterParts.parse(parts.fill(100, parts.groups))
            assert again == parts
    assert refused > 50


def test_fields_far_apart_are_encoded_with_their_whole_number() -> None:
    struct = ThriftStruct(bytes([0x15, 2, 0x05, 80, 4, 0]))  # field 1 = 1, field 40 = 2
    assert (struct.number(1), struct.number(40)) == (1, 2)
    assert struct.encode() == bytes([0x15, 2, 0x05, 80, 4, 0])
    assert ThriftCursor(struct.encode()).field(0) == (1, 5)


def source_of(written: Written, place: int = 0) -> SpliceSource:
    file, body = written.files[place], written.body(place)
    metadata = written.parquet(place).metadata
    start = max(sum(chunk_range(metadata.row_group(g).column(c))) for g, c in all_chunks(metadata))
    found = SpliceSource.parse(file.path, written.store.head(file.path).etag, body[start:], start, file.footer[0])
    assert found is not None
    return found


def all_chunks(metadata: pq.FileMetaData) -> list[tuple[int, int]]:
    return [(g, c) for g in range(metadata.num_row_groups) for c in range(metadata.num_columns)]


def copied(source: SpliceSource, groups: range, extents: dict[int, Any]) -> CopiedGroups:
    chosen = [source.metadata.row_group(group) for group in groups]
    return CopiedGroups(
        source,
        tuple(
            CopiedGroup(group, found.num_rows, found.total_byte_size, extents)
            for group, found in zip(groups, chosen, strict=True)
        ),
    )


def run_of(rows: pa.Table, written: Written) -> Run:
    return make_run(list(rows.cast(written.entry.schema.arrow).columns), written.entry)


def texts(table: pa.Table) -> list[str]:
    """All values as Arrow shows them: NaN is like NaN, and days beyond those of Python can be shown."""
    return [column.combine_chunks().to_string(window=table.num_rows) for column in table.columns]


def spliced(written: Written, parts: list[Any]) -> tuple[DataFile, bytes]:
    """A file of parts: ranges of row groups of a file, given with its source, and tables."""
    with SplicedObject(written.store.open_output("spliced"), "spliced", written.entry) as output:
        for part in parts:
            if isinstance(part, pa.Table):
                run = run_of(part, written)
                output.write(EncodedGroups.of(run, written.entry, WritePlan.of(run, SMALL)))
            else:
                output.copy(part)
        file = output.commit()
    return file, written.store.get("spliced").body


def check_sums(file: DataFile, body: bytes) -> None:
    """Every checksum, and every place of a page, is right."""
    metadata = pq.read_metadata(pa.BufferReader(body))
    end = body[file.footer[0] :]
    assert len(end) == file.footer[1]
    assert zlib.crc32(end) == file.footer[2]
    sums = ChunkSums.decode(end, file.footer[0], metadata, "spliced")
    assert sums is not None
    assert sums.end == zlib.crc32(body[: file.footer[0]])
    pages = PageLocations.decode(end[: sums.before], len(sums.states))
    assert pages is not None
    for place, (group, column) in enumerate(all_chunks(metadata)):
        start, length = chunk_range(metadata.row_group(group).column(column))
        assert sums.states[place] == (zlib.crc32(body[:start]), zlib.crc32(body[: start + length]))
        found = pages.of_chunk(metadata, sums, group, column)
        if found is None:
            assert not pages.counts[place]
            continue
        for number, states in enumerate(found.states):
            assert states.match(body[found.starts[number] : found.starts[number + 1]])
    assert file.size == len(body)


def check_indexes(body: bytes) -> None:
    """The page index names pages, and every chunk has one."""
    for group in FooterParts.parse(footer_of(body)).groups:
        for chunk in map(ThriftStruct, ThriftStruct(group).structs(1)):
            meta = ThriftStruct(chunk.fields[3][1])
            first, length = chunk.number(4), chunk.number(5)
            assert first is not None
            assert length is not None
            index = ThriftStruct(body[first : first + length])
            assert index.end == length
            places = [ThriftStruct(page).number(1) for page in index.structs(1)]
            assert places[0] == meta.number(9)
            for place in places:
                assert place is not None
                assert ThriftStruct(body, place).number(1) == 0, "no data page"
            first, length = chunk.number(6), chunk.number(7)
            if first is not None and length is not None:
                assert ThriftStruct(body[first : first + length]).end == length


@pytest.mark.parametrize("number", range(12))
def test_a_file_of_row_groups_and_rows_is_read_as_one_that_was_written(number: int) -> None:
    rng = random.Random(SEED + number)
    rows = random_table(rng, 1_000).add_column(0, "rid", pa.array(range(1_000)))
    written = write(rows, primary_key=["rid"], options=SMALL, batch_rows=50)
    source = source_of(written)
    extents = run_of(rows, written).extents
    total = source.metadata.num_row_groups
    assert total >= 4
    cuts = sorted(rng.sample(range(1, total), 2))
    read = written.parquet().read()
    firsts = [0, *np.cumsum([source.metadata.row_group(group).num_rows for group in range(total)])]
    middle = read.slice(firsts[cuts[0]], firsts[cuts[1]] - firsts[cuts[0]])
    head, tail = range(cuts[0]), range(cuts[1], total)
    orders: list[tuple[list[Any], pa.Table]] = [
        ([copied(source, head, extents), middle, copied(source, tail, extents)], read),
        (
            [middle, copied(source, tail, extents), copied(source, head, extents)],
            pa.concat_tables([middle, read.slice(firsts[cuts[1]]), read.slice(0, firsts[cuts[0]])]),
        ),
        ([copied(source, range(total), extents)], read),
    ]
    parts, expected = orders[number % 3]
    file, body = spliced(written, parts)
    assert file.rows == 1_000
    check_sums(file, body)
    check_indexes(body)
    parquet = pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True)
    assert parquet.read().equals(expected) or texts(parquet.read()) == texts(expected)
    assert parquet.schema_arrow.equals(written.parquet().schema_arrow, check_metadata=True)
    assert file.filters
    for group in range(parquet.metadata.num_row_groups):
        chunk = parquet.metadata.row_group(group).column(0)
        assert chunk.bloom_filter_offset >= file.filters
        assert chunk.bloom_filter_offset + chunk.bloom_filter_length <= file.footer[0]


def test_other_engines_read_a_spliced_file_and_use_its_statistics_and_filters(tmp_path: Any) -> None:
    rows = pa.table({"rid": pa.array(range(1_000)), "text": pa.array([f"text {n % 7}" for n in range(1_000)])})
    written = write(rows, primary_key=["rid"], options=SMALL, batch_rows=50)
    source, extents = source_of(written), run_of(rows, written).extents
    total = source.metadata.num_row_groups
    path = tmp_path / "spliced.parquet"
    parts = [copied(source, range(1, total), extents), rows.slice(0, 100), copied(source, range(1), extents)]
    path.write_bytes(spliced(written, parts)[1])
    expected = sorted([*range(1_000), *range(100)])
    assert sorted(duckdb.sql(f"SELECT rid FROM '{path}'").fetchnumpy()["rid"].tolist()) == expected
    assert duckdb.sql(f"SELECT count(*), min(text) FROM '{path}' WHERE rid = 550").fetchall() == [(1, "text 4")]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE rid = 55").fetchall() == [(2,)]
    assert sorted(pl.read_parquet(path)["rid"].to_list()) == expected
    assert pl.scan_parquet(path).filter(pl.col("rid") == 550).collect()["text"].to_list() == ["text 4"]
    found = duckdb.sql(f"SELECT * FROM parquet_bloom_probe('{path}', 'rid', 550)").fetchall()
    assert [excluded for *_, excluded in found].count(False) == 1, "only the row group with the value may have it"


def test_a_damaged_byte_in_a_source_is_one_in_the_file_too() -> None:
    rows = pa.table({"rid": pa.array(range(1_000))})
    written = write(rows, options=SMALL, batch_rows=50)
    source, extents = source_of(written), run_of(rows, written).extents
    path = written.files[0].path
    body = bytearray(written.body())
    first, end = source.byte_range(range(1, 3))
    body[(first + end) // 2] ^= 1
    etag = written.store.head(path).etag
    written.store.put(path, bytes(body), if_match=etag)
    source = replace(source, etag=written.store.head(path).etag)
    file, made = spliced(written, [copied(source, range(4), extents)])
    metadata = pq.read_metadata(pa.BufferReader(made))
    sums = ChunkSums.decode(made[file.footer[0] :], file.footer[0], metadata, "spliced")
    assert sums is not None
    places = [chunk_range(metadata.row_group(group).column(0)) for group in range(4)]
    intact = [
        states.match(made[start : start + length]) for (start, length), states in zip(places, sums.states, strict=True)
    ]
    assert intact.count(False) == 1


@pytest.mark.parametrize("what", ["filters", "page index", "footer"])
def test_a_file_with_damage_behind_its_rows_is_no_source(what: str) -> None:
    written = write(pa.table({"rid": pa.array(range(1_000))}), primary_key=["rid"], options=SMALL, batch_rows=50)
    file, body, start = written.files[0], bytearray(written.body()), source_of(written).start
    place = {"filters": start + 40, "page index": file.footer[0] - 3, "footer": file.footer[0] + 9}[what]
    body[place] ^= 4
    found = SpliceSource.parse(file.path, "", bytes(body[start:]), start, file.footer[0])
    assert (found is None) is (what != "footer")  # whose checksum is the entry's
