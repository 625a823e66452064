"""The rows and keys that commands read: from local files, objects of S3, standard input, and the command line.

Bad rows of files that ``append`` reads are put aside, and the commit holds the others.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Self, cast

import pyarrow as pa
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn
from typer import Option

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.base.units import MIB
from dolmen.cli.output import printable, progress_bar, warn
from dolmen.errors import InputError, PredicateError, RowError, short_repr
from dolmen.format.dialect import Dialect
from dolmen.format.ingest_properties import FORMATS, INGEST_PROPERTIES, FileKind, parse_kind
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import value_of
from dolmen.format.types import to_array
from dolmen.ingest.formats.source_file import Format, OnBadRow, ReadOptions, SourceFile
from dolmen.predicate.constants import from_text
from dolmen.store import object_opener
from dolmen.transactions.keys import key_fields
from dolmen.transactions.transaction import unit_of

if TYPE_CHECKING:
    from dolmen.ingest.inference.inference import Inference
from dolmen.base.units import count_text
from dolmen.ingest.formats.source_file import BadRow

STANDARD_INPUT = "-"
INPUT_HELP = "a file, s3://bucket/key, or - for standard input (with --format)"

Keys = Annotated[str, Option("--keys", help="Primary keys with commas.")]
KeysFile = Annotated[str | None, Option("--keys-file", help=f"A file with the key columns: {INPUT_HELP}.")]
KeyColumns = Annotated[str, Option("--on", help="Key columns, if not the primary key.")]


@dataclass(frozen=True)
class Input:
    """A file with rows."""

    open: Callable[[], BinaryIO]  # opens it from its beginning, each time
    name: str
    kind: FileKind | None = None  # its format, if an option says so; by default its name does
    given: Mapping[str, Any] = field(default_factory=dict)  # attributes of its dialect that options say
    format: Format | None = None  # its format, if inference found it
    size: int | None = None  # in bytes, if that is known before it is opened
    again: bool = True  # whether it can be opened more than once
    folders: tuple[str, ...] = ()  # columns whose values are in the names of its folders

    def infer(self, on_bad_row: OnBadRow | None = None) -> Inference:
        """Infers its dialect, and columns for all of its rows."""
        from dolmen.ingest.inference.inference import infer_file

        with naming_quarantine(puts_aside=on_bad_row is not None):
            return infer_file(self.open, self.name, kind=self.kind, known=self.given, on_bad_row=on_bad_row)

    def as_inferred(self, found: Inference) -> Input:
        """The same file, whose format is now known."""
        return replace(self, format=found.file_format)

    def source(self, entry: TableEntry | None = None) -> SourceFile:
        """The file, to be read as the options say, or else as the table's properties say.

        A table's entry also sets the defaults of columns that the file lacks, and the most columns it may have.
        """
        if entry is None:
            return SourceFile(self.open, self._format(None), self.name, ReadOptions(Dialect(**self.given)))
        dialect = replace(Dialect.of(entry.properties), **self.given)
        dialect.check()
        own = value_of(INGEST_PROPERTIES["ingest_format"], entry.properties)
        options = replace(ReadOptions.of_table(entry, dialect), folders=self.folders)
        return SourceFile(self.open, self._format(own), self.name, options)

    def _format(self, own: FileKind | None) -> Format:
        """The file's format; if the name does not show one, the table's ``own``."""
        from dolmen.ingest.formats.formats import detect_file

        if self.format is not None:
            return self.format
        if self.name != _STANDARD_NAME:
            try:
                return detect_file(self.open, self.name, self.kind)
            except InputError:
                if own is None:
                    raise
                return detect_file(self.open, self.name, own)
        if (kind := self.kind or own) is None:
            raise InputError("standard input has no name that shows its format: give --format csv, jsonl, ...")
        return Format(kind)

    def read(
        self,
        schema: TableEntry | pa.Schema | None,
        on_bad_row: OnBadRow | None = None,
        keys: Sequence[str] = (),
        new_columns: str = "refuse",
    ) -> pa.RecordBatchReader:
        """Reads its rows with these columns; None infers the columns. Rows without ``keys`` are bad ones.

        ``new_columns``: "add" reads columns that the table lacks, too, and "ignore" skips them.
        """
        from dolmen.ingest.formats.formats import read, survey
        from dolmen.ingest.new_columns import NO_NEW_COLUMNS, select_new, spell_as

        if not isinstance(schema, TableEntry):
            return read(self.source(), schema)
        source, columns = self.source(schema), schema.schema.arrow
        if keys:
            columns = pa.schema([each.with_nullable(each.nullable and each.name not in keys) for each in columns])
        if new_columns == "ignore":
            source = replace(source, options=replace(source.options, extra="ignore"))
        new = NO_NEW_COLUMNS
        if new_columns == "add":
            found = spell_as(schema.schema, list(survey(source, skip_bad_rows=on_bad_row is not None)))
            new = select_new(found, columns.names, self.name)
            columns = pa.schema([*columns, *new.added])
        return new.leave_out(read(source, new.extend(columns), on_bad_row=on_bad_row), columns)


@contextmanager
def open_inputs(
    names: Sequence[str], form: str | None, given: Mapping[str, Any] | None = None, *, again: bool
) -> Iterator[list[Input]]:
    """Opens files by name. Standard input is read once, or copied into a temporary file where that is not enough.

    Args:
        form: the format of all of them; by default each name shows it.
        given: attributes of their dialect.
        again: whether they are opened more than once, to infer their columns first.
    """
    kind = parse_kind(form, "--format ")
    if list(names).count(STANDARD_INPUT) > 1:
        raise InputError("standard input can be read only once: name - once")
    with ExitStack() as stack:
        yield [_input(name, kind, dict(given or {}), stack, again=again) for name in names]


@contextmanager
def explained(source: SourceFile, *, again: bool) -> Iterator[None]:
    """Adds to a file's error what the file looks like, and options to read it that way, if it can be read again."""
    try:
        yield
    except InputError as error:
        if not again:
            raise
        from dolmen.ingest.inference.hints import explain, with_hint

        raise with_hint(error, explain(source, error)) from error


