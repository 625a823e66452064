"""A progress bar over the bytes of input files; on standard error, and only where somebody can see it."""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from dolmen.cli.output import errors


class Progress:
    """Counts what is read of each file.

    Args:
        files: the files, whose sizes make the whole.
        quiet: show nothing (also when standard error is no terminal).
    """

    def __init__(self, files: list[Path], *, quiet: bool) -> None:
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
        self._files = files

    def open(self, file: Path) -> BinaryIO:
        """Opens a file whose reads move the bar. A second pass over the same file has a bar of its own."""
        task = self._bar.add_task(file.name, total=file.stat().st_size)
        return cast("BinaryIO", io.BufferedReader(_Counted(file, self._bar, task), 1 << 20))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()


class _Counted(io.FileIO):
    def __init__(self, file: Path, bar: RichProgress, task: TaskID) -> None:
        super().__init__(file, "rb")
        self._bar, self._task = bar, task

    def readinto(self, buffer: object, /) -> int | None:
        read = super().readinto(buffer)  # type: ignore[arg-type]
        self._bar.update(self._task, completed=self.tell())
        return read
