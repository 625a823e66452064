"""A progress bar over the bytes of input files, shown on standard error if that is a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import BinaryIO, Self, cast

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from dolmen.base.units import MIB
from dolmen.cli.inputs import Input
from dolmen.cli.output import errors


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
