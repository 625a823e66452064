"""Files whose counts and sizes lie: made at random, and read in a process of their own, which they might kill.

    python -m support.lying_counts KIND SEED COUNT DIRECTORY

prints what became of them as JSON. ``DIRECTORY/at`` holds the number of the last file that was begun.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import ipc, parquet

from dolmen.cli import main
from dolmen.errors import InputError
from dolmen.format.parquet_footer import LIST, STRUCT, ThriftStruct, array
from dolmen.ingest.formats.formats import SourceFile, detect, read

ROWS = 60
_TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "name": [f"name {n % 7}" for n in range(ROWS)],
        "tags": [[str(n)] * (n % 3) for n in range(ROWS)],
        "at": [{"x": n, "y": None} for n in range(ROWS)],
    },
    pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ]
    ),
)
_GROUPS, _GROUP_CHUNKS, _GROUP_ROWS, _CHUNK_META = 4, 1, 3, 3
_CHUNK_NUMBERS = (5, 6, 7, 9, 11)
"""Of a column chunk: values, unpacked and packed size, places of its pages and of its dictionary."""
_BY_COMMAND = 50
"""One file in so many goes through the command line, too."""


def _parquet() -> bytes:
    sink = io.BytesIO()
    parquet.write_table(_TABLE, sink, row_group_size=20, compression="none", data_page_size=64)
    return sink.getvalue()


def _arrow(*, stream: bool, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    table = _TABLE.set_column(1, "name", _TABLE["name"].dictionary_encode())
    options = ipc.IpcWriteOptions(compression=compression)
    with (ipc.new_stream if stream else ipc.new_file)(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=20)
    return sink.getvalue()


def _avro() -> bytes:
    at = {"type": "record", "name": "at", "fields": [{"name": name, "type": ["null", "int"]} for name in "xy"]}
    types = {"id": "long", "name": ["null", "string"], "tags": {"type": "array", "items": "string"}, "at": at}
    schema = {"type": "record", "name": "row", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, _TABLE.to_pylist(), sync_interval=300, sync_marker=b"0123456789abcdef")
    return sink.getvalue()


def _number(chance: random.Random, real: int) -> int:
    """Another number, as it may be said instead of the real one."""
    near = [real - 1, real + 1, real // 2, 2 * real, -real, chance.randrange(100)]
    return chance.choice([0, *near, -1, 2**31 - 1, 2**31, 2**40, 2**62, -(2**62)])


def _lying_parquet(data: bytes, chance: random.Random) -> bytes:
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if chance.random() < 0.4:
        return (
            _changed(data, chance, start, len(data) - 8) if chance.random() < 0.6 else _changed(data, chance, 4, start)
        )
    footer = ThriftStruct(data[start:-8])
    groups = footer.structs(_GROUPS)
    place = chance.randrange(len(groups))
    group = ThriftStruct(groups[place])
    kind = chance.randrange(4)
    if kind == 0:
        groups.pop(place)
    elif kind == 1:
        group.set_number(_GROUP_ROWS, _number(chance, group.number(_GROUP_ROWS) or 0))
        groups[place] = group.encode()
    else:
        chunks = group.structs(_GROUP_CHUNKS)
        which = chance.randrange(len(chunks))
        chunk = ThriftStruct(chunks[which])
        meta = ThriftStruct(chunk.fields[_CHUNK_META][1])
        field = chance.choice([known for known in _CHUNK_NUMBERS if known in meta.fields] + [5] * 3)
        meta.set_number(field, _number(chance, meta.number(field) or 0))
        chunk.fields[_CHUNK_META] = STRUCT, meta.encode()
        chunks[which] = chunk.encode()
        group.fields[_GROUP_CHUNKS] = LIST, array(STRUCT, chunks)
        groups[place] = group.encode()
    footer.fields[_GROUPS] = LIST, array(STRUCT, groups)
    encoded = footer.encode()
    return data[:start] + encoded + len(encoded).to_bytes(4, "little") + b"PAR1"


def _lying_arrow(data: bytes, chance: random.Random) -> bytes:
    """Most of the numbers in it have 4 or 8 bytes, at places that these divide."""
    size = chance.choice([2, 4, 8])
    place = chance.randrange(len(data) // size) * size
    real = int.from_bytes(data[place : place + size], "little", signed=True)
    most = 2 ** (8 * size - 1) - 1
    number = max(-most - 1, min(most, _number(chance, real)))
    return data[:place] + number.to_bytes(size, "little", signed=True) + data[place + size :]


def _lying_avro(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return _changed(data, chance, 0, len(data))
    marks = [place for place in range(len(data)) if data.startswith(b"0123456789abcdef", place)][:-1]
    return _changed(data, chance, (start := chance.choice(marks) + 16), start + 8)


def _changed(data: bytes, chance: random.Random, start: int, end: int) -> bytes:
    """With a number in it as variable-length integers have it."""
    place = chance.randrange(start, end)
    byte = chance.choice([0, 1, 2, data[place] ^ 1, (data[place] - 2) % 256, (data[place] + 2) % 256, 0x7F, 0xFF])
    other = bytes([byte]) if chance.random() < 0.8 else b"\xff" * chance.randrange(4, 9) + b"\x01"
    return data[:place] + other + data[place + 1 :]


KINDS: dict[str, tuple[Callable[[], bytes], Callable[[bytes, random.Random], bytes]]] = {
    "t.parquet": (_parquet, _lying_parquet),
    "t.arrow": (lambda: _arrow(stream=False), _lying_arrow),
    "t.arrows": (lambda: _arrow(stream=True, compression="zstd"), _lying_arrow),
    "t.avro": (_avro, _lying_avro),
}


def _read(name: str, data: bytes) -> int | None:
    """The number of rows of a file; None if it is refused."""
    source = SourceFile(lambda: io.BytesIO(data), detect(name), name)
    try:
        return int(read(source, _TABLE.schema).read_all().num_rows)
    except InputError:
        return None


def _append(path: Path, database: Path) -> int:
    """The exit code of ``dolmen append``. What it does not expect is raised."""
    sys.argv = ["dolmen", "append", "t", str(path), "--create", "-d", str(database)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def run(kind: str, seed: int, count: int, directory: Path) -> dict[str, Any]:
    """Reads ``count`` damaged files, and counts outcomes: the rows of those that are read, and exit codes."""
    make, damage = KINDS[kind]
    data, chance = make(), random.Random(seed)
    assert _read(kind, data) == ROWS
    rows, codes = Counter[str](), Counter[str]()
    for number in range(count):
        (directory / "at").write_text(str(number))
        damaged = damage(data, chance)
        outcome = _read(kind, damaged)
        rows[str(outcome)] += 1
        if outcome not in (None, ROWS):
            (directory / f"{number}-{kind}").write_bytes(damaged)
        if number % _BY_COMMAND == 0:
            (directory / kind).write_bytes(damaged)
            codes[str(_append(directory / kind, directory / "db"))] += 1
    status = Path("/proc/self/status").read_text().splitlines()  # what rusage says begins with the parent's memory
    peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
    return {"rows": rows, "codes": codes, "peak": peak}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
