"""Output of the command: text and rows for people, JSON for machines, progress, and watching until Ctrl-C.

The maker of a file chooses its name, columns and values, and messages quote them. A terminal obeys the control
characters in them. So all output passes this module, which shows such characters escaped.
"""

from __future__ import annotations

import codecs
import io
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from dolmen.base.units import count_text, named_count_text
from dolmen.errors import InputError
from dolmen.format.ingest_properties import FORMATS
from dolmen.ingest.formats.source_file import Format
from dolmen.rows.scan.scan import Scan, plan_of, scan_files
from dolmen.transactions.unit_of_work import Commit

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer
    from rich.progress import Progress, ProgressColumn


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled in one place, for all output

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Shows control characters of any text escaped; rich's own are in other segments."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, "\n"), segment.style)


console = _Console(emoji=False)
errors = _Console(stderr=True, emoji=False)

_FORMS = {name: each.kind for each in FORMATS.values() if each.is_written for name in (each.kind, *each.aliases)}


def print_json(document: Any) -> None:
    """Prints a JSON document on one line of standard output."""
    text = msgspec.json.encode(document, enc_hook=str).decode()
    if not text.isprintable():  # JSON escapes some control characters only
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    sys.stdout.write(text + "\n")


def print_text(text: str) -> None:
    """Prints lines as they are, except for control characters."""
    sys.stdout.write(printable(text, "\t\n") + "\n")


def say(text: str, *, markup: bool = False, to: Console = console) -> None:
    """Prints a line without folding it."""
    to.print(text, markup=markup, highlight=False, soft_wrap=True)


def warn(text: str, *, markup: bool = False) -> None:
    """Prints a line on standard error without folding it."""
    say(text, markup=markup, to=errors)


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
        facts["did"] = msgspec.to_builtins(list(commit.did))
    optional = (
        "mode",
        "requests",
        "message",
        "metadata",
        "erased_rows_written",
        "erased_rows_left_out",
        "rows_skipped",
        "already",
    )
    return facts | {name: value for name in optional if (value := getattr(commit, name))}


def counts(commit: Commit) -> str:
    """The counts of a commit, in words."""
    each = msgspec.structs.asdict(commit.counts)
    return ", ".join(named_count_text(value, name) for name, value in each.items() if value)


def print_commit(commit: Commit, as_json: bool, more: Mapping[str, Any] | None = None) -> None:
    """Prints the result of a commit; JSON with ``more`` members."""
    if as_json:
        print_json({**commit_facts(commit), **(more or {})})
        return
    if commit.erased_rows_left_out:
        console.print(f"left out because they were erased: {count_text(commit.erased_rows_left_out, 'row')}")
    if commit.rows_skipped:
        console.print(f"skipped because the table has equal ones: {count_text(commit.rows_skipped, 'row')}")
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
    console.print(f"version [bold]{commit.version}[/] {': '.join(filter(None, (commit.operation, counts(commit))))}")


def print_rows(headers: list[str], rows: Iterable[Iterable[object]]) -> None:
    """Prints a small table. On a narrow terminal long words are folded, so that ids can be copied."""
    table = RichTable(*(Column(header, overflow="fold") for header in headers))
    for row in rows:  # as Text, because data is not markup
        table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    console.print(table)


def printable(text: str, allowed: str = "") -> str:
    """Text with control characters escaped, except for those of ``allowed``, so that a terminal does not obey them."""
    return (
        text if text.isprintable() else "".join(c if c.isprintable() or c in allowed else repr(c)[1:-1] for c in text)
    )


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


def send_rows(
    rows: pa.RecordBatchReader, output: Path | None, format: Format | None, *, as_json: bool, partition_by: str = ""
) -> None:
    """Streams rows to a file or folders and prints their number, or to standard output; None shows a table."""
    from dolmen.ingest.formats.export import export_file, export_folders, export_stream

    if format is None:
        show_ends(ends_of(rows, None))
        return
    if output is None:
        sys.stdout.flush()
        export_stream(rows, cast(BinaryIO, _TerminalStream()) if sys.stdout.isatty() else sys.stdout.buffer, format)
        sys.stdout.flush()
        return
    written = export_folders(rows, output, partition_by, format) if partition_by else export_file(rows, output, format)
    print_json({"rows": written, "output": output}) if as_json else warn(count_text(written, "row"))


