"""Ingest of one file, compared with pyarrow reading the same file, and reading and writing it as Parquet.

Ingest is all that a function does with a drop: reading it under the table's schema, checking every value, writing
Parquet, committing. pyarrow's reading alone is the lesser part of that, so like is compared with like too: dolmen's
reading with pyarrow's, and all of it with pyarrow's reading and writing.
"""

from __future__ import annotations

import gzip
import io
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.json as pajson
import pyarrow.parquet as pq

import dolmen
from bench import plain
from bench.append import create
from bench.dataset import SCHEMA
from bench.measure import compare, seconds
from bench.places import Local
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.formats.formats import SourceFile, detect
from dolmen.ingest.formats.formats import read as read_rows
from dolmen.ingest.landing import Landing

#: Target: rows per second, as a share of pyarrow's for reading the same file.
TARGET = 0.6

ROWS = 1_000_000
ROUNDS = 5
BLOCK_ROWS = 1 << 16

_BUCKET = "landing-bucket"


@dataclass(frozen=True)
class Shares:
    """Rows per second as shares of pyarrow's (more is better).

    Args:
        ingest: of reading the same file.
        reading: dolmen's reading alone, of the same.
        both: ingest, of reading it and writing it as Parquet with the same settings.
    """

    ingest: float
    reading: float
    both: float


@dataclass(frozen=True)
class Result:
    """One format: rows per second, and how that compares where pyarrow reads it."""

    name: str
    bytes: int
    rows_per_second: float
    shares: Shares | None


def ingest(where: Local, table: pa.Table, rounds: int) -> Iterator[Result]:
    """Every format, each with a file of its own."""
    table = table.slice(0, ROWS)
    chosen = plain.settings(table)
    for name, (write, read) in FORMATS.items():
        with TemporaryDirectory(prefix="dolmen-bench-ingest-") as folder:
            path = Path(folder) / "landing" / "events" / f"drop.{name}"
            path.parent.mkdir(parents=True)
            write(table, path)
            yield _measure(where, Path(folder), path, read, table.num_rows, chosen, rounds)


def _measure(
    where: Local,
    folder: Path,
    path: Path,
    read: Callable[[Path], pa.Table] | None,
    rows: int,
    chosen: dict[str, Any],
    rounds: int,
) -> Result:
    def ours() -> None:
        url = where.fresh()
        create(url)
        landing = Landing(url, url=folder.as_uri())
        key = str(path.relative_to(folder))
        etag = landing.store(Drop(_BUCKET, key, 0, "-")).head(key).etag
        done = ingest_drops(dolmen.open(url), landing, [Drop(_BUCKET, key, path.stat().st_size, etag)])
        assert [(outcome.status, outcome.counts.appended) for outcome in done.outcomes] == [("ingested", rows)], done
        where.remove(url)

    def reading_and_writing() -> None:
        assert read is not None
        with plain.writer(folder / "plain.parquet", chosen) as writer:
            writer.write_table(read(path).select(SCHEMA.names).cast(SCHEMA), row_group_size=plain.GROUP_ROWS)

    def reading() -> None:
        batches = read_rows(SourceFile(lambda: path.open("rb"), detect(path.name), path.name), SCHEMA)
        assert sum(batch.num_rows for batch in batches) == rows

    def theirs() -> None:
        assert read is not None
        assert read(path).num_rows == rows

    name, size = path.name.removeprefix("drop."), path.stat().st_size
    if read is None:
        ours()
        return Result(name, size, rows / statistics.median(seconds(ours) for _ in range(rounds)), None)
    whole, part, both = (
        compare(mine, other, rounds) for mine, other in ((ours, theirs), (reading, theirs), (ours, reading_and_writing))
    )
    return Result(name, size, rows / whole.ours, Shares(1 / whole.ratio, 1 / part.ratio, 1 / both.ratio))


# ---- writing the files


def _csv(table: pa.Table, path: Path) -> None:
    pacsv.write_csv(table, path)


def _jsonl(table: pa.Table, path: Path) -> None:
    texts = pc.strftime(table["event_time"], "%Y-%m-%dT%H:%M:%SZ")  # %S has the fraction in it
    place = table.schema.get_field_index("event_time")
    polars.from_arrow(table.set_column(place, "event_time", texts)).write_ndjson(path)  # type: ignore[union-attr]


def _parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 20)


def _arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=BLOCK_ROWS)


def _avro(table: pa.Table, path: Path) -> None:
    types: dict[pa.DataType, Any] = {
        pa.int64(): "long",
        pa.string(): "string",
        pa.float64(): "double",
        pa.timestamp("us", tz="UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    }
    fields = [
        {"name": field.name, "type": ["null", types[field.type]] if field.nullable else types[field.type]}
        for field in table.schema
    ]
    schema = {"type": "record", "name": "event", "fields": fields}
    rows = (row for batch in table.to_batches(max_chunksize=BLOCK_ROWS) for row in batch.to_pylist())
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec="deflate")


def _compressed(write: Callable[[pa.Table, Path], None], table: pa.Table, path: Path) -> None:
    bare = path.with_suffix("")
    write(table, bare)
    with bare.open("rb") as source, gzip.open(path, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    bare.unlink()


# ---- reading them, with pyarrow alone and a known schema


def _read_csv(path: Path) -> pa.Table:
    types = pacsv.ConvertOptions(column_types=SCHEMA)
    return pacsv.read_csv(path, convert_options=types)  # the name shows the compression


def _read_jsonl(path: Path) -> pa.Table:
    with pa.input_stream(path) as stream:  # so here too
        data = io.BytesIO(stream.read()) if path.suffix == ".gz" else stream
        return pajson.read_json(data, parse_options=pajson.ParseOptions(explicit_schema=SCHEMA))


def _read_parquet(path: Path) -> pa.Table:
    return pq.read_table(path)


def _read_arrow(path: Path) -> pa.Table:
    return feather.read_table(path, memory_map=False)


FORMATS: dict[str, tuple[Callable[[pa.Table, Path], None], Callable[[Path], pa.Table] | None]] = {
    "csv": (_csv, _read_csv),
    "csv.gz": (partial(_compressed, _csv), _read_csv),
    "jsonl": (_jsonl, _read_jsonl),
    "jsonl.gz": (partial(_compressed, _jsonl), _read_jsonl),
    "parquet": (_parquet, _read_parquet),
    "arrow": (_arrow, _read_arrow),
    "avro": (_avro, None),  # pyarrow does not read it
}
"""How a file of each is made, and how pyarrow reads it."""
