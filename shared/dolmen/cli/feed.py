"""``dolmen changes``: the rows that commits inserted, deleted and updated, once or continuously."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any

import pyarrow as pa
from typer import Option

import dolmen
from dolmen.base.temporary_files import explaining_full_disk
from dolmen.base.units import MIB
from dolmen.cli.options import DatabaseUrl, Json, Output, OutputFormat, TableName, app, names_of, open_existing
from dolmen.cli.output import Stop, check_interval, destination, send_rows, stopping_at_interrupt
from dolmen.errors import InputError, SchemaError, TableNotFoundError
from dolmen.ingest.formats.export import check_target, export_stream
from dolmen.ingest.formats.formats import Format
from dolmen.predicate.ast import columns as columns_of
from dolmen.predicate.parse import parse
from dolmen.rows.scan.plan import stored_schema_of

_BUFFER_BYTES = 32 * MIB  # a larger commit is buffered in a temporary file until it is complete


@app.command()
def changes(
    table: TableName,
    database: DatabaseUrl,
    since: Annotated[str, Option(help="Version (0: from the beginning) or time after which changes begin.")],
    until: Annotated[str | None, Option(help="Version or time with which they end.")] = None,
    columns: Annotated[str, Option(help="Columns to show, with commas; all by default.")] = "",
    where: Annotated[str | None, Option(help="Only rows for which this predicate is true.")] = None,
    net: Annotated[bool, Option("--net", help="The difference of two versions only.")] = False,
    follow: Annotated[bool, Option("--follow", help="Go on with new commits until Ctrl-C.")] = False,
    interval: Annotated[float, Option(help="Seconds between checks for new commits.")] = 5.0,
    output: Output = None,
    form: OutputFormat = None,
    as_json: Json = False,
) -> None:
    """Show the rows that commits inserted, deleted and updated, in the order of the versions."""
    db = open_existing(database)
    names = names_of(columns)
    read = partial(db.table(table).changes, columns=names, where=where)
    identify = partial(_identity, db, table, names, where)
    first = _moment(since)
    if follow:
        if until is not None or net:
            raise InputError("--follow has no end and shows every commit: leave out --until and --net")
        check_interval(interval)
        format = destination(output, form or ("jsonl" if output is None else None), as_json=as_json)
        _follow(db, read, identify, first, interval, output, format)
        return
    format = destination(output, form, as_json=as_json)
    rows = read(first, None if until is None else _moment(until), net=net)
    send_rows(rows, output, format, as_json=as_json)


def _moment(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text


def _identity(db: dolmen.Database, table: str, names: list[str] | None, where: str | None, version: int) -> str:
    """Identifies the table that has the name in a version, with the columns that the feed depends on."""
    snapshot = db.at(version).table(table)
    if names is None:
        return snapshot.identity()
    schema = stored_schema_of(snapshot)
    tested = frozenset[int]() if where is None else columns_of(parse(where, schema, now_us=0))
    return snapshot.identity([*names, *(f.name for f in schema.fields if f.id in tested and f.name not in names)])


def _follow(
    db: dolmen.Database,
    read: Any,
    identify: Callable[[int], str],
    since: int | str,
    interval: float,
    output: Path | None,
    format: Format | None,
) -> None:
    """Writes commits as they arrive. Ctrl-C ends it after a whole commit."""
    if format is None or format.kind == "parquet":
        raise InputError("--follow writes as it goes: give --format jsonl, csv or arrow")
    with stopping_at_interrupt() as stop:
        until = db.refresh()
        rows: pa.RecordBatchReader = read(since, until)
        schema = pa.schema([field.with_nullable(True) for field in rows.schema])  # as after an erasure
        if output is None:
            sys.stdout.flush()
            target: Any = sys.stdout.buffer
        else:
            check_target(output)
            target = output.open("wb")
        try:
            batches = _new_commits(db, read, identify, rows, until, interval, stop, target.flush)
            alike = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
            export_stream(pa.RecordBatchReader.from_batches(schema, alike), target, format)
            target.flush()
        finally:
            if output is not None:
                target.close()


def _new_commits(
    db: dolmen.Database,
    read: Any,
    identify: Callable[[int], str],
    rows: pa.RecordBatchReader,
    version: int,
    interval: float,
    stop: Stop,
    flush: Any,
) -> Iterator[pa.RecordBatch]:
    """Yields the existing changes, then those of new versions. Each check for a new version is one request."""
    identity = identify(version)
    while True:
        for commit in _whole_commits(rows):
            yield from commit
            flush()
            if stop.is_set():
                return
        flush()
        while (newest := db.refresh()) == version:
            if stop.wait(interval):
                return
        now = identify(newest)
        restart = f"since a version after {version}: go on with --since {version}"
        if now.partition("/")[0] != identity.partition("/")[0]:
            raise TableNotFoundError(
                f"another table has the name {restart}, which shows all rows of the present table as inserts; --until, "
                "with a version that still has the previous table, shows the last changes of that one"
            )
        if now != identity:
            raise SchemaError(f"the table's columns have changed {restart}, which shows the present columns")
        rows = read(version, newest)
        version = newest


def _whole_commits(rows: pa.RecordBatchReader) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yields the batches of each commit, once it is complete."""
    for _, batches in groupby(rows, lambda batch: batch.column("_version")[0].as_py()):
        with SpooledTemporaryFile(_BUFFER_BYTES) as file:
            with explaining_full_disk("a commit has more changes"):
                with pa.ipc.new_stream(file, rows.schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
                file.seek(0)
            yield iter(pa.ipc.open_stream(file))
