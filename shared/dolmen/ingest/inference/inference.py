"""Infers how a file is meant to be read: its format, its dialect, and the columns that hold all of its rows.

1. At most a megabyte is read from the start, unpacked. Its magic, or the file's name, gives the format.
2. The sniffers propose candidates for text, the best first.
3. The strict reader reads the WHOLE file by the best one, which takes the types from it. Only if a row does not fit is
   the next candidate tried. So a file is read once, and its sample once more.

``infer`` does that for a path, a URL or an open file (``dolmen.infer``).
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from dolmen.base.records import replace
from dolmen.base.units import KIB, MIB, count_text
from dolmen.errors import Error, InputError, LimitError, RowError, short_repr
from dolmen.format.dialect import STRICT, Dialect, Encoding, parse_attributes
from dolmen.format.ingest_properties import FORMATS, Compression, FileKind, parse_kind, split_name
from dolmen.format.schema import number_names
from dolmen.format.types import column_text, short_type
from dolmen.ingest.formats import csv_reader, formats, json_types, parquet_reader
from dolmen.ingest.formats.source_file import (
    BadRow,
    Format,
    OnBadRow,
    ReadOptions,
    RewindableFile,
    SourceFile,
    read_up_to,
)
from dolmen.ingest.formats.typed_batches import name_columns
from dolmen.ingest.inference.candidate import Candidate, describe, format_name
from dolmen.ingest.inference.column_evidence import ColumnEvidence, Values, decide
from dolmen.ingest.inference.sniff_container import compression_of, sniff_container
from dolmen.ingest.inference.sniff_delimited import sniff_delimited
from dolmen.ingest.inference.sniff_encoding import encoding_note, sniff_encoding
from dolmen.ingest.inference.sniff_json import sniff_json
from dolmen.ingest.inference.sniff_sheet import infer_sheet, sniff_sheet
from dolmen.ingest.inference.typed_losses import may_not_fit, typed_losses
from dolmen.store import ObjectStore, object_opener
from dolmen.store.base import split_object_url

SAMPLE_BYTES = MIB
_HEAD_BYTES = 4 * KIB
_SHOWN_BYTES = 64 * KIB
_SAMPLES, _MAX_SAMPLE = 3, 40


@dataclass(frozen=True, slots=True)
class InferredColumn:
    """A column of a file: its name and stored type, and up to three of its values, as text."""

    name: str
    type: pa.DataType
    samples: tuple[str, ...] = ()


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
        losses: what a table with this schema would not hold of the file.
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
        """The properties of a table whose later files are read alike: the dialect, and ``ingest_format`` if names do
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


@dataclass
class _QuotedNulls:
    """The texts for NULL that a file may have in quotes, or escaped: there they are values."""

    dialect: Dialect
    texts: set[str] = field(default_factory=set)
    data: bytes = b""

    def set_data(self, data: bytes) -> None:
        self.data = data

    def find(self, columns: Iterable[ColumnEvidence]) -> None:
        """Looks in the data for the texts that its cells have."""
        quote, escape = self.dialect.quote, self.dialect.escape
        texts = set[str]().union(*(each.nulls for each in columns)) - self.texts
        if escape is not None and escape.encode() in self.data:
            self.texts |= texts
        elif quote is not None:
            self.texts |= {text for text in texts if f"{quote}{text}{quote}".encode() in self.data}


