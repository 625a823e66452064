"""A file whose format and dialect are to be found: its sample, the candidates for it, and what its values prove.

1. At most a megabyte is read from the start, unpacked. Its magic, or the file's name, gives the format.
2. The sniffers propose candidates for text, the best first.
3. The strict reader reads the whole file by a candidate, and takes the types from it.
"""

from __future__ import annotations

import codecs
import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

from dolmen.base.records import replace
from dolmen.base.units import KIB, MIB
from dolmen.errors import InputError, LimitError, RowError
from dolmen.format.dialect import STRICT, Dialect, Encoding
from dolmen.format.ingest_properties import FORMATS, Compression, FileKind, split_name
from dolmen.format.schema import number_names
from dolmen.ingest.formats import formats, parquet_reader
from dolmen.ingest.formats.delimited import csv_reader
from dolmen.ingest.formats.json import json_types
from dolmen.ingest.formats.source_file import (
    Format,
    OnBadRow,
    ReadOptions,
    SourceFile,
    read_up_to,
)
from dolmen.ingest.formats.typed_batches import name_columns
from dolmen.ingest.inference.candidate import Candidate, describe, format_name
from dolmen.ingest.inference.column_evidence import ColumnEvidence
from dolmen.ingest.inference.sniff.container import compression_of, sniff_container
from dolmen.ingest.inference.sniff.delimited import sniff_delimited
from dolmen.ingest.inference.sniff.encoding import encoding_note, sniff_encoding
from dolmen.ingest.inference.sniff.json_shape import sniff_json
from dolmen.ingest.inference.sniff.sheet import infer_sheet, sniff_sheet
from dolmen.ingest.inference.typed_losses import may_not_fit, typed_losses
from dolmen.ingest.inference.value_decision import Values, decide

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
        begins_like_json = text.lstrip(BOM_UTF8 + b" \t\r\n\x1e")[:1] in (b"{", b"[")
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
            # A quoted text is not NULL, and the cells do not show quotes.
            values = decide(evidence, dialect, {**self.known, "nulls": dialect.nulls})
            why = "is not given as NULL", "is in quotes, and so not NULL"
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
