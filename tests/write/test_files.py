"""What a data file is: readable by everyone, sized, named, and described by its entry."""

from __future__ import annotations

import random
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import RowError, StoreUnavailableError
from dolmen.format.schema import is_nested
from dolmen.format.types import to_plain
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.runs import WriteOptions
from dolmen.store import MemoryBucket, MemoryStore
from dolmen.store.base import Buffer
from dolmen.store.memory import MemoryOutput
from support.random_tables import ALL, random_column
from support.written import SMALL_RUNS, entry_for, events, write


def every_type(rows: int = 500) -> pa.Table:
    rng = random.Random(7)
    return pa.table({name: random_column(rng, name, rows) for name in ALL})


def test_no_rows_make_no_file() -> None:
    assert write(events(0)).files == []


def plain(rows: pa.Table) -> dict[str, list[str]]:
    """Every value as text: NaN equals itself there, and dates may be as far away as they like."""
    return {
        name: [repr(value) for value in (to_plain if not is_nested(column.type) else pa.Array.to_pylist)(column)]
        for name, column in zip(rows.column_names, rows.combine_chunks().to_batches()[0].columns, strict=True)
    }


def test_every_type_comes_back_as_it_was_with_its_field_id() -> None:
    rows = every_type()
    written = write(rows)
    back = written.rows()
    assert plain(back) == plain(rows)
    for found, field in zip(back.schema, written.entry.schema.fields, strict=True):
        assert found.type == field.arrow_type
        assert int(found.metadata[b"PARQUET:field_id"]) == field.id
    parquet = written.parquet().schema
    assert parquet.column(ALL.index("uint64")).logical_type.type == "INT"
    assert '"isAdjustedToUTC":true' in parquet.column(ALL.index("zoned")).logical_type.to_json()
    assert '"timeUnit":"microseconds"' in parquet.column(ALL.index("naive")).logical_type.to_json()


@pytest.mark.slow
@pytest.mark.parametrize("run_rows", [1 << 20, 7])
def test_duckdb_and_polars_read_every_type(run_rows: int, tmp_path: Path) -> None:
    rows = every_type()
    path = tmp_path / "rows.parquet"
    path.write_bytes(write(rows, options=WriteOptions(run_rows=run_rows)).body())
    assert plain(pl.read_parquet(path).to_arrow().cast(rows.schema)) == plain(rows)
    found = duckdb.sql(f"SELECT * FROM '{path}'").to_arrow_table()
    assert plain(found.cast(rows.schema)) == plain(rows)


def test_a_file_of_many_runs_is_as_those_of_one_run_each() -> None:
    """On however many threads: statistics, filters and checksums are those of the same rows."""
    rows = events(3_000)
    options = WriteOptions(run_rows=100)
    keys: dict[str, Any] = {"primary_key": ["id"], "sort_key": ["event_time"]}
    written = [write(rows, options=options, runtime=Runtime(cores=cores), **keys) for cores in (1, 2, 5)]
    assert len({each.body() for each in written}) == 1
    (file,) = written[0].files
    metadata = written[0].parquet().metadata
    alone = write(rows, **keys)
    assert msgspec.structs.asdict(file)["stats"] == msgspec.structs.asdict(alone.files[0])["stats"]
    assert (file.rows, metadata.num_row_groups) == (3_000, 30)
    assert written[0].rows().equals(alone.rows())
    for number in (0, 29):
        group = metadata.row_group(number)
        part = write(rows.slice(100 * number, 100), **keys).parquet().metadata.row_group(0)
        for column in range(group.num_columns):
            found, expected = group.column(column), part.column(column)
            assert (found.statistics, found.has_column_index) == (expected.statistics, True)
            assert (found.bloom_filter_offset is None) == (expected.bloom_filter_offset is None)


@pytest.mark.parametrize("rows", [3, 5000, 70_000])
def test_duckdb_and_polars_read_whatever_encodings_were_chosen(rows: int, tmp_path: Path) -> None:
    table = events(rows)
    path = tmp_path / "rows.parquet"
    path.write_bytes(write(table, primary_key=["id"], sort_key=["event_time"]).body())
    assert pl.read_parquet(path).equals(pl.from_arrow(table))
    found = duckdb.sql(f"SELECT * REPLACE (epoch_us(event_time) AS event_time) FROM '{path}'").to_arrow_table()
    assert found.equals(table.set_column(2, "event_time", table["event_time"].cast(pa.int64())))


