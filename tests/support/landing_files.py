"""Landing files of every format and compression, for tests."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.announce_files import DropSource

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())])
START = 1_700_000_000_000_000

Rows = Sequence[tuple[int, int, str]]


def rows_of(first: int, count: int) -> list[tuple[int, int, str]]:
    """The rows of a table, with times in microseconds."""
    return [(id_, START + 7_919 * id_ % 1_000_003, f"name {id_ % 10}") for id_ in range(first, first + count)]


def table_of(rows: Rows) -> pa.Table:
    ids, times, names = zip(*rows, strict=True)
    return pa.table([pa.array(ids, pa.int64()), pa.array(times, SCHEMA.field("at").type), pa.array(names)], SCHEMA)


def _delimited(rows: Rows, delimiter: str) -> bytes:
    times = table_of(rows)["at"].to_pylist()
    lines = (delimiter.join((str(row[0]), at.isoformat(), row[2])) for row, at in zip(rows, times, strict=True))
    return "\n".join((delimiter.join(SCHEMA.names), *lines, "")).encode()


def _jsonl(rows: Rows) -> bytes:
    found = zip(rows, table_of(rows)["at"].to_pylist(), strict=True)
    return "".join(json.dumps({"id": r[0], "at": at.isoformat(), "name": r[2]}) + "\n" for r, at in found).encode()


def _parquet(rows: Rows) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table_of(rows), sink)
    return sink.getvalue()


def _arrow(rows: Rows) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(table_of(rows))
    return sink.getvalue()


def _avro(rows: Rows) -> bytes:
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [("id", "long"), ("at", micros), ("name", "string")]
    schema = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, table_of(rows).to_pylist())
    return sink.getvalue()


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "csv": lambda rows: _delimited(rows, ","),
    "tsv": lambda rows: _delimited(rows, "\t"),
    "jsonl": _jsonl,
    "parquet": _parquet,
    "arrow": _arrow,
    "avro": _avro,
}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda body: body,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda body: pa.compress(body, "zstd", asbytes=True),
}


def put(directory: Path, path: str, rows: Rows) -> None:
    """Writes a file in the format and compression of its name."""
    form, _, compression = path.rpartition("/")[2].partition(".")[2].partition(".")
    body = COMPRESSIONS[f".{compression}" if compression else ""](FORMATS[form](rows))
    put_bytes(directory, path, body)


def put_bytes(directory: Path, path: str, body: bytes) -> None:
    """Writes any bytes as a file below the landing directory."""
    target = directory / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(body)


def drops_in(source: DropSource) -> list[Drop]:
    """The drops of a place, by key."""
    return [drop for drop in source.drops() if drop is not None]
