"""Spark's own Parquet readers, which know nothing of dolmen's checksums, verify those of pages."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.head import context_of
from dolmen.rows.scan.data_objects import open_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_damaged_pages_are_found_by_sparks_own_reader_and_the_file_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(1)
    values = [rng.random() for _ in range(20_000)]
    table = dolmen.open(str(tmp_path)).create_table("t", pa.schema([("k", pa.int64()), ("v", pa.float64())]))
    table.append(pa.table({"k": range(20_000), "v": values}))
    table.delete("k < 10", mode="positions")
    context = context_of(table)
    (file,) = context.head.refresh().manifest.table("t").files
    path, frame = tmp_path / file.path, table.to_spark(["v"])
    assert sorted(row.v for row in frame.collect()) == sorted(values[10:])
    footer = open_file(context.store, context.cache, file, "t").footer
    (chunk,) = footer.ranges(0, frozenset((2,)))
    body = path.read_bytes()
    path.chmod(0o644)
    for place in range(chunk.start + 500, chunk.end, (chunk.end - chunk.start) // 4):
        damaged = bytearray(body)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        for found in (table.to_spark(["v"]), table.to_spark(["v"], "v > 0.5")):
            with pytest.raises(Exception, match=r"(?s)checksum") as caught:  # Spark's, through Py4J
                found.collect()
            assert path.name in str(caught.value)
    path.write_bytes(body)
    assert sorted(row.v for row in table.to_spark(["v"]).collect()) == sorted(values[10:])
