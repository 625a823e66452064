"""Infers how a file is meant to be read: its format, its dialect, and the columns that hold all of its rows.

The candidates for a file are tried in turn (``sampled_file``): the next one only if a row does not fit the one before.
So a file is read once, and its sample once more.

``infer`` does that for a path, a URL or an open file (``dolmen.infer``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from dolmen.base.records import replace
from dolmen.base.units import count_text
from dolmen.errors import Error, InputError, LimitError, short_repr
from dolmen.format.dialect import STRICT, Dialect, parse_attributes
from dolmen.format.ingest_properties import Compression, FileKind, parse_kind, split_name
from dolmen.format.types import column_text, short_type
from dolmen.ingest.formats.source_file import BadRow, Format, OnBadRow, ReadOptions, RewindableFile
from dolmen.ingest.inference.candidate import describe, format_name
from dolmen.ingest.inference.sampled_file import InferredColumn, SampledFile
from dolmen.store import ObjectStore, object_opener
from dolmen.store.base import split_object_url


@dataclass(frozen=True, slots=True)
class Inference:
    """How a file is meant to be read.

    Args:
        name: the file's name.
        format: csv, tsv, jsonl, ...
        dialect: how its values are written, beyond the format.
        schema: the columns that hold all rows of the file.
        columns: the same, each with some of its values.
        notes: what was found or assumed, for people.
        second: the second best way to read the file; None if there is no other.
        losses: the content of the file that a table with this schema would not hold.
    """

    name: str
    format: FileKind
    dialect: Dialect
    schema: pa.Schema
    columns: tuple[InferredColumn, ...]
    notes: tuple[str, ...] = ()
    second: str | None = None
    losses: tuple[str, ...] = ()
    _compression: Compression | None = None

    @property
    def properties(self) -> dict[str, Any]:
        """The properties by which a table reads later files likewise: the dialect, and ``ingest_format`` if names do
        not show it."""
        stem, shown, _ = split_name(self.name)
        named = {} if shown == self.format or "." not in stem else {"ingest_format": self.format}
        return named | self.dialect.properties()

    @property
    def file_format(self) -> Format:
        """The format and the compression of the file."""
        return Format(self.format, self._compression)

    def declaration(self, table: str) -> str:
        """The table as a document for ``dolmen apply``.

        Examples:
            >>> print(dolmen.infer("examples/events.csv").declaration("events"))  # doctest: +ELLIPSIS
            tables:
              events:
                columns:
                  id: BIGINT
            ...
        """
        import yaml  # only declarations need it

        ingest = {name.removeprefix("ingest_"): value for name, value in self.properties.items()}
        columns = {column.name: column_text(column) for column in self.schema}
        document = {"tables": {table: {"columns": columns} | ({"ingest": ingest} if ingest else {})}}
        return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))

    @property
    def is_plain(self) -> bool:
        """Whether the file is what its name says, in the dialect that strict tables take, and nothing was assumed."""
        return not (self.properties or self.notes or self.losses)

    @property
    def summary(self) -> str:
        """The decisions, in one line."""
        notes = " ".join(self.notes)
        noted = {name: getattr(STRICT, name) for name, word in _NOTES_ABOUT.items() if word in notes}
        if self.dialect.encoding in ("windows-1252", "latin-1") and notes:
            noted["encoding"] = STRICT.encoding
        dialect = replace(self.dialect, **noted)
        found = [f"read as {format_name(self.format)}", *describe(dialect), *self.notes, *self.losses]
        second = f"; second best: {self.second}" if self.second else ""
        first, *others = found
        return f"{first}{': ' if others else ''}{'; '.join(others)}{second}"

    def facts(self) -> dict[str, Any]:
        """The same as a JSON document."""
        return {
            "file": self.name,
            "format": self.format,
            "compression": self._compression,
            "columns": [
                {"name": each.name, "type": short_type(each.type), "samples": list(each.samples)}
                for each in self.columns
            ],
            "properties": self.properties,
            "notes": list(self.notes),
            "second": self.second,
            "losses": list(self.losses),
        }

    def __str__(self) -> str:
        """One screen for people."""
        lines = [f"{self.name}: {self.summary}"]
        names = [each.name for each in self.columns[:_SHOWN_COLUMNS]]
        types = [column_text(self.schema.field(index)) for index in range(len(names))]
        wide, typed = (min(max(map(len, texts), default=0), 40) for texts in (names, types))
        for name, kind, each in zip(names, types, self.columns, strict=False):
            lines.append(f"  {name:{wide}}  {kind:{typed}}  {', '.join(each.samples)}".rstrip())
        if len(self.columns) > _SHOWN_COLUMNS:
            lines.append(f"  and {count_text(len(self.columns) - _SHOWN_COLUMNS, 'column')} more")
        lines += [f"  {name}: {value!r}" for name, value in self.properties.items()]
        return "\n".join(lines)


_SHOWN_COLUMNS = 60
ONE_FIELD = "each line is one field"
_NOTES_ABOUT = {
    "delimiter": ONE_FIELD,
    "comment": "comment",
    "skip_lines": "skipped",
    "header": "header",
    "names": "number",
    "ragged": "lack",
    "json_rows": "rows are at",
}
"""By attribute of ``Dialect``, a word of the sniffers' note about it: with such a note ``describe`` says no more."""