def destination(output: Path | None, form: str | None, *, as_json: bool) -> Format | None:
    """The format to write rows in; None for a table for people. Raises InputError.

    By default the file's name decides; without a file it is a table on a terminal, and CSV elsewhere.
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


SHOWN_ROWS = 20  # the number of first rows, and of last rows, that are shown
LISTED_ROWS = 1_000  # with a ``--limit`` up to this, all rows are shown
PLAN_COLUMNS = ["explain_key", "explain_value"]  # the columns of EXPLAIN's result
_CELL_WIDTHS = range(48, 11, -4)
_BORDER_WIDTH = 3


class Ends(Struct, frozen=True):
    """The first rows, the last rows (none if the first are all), and the number of all rows."""

    first: pa.Table
    last: pa.Table
    rows: int


def show_scan(scan: Callable[[int | None], Scan], limit: int | None, *, sorts: bool) -> None:
    """Shows the first and last rows of a scan, made for a limit. Reads only their files, and what counting needs."""
    if sorts or limit is not None:
        show_ends(ends_of(scan(limit).to_reader(), limit))
        return
    first = scan(2 * SHOWN_ROWS + 1).to_arrow()
    if len(first) <= 2 * SHOWN_ROWS:
        show_ends(Ends(first, first.slice(len(first)), len(first)))
        return
    whole = scan(None)
    show_ends(Ends(first.slice(0, SHOWN_ROWS), _last_rows(whole), whole.count()))


def _last_rows(scan: Scan) -> pa.Table:
    """The last rows of a scan, read from its last files."""
    last = scan.schema.empty_table()
    for file in reversed(plan_of(scan).files):
        part = ends_of(scan_files(scan, {file.file.path}).to_reader(), None)
        last = pa.concat_tables([part.first, part.last, last])
        last = last.slice(max(0, len(last) - SHOWN_ROWS))
        if len(last) == SHOWN_ROWS:
            break
    return last


def ends_of(rows: pa.RecordBatchReader, limit: int | None) -> Ends:
    """The first and last rows of a stream with the user's limit, in bounded memory."""
    most = limit if limit is not None and limit <= LISTED_ROWS else 2 * SHOWN_ROWS
    first, last, count = rows.schema.empty_table(), rows.schema.empty_table(), 0
    for batch in rows:
        count += batch.num_rows
        missing = most - len(first)
        if missing:
            first = pa.concat_tables([first, pa.Table.from_batches([batch.slice(0, missing)])]).combine_chunks()
            batch = batch.slice(missing)
        last = pa.concat_tables([last, pa.Table.from_batches([batch])])
        last = last.slice(max(0, len(last) - SHOWN_ROWS))
        last = last.take(pa.array(range(len(last)), pa.int64()))  # a copy: a slice would keep its batch in memory
    if len(last):
        last = pa.concat_tables([first, last])
        last, first = last.slice(max(0, len(last) - SHOWN_ROWS)), first.slice(0, SHOWN_ROWS)
    return Ends(first, last, count)


def show_ends(ends: Ends) -> None:
    """Prints the first and last rows as one table, and the number of rows."""
    schema = ends.first.schema
    parts = ends.first, ends.last
    cells = [[list(_cells(part.column(index))) for part in parts] for index in range(len(schema.names))]
    names = [printable(name) for name in schema.names]
    cut, width = _columns_that_fit(names, cells)
    table = RichTable()
    for field, name in zip(list(schema)[:cut], names, strict=False):
        justify: Any = "right" if t.is_integer(field.type) or t.is_floating(field.type) else "left"
        table.add_column(Text(name), justify=justify, no_wrap=True, overflow="ellipsis", max_width=width)
    left_out = len(names) - cut
    if left_out:
        table.add_column(Text("…"))
    more = [Text("…")] if left_out else []
    for number, part in enumerate(parts):
        if number and len(part):
            table.add_row(*(Text("…", style="dim") for _ in range(cut)), *more)
        for row in range(len(part)):
            texts = (column[number][row] for column in cells[:cut])
            table.add_row(*(Text("NULL", style="dim") if text is None else Text(text) for text in texts), *more)
    console.print(table)
    summary = count_text(ends.rows, "row")
    if len(ends.last):
        summary += f": the first and the last {SHOWN_ROWS} (--output FILE writes all, --format csv prints all)"
    if left_out:
        summary += f"; {count_text(left_out, 'column does', 'columns do')} not fit here"
    say(summary)


