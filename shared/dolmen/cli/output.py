"""What the command prints: rich tables for people, JSON for machines, never both."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dolmen.errors import InputError
from dolmen.results import Commit

console = Console()
errors = Console(stderr=True)


def print_json(document: Any) -> None:
    """One JSON document on one line of standard output."""
    sys.stdout.write(msgspec.json.encode(document, enc_hook=str).decode() + "\n")


def commit_facts(commit: Commit) -> dict[str, Any]:
    """A commit for ``--json``."""
    counts = {name: value for name, value in msgspec.structs.asdict(commit.counts).items() if value}
    facts: dict[str, Any] = {
        "version": commit.version,
        "operation": commit.operation,
        "created_at": commit.created_at.isoformat(),
        "commit_ts": commit.commit_ts,
        "commit_id": commit.commit_id,
        **counts,
    }
    return facts | ({"already": commit.already} if commit.already else {})


def print_commit(commit: Commit, as_json: bool) -> None:
    """Says what a commit did."""
    if as_json:
        print_json(commit_facts(commit))
        return
    if commit.operation == "nothing":
        console.print(f"nothing to do; the database is at version [bold]{commit.version}[/]")
        return
    counts = msgspec.structs.asdict(commit.counts)
    told = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items() if value)
    console.print(f"version [bold]{commit.version}[/] {commit.operation}{': ' + told if told else ''}")


def print_rows(headers: list[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
    """A small table."""
    table = RichTable(*headers, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))  # Text: data is never markup
    console.print(table)


def write_rows(reader: pa.RecordBatchReader, output: Path | None, form: str) -> int:
    """Streams rows to a file or standard output as ``table``, ``csv``, ``jsonl``, ``arrow`` or ``parquet``."""
    if form == "table":
        table = reader.read_all()
        print_rows(table.column_names, (row.values() for row in table.to_pylist()))
        return int(table.num_rows)
    if form in ("parquet", "arrow") and output is None:
        raise InputError(f"{form} needs a file: give --output")
    if form == "parquet":
        return _count(reader, pq.ParquetWriter(output, reader.schema, compression="zstd"))
    if form == "arrow":
        return _count(reader, pa.ipc.new_file(str(output), reader.schema))
    if form not in ("csv", "jsonl"):
        raise InputError(f"format {form!r}: one of table, csv, jsonl, arrow, parquet")
    target = output.open("w", newline="", encoding="utf-8") if output else sys.stdout
    try:
        return _write_text(reader, target, form)
    finally:
        if output:
            target.close()


def _count(reader: pa.RecordBatchReader, writer: Any) -> int:
    rows = 0
    with writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_text(reader: pa.RecordBatchReader, target: Any, form: str) -> int:
    rows = 0
    writer = csv.writer(target, lineterminator="\n")
    if form == "csv":
        writer.writerow(reader.schema.names)
    for batch in reader:
        rows += batch.num_rows
        if form == "csv":
            writer.writerows(row.values() for row in batch.to_pylist())
        else:
            for row in batch.to_pylist():
                target.write(msgspec.json.encode(row, enc_hook=str).decode() + "\n")
    return rows