def infer_file(
    open: Callable[[], BinaryIO],
    name: str,
    *,
    kind: FileKind | None = None,
    known: Mapping[str, Any] | None = None,
    limits: ReadOptions | None = None,
    on_bad_row: OnBadRow | None = None,
    samples: bool = True,
) -> Inference:
    """Infers how a file is meant to be read; see the module.

    Args:
        open: opens the file from its beginning. It is called once.
        kind: its format, if that is known: else its content and its name decide.
        known: attributes of ``Dialect`` that the user set.
        limits: of the bytes and columns that are read; their dialect counts for nothing.
        on_bad_row: called with rows that fit no dialect, and are left out; by default the first one is an error.
        samples: whether to keep values of the columns.

    Raises:
        InputError: no way to read the whole file was found: the error of the best one.
    """
    with open() as opened:
        reopen = RewindableFile(opened).reopen
        file = SampledFile(reopen, name, kind, dict(known or {}), limits or ReadOptions(), on_bad_row)
        return _infer(file, samples)


def _infer(file: SampledFile, samples: bool) -> Inference:
    on_bad_row, name = file.skip, file.name
    errors: list[Error] = []
    tried: set[tuple[FileKind, Dialect]] = set()
    candidates = file.candidates()
    while candidates:
        candidate, *candidates = candidates
        if (candidate.kind, candidate.dialect) in tried:
            continue
        tried.add((candidate.kind, candidate.dialect))
        bad = _BadRows(on_bad_row)
        try:
            found = file.read_whole(candidate, bad.on_bad_row)
        except LimitError:
            raise
        except InputError as error:
            errors.append(error)
            candidates = [*file.variations(candidate, error), *candidates]
            continue
        others = [each for each in candidates if (each.kind, each.dialect) not in tried]
        return Inference(
            name,
            candidate.kind,
            found.dialect,
            found.schema,
            tuple(file.columns(candidate.kind, found.dialect, found.schema, samples)),
            (*candidate.notes, *found.notes),
            file.difference(candidate, others[0]) if others else None,
            (*candidate.losses, *found.losses, *bad.losses()),
            file.compression,
        )
    raise errors[0]


@dataclass
class _BadRows:
    """Passes on bad rows, and counts them."""

    pass_on: OnBadRow | None
    count: int = 0
    first: BadRow | None = None

    @property
    def on_bad_row(self) -> OnBadRow | None:
        return None if self.pass_on is None else self._add

    def _add(self, bad: BadRow) -> None:
        assert self.pass_on is not None
        self.count, self.first = self.count + 1, self.first or bad
        self.pass_on(bad)

    def losses(self) -> list[str]:
        if self.first is None:
            return []
        where = f"line {self.first.line}" if self.first.line else f"row {self.first.row}"
        return [f"{count_text(self.count, 'row')} cannot be read, the first on {where}: {self.first.reason}"]


def infer(
    source: str | Path | BinaryIO, *, storage_options: Mapping[str, str] | None = None, **given: Any
) -> Inference:
    """Infers how a file is meant to be read, and its columns: format, encoding, delimiter, header, types, and so on.

    Reads the whole file, in bounded memory. A type is inferred only if it gives back the text of all values.
    ``Inference.properties`` are settings by which a table reads later files in the same way.

    Args:
        source: a path, the URL of an object (``s3://bucket/key``), or a binary file that can be rewound.
        storage_options: for an object in S3, as for ``open``.
        given: what is known: ``format="csv"``, and the attributes of ``Inference.dialect``, each as the property
            ``ingest_...`` takes it: ``delimiter=";"``, ``header=False``, ``encoding="latin-1"``.

    Raises:
        InputError: the file is not in a known format, is damaged, or has rows that fit no dialect; or ``given`` has an
            unknown name or value.
        ObjectNotFoundError: there is no such object.

    Examples:
        >>> found = dolmen.infer(pa.BufferReader(b"id;price\\n1;2,50\\n2;13,75\\n"), format="csv")
        >>> found.dialect.delimiter
        ';'
        >>> found.schema.names
        ['id', 'price']
    """
    kind = parse_kind(given.pop("format", None), "format=")
    known = parse_attributes(given)
    if storage_options is not None and not (isinstance(source, str) and split_object_url(source)):
        raise InputError("storage_options are for the URL of an object, s3://bucket/key")
    if isinstance(source, str | Path):
        name, open = opener(source, storage_options)
        return infer_file(open, name, kind=kind, known=known)
    if not (hasattr(source, "read") and hasattr(source, "seek")):
        raise InputError(f"source={short_repr(source)}: give a path, a URL, or a binary file that can be rewound")
    named = getattr(source, "name", None)
    name = Path(named).name if isinstance(named, str) else "the file"
    return infer_file(RewindableFile(source).reopen, name, kind=kind, known=known)


def opener(
    source: str | Path, storage_options: Mapping[str, str] | None = None, near: ObjectStore | None = None
) -> tuple[str, Callable[[], BinaryIO]]:
    """The name of a file or an object, and a function that opens it. Raises InputError for anything else.

    For ``storage_options`` and ``near`` see ``store_of_object``.
    """
    if isinstance(source, str) and (open_object := object_opener(source, storage_options, near)) is not None:
        return source, open_object
    if isinstance(source, str) and "://" in source:
        raise InputError(f"{source!r}: give a path, or the URL of an object, s3://bucket/key")
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{str(source)!r} is a directory: give a file in it")
    return str(source), lambda: path.open("rb")
