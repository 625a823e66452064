"""Every byte of a data file has a checksum that its entry vouches for."""

from __future__ import annotations

import random
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.errors import CorruptionError
from dolmen.format.entries import DataFile
from dolmen.format.page_locations import SUMS_MAGIC, ChunkSums
from dolmen.rows.scan.data_objects import DataFileFooter
from dolmen.rows.scan.file_bytes import FileBytes
from dolmen.rows.write.runs import WriteOptions
from support.random_tables import random_table
from support.written import events, write


def opened(body: bytes, file: DataFile) -> DataFileFooter:
    return DataFileFooter.parse(body[file.footer[0] :], file)


def test_column_chunks_and_what_is_between_them_make_up_the_whole_file() -> None:
    written = write(events(60_000), primary_key=["id"], options=WriteOptions(run_bytes=1 << 20))
    (file,), body = written.files, written.body()
    footer = opened(body, file)
    sums, metadata = footer.sums, footer.metadata
    assert sums is not None
    assert metadata.num_row_groups > 1
    covered = [(start, end) for start, end, _ in sums.other_bytes(metadata)]
    for group in range(metadata.num_row_groups):
        for (start, length), states in sums.of_chunks(metadata, group, range(metadata.num_columns)).items():
            assert states.match(body[start : start + length])
            covered.append((start, start + length))
    for start, end, states in sums.other_bytes(metadata):
        assert states.match(body[start:end])
    covered.sort()
    assert [end for _, end in covered] == [*(start for start, _ in covered[1:]), file.footer[0]]
    assert covered[0][0] == 0
    assert sums.end == zlib.crc32(body[: file.footer[0]])


@pytest.mark.parametrize("seed", range(5))
def test_tables_of_any_types_have_checksums(seed: int) -> None:
    written = write(random_table(random.Random(seed), 500))
    for file in written.files:
        assert opened(written.body(), file).sums is not None


def test_every_flipped_bit_of_a_column_chunk_is_found_before_it_is_decoded() -> None:
    written = write(events(40), primary_key=["id"])
    (file,), body = written.files, written.body()
    footer = opened(body, file)
    column = footer.metadata.row_group(0).column(0)
    for place in range(column.data_page_offset, column.data_page_offset + column.total_compressed_size):
        for bit in range(8):
            changed = bytearray(body)
            changed[place] ^= 1 << bit
            with pytest.raises(OSError, match=r"checksum.*chunk"):
                FileBytes.from_ranges([(0, bytes(changed))], file.size, footer).read(0, [0])


def test_files_of_the_same_footer_and_other_values_do_not_pass_for_each_other() -> None:
    one = pa.table({"id": [1, 2, 3, 4], "v": [1.0, 2.5, 3.5, 9.0]})
    other = pa.table({"id": [1, 2, 3, 4], "v": [1.0, 3.5, 2.5, 9.0]})
    a, b = write(one, primary_key=["id"]), write(other, primary_key=["id"])
    thrift = [written.body()[-int.from_bytes(written.body()[-8:-4], "little") - 8 :] for written in (a, b)]
    assert thrift[0] == thrift[1], "Parquet's own footers don't tell them apart"
    assert a.files[0].footer[2] != b.files[0].footer[2]


def test_files_without_checksums_are_read_by_those_of_their_pages() -> None:
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"id": range(100)}, schema=schema), sink, write_page_checksum=True)
    body = sink.getvalue().to_pybytes()
    length = int.from_bytes(body[-8:-4], "little") + 8
    file = DataFile("data/t/x.parquet", len(body), 100, (len(body) - length, length, zlib.crc32(body[-length:])))
    footer = opened(body, file)
    assert footer.sums is None
    assert FileBytes.from_ranges([(0, body)], len(body), footer).read(0, [0])["id"].to_pylist() == list(range(100))
    damaged = bytearray(body)
    damaged[60] ^= 1
    with pytest.raises(OSError, match=r"CRC|crc|checksum"):
        FileBytes.from_ranges([(0, bytes(damaged))], len(body), footer).read(0, [0])


@pytest.mark.parametrize("before", [SUMS_MAGIC, b"\0" * 8, b"\0" * 16 + b"DSUX", b"\0" * 24 + SUMS_MAGIC])
def test_something_else_in_front_of_the_footer_is_damage(before: bytes) -> None:
    written = write(events(40), primary_key=["id"])
    (file,), body = written.files, written.body()
    metadata = opened(body, file).metadata
    thrift = body[-int.from_bytes(body[-8:-4], "little") - 8 :]
    assert ChunkSums.decode(thrift, 0, metadata, file.path) is None
    with pytest.raises(CorruptionError, match="no checksums"):
        ChunkSums.decode(before + thrift, 0, metadata, file.path)