@contextmanager
def naming_quarantine(*, puts_aside: bool) -> Iterator[None]:
    """Adds to the error of a bad row the option that puts bad rows aside.

    Not if the command puts them aside already, or the error names another option.
    """
    try:
        yield
    except RowError as error:
        if puts_aside or "--" in error.reason:
            raise
        reason = f"{error.reason}; dolmen append --on-bad-row quarantine puts bad rows aside"
        raise RowError(reason, file=error.file, line=error.line, row=error.row, column=error.column) from error


def announce(found: Inference) -> None:
    """Says on standard error what was decided, unless nothing was assumed."""
    if not found.is_plain:
        warn(printable(f"{found.name}: {found.summary}"))


_STANDARD_NAME = "standard input"


def _input(name: str, kind: FileKind | None, given: dict[str, Any], stack: ExitStack, *, again: bool) -> Input:
    if name == STANDARD_INPUT:
        if kind is None and not again:
            raise InputError("standard input has no name that shows its format: give --format csv, jsonl, ...")
        opened = _standard_input(stack, copied=again or kind is None or not FORMATS[kind].is_text)
        return Input(opened, _STANDARD_NAME, kind, given, again=again)
    if (open_object := object_opener(name)) is not None:
        return Input(open_object, name, kind, given)
    if "://" in name:
        raise InputError(f"{name!r}: rows are read from {INPUT_HELP}")
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name!r} is a directory: name the files in it, or let `dolmen backfill` take them")
    return Input(lambda: path.open("rb"), name, kind, given, size=path.stat().st_size)


def _standard_input(stack: ExitStack, *, copied: bool) -> Callable[[], BinaryIO]:
    if not copied:
        signalled, wakeup = os.pipe()
        for end in (signalled, wakeup):
            stack.callback(os.close, end)
        os.set_blocking(wakeup, False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wakeup))
        return lambda: cast("BinaryIO", io.BufferedReader(_StandardInput(signalled), MIB))
    directory = stack.enter_context(TemporaryDirectory())
    copy = Path(directory, "input")
    with copy.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return lambda: copy.open("rb")


