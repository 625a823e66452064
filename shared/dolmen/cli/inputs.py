"""Files that a command reads: of this machine, objects of S3, and standard input."""

from __future__ import annotations

import io
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, cast, get_args

import pyarrow as pa

from dolmen.errors import InputError, ObjectNotFoundError
from dolmen.ingest.formats.export import TEXT_KINDS
from dolmen.ingest.formats.formats import FileKind, Format, ReadOptions, detect, infer, read
from dolmen.reading import ReadableTable
from dolmen.store.url import open_store

STANDARD_INPUT = "-"
INPUT_HELP = "a file, s3://bucket/key, or - for standard input (with --format)"


@dataclass(frozen=True)
class Input:
    """A file to read rows from.

    Args:
        name: what errors call it.
        open: opens it from its beginning, each time it is called.
        size: bytes, if that is known before it is opened.
    """

    name: str
    format: Format
    open: Callable[[], BinaryIO]
    size: int | None = None
    options: ReadOptions = field(default_factory=ReadOptions)

    def infer(self) -> pa.Schema:
        """The columns that hold all of its rows."""
        return infer(self.open, self.format, name=self.name, options=self.options)

    def read_keys(self, table: ReadableTable | None, on: Sequence[str] | None) -> pa.Table:
        """Its rows, which are keys: values of these columns, or else of the primary key, of the table's types."""
        names = list(on or (table.primary_key if table is not None else ()))
        schema = pa.schema([table.schema.field(name) for name in names]) if table is not None and names else None
        rows = self.read(schema).read_all()
        return rows.select(names) if names else rows

    def read(self, schema: pa.Schema | None) -> pa.RecordBatchReader:
        """Its rows, of these columns; None infers them."""
        return read(self.open, self.format, schema, name=self.name, options=self.options)


@contextmanager
def open_inputs(
    names: Sequence[str], form: str | None, delimiter: str | None = None, *, again: bool = False
) -> Iterator[list[Input]]:
    """The files of these names; standard input is read once, or copied into a temporary file where that won't do.

    Args:
        form: the format of all of them, whatever their names say.
        delimiter: of CSV, if not the format's own.
        again: whether they are opened more than once: to infer their columns first.

    Raises:
        InputError: a name says no format, or is no file's.
    """
    kind, options = _kind(form), ReadOptions(delimiter=delimiter)
    if list(names).count(STANDARD_INPUT) > 1:
        raise InputError("standard input can be read once only")
    with ExitStack() as stack:
        yield [replace(_input(name, kind, stack, again=again), options=options) for name in names]


def _kind(form: str | None) -> FileKind | None:
    kinds: tuple[FileKind, ...] = get_args(FileKind)
    found = next((kind for kind in kinds if kind == ("jsonl" if form == "json" else form)), None)
    if form is not None and found is None:
        raise InputError(f"--format {form!r}: one of {', '.join(kinds)}")
    return found


def _input(name: str, kind: FileKind | None, stack: ExitStack, *, again: bool) -> Input:
    if name == STANDARD_INPUT:
        if kind is None:
            raise InputError("standard input has no name that says what it is: give --format csv, jsonl, ...")
        return Input("standard input", Format(kind), _standard_input(stack, copied=again or kind not in TEXT_KINDS))
    if name.startswith("s3://"):
        return _object(name, kind)
    if "://" in name:
        raise InputError(f"{name!r}: rows are read from {INPUT_HELP}")
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name!r} is a directory: name the files in it, or let `dolmen backfill` take them")
    return Input(name, detect(path.name, kind), partial(_open, path), path.stat().st_size)


def _object(url: str, kind: FileKind | None) -> Input:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not key or key.endswith("/"):
        raise InputError(f"{url!r} names no object: the form is s3://bucket/key")
    store = open_store(f"s3://{bucket}")

    def open_object() -> BinaryIO:
        try:
            return store.open_input(key)
        except ObjectNotFoundError:
            raise ObjectNotFoundError(url) from None

    return Input(url, detect(key, kind), open_object)


def _standard_input(stack: ExitStack, *, copied: bool) -> Callable[[], BinaryIO]:
    if not copied:
        woken, wake = os.pipe()
        for end in (woken, wake):
            stack.callback(os.close, end)
        os.set_blocking(wake, False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake))
        return lambda: cast("BinaryIO", io.BufferedReader(_StandardInput(woken), 1 << 20))
    directory = stack.enter_context(TemporaryDirectory())
    copy = Path(directory, "input")
    with copy.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return partial(_open, copy)


def _open(file: Path) -> BinaryIO:
    return file.open("rb")


class _StandardInput(io.RawIOBase):
    """Standard input, of which a thread may wait for more: Ctrl-C, which only the main thread sees, ends that too.

    Args:
        woken: can be read from once a signal has come (``signal.set_wakeup_fd``).
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
