"""Reading takes bounded memory, whatever the size of the file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest

pytestmark = pytest.mark.slow

BUDGET_BYTES = 120 << 20

_PROGRAM = """
import sys

class WithoutPandas:  # where it is installed, pyarrow imports it on its own: 45 MB that are not of reading
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, WithoutPandas())
import json, pathlib, re
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.source_file import ReadOptions

def memory(word):
    return int(re.search(word + r":\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) << 10

name, options = sys.argv[1], ReadOptions(dialect=Dialect(json_rows=sys.argv[2]))
before, rows, largest = memory("VmRSS"), 0, 0
for batch in read(SourceFile(lambda: open(name, "rb"), detect(name), name, options), None):
    rows, largest = rows + batch.num_rows, max(largest, batch.nbytes)
print(json.dumps({"rows": rows, "largest": largest, "taken": memory("VmHWM") - before}))
"""

_ROW = '{id},{user},2025-01-01T00:00:{second:02}.{id:06},click,"Köln, Dom",{amount},"said ""{payload}"" and went"\n'
_JSON = (
    '{{"id": {id}, "user": {user}, "at": "2025-01-01T00:00:{second:02}", "amount": {amount}, "tags": ["{payload}"]}}\n'
)


def _lines(template: str, count: int) -> bytes:
    return "".join(
        template.format(id=n, user=n * 7919, second=n % 60, amount=n / 8, payload=f"{n:060}") for n in range(count)
    ).encode()


def _csv() -> tuple[bytes, bytes, bytes]:
    return b"id,user,at,kind,place,amount,text\n", _lines(_ROW, 20_000), b""


def _jsonl() -> tuple[bytes, bytes, bytes]:
    return b"", _lines(_JSON, 20_000), b""


def _json_array() -> tuple[bytes, bytes, bytes]:
    rows = _lines(_JSON, 20_000).replace(b"\n", b",\n").replace(b", ", b",\n  ")
    return b'{"before": [[{"Records": 1}]], "Records": [', rows, b'], "after": {}}'


def _avro() -> tuple[bytes, bytes, bytes]:
    sink = io.BytesIO()
    fields = [{"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "row", "fields": fields}
    fastavro.writer(sink, schema, [], sync_marker=bytes(16))
    header = len(sink.getvalue())
    rows = ({"id": n, "text": f"{n:0500}"} for n in range(20_000))
    fastavro.writer(sink, schema, rows, sync_marker=bytes(16))
    return sink.getvalue()[:header], sink.getvalue()[header:], b""


def _arrows() -> tuple[bytes, bytes, bytes]:
    batch = pa.record_batch({"id": range(20_000), "text": [f"{n:0500}" for n in range(20_000)]})
    schema, end = batch.schema.serialize().to_pybytes(), b"\xff\xff\xff\xff\0\0\0\0"
    return schema, batch.serialize().to_pybytes(), end


@pytest.mark.parametrize(
    ("name", "parts", "size"),
    [
        ("rows.csv", _csv, 150 << 20),
        ("rows.jsonl", _jsonl, 60 << 20),
        ("rows.json", _json_array, 60 << 20),
        ("rows.avro", _avro, 200 << 20),
        ("rows.arrows", _arrows, 200 << 20),
    ],
)
def test_a_large_file_is_inferred_and_read_in_bounded_memory(
    name: str, parts: Callable[[], tuple[bytes, bytes, bytes]], size: int, tmp_path: Path
) -> None:
    size = 1 << 30 if os.environ.get("DOLMEN_LONG") else size
    header, rows, end = parts()
    repeated = size // len(rows)
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(header)
        for _ in range(repeated):
            file.write(rows)
        file.write(end)
    command = [sys.executable, "-c", _PROGRAM, str(path), "Records" if name == "rows.json" else "lines"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path.unlink()
    measured = json.loads(done.stdout)
    print(f"{name}: {size >> 20} MiB, {measured['taken'] / 2**20:.0f} MiB taken")
    assert measured["rows"] == 20_000 * repeated
    assert measured["largest"] < 16 << 20
    assert measured["taken"] < BUDGET_BYTES
