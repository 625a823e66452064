"""Streamed uploads hold a bounded part of what they stream."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dolmen.store import open_store
from support.stores import put

pytestmark = pytest.mark.slow

STREAM = """if 1:
    import pathlib, re, sys
    from dolmen.store import open_store
    store = open_store(sys.argv[1])
    store.head(sys.argv[2])  # the connection and all that comes with it
    status = pathlib.Path("/proc/self/status")  # getrusage would also tell of the process that started this one
    peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]) >> 10
    before = peak()
    with store.open_output("data/large") as output:
        block = bytes(range(256)) * 4096
        for _ in range(int(sys.argv[3])):
            output.write(block)
        assert output.commit() == int(sys.argv[3]) << 20
    print(peak() - before)
"""


def grown_megabytes(url: str, megabytes: int) -> int:
    command = [sys.executable, "-c", STREAM, url, "some", str(megabytes)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def test_an_upload_of_160_mb_holds_its_64_mb_and_a_few_parts(s3_url: str) -> None:

    put(open_store(s3_url), "some")
    grown = grown_megabytes(s3_url, 160)
    print(f"160 MB streamed: {grown} MB more")
    assert grown < 64 + 6 * 16