class _StandardInput(io.RawIOBase):
    """Standard input that ends at Ctrl-C, also while another thread waits for input."""

    def __init__(self, signalled: int) -> None:
        """Takes a file descriptor that becomes readable at a signal (``signal.set_wakeup_fd``)."""
        super().__init__()
        self._signalled = signalled

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        source = sys.stdin.fileno()
        if self._signalled in select.select([source, self._signalled], [], [])[0]:
            raise KeyboardInterrupt
        data = os.read(source, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def read_keys(
    database: Database | None,
    table: str,
    where: str | None,
    keys: str,
    keys_file: str | None,
    form: str | None,
    on: Sequence[str] | None,
) -> pa.Table | None:
    """The keys that --keys or --keys-file give, in the columns ``on`` or the primary key; None for --where."""
    if sum((where is not None, bool(keys), keys_file is not None)) != 1:
        raise InputError("give exactly one of --where, --keys and --keys-file")
    if keys:
        if database is None:
            raise InputError("--keys needs the type of the key: give --database, or give the keys with --keys-file")
        return _parse_keys(database, table, keys, on)
    if keys_file is None:
        return None
    target = database.table(table) if database else None
    names = list(on or (target.primary_key if target else ()))
    schema = pa.schema([target.schema.field(name) for name in names]) if target and names else None
    with open_inputs([keys_file], form, again=True) as [file]:
        rows = file.read(schema).read_all()
    return rows.select(names) if names else rows


def _parse_keys(database: Database, table: str, texts: str, on: Sequence[str] | None) -> pa.Table:
    fields = key_fields(unit_of(database.transaction()).entry(table), on)
    if len(fields) != 1:
        raise InputError("--keys takes values of one column; give --keys-file for keys of several")
    return key_rows(pa.schema([(fields[0].name, fields[0].arrow_type)]), [[text.strip()] for text in texts.split(",")])


def key_rows(schema: pa.Schema, rows: Sequence[Sequence[str]]) -> pa.Table:
    """Converts rows of texts to keys: ``7`` is a number only in a column of numbers. Raises InputError."""
    columns = [
        pa.concat_arrays([_value(text, field) for text in texts])
        for texts, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _value(text: str, field: pa.Field) -> pa.Array:
    try:
        return to_array([from_text(text, field.type).value], field.type)  # type: ignore[list-item]  # no interval
    except (PredicateError, pa.ArrowException, ArithmeticError, ValueError) as error:
        is_number = pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)
        reason = f": {error.reason}" if isinstance(error, PredicateError) and not is_number else ""
        problem = f"the key {short_repr(text)} does not fit column {field.name!r} of type {field.type}"
        raise InputError(problem + reason) from error


class InputProgress:
    """Shows how much of each file was read, if standard error is a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
        self._bar = progress_bar("{task.description}", *columns, quiet=quiet)

    def watch(self, file: Input) -> Input:
        """The same file, whose reads move the bar. Reading it a second time shows a second bar."""
        return replace(file, open=partial(self._open, file))

    def _open(self, file: Input) -> BinaryIO:
        task = self._bar.add_task(escape(file.name), total=file.size)
        return cast("BinaryIO", io.BufferedReader(_FileWithProgress(file.open(), self._bar, task), MIB))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()


class _FileWithProgress(io.RawIOBase):
    def __init__(self, file: BinaryIO, bar: Progress, task: TaskID) -> None:
        super().__init__()
        self._file, self._bar, self._task, self._position = file, bar, task, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = self._file.seek(offset, whence)
        return self._position

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        self._bar.update(self._task, completed=self._position)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


SUFFIX = ".rejected.jsonl"


@dataclass
class BadRowFiles:
    """The files that bad rows are written to, each with a report beside it."""

    paths: dict[str, Path]  # by the name of the file that has the rows
    max_rows: int
    files: list[dict[str, Any]] = field(default_factory=list)  # those written: file, rows, and where they are

    @classmethod
    def of(cls, names: Sequence[str], on_bad_row: str, max_rows: int, rejects: Path | None) -> BadRowFiles | None:
        """None if bad rows are errors. Raises InputError for options that do not go together."""
        if on_bad_row not in ("reject", "quarantine"):
            raise InputError(f"--on-bad-row {on_bad_row!r}: give reject or quarantine")
        if on_bad_row == "reject":
            if rejects is not None:
                raise InputError("--rejects is for rows that are put aside: give --on-bad-row quarantine, too")
            return None
        paths = {name: _path_for(name, rejects, alone=len(names) == 1) for name in names}
        if len({*paths.values()}) < len(paths):
            raise InputError("two files have one name, so their bad rows would go to one file: append them one by one")
        return cls(paths, max_rows)

    def ignore(self, bad: BadRow) -> None:
        """Ignores a bad row while types are inferred; it is counted when rows are read."""

    def add(
        self,
        name: str,
        file: Input,
        entry: TableEntry,
        write: Callable[[pa.RecordBatchReader], object],
        keys: Sequence[str],
        url: str,
        new_columns: str,
    ) -> None:
        """Writes the good rows of a file to the table, and the bad ones to their own file."""
        from dolmen.ingest.rejects import Quarantine, header_of

        with Quarantine(name, self.max_rows, "--max-bad-rows") as quarantine:
            write(file.read(entry, quarantine.add, keys, new_columns))
            if quarantine.count:
                path, source = self.paths[name], file.source(entry)
                quarantine.keep_in(path, source, header_of(source), {"url": url})
                self.files.append({"file": name, "rows": quarantine.count, "to": str(path)})

    def report(self) -> None:
        """Says how many rows were put aside, and where they are."""
        for each in self.files:
            warn(f"{count_text(each['rows'], 'row')} of {each['file']} could not be read, and went to {each['to']}")


def _path_for(name: str, rejects: Path | None, *, alone: bool) -> Path:
    is_local = name != STANDARD_INPUT and "://" not in name
    if rejects is None:
        if not is_local:
            raise InputError(f"{name!r} has no directory for its bad rows: name a file for them, --rejects")
        return Path(name + SUFFIX)
    if alone and not rejects.is_dir():
        return rejects
    if not rejects.is_dir():
        raise InputError(f"--rejects {str(rejects)!r} is not a directory: bad rows of several files need one")
    return rejects / ((name.rsplit("/", 1)[-1] if name != STANDARD_INPUT else "standard-input") + SUFFIX)
