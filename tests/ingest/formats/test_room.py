"""A compressed file that needs more room than the disk for temporary files has: no fault of the machine's."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

READ = """
import sys
from dolmen.errors import LimitError
from dolmen.ingest.formats.formats import SourceFile, detect, read
try:
    source = SourceFile(lambda: open(sys.argv[1], "rb"), detect("a.parquet.gz"), "a.parquet.gz")
    print(read(source, None).read_all().num_rows)
except LimitError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("room", "told"), [(8 << 20, "200000"), (64 << 10, "room")])
def test_a_file_that_does_not_fit_the_temporary_directory_is_refused(tmp_path: Path, room: int, told: str) -> None:
    whole, packed = tmp_path / "a.parquet", tmp_path / "a.parquet.gz"
    parquet.write_table(pa.table({"id": range(200_000)}), whole, compression="none")
    packed.write_bytes(gzip.compress(whole.read_bytes(), 1))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(packed)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert told in done.stdout, done.stderr