@dataclass
class SampledFile:
    """A file whose format and dialect are to be found."""

    open: Callable[[], BinaryIO]
    name: str
    kind: FileKind | None  # the format that the user named, if any
    known: dict[str, Any]  # attributes of ``Dialect`` that the user set
    limits: ReadOptions
    skip: OnBadRow | None  # called with bad rows of the sample, which are left out; None: they are errors
    sample: bytes = b""  # the beginning of the file, unpacked; ``whole`` if that is all of it
    whole: bool = True
    compression: Compression | None = None

    def candidates(self) -> list[Candidate]:
        """Reads the sample. Returns the ways in which the file may be meant, the best first; at least one."""
        _, named, compression = split_name(self.name)
        with self.open() as file:
            head = read_up_to(file, _HEAD_BYTES)
        found = sniff_container(head, self.name)
        self.compression = found.compression if found is not None else compression or compression_of(head)
        kind = self.kind or (found and found.kind) or named
        if kind is not None and not FORMATS[kind].is_text:
            dialect = replace(STRICT, **self.known)
            return (
                [Candidate(kind, dialect)] if kind != "excel" else sniff_sheet(self._source(kind, dialect), self.known)
            )
        with self._source("csv", STRICT).stream() as stream:
            raw = read_up_to(stream, SAMPLE_BYTES + 1)
        self.whole = len(raw) <= SAMPLE_BYTES
        self.sample = raw[:SAMPLE_BYTES]
        if not raw:
            raise InputError(
                f"file {self.name!r} is empty: it needs at least a line to infer columns from, or declare a schema"
            )
        try:
            return self._text_candidates(named)
        except (RowError, LimitError):
            raise
        except InputError as error:
            text = str(error)
            raise type(error)(text if f"file {self.name!r}" in text else f"file {self.name!r}: {text}") from None

    def _text_candidates(self, named: FileKind | None) -> list[Candidate]:
        encoding = self.known.get("encoding") or sniff_encoding(self.sample, whole=self.whole)
        note = None if "encoding" in self.known else encoding_note(encoding)
        text = _to_utf8(self.sample, encoding, self.whole)
        kind, found = self.kind, list[Candidate]()
        begins_like_json = text.lstrip(b"\xef\xbb\xbf \t\r\n\x1e")[:1] in (b"{", b"[")
        if "jsonl" in (kind, named if kind is None else None) or (kind is None and begins_like_json):
            found += sniff_json(text, whole=self.whole, known=self.known)
        if not found and "jsonl" in (kind, named if kind is None else None):
            found = [Candidate("jsonl", STRICT)]
        if not found:
            own = kind or named
            found = sniff_delimited(text, whole=self.whole, known=self.known, kind=own)
        set_ = {**self.known, "encoding": encoding}
        return [
            replace(each, dialect=replace(each.dialect, **set_), notes=(*each.notes, *([note] if note else [])))
            for each in found
        ]

    def _source(self, kind: FileKind, dialect: Dialect) -> SourceFile:
        return SourceFile(self.open, Format(kind, self.compression), self.name, replace(self.limits, dialect=dialect))

    def read_whole(self, candidate: Candidate, on_bad_row: OnBadRow | None) -> Values:
        """The columns, and what all values prove of the dialect. Raises InputError if the candidate does not fit."""
        candidate.dialect.check()
        source = self._source(candidate.kind, candidate.dialect)
        if source.format.traits.delimiter is not None:
            return self._read_delimited(source, candidate.names, on_bad_row)
        if candidate.kind == "excel":
            return infer_sheet(source, self.known, skip_bad_rows=on_bad_row is not None)
        if not source.format.traits.is_text:
            return self._read_typed(source, on_bad_row)
        if on_bad_row is None:
            return Values(candidate.dialect, *json_types.infer_columns(source))
        found = formats.survey(source, skip_bad_rows=True)
        text = [each.with_type(pa.string()) if pa.types.is_null(each.type) else each for each in found]
        if not text:
            raise InputError(f"file {self.name!r} has no row to infer columns from")
        return Values(candidate.dialect, pa.schema(text))

    def _read_delimited(self, source: SourceFile, names: Sequence[str], on_bad_row: OnBadRow | None) -> Values:
        dialect, evidence = source.options.dialect, dict[str, ColumnEvidence]()
        quoted = _QuotedNulls(dialect)
        for batch in csv_reader.text_cells(source, on_bad_row, quoted.set_data):
            for name, cells in zip(names or batch.schema.names, batch.columns, strict=True):
                if name not in evidence:
                    evidence[name] = ColumnEvidence(dialect)
                evidence[name].observe(cells)
            quoted.find(evidence.values())
        values = decide(evidence, dialect, self.known)
        doubtful = quoted.texts & (set(values.dialect.nulls) - set(dialect.nulls))
        if doubtful and on_bad_row is None and not self._fits(source.format.kind, values):
            # A quoted text is no NULL, and the cells do not show quotes.
            values = decide(evidence, dialect, {**self.known, "nulls": dialect.nulls})
            why = "is not given as NULL", "is in quotes, and so no NULL"
            values = replace(values, notes=tuple(note.replace(*why) for note in values.notes))
        return values

    def _read_typed(self, source: SourceFile, on_bad_row: OnBadRow | None) -> Values:
        """The columns of a file that is not text; names that no table can have are numbered.

        Reads the columns whose values may not fit. Raises RowError if one does not.
        """
        own_schema, kind = formats.READERS[source.format.kind].own_schema, source.format.kind
        assert own_schema is not None, kind
        own = own_schema(source)
        if number_names(own.names) != own.names and "names" not in self.known:
            source = self._source(kind, replace(source.options.dialect, names="number"))
        schema = formats.infer(source)
        doubtful = [field for field, own_field in zip(schema, own, strict=True) if may_not_fit(own_field.type)]
        if doubtful and on_bad_row is None:
            strict = replace(source, options=replace(source.options, extra="ignore"))
            for _ in formats.read(strict, pa.schema(doubtful)):
                pass
        others = parquet_reader.column_losses(source) if kind == "parquet" else ()
        losses = tuple(typed_losses(name_columns(own, source), others))
        return Values(source.options.dialect, schema, losses=losses)

    def _fits(self, kind: FileKind, values: Values) -> bool:
        """Whether the strict reader takes the whole file by these values."""
        try:
            for _ in formats.read(self._source(kind, values.dialect), values.schema):
                pass
        except RowError:
            return False
        return True

    def whole_lines(self) -> bytes:
        """The sample up to its last line end, or all of it if it has none."""
        end = len(self.sample) if self.whole else self.sample.rfind(b"\n") + 1
        return self.sample[: end or len(self.sample)]

    def variations(self, candidate: Candidate, error: InputError) -> Iterator[Candidate]:
        """Ways to read a file whose sample fits the candidate, and whose rest does not."""
        dialect, problem, line = candidate.dialect, getattr(error, "problem", None), getattr(error, "line", None)
        if candidate.kind == "excel":
            if problem == "no name" and dialect.names == "strict" and "names" not in self.known:
                note = f"columns without a name are numbered: one has a value on row {line}"
                yield replace(candidate, dialect=replace(dialect, names="number"), notes=(*candidate.notes, note))
        elif self.whole or not FORMATS[candidate.kind].is_text:
            return
        elif problem == "few fields" and dialect.ragged == "reject" and "ragged" not in self.known:
            note = f"records such as that on line {line} lack fields at their end: they are NULL"
            yield replace(candidate, dialect=replace(dialect, ragged="fill"), notes=(*candidate.notes, note))
        elif problem == "not UTF-8" and "encoding" not in self.known and self.sample.isascii():
            encodings: tuple[Encoding, ...] = ("windows-1252", "latin-1")
            for encoding in encodings:
                own = encoding_note(encoding)
                notes = (*candidate.notes, own) if own else candidate.notes
                yield replace(candidate, dialect=replace(dialect, encoding=encoding), notes=notes)

    def difference(self, chosen: Candidate, other: Candidate) -> str:
        """How another candidate would read the file, in what differs."""
        if other.kind != chosen.kind:
            return ", ".join([format_name(other.kind), *describe(other.dialect)])
        if other.kind == "jsonl":
            shape = other.dialect.json_rows
            rows = "each object is a row" if shape in ("lines", "values") else f"the rows are at {shape!r}"
            return f"{rows} (--json-rows {shape})"
        here, there = set(describe(chosen.dialect)), describe(other.dialect)
        added = [text for text in there if text not in here]
        if chosen.dialect.header != other.dialect.header and other.dialect.header:
            added.append("with a header")
        return ", ".join(added) or "the plain dialect"

    def columns(self, kind: FileKind, dialect: Dialect, schema: pa.Schema, samples: bool) -> Iterator[InferredColumn]:
        """The columns, with values of the first rows."""
        rows = self._first_rows(kind, dialect, schema) if samples else None
        for index, each in enumerate(schema):
            texts = dict[str, None]()
            if rows is not None:
                for value in rows.column(index)[:100]:
                    if value.is_valid and len(texts) < _SAMPLES:
                        texts[_shorten(_text_of(value))] = None
            yield InferredColumn(each.name, each.type, tuple(texts))

    def _first_rows(self, kind: FileKind, dialect: Dialect, schema: pa.Schema) -> pa.Table | None:
        """Some rows of the file: of the sample if it is text."""
        source = self._source(kind, dialect)
        if source.format.traits.is_text:
            source = SourceFile(
                lambda: io.BytesIO(self.sample), Format(kind), self.name, source.options, block_bytes=_SHOWN_BYTES
            )
        batches = list[pa.RecordBatch]()
        with suppress(InputError, pa.ArrowException):  # the sample ends within a row
            for batch in formats.read(source, schema, on_bad_row=lambda _: None):
                batches.append(batch)
                if sum(map(len, batches)) >= _SAMPLES:
                    break
        return pa.Table.from_batches(batches) if batches else None


