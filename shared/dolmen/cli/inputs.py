"""Input files of commands: local files, objects of S3, and standard input.

Keys on the command line: texts, which say values as in predicates.

A progress bar over the bytes of input files, shown on standard error if that is a terminal.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import BinaryIO, Self, cast

import pyarrow as pa
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

from dolmen.api.database import Database
from dolmen.base.arguments import short_repr
from dolmen.base.units import MIB
from dolmen.cli.output import errors
from dolmen.errors import InputError, ObjectNotFoundError, PredicateError
from dolmen.format.ingest_properties import FORMATS, INGEST_PROPERTIES, FileKind, kind_of
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import value_of
from dolmen.format.types import to_array
from dolmen.ingest.formats.source_file import Format, ReadOptions, SourceFile
from dolmen.predicate.constants import from_text
from dolmen.store import open_store
from dolmen.store.base import split_object_url
from dolmen.transactions.reading import ReadableTable, key_fields
from dolmen.transactions.transaction import unit_of

STANDARD_INPUT = "-"


INPUT_HELP = "a file, s3://bucket/key, or - for standard input (with --format)"


@dataclass(frozen=True)
class Input:
    """A file with rows.

    Args:
        size: its size in bytes, if that is known before it is opened.
    """

    source: SourceFile
    size: int | None = None

    def infer(self) -> pa.Schema:
        """Infers columns that can hold all of its rows."""
        from dolmen.ingest.formats.formats import infer

        return infer(self.source)

    def survey(self) -> pa.Schema:
        """The columns that it says, none if it says none."""
        from dolmen.ingest.formats.formats import survey

        return survey(self.source)

    def read_keys(self, table: ReadableTable | None, on: Sequence[str] | None) -> pa.Table:
        """Reads rows of keys: the columns ``on``, or else those of the table's primary key, with the table's types."""
        names = list(on or (table.primary_key if table is not None else ()))
        schema = pa.schema([table.schema.field(name) for name in names]) if table is not None and names else None
        rows = self.read(schema).read_all()
        return rows.select(names) if names else rows

    def read(self, schema: TableEntry | pa.Schema | None) -> pa.RecordBatchReader:
        """Reads its rows with these columns; None infers the columns.

        A table's entry says the defaults of columns that it lacks, too, and how many it may have.
        """
        from dolmen.ingest.formats.formats import read

        if not isinstance(schema, TableEntry):
            return read(self.source, schema)
        most = value_of(INGEST_PROPERTIES["ingest_max_columns"], schema.properties)
        options = replace(self.source.options, defaults=schema.schema.write_defaults, max_columns=most)
        return read(replace(self.source, options=options), schema.schema.arrow)


@contextmanager
def open_inputs(
    names: Sequence[str], form: str | None, delimiter: str | None = None, *, again: bool = False
) -> Iterator[list[Input]]:
    """Opens files by name. Standard input is read once, or copied into a temporary file where that does not suffice.

    Args:
        form: the format of all of them; by default that of each name.
        delimiter: the delimiter of CSV, if not the format's own.
        again: whether they are opened more than once, to infer their columns first.

    Raises:
        InputError: a name shows no format, or names no file.
    """
    kind, options = _kind(form), ReadOptions(delimiter=delimiter)
    if list(names).count(STANDARD_INPUT) > 1:
        raise InputError("standard input can be read only once: name - once")
    with ExitStack() as stack:
        yield [_input(name, kind, options, stack, again=again) for name in names]


def _kind(form: str | None) -> FileKind | None:
    if form is None:
        return None
    found = kind_of(form)
    if found is None:
        raise InputError(f"--format {form!r} is unknown: give one of {', '.join(FORMATS)}")
    return found


def _input(name: str, kind: FileKind | None, options: ReadOptions, stack: ExitStack, *, again: bool) -> Input:
    from dolmen.ingest.formats.formats import detect

    if name == STANDARD_INPUT:
        if kind is None:
            raise InputError("standard input has no name that shows its format: give --format csv, jsonl, ...")
        format = Format(kind)
        opened = _standard_input(stack, copied=again or not format.known.is_text)
        return Input(SourceFile(opened, format, "standard input", options))
    if parts := split_object_url(name):
        return Input(SourceFile(_object(name, *parts), detect(name, kind), name, options))
    if "://" in name:
        raise InputError(f"{name!r}: rows are read from {INPUT_HELP}")
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name!r} is a directory: name the files in it, or let `dolmen backfill` take them")
    return Input(SourceFile(partial(_open, path), detect(path.name, kind), name, options), path.stat().st_size)


def _object(url: str, bucket_url: str, key: str) -> Callable[[], BinaryIO]:
    store = open_store(bucket_url)

    def open_object() -> BinaryIO:
        try:
            return store.open_input(key)
        except ObjectNotFoundError:
            raise ObjectNotFoundError(url) from None

    return open_object


def _standard_input(stack: ExitStack, *, copied: bool) -> Callable[[], BinaryIO]:
    if not copied:
        woken, wake = os.pipe()
        for end in (woken, wake):
            stack.callback(os.close, end)
        os.set_blocking(wake, False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake))
        return lambda: cast("BinaryIO", io.BufferedReader(_StandardInput(woken), MIB))
    directory = stack.enter_context(TemporaryDirectory())
    copy = Path(directory, "input")
    with copy.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return partial(_open, copy)


def _open(file: Path) -> BinaryIO:
    return file.open("rb")


class _StandardInput(io.RawIOBase):
    """Standard input that ends when Ctrl-C is pressed, also while another thread waits for input.

    Args:
        woken: a file descriptor that can be read once a signal has come (``signal.set_wakeup_fd``).
    """

    def __init__(self, woken: int) -> None:
        super().__init__()
        self._woken = woken

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        source = sys.stdin.fileno()
        if self._woken in select.select([source, self._woken], [], [])[0]:
            raise KeyboardInterrupt
        data = os.read(source, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def parse_keys(database: Database, table: str, texts: str, on: Sequence[str] | None) -> pa.Table:
    """Parses keys of one column, with commas between them.

    Args:
        on: the key's column; the primary key by default.

    Raises:
        InputError: the key has several columns, or a text is no value of its column.
    """
    fields = key_fields(unit_of(database.transaction()).entry(table), on)
    if len(fields) != 1:
        raise InputError("--keys takes values of one column; give --keys-file for keys of several")
    return key_rows(pa.schema([(fields[0].name, fields[0].arrow_type)]), [[text.strip()] for text in texts.split(",")])


def key_rows(schema: pa.Schema, rows: Sequence[Sequence[str]]) -> pa.Table:
    """Converts texts to keys: ``7`` is a number only in a column of numbers.

    Args:
        schema: the columns of the key.
        rows: a text for each column.

    Raises:
        InputError: a text is no value of its column.
    """
    columns = zip(*rows, strict=True)
    return pa.table([_array(texts, field) for texts, field in zip(columns, schema, strict=True)], schema=schema)


def _array(texts: Sequence[str], field: pa.Field) -> pa.Array:
    return pa.concat_arrays([_value(text, field) for text in texts])


def _value(text: str, field: pa.Field) -> pa.Array:
    try:
        return to_array([from_text(text, field.type).value], field.type)  # type: ignore[list-item]  # no interval
    except PredicateError as error:
        is_number = pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)
        reason = "" if is_number else f": {error.reason}"
        raise InputError(_misfit(text, field) + reason) from error
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise InputError(_misfit(text, field)) from error


def _misfit(text: str, field: pa.Field) -> str:
    return f"the key {short_repr(text)} does not fit column {field.name!r} of type {field.type}"


class InputProgress:
    """Shows how much of each file was read.

    Args:
        quiet: show nothing; also if standard error is no terminal.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=errors,
            disable=quiet or not errors.is_terminal,
            transient=True,
        )

    def watch(self, file: Input) -> Input:
        """The same file, whose reads move the bar. Reading it a second time shows a second bar."""
        return replace(file, source=replace(file.source, open=partial(self._open, file)))

    def _open(self, file: Input) -> BinaryIO:
        task = self._bar.add_task(escape(file.source.name), total=file.size)
        return cast("BinaryIO", io.BufferedReader(_Counted(file.source.open(), self._bar, task), MIB))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()


class _Counted(io.RawIOBase):
    def __init__(self, file: BinaryIO, bar: RichProgress, task: TaskID) -> None:
        super().__init__()
        self._file, self._bar, self._task, self._read = file, bar, task, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]  # typeshed's WriteableBuffer
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._read += len(data)
        self._bar.update(self._task, completed=self._read)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
