"""Reasons for which files cannot be adopted: all of them are collected before any is reported."""

from __future__ import annotations

from dolmen.errors import AdoptionError

_MOST_LINES = 50


READ_BY_ENGINE = (
    "Do not load its files: they may hold rows that the table has deleted. Read the table with an engine of its "
    "format, and append the rows that it returns"
)
"""The advice about tables of other formats, whose metadata decides which rows of their files are there."""


class AdoptionFaults:
    """Collects reasons by file and column. The same reason of many files is one line with their number."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[int, str]] = {}
        self.are_of_table = False
        """Whether the files belong to a table of another format, and must not be loaded as they are."""

    def add(self, file: str, reason: str, column: str = "", files: int = 1) -> None:
        """Adds a reason.

        Args:
            file: the file, the first of several; "" if it is about all.
            column: the column, or the path of a field inside one; "" if it is about the whole file.
            files: the number of files that it holds for.
        """
        known, first = self._found.get((column, reason), (0, file))
        self._found[column, reason] = known + files, first

    def __bool__(self) -> bool:
        return bool(self._found)

    def lines(self) -> list[str]:
        """The reasons as text, those about columns last."""
        return [_line(column, reason, *where) for (column, reason), where in sorted(self._found.items())]

    def check(self, what: str) -> None:
        """Raises AdoptionError if there is any reason.

        Args:
            what: the source, for the message.
        """
        if not self._found:
            return
        lines = self.lines()
        more = [f"... and {len(lines) - _MOST_LINES:,} more reasons"] if len(lines) > _MOST_LINES else []
        shown = [*lines[:_MOST_LINES], *more]
        raise AdoptionError(what, shown, READ_BY_ENGINE) if self.are_of_table else AdoptionError(what, shown)


def _line(column: str, reason: str, files: int, first: str) -> str:
    about = f"column {column!r}: " if column else ""
    where = f" ({f'{files:,} files, the first is ' if files > 1 else ''}{first})" if first else ""
    return f"{about}{reason}{where}"