def _text_of(value: pa.Scalar) -> str:
    try:
        return str(value.as_py())
    except (OverflowError, ValueError):  # a time that Python's types do not have
        return str(value.cast(pa.string()).as_py())


def _shorten(text: str) -> str:
    text = "".join(sign if sign.isprintable() else " " for sign in text[: _MAX_SAMPLE + 1])
    return text if len(text) <= _MAX_SAMPLE else f"{text[: _MAX_SAMPLE - 3]}..."


def _to_utf8(sample: bytes, encoding: str, whole: bool) -> bytes:
    """The sample in UTF-8; a character that is cut off is left out."""
    if encoding == "utf-8":
        return sample
    decoder = codecs.getincrementaldecoder("cp1252" if encoding == "windows-1252" else encoding)()
    try:
        return decoder.decode(sample, whole).encode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"the byte at offset {error.start:,} is not {encoding}: {error.reason}; give another encoding (--encoding)"
        ) from None


def infer(
    source: str | Path | BinaryIO, *, storage_options: Mapping[str, str] | None = None, **given: Any
) -> Inference:
    """Infers how a file is meant to be read, and its columns: format, encoding, delimiter, header, types, and so on.

    Reads the whole file, in bounded memory. A type is inferred only if it gives back the text of all values.
    ``Inference.properties`` are settings for a table whose later files are read alike.

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
