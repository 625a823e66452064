"""Each column gets the encoding that suits its values."""

from __future__ import annotations

from pathlib import Path

import duckdb
import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.written import SMALL_RUNS, Written, entry_for, events, write


def encodings(rows: pa.Table, column: str) -> set[str]:
    group = write(rows).parquet().metadata.row_group(0)
    return set(group.column(rows.column_names.index(column)).encodings) - {"RLE"}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("id", {"DELTA_BINARY_PACKED"}),
        ("event_time", {"DELTA_BINARY_PACKED"}),
        ("user_id", {"DELTA_BINARY_PACKED"}),
        ("kind", {"PLAIN", "RLE_DICTIONARY"}),  # PLAIN is the dictionary's page
        ("payload", {"DELTA_LENGTH_BYTE_ARRAY"}),
    ],
)
def test_encodings_suit_the_values(column: str, expected: set[str]) -> None:
    assert encodings(events(20_000), column) == expected


def test_a_dictionary_that_pays_only_over_a_row_group_is_found() -> None:
    amounts = events(60_000).select(["amount"])
    assert "RLE_DICTIONARY" in encodings(amounts, "amount")
    assert "RLE_DICTIONARY" not in encodings(amounts.slice(0, 16_384), "amount")


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def test_duckdb_and_polars_read_packed_integers_and_times(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    steps = rng.integers(0, 3, 20_000).cumsum()
    columns = {name: pa.array(steps.astype(name)) for name in INTEGERS}
    columns["date"] = pa.array(steps.astype(np.int32)).view(pa.date32())
    columns["time"] = pa.array(steps).view(pa.time64("us"))
    columns["naive"] = pa.array(steps * 10**9).view(pa.timestamp("us"))
    columns["nulls"] = pa.array([None if step % 3 else step for step in steps.tolist()])
    rows = pa.table(columns)
    assert all(encodings(rows, name) == {"DELTA_BINARY_PACKED"} for name in columns)
    path = tmp_path / "rows.parquet"
    path.write_bytes(write(rows).body())
    assert pl.read_parquet(path).to_arrow().cast(rows.schema).equals(rows)
    assert duckdb.sql(f"SELECT * FROM '{path}'").to_arrow_table().cast(rows.schema).equals(rows)


def test_random_floats_stay_plain() -> None:
    assert encodings(pa.table({"v": np.random.default_rng(1).random(20_000)}), "v") == {"PLAIN"}


def test_files_are_not_larger_than_pyarrows_own() -> None:
    rows = events(50_000)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", compression_level=1)
    assert write(rows).files[0].size < sink.getvalue().size * 0.95


def test_an_untypical_first_run_costs_space_alone() -> None:
    values = np.concatenate([np.zeros(20_000, np.int64), np.random.default_rng(1).integers(-(2**62), 2**62, 20_000)])
    rows = pa.table({"v": values, "text": [str(value) for value in values]})
    written = write(rows, options=SMALL_RUNS)
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))


def codecs(written: Written) -> dict[str, str]:
    group = written.parquet().metadata.row_group(0)
    return {chunk.path_in_schema: chunk.compression for chunk in map(group.column, range(group.num_columns))}


def test_packed_integers_that_zstd_would_not_make_smaller_stay_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = pa.table(
        {
            "random": rng.integers(0, 2**40, 20_000),
            "times": pa.array(rng.integers(0, 2**20, 20_000).cumsum()).view(pa.timestamp("us", tz="UTC")),
            "repeated": np.tile(rng.integers(0, 2**40, 100), 200),
            "float": rng.random(20_000),
            "text": [str(value) for value in rng.integers(0, 2**62, 20_000)],
            "struct": pa.array([{"random": value} for value in rng.integers(0, 2**40, 20_000).tolist()]),
        }
    )
    written = write(rows)
    left = {"random": "UNCOMPRESSED", "times": "UNCOMPRESSED", "struct.random": "UNCOMPRESSED"}
    assert codecs(written) == {"repeated": "ZSTD", "float": "ZSTD", "text": "ZSTD"} | left
    path = tmp_path / "rows.parquet"
    path.write_bytes(written.body())
    assert written.rows().equals(rows.cast(written.entry.schema.arrow))
    assert pl.read_parquet(path).to_arrow().cast(rows.schema).equals(rows)
    assert duckdb.sql(f"SELECT * FROM '{path}'").to_arrow_table().cast(rows.schema).equals(rows)


def test_a_file_is_hardly_larger_for_what_is_not_compressed() -> None:
    rows = pa.table({"v": np.random.default_rng(1).integers(0, 2**40, 20_000)})
    sizes = {}
    for codec in ("zstd", "none"):
        sink = pa.BufferOutputStream()
        options = {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}
        pq.write_table(rows, sink, compression=codec, **options)
        sizes[codec] = sink.getvalue().size
    assert codecs(write(rows)) == {"v": "UNCOMPRESSED"}
    assert sizes["none"] < sizes["zstd"] * 1.001


def test_all_columns_of_a_table_with_an_index_are_compressed() -> None:
    rows = pa.table({"v": np.random.default_rng(1).integers(0, 2**40, 20_000)})
    entry = msgspec.structs.replace(entry_for(rows.schema, ["v"]), properties={"index": "true"})
    assert codecs(write(rows, entry=entry)) == {"v": "ZSTD"}
