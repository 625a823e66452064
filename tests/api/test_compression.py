"""The setting ``compression``: it holds for each new file, and is changed by metadata alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.errors import InputError
from dolmen.maintenance.compact.compaction import CompactionOptions, compact


def codecs(table: dolmen.Table) -> set[str]:
    """The compressions of all column chunks."""
    found = set()
    for path in table.files()["path"].to_pylist():
        metadata = pq.ParquetFile(pa.BufferReader(table._context.store.get(path).body)).metadata
        chunks = [(group, leaf) for group in range(metadata.num_row_groups) for leaf in range(metadata.num_columns)]
        found |= {metadata.row_group(group).column(leaf).compression for group, leaf in chunks}
    return found


@pytest.mark.parametrize("options", [{}, {"partition_by": "bucket[3](id)"}, {"index": "true"}])
def test_every_writer_follows_it_and_rows_are_found(options: dict[str, str], tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", "id BIGINT NOT NULL, s VARCHAR", "id", properties=options)
    rows = pa.table({"id": range(20_000), "s": [f"text {n % 900}" for n in range(20_000)]})
    for number, (value, codec) in enumerate(
        {"snappy": "SNAPPY", "gzip(9)": "GZIP", "lz4": "LZ4", "none": "UNCOMPRESSED", "ZSTD(6)": "ZSTD"}.items()
    ):
        table.set(compression=value)
        assert table.settings()["compression"] == value
        table.overwrite(rows, force=True)
        assert codec in codecs(table) <= {codec, "UNCOMPRESSED"}
        table.append(pa.table({"id": [-number - 1], "s": ["one"]}))
        db.maintain()
        assert codec in codecs(table) <= {codec, "UNCOMPRESSED"}
        assert {row["s"] for row in table.get_many([-number - 1, 17]).to_pylist()} == {"one", "text 17"}
    assert db.verify(deep=True).ok


def test_compaction_encodes_row_groups_of_another_compression_again(tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    table = db.create_table("t", {"id": range(100_000)}, sort_key="id", properties={"compression": "gzip"})
    for _ in range(5):
        table.append({"id": range(100_000)})
    options = CompactionOptions(growth=2, splice_bytes=1, row_group_bytes=1)
    table.set(compression="none")
    assert not compact(table._context, "t", options=options).bytes_copied
    assert codecs(table) == {"UNCOMPRESSED"}


def test_a_higher_level_makes_smaller_files(tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    rows = pa.table({"s": [f"{n * 7919 % 65_521:06}" * 3 for n in range(60_000)]})
    sizes = [
        db.create_table(f"t{n}", rows, properties={"compression": f"zstd({n})"}).describe()["bytes"] for n in (1, 19)
    ]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    "value", ["zstd(0)", "zstd(23)", "gzip(10)", "snappy(1)", "brotli", "", "zstd 3", "lz4_raw", 3]
)
def test_what_is_no_compression_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="compression"):
        dolmen.open(str(tmp_path / "db")).create_table("t", "id BIGINT", properties={"compression": value})
