"""The rows and keys that commands read: from local files, objects of S3, standard input, and the command line."""

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
from typing import Annotated, BinaryIO, Self, cast

import pyarrow as pa
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn
from typer import Option

from dolmen.api.database import Database
from dolmen.base.units import MIB
from dolmen.cli.output import progress_bar
from dolmen.errors import InputError, ObjectNotFoundError, PredicateError, short_repr
from dolmen.format.dialect import Dialect
from dolmen.format.ingest_properties import FORMATS, INGEST_PROPERTIES, FileKind, kind_of
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import value_of
from dolmen.format.types import to_array
from dolmen.ingest.formats.source_file import Format, ReadOptions, SourceFile
from dolmen.predicate.constants import from_text
from dolmen.store import open_store
from dolmen.store.base import split_object_url
from dolmen.transactions.keys import key_fields
from dolmen.transactions.transaction import unit_of

STANDARD_INPUT = "-"
INPUT_HELP = "a file, s3://bucket/key, or - for standard input (with --format)"

Keys = Annotated[str, Option("--keys", help="Primary keys with commas.")]
KeysFile = Annotated[str | None, Option("--keys-file", help=f"A file with the key columns: {INPUT_HELP}.")]
KeyColumns = Annotated[str, Option("--on", help="Key columns, if not the primary key.")]


@dataclass(frozen=True)
class Input:
    """A file with rows, and its size in bytes if that is known before it is opened."""

    source: SourceFile
    size: int | None = None

    def infer(self) -> pa.Schema:
        """Infers columns for all of its rows."""
        from dolmen.ingest.formats.formats import infer

        return infer(self.source)

    def survey(self) -> pa.Schema:
        """The columns that it names, or none."""
        from dolmen.ingest.formats.formats import survey

        return survey(self.source)

    def read(self, schema: TableEntry | pa.Schema | None) -> pa.RecordBatchReader:
        """Reads its rows with these columns; None infers the columns.

        A table's entry also sets the defaults of columns that the file lacks, and the most columns it may have.
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
    """Opens files by name. Standard input is read once, or copied into a temporary file where that is not enough.

    Args:
        form: the format of all of them; by default each name shows it.
        again: whether they are opened more than once, to infer their columns first.
    """
    kind = None if form is None else kind_of(form)
    if form is not None and kind is None:
        raise InputError(f"--format {form!r} is unknown: give one of {', '.join(FORMATS)}")
    properties = {} if delimiter is None else {"ingest_delimiter": delimiter}
    options = ReadOptions(Dialect.of(properties))
    if list(names).count(STANDARD_INPUT) > 1:
        raise InputError("standard input can be read only once: name - once")
    with ExitStack() as stack:
        yield [_input(name, kind, options, stack, again=again) for name in names]


def _input(name: str, kind: FileKind | None, options: ReadOptions, stack: ExitStack, *, again: bool) -> Input:
    from dolmen.ingest.formats.formats import detect_file

    if name == STANDARD_INPUT:
        if kind is None:
            raise InputError("standard input has no name that shows its format: give --format csv, jsonl, ...")
        format = Format(kind)
        opened = _standard_input(stack, copied=again or not format.traits.is_text)
        return Input(SourceFile(opened, format, "standard input", options))
    if parts := split_object_url(name):
        opened = _object(name, *parts)
        return Input(SourceFile(opened, detect_file(opened, name, kind), name, options))
    if "://" in name:
        raise InputError(f"{name!r}: rows are read from {INPUT_HELP}")
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name!r} is a directory: name the files in it, or let `dolmen backfill` take them")
    format = detect_file(lambda: path.open("rb"), name, kind)
    return Input(SourceFile(lambda: path.open("rb"), format, name, options), path.stat().st_size)


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
    """The keys in the columns ``on``, or else of the primary key, that --keys or --keys-file give; None for --where."""
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
    def __init__(self, file: BinaryIO, bar: Progress, task: TaskID) -> None:
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