def _columns_that_fit(names: list[str], cells: list[list[list[str | None]]]) -> tuple[int, int]:
    """The number of columns that fit into the terminal, and the width of a cell."""
    longest = [
        max([len(name), *(len(cell or "NULL") for part in parts for cell in part)])
        for name, parts in zip(names, cells, strict=True)
    ]
    for width in _CELL_WIDTHS:
        widths = [min(one, width) + _BORDER_WIDTH for one in longest]
        if sum(widths) < console.width:
            return len(names), width
    room, fit = console.width - _BORDER_WIDTH - 2, 0
    while fit < len(widths) and (room := room - widths[fit]) > 0:
        fit += 1
    return max(1, fit), width


def _cells(column: pa.ChunkedArray) -> Iterator[str | None]:
    """Values as short text on one line, None for NULL."""
    for value in column:
        yield None if not value.is_valid else printable(cell_text(value))[: _CELL_WIDTHS[0] + 1]


def cell_text(value: pa.Scalar) -> str:
    """A value that is not NULL, as text."""
    try:
        return str(value.as_py())
    except (ValueError, OverflowError):  # a time outside Python's range
        return " ".join(pa.array([value]).to_string().split())


class Stop:
    """An event for a signal handler, which may call ``set`` at any step of the same thread.

    ``threading.Event`` is not one: its lock is not reentrant, so a signal during its ``wait`` would block for good.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._bell: SimpleQueue[None] = SimpleQueue()  # the one queue whose put is reentrant

    def set(self) -> None:
        """Requests the stop."""
        self._is_set = True
        self._bell.put(None)

    def is_set(self) -> bool:
        """Whether the stop was requested."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Waits for the stop, at most for these seconds; returns whether it was requested."""
        if not self._is_set:
            with suppress(Empty):
                self._bell.get(timeout=seconds)
        return self._is_set


@contextmanager
def stopping_at_interrupt() -> Iterator[Stop]:
    """Makes Ctrl-C request a stop; a second one interrupts as usual."""
    stop = Stop()
    before = signal.getsignal(signal.SIGINT)

    def request_stop(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, request_stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def check_interval(seconds: float) -> None:
    """Raises InputError unless it is a sensible pause between two checks."""
    if not 0 < seconds < 86_400:
        raise InputError(f"--interval {seconds}: give seconds, more than 0 and less than a day")


@contextmanager
def changing_line(text: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows a line about running work on standard error, if that is a terminal; yields a function to replace it."""
    if quiet or not errors.is_terminal:
        yield lambda text: None
        return
    with errors.status(text) as status:
        yield status.update


def progress_bar(*columns: str | ProgressColumn, quiet: bool) -> Progress:
    """A bar with these columns on standard error, if that is a terminal."""
    from rich.progress import Progress

    disable = quiet or not errors.is_terminal
    return Progress(*columns, console=errors, disable=disable, transient=True)


@contextmanager
def job_status(*, quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """Yields a function that shows a job's state on standard error, by the seconds since it began and a text.

    On a terminal it is one changing line, otherwise lines with the seconds.
    """
    with changing_line("", quiet=quiet) as update:

        def show(seconds: float, text: str) -> None:
            if errors.is_terminal:
                update(escape(text))
            elif not quiet:
                warn(f"{seconds:8.1f} s  {text}")

        yield show
