"""Files damaged at random: refused with an error of their own, alike in any blocks, or read."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from dolmen.errors import InputError
from dolmen.ingest.formats.formats import SourceFile, detect, read

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("paid", pa.decimal128(6, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
CSV = (
    b"id,name,score,at,paid,tags\n"
    b'1,"K\xc3\xb6ln, ""Dom""",1.5,2024-01-01T00:00:00Z,12.50,"[""a"", ""b""]"\n'
    b'2,"two\nlines",,2024-01-01T00:00:00+01:00,,[]\r\n'
    b"3,,-7,,1,\n"
)
JSONL = (
    b'{"id": 1, "name": "K\\u00f6ln", "score": 1.5, "at": "2024-01-01T00:00:00Z", "paid": 12.50, "tags": ["a", "b"]}\n'
    b'{"id": 2, "tags": []}\n\n'
    b'{"score": -7, "id": 3, "paid": "1", "name": null}\n'
)


def _parquet() -> bytes:
    sink = io.BytesIO()
    rows = read(SourceFile(lambda: io.BytesIO(CSV), detect("t.csv"), "t.csv"), SCHEMA).read_all()
    parquet.write_table(rows, sink)
    return sink.getvalue()


def _arrow(stream: bool) -> bytes:
    sink = io.BytesIO()
    rows = read(SourceFile(lambda: io.BytesIO(CSV), detect("t.csv"), "t.csv"), SCHEMA).read_all()
    rows = rows.set_column(1, "name", rows["name"].dictionary_encode())
    with (ipc.new_stream if stream else ipc.new_file)(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    return sink.getvalue()


def _avro(codec: str) -> bytes:
    sink = io.BytesIO()
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    types = {
        "id": "long",
        "name": ["null", "string"],
        "score": ["null", "double"],
        "at": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
        "paid": ["null", decimal],
        "tags": ["null", {"type": "array", "items": ["null", "string"]}],
    }
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    rows = read(SourceFile(lambda: io.BytesIO(CSV), detect("t.csv"), "t.csv"), SCHEMA).read_all().to_pylist()
    fastavro.writer(sink, {"type": "record", "name": "row", "fields": fields}, rows, codec=codec, sync_interval=1)
    return sink.getvalue()


FILES = {
    "t.csv": CSV,
    "t.jsonl": JSONL,
    "t.parquet": _parquet(),
    "t.arrow": _arrow(stream=False),
    "t.arrows": _arrow(stream=True),
    "t.avro": _avro("null"),
    "deflated.avro": _avro("deflate"),
}
TEXT = (".csv", ".jsonl")


def _damaged(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(made) or 1)
        some = bytes(chance.choices([*b'",\n\r{}[]:\\0x-', chance.randrange(256)], k=chance.randint(1, 3)))
        kind = chance.randrange(4)
        if kind == 0:
            made[place : place + len(some)] = some
        elif kind == 1:
            made[place:place] = some
        elif kind == 2:
            del made[place : place + chance.randint(1, 20)]
        else:
            del made[max(place, 1) :]
    return bytes(made)


def _outcome(name: str, data: bytes, schema: pa.Schema | None, block_bytes: int) -> Any:
    try:
        table = read(
            SourceFile(lambda: io.BytesIO(data), detect(name), name, block_bytes=block_bytes), schema
        ).read_all()
    except InputError as error:
        return type(error), str(error)
    table.validate(full=True)
    return table.combine_chunks()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_or_read_alike_in_any_blocks(name: str) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    chance = random.Random(seed)
    seen = Counter[str]()
    files = 5000 if os.environ.get("DOLMEN_LONG") else 150
    for _ in range(files):
        data = _damaged(FILES[name], chance)
        for schema in (SCHEMA, None):
            outcome = _outcome(name, data, schema, 1 << 20)
            seen["refused" if isinstance(outcome, tuple) else "read"] += 1
            if name.endswith(TEXT):
                assert _outcome(name, data, schema, chance.choice([1, 9, 50])) == outcome
    print(dict(seen))
    assert seen["refused"] > files / 2
