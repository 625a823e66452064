"""Everything that is written to temporary files, on a disk with no room for it: no fault of the machine's."""

from __future__ import annotations

import gzip
import io
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dolmen.base.runtime import Runtime
from dolmen.entries.index.sorting import EntrySorter, KeyRuns
from dolmen.entries.partitions import PartitionSpec
from dolmen.errors import LimitError
from dolmen.format.column_terms import parse_partition_by
from dolmen.format.schema import Schema
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.source_file import BadRow
from dolmen.ingest.rejects import Quarantine
from dolmen.maintenance.compact.rewrite import Sorter
from dolmen.rows.changes.row_matching import RowMatcher
from dolmen.rows.scan.engines.sql import MOST_KEPT_BYTES, KeptRows
from dolmen.rows.scan.tombstone_keys import KeysInMemory, KeysOnDisk
from dolmen.rows.write.partitioning import RowDivision
from dolmen.rows.write.runs import WriteOptions

ROOM = 16 << 10
NUMBERS = random.Random(5).choices(range(1 << 60), k=100_000)  # which cannot be compressed
ROWS = pa.record_batch({"k": NUMBERS})


def sort_rows() -> None:
    list(Sorter(Runtime(), ROWS.schema, ["k"], ROWS.nbytes // 2).sort([(None, ROWS), (None, ROWS)]))


def divide_rows() -> None:
    spec = PartitionSpec.of_terms(parse_partition_by("bucket(4, k)"), Schema.from_arrow(ROWS.schema))
    list(RowDivision(spec, ROWS.schema, WriteOptions(run_bytes=1 << 15), 4, Runtime()).divide([ROWS]))


def match_rows() -> None:
    list(RowMatcher(ROWS.schema, ["k"], drop_equal=True, memory_bytes=ROWS.nbytes // 2).match(iter([ROWS]), [ROWS]))


def sort_entries() -> None:
    EntrySorter(1 << 10).add(np.array(NUMBERS), np.array(NUMBERS, np.uint64))


def sort_keys() -> None:
    runs = KeyRuns(ROWS.schema, 1 << 18)
    runs.add(ROWS)


def keep_rows() -> None:
    rows = pa.record_batch({"a": np.zeros(MOST_KEPT_BYTES // 8 + 1)})
    KeptRows(rows.schema, [rows]).to_table()


def find_deleted_keys() -> None:
    KeysOnDisk(KeysInMemory(np.sort(np.array(NUMBERS)), np.array(NUMBERS), ()))


def unpack_file() -> None:
    whole = io.BytesIO()
    parquet.write_table(pa.table(ROWS), whole, compression="none")
    packed = gzip.compress(whole.getvalue(), 1)
    read(SourceFile(lambda: io.BytesIO(packed), detect("a.parquet.gz"), "a.parquet.gz"), None).read_all()


def collect_bad_rows() -> None:
    with Quarantine("a.csv", 100_000) as rows:
        for number in range(20_000):
            rows.add(BadRow("is wrong", number, None, None, b"a" * 100))


SPILLS = [
    sort_rows,
    divide_rows,
    match_rows,
    sort_entries,
    sort_keys,
    keep_rows,
    find_deleted_keys,
    unpack_file,
    collect_bad_rows,
]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can have more than ``ROOM`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("spill", SPILLS, ids=lambda spill: spill.__name__)
def test_a_full_disk_is_a_limit_that_names_the_directory(
    spill: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spill()  # there is room
    with full_disk(), pytest.raises(LimitError, match="there is room for") as refused:
        spill()
    assert str(tmp_path) in str(refused.value)
    del refused
    assert not list(tmp_path.iterdir())