def test_odd_column_names_are_ordinary() -> None:
    rows = pa.table(
        {
            "a": pa.array([{"b": 1.5}] * 5000),
            "a.b": pa.array(np.arange(5000)),
            "": pa.array(["x"] * 5000),
            'quo"ted, ä': pa.array(np.arange(5000) % 3),
        }
    ).rename_columns(["a", "a.b", " ", 'quo"ted, ä'])
    written = write(rows, primary_key=["a.b"], sort_key=["a.b"])
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))
    group = written.parquet().metadata.row_group(0)
    assert group.sorting_columns == (pq.SortingColumn(1),)
    assert group.column(1).bloom_filter_length


def test_the_name_has_the_servers_hour_and_a_fresh_uuid() -> None:
    clock = 1_762_000_000_000_000  # 2025-11-01 12:26:40
    store = MemoryStore(MemoryBucket(clock_us=lambda: clock))
    store.put("something", b"")  # any answer carries the clock
    table = events(10)
    entry = entry_for(table.schema)
    batches = table.cast(entry.schema.arrow).to_batches()
    (first,) = write_data_files(store, "events", entry, batches, Runtime())
    (second,) = write_data_files(store, "events", entry, batches, Runtime())
    assert first.path.startswith("data/events/2025/11/01/12/")
    assert first.path != second.path


def test_the_entry_tells_size_rows_and_footer() -> None:
    written = write(events(20_000), primary_key=["id"], options=WriteOptions(run_bytes=1 << 20))
    (file,) = written.files
    body = written.body()
    offset, length, crc = file.footer
    assert (file.size, file.rows) == (len(body), 20_000)
    assert offset + length == len(body)
    chunks = pq.ParquetFile(pa.BufferReader(body)).metadata
    sums = 8 * chunks.num_row_groups * chunks.num_columns + 8
    behind = struct.unpack("<I", body[-8:-4])[0] + 8 + sums
    assert body[-behind - 4 : -behind] == b"DPGS"
    (places,) = struct.unpack_from("<I", body, offset + 4)
    assert 8 + places + 4 + behind == length
    assert zlib.crc32(body[offset:]) == crc
    assert pq.read_metadata(pa.BufferReader(body)).num_rows == 20_000
    assert file.row_ts == file.applied_through == 0  # not stamped yet


def test_an_entry_with_statistics_on_10_columns_is_under_800_bytes() -> None:
    rows = events(1000)
    more = {"city": pa.array(["Llanfairpwllgwyngyllgogerychwyrndrobwll"] * 1000), "price": rows["amount"]}
    for name, values in {**more, "changed": rows["event_time"]}.items():
        rows = rows.append_column(name, values)
    (file,) = write(rows).files
    assert len(file.stats) == 10
    stamped = file.stamp(1_762_000_000_000_000)
    assert len(msgspec.json.encode(stamped)) < 800


def test_a_flipped_bit_in_any_page_is_found() -> None:
    written = write(events(3000))
    column = written.parquet().metadata.row_group(0).column(0)
    body = bytearray(written.body())
    body[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    reader = pq.ParquetFile(pa.BufferReader(bytes(body)), page_checksum_verification=True)
    with pytest.raises(OSError, match="CRC"):
        reader.read(["id"])
    assert reader.read(["user_id"]).num_rows == 3000


def test_every_column_chunk_has_a_page_index_and_statistics() -> None:
    metadata = write(events(3000)).parquet().metadata
    for place in range(metadata.num_columns):
        column = metadata.row_group(0).column(place)
        assert column.has_column_index
        assert column.has_offset_index
        assert column.statistics.has_min_max


def test_the_primary_key_has_a_bloom_filter_that_finds_every_key(tmp_path: Path) -> None:
    rows = events(50_000).select(["id", "kind", "user_id"])
    rows = rows.set_column(0, "id", pc.multiply(rows["id"], 7919))
    path = tmp_path / "rows.parquet"
    written = write(rows, primary_key=["id", "kind"], options=WriteOptions(row_group_bytes=1 << 17))
    path.write_bytes(written.body())
    metadata = written.parquet().metadata
    assert metadata.num_row_groups == 4
    for group in range(metadata.num_row_groups):
        by_id, by_kind, by_user = (metadata.row_group(group).column(place) for place in range(3))
        assert 16_000 < by_id.bloom_filter_length < 20_000  # a byte a row
        assert by_kind.bloom_filter_length < 100  # four values
        assert not by_user.bloom_filter_length

    def excluded(key: int) -> list[bool]:
        probe = duckdb.sql(f"FROM parquet_bloom_probe('{path}', 'id', {key}) ORDER BY row_group_id")
        return [row[-1] for row in probe.fetchall()]

    per_group = [excluded(key) for key in range(0, 50_000 * 7919, 7919 * 997)]
    assert all(not all(groups) for groups in per_group)
    assert sum(sum(groups) for groups in per_group) > 2.7 * len(per_group)  # of three groups without the key


def test_row_groups_hold_one_to_four_megabytes() -> None:
    metadata = write(events(300_000), options=WriteOptions(run_bytes=32 << 20)).parquet().metadata
    sizes = [
        sum(metadata.row_group(group).column(place).total_compressed_size for place in range(metadata.num_columns))
        for group in range(metadata.num_row_groups)
    ]
    assert len(sizes) >= 4
    assert min(sizes) >= 1 << 20
    assert max(sizes) <= 4 << 20


def test_narrow_rows_are_split_for_parallel_decoding() -> None:
    rows = pa.table({"a": np.arange(1_000_000), "b": np.arange(1_000_000) % 7})
    metadata = write(rows, batch_rows=65_536).parquet().metadata
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert len(groups) >= 4
    assert max(groups) <= 1 << 18
    assert min(groups) >= 1 << 16


@pytest.mark.slow
def test_rows_of_many_columns_keep_row_groups_worth_a_request() -> None:
    rows = pa.table({f"c{place}": np.random.default_rng(place).random(40_000) for place in range(60)})
    metadata = write(rows).parquet().metadata
    assert metadata.row_group(0).num_rows > 8000


def test_files_roll_at_the_target_size() -> None:
    options = WriteOptions(file_bytes=1 << 20, run_bytes=256 << 10)
    rows = events(60_000)
    written = write(rows, options=options)
    assert len(written.files) == 4
    for file in written.files[:-1]:
        assert 1 << 20 <= file.size < (1 << 20) + (300 << 10)
    assert sum(file.rows for file in written.files) == 60_000
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))
    assert len({file.path for file in written.files}) == 4
    assert [file.stats[1].min for file in written.files] == [
        sum(file.rows for file in written.files[:place]) for place in range(4)
    ]


