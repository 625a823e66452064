"""One way in which a file may be meant to be read, and its description for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dolmen.base.units import count_text
from dolmen.format.dialect import STRICT, Dialect
from dolmen.format.ingest_properties import FORMATS, FileKind


class Candidate(Struct, frozen=True):
    """A format and a dialect that fit a sample of a file."""

    kind: FileKind
    dialect: Dialect  # only what differs from the strict one was found, or was given by the user
    # what was assumed, for people; short sentences such as ``';' separates the fields``. None repeats what the
    # dialect's properties say by themselves; each names an assumption by which a row of data would be lost.
    notes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()  # the content of the file that its rows do not hold
    names: tuple[str, ...] = ()  # of the columns, if there is no header and something else names them


_NAMES: dict[FileKind, str] = {"csv": "CSV", "tsv": "TSV", "jsonl": "JSON", "orc": "ORC", "excel": "a workbook"}
_NAMES |= {kind: kind.capitalize() for kind in FORMATS if kind not in _NAMES}
_SIGNS = {"\t": "a tab", " ": "a space"}


def format_name(kind: FileKind) -> str:
    """A format's name, for people."""
    return _NAMES[kind]


def describe(dialect: Dialect) -> list[str]:
    """Describes what differs from the dialect of strict tables, in short texts."""

    def sign(text: str) -> str:
        return _SIGNS.get(text, repr(text))

    found: dict[str, Callable[[Any], str]] = {
        "delimiter": lambda value: f"{sign(value)} separates the fields",
        "encoding": lambda value: value,
        "quote": lambda value: "no quotes" if value is None else f"{value} quotes",
        "escape": lambda value: f"{value} escapes",
        "comment": lambda value: f"lines with {value} are comments",
        "skip_lines": lambda value: f"{count_text(value, 'line')} before the header",
        "header": lambda value: "no header",
        "names": lambda value: "missing and repeated names are numbered",
        "ragged": lambda value: "fields that rows lack at the end are NULL",
        "nulls": lambda value: f"NULL is {', '.join(map(repr, value))}",
        "decimal": lambda value: "decimal comma",
        "thousands": lambda value: f"{sign(value)} between thousands",
        "booleans": lambda value: f"Booleans are {', '.join('/'.join(pair) for pair in value)}",
        "timestamp_formats": lambda value: f"times as in {' or '.join(value)}",
        "json_rows": lambda value: (
            "objects in an array, or one after the other" if value == "values" else f"rows in {value}"
        ),
        "sheet": lambda value: f"sheet {value!r}",
    }
    return [
        text(getattr(dialect, name)) for name, text in found.items() if getattr(dialect, name) != getattr(STRICT, name)
    ]
