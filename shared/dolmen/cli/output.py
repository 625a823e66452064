"""Output of the command: rich tables for people, JSON for machines.

The maker of a file chooses its name, columns and values, and messages quote them. A terminal obeys the control
characters in them. So all output passes this module, which shows such characters escaped.
"""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import pyarrow as pa
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from dolmen.errors import InputError
from dolmen.format.file_formats import FORMATS
from dolmen.ingest.formats.source import Format
from dolmen.transactions.results import Commit

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled in one place, for all output

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Shows control characters of any text escaped; those of rich itself are in segments of their own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, "\n"), segment.style)


console = _Console(emoji=False)
errors = _Console(stderr=True, emoji=False)

_FORMS = {name: known.kind for known in FORMATS.values() if known.is_written for name in (known.kind, *known.aliases)}


def print_json(document: Any) -> None:
    """Prints a JSON document on one line of standard output."""
    text = msgspec.json.encode(document, enc_hook=str).decode()
    if not text.isprintable():  # JSON escapes some control characters only
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    sys.stdout.write(text + "\n")


def print_text(text: str) -> None:
    """Prints lines as they are, but for control characters."""
    sys.stdout.write(printable(text, "\t\n") + "\n")


def commit_facts(commit: Commit) -> dict[str, Any]:
    """A commit for ``--json``."""
    figures = {name: value for name, value in msgspec.structs.asdict(commit.counts).items() if value}
    facts: dict[str, Any] = {
        "version": commit.version,
        "operation": commit.operation,
        "created_at": commit.created_at.isoformat(),
        "commit_ts": commit.commit_ts,
        "commit_id": commit.commit_id,
        **figures,
    }
    if commit.did:
        facts["did"] = [msgspec.to_builtins(deed) for deed in commit.did]
    named = ("requests", "message", "erased_rows_written", "erased_rows_left_out")
    facts |= {name: value for name in named if (value := getattr(commit, name))}
    return facts | ({"already": commit.already} if commit.already else {})


def counts(commit: Commit) -> str:
    """The counts of a commit, in words."""
    each = msgspec.structs.asdict(commit.counts)
    return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in each.items() if value)


def print_commit(commit: Commit, as_json: bool) -> None:
    """Prints the result of a commit."""
    if as_json:
        print_json(commit_facts(commit))
        return
    if commit.erased_rows_left_out:
        console.print(f"rows left out that were erased: {commit.erased_rows_left_out:,}")
    if commit.erased_rows_written:
        errors.print(
            f"{commit.erased_rows_written:,} of the written rows match erasures in force (dolmen erasures): append "
            "--leave-out-erased, or the table's setting leave_out_erased, leaves such rows out"
        )
    if commit.operation == "nothing" and commit.already:
        for request, version in commit.already.items():
            console.print(f"nothing to do: version [bold]{version}[/] applied {escape(printable(request))}")
        return
    if commit.operation == "nothing":
        console.print(f"nothing to do; the database is at version [bold]{commit.version}[/]")
        return
    told = counts(commit)
    console.print(f"version [bold]{commit.version}[/] {commit.operation}{': ' + told if told else ''}")


def print_rows(headers: list[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
    """Prints a small table. On a narrow terminal long words go on in the next line, so that ids can be copied."""
    columns = [Column(header, overflow="fold") for header in headers]
    table = RichTable(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(
            *(Text("" if cell is None else printable(str(cell))) for cell in row)
        )  # as Text, since data is not markup
    console.print(table)


def printable(text: str, kept: str = "") -> str:
    """Text with control characters escaped, but for those of ``kept``, so that they have no effect on a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


class _TerminalStream(io.RawIOBase):
    """Passes UTF-8 text on to a terminal, with control characters escaped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        body = bytes(data)
        sys.stdout.write(printable(self._decoder.decode(body), "\t\n"))
        return len(body)


def send_rows(rows: pa.RecordBatchReader, output: Path | None, format: Format, *, as_json: bool) -> None:
    """Streams rows to a file and prints their number, or streams them to standard output."""
    from dolmen.ingest.formats.export import export_file, export_stream

    if output is None:
        sys.stdout.flush()
        export_stream(rows, cast(BinaryIO, _TerminalStream()) if sys.stdout.isatty() else sys.stdout.buffer, format)
        sys.stdout.flush()
        return
    written = export_file(rows, output, format)
    print_json({"rows": written, "output": output}) if as_json else errors.print(f"{written:,} rows", highlight=False)


def destination(output: Path | None, form: str | None, *, as_json: bool) -> Format | None:
    """The format to write rows in; None for a table for people.

    Args:
        output: the file; None for standard output.
        form: the format that the user asked for. By default the file's name decides; without a file it is a table on a
            terminal, and CSV elsewhere.

    Raises:
        InputError: the format does not exist, or does not suit the destination.
    """
    kind = _FORMS.get(form) if form is not None else None
    if form is not None and form != "table" and kind is None:
        raise InputError(f"format {form!r} is unknown: give one of table, {', '.join(_FORMS)}")
    if output is not None:
        from dolmen.ingest.formats.formats import detect

        if form == "table":
            raise InputError("a table is for terminals: leave out --format table or --output")
        if "://" in str(output) or ":/" in str(output):
            raise InputError(f"--output {str(output)!r}: give a local file, and copy it there")
        try:
            return detect(output.name, kind)
        except InputError:
            raise InputError(
                f"--output {str(output)!r}: the name shows no format for rows. Use .csv, .tsv or .jsonl, also with "
                ".gz, .zst or .bz2, or .parquet or .arrow; or give --format"
            ) from None
    if kind is None and as_json:
        return Format("jsonl")
    if kind is None:
        return None if form == "table" or sys.stdout.isatty() else Format("csv")
    if not FORMATS[kind].is_text and sys.stdout.isatty():
        raise InputError(f"{kind} cannot be shown on a terminal: give --output FILE, or send it to a file or command")
    return Format(kind)