def test_one_large_batch_is_cut_into_runs() -> None:
    rows = events(30_000)
    written = write(rows.combine_chunks().to_batches(), entry=entry_for(rows.schema), options=SMALL_RUNS)
    metadata = written.parquet().metadata
    assert metadata.num_row_groups > 40
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))


def test_one_huge_value_among_small_ones_is_written() -> None:
    rows = pa.table({"text": ["a"] * 50 + ["b" * 3_000_000] + ["c"] * 50, "n": range(101)})
    written = write(rows, options=SMALL_RUNS)
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))
    (file,) = written.files
    assert (file.stats[1].min, file.stats[1].max) == ("a", "c")


def test_same_seed_and_one_thread_write_the_same_bytes_and_start_no_thread() -> None:
    def once() -> dict[str, bytes]:
        runtime = Runtime(random=random.Random(5), threads=1)
        before = set(threading.enumerate())
        written = write(events(20_000), sort_key=["user_id"], options=SMALL_RUNS, runtime=runtime)
        assert set(threading.enumerate()) <= before
        return {key: found.body for key, found in written.store.bucket.objects.items()}

    assert once() == once()


def test_a_bad_row_leaves_no_object_of_its_file_and_keeps_finished_ones() -> None:
    rows = events(60_000)
    entry = entry_for(rows.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows.cast(entry.schema.arrow).to_batches(max_chunksize=1000)
        raise RowError("no", row=60_001)

    store = MemoryStore()
    options = WriteOptions(file_bytes=2 << 20, run_bytes=256 << 10)
    with pytest.raises(RowError, match="row 60001"):
        write_data_files(store, "events", entry, batches(), Runtime(), options)
    (orphan,) = store.list("")
    with pq.ParquetFile(pa.BufferReader(store.get(orphan.key).body)) as file:
        assert file.metadata.num_rows > 10_000


class Failing(MemoryStore):
    """Its uploads break off, at a write or at the end."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.outputs = where, list[MemoryOutput]()

    def open_output(self, key: str) -> MemoryOutput:
        store = self

        class Output(MemoryOutput):
            aborted = False

            def write(self, data: Buffer, /) -> int:
                if store.where == "write" and len(self._body) > 50_000:
                    raise StoreUnavailableError("the line is dead")
                return super().write(data)

            def commit(self) -> int:
                raise StoreUnavailableError("the line is dead")

            def abort(self) -> None:
                self.aborted = True
                super().abort()

        self.outputs.append(Output(self, key))
        return self.outputs[-1]


@pytest.mark.parametrize("where", ["write", "commit"])
def test_a_failing_store_is_reported_as_it_is_and_the_upload_given_up(
    where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = events(20_000)
    entry = entry_for(rows.schema)
    store = Failing(where)
    with pytest.raises(StoreUnavailableError, match="the line is dead"):
        write_data_files(store, "events", entry, rows.cast(entry.schema.arrow).to_batches(), Runtime(), SMALL_RUNS)
    assert [output.aborted for output in store.outputs] == [True]
    assert list(store.list("")) == []
    assert capfd.readouterr().err == ""  # nothing from destructors
