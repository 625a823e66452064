"""Reads changes from their envelopes.

``debezium`` (JSON lines or Avro; as in "Debezium connector for PostgreSQL", section "Data change events")::

    {"before": null, "after": {"id": 1, "name": "Ann"}, "op": "c", "source": {"lsn": 24023128, ...}, "ts_ms": ...}
    {"schema": {...}, "payload": {"before": {"id": 1, ...}, "after": null, "op": "d", "source": {...}}}

``op`` is ``c`` (created), ``r`` (read by a snapshot), ``u`` (updated) or ``d`` (deleted). Anything else, so ``t``
(truncated) too, is a bad row; but ``m``, a message that the source wrote to its log, is skipped. Of ``before`` only
the key is read; where it differs from that of ``after`` the old key is deleted at the same sequence. Lines that are
``null``, and objects with neither image nor operation (Kafka's tombstones, heartbeats, borders of transactions) are
skipped. So are messages about the source's columns, which have a ``databaseName``; they are counted. Other fields of
the envelope are not looked at.

``dms`` and ``flat`` (CSV, Parquet, ...; as in "Using Amazon S3 as a target for AWS DMS")::

    Op,id,name,changed_at
    I,1,Ann,2026-01-05 10:00:00.000001

A row is the columns of the table, and one that says what became of it: ``I``, ``U`` or ``D`` for ``dms``; those,
``insert``, ``update``, ``delete``, ``c``, ``r``, ``u`` or ``d`` in any case for ``flat``. Without one (a full load) it
is an insert. Files without a header have it first. ``flat`` also knows Debezium's ``__deleted``, which is ``true`` or
``false``: ``true`` is a delete whatever the operation.

A value that the source left out (``unavailable``) is marked as such, and never taken for a value.

The sequence stands in the row, or at paths in the envelope. Where the column is of strings, paths are joined by ``/``,
and what is digits alone is filled with zeros to 20, so that it orders as a number does; PostgreSQL's ``0/16E9458`` is
the number that it stands for.

Positions in a source's log, as Debezium's connectors write them: numbers, or text.

One connector writes ``lsn`` as a number, another as ``"24023128"`` or PostgreSQL's own ``"0/16E9458"``; ``scn``
(Oracle) and ``commit_lsn`` (SQL Server) are text, ``pos`` (MySQL) is a number. A file is asked which it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from dolmen.errors import SchemaError
from dolmen.format.ingest_properties import CdcSettings
from dolmen.format.schema import Field, own_names
from dolmen.ingest.cdc.placeholders import UnavailableValue
from dolmen.ingest.formats.source_file import CLOSED, ReadOptions, mark_name

_LSN = r"^(?P<high>[0-9A-Fa-f]{1,8})/(?P<low>[0-9A-Fa-f]{1,8})$"
_DIGITS = r"^[0-9]{1,18}$"


def parse_position(text: pa.Array) -> pa.Array:
    """Positions in text as int64: what is digits alone, and PostgreSQL's ``0/16E9458``; NULL for any other."""
    text = pc.utf8_trim_whitespace(text)
    nothing = pa.scalar(None, pa.string())
    plain = pc.if_else(pc.match_substring_regex(text, _DIGITS), text, nothing).cast(pa.int64())
    halves = pc.extract_regex(text, _LSN)
    high, low = (_parse_hexadecimal(pc.struct_field(halves, half)) for half in ("high", "low"))
    return pc.coalesce(plain, pc.add(pc.multiply(high, 1 << 32), low))


def _parse_hexadecimal(digits: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("0x", digits, "").cast(pa.int64())


def plain_text(text: pa.Array) -> pa.Array:
    """Positions in text, with PostgreSQL's ``0/16E9458`` as the number that it stands for."""
    is_lsn = pc.match_substring_regex(text, _LSN)
    if pc.any(is_lsn).as_py() is not True:
        return text
    return pc.if_else(is_lsn, parse_position(text).cast(pa.string()), text)


DIGITS = 20
_NUMBERS = frozenset({"lsn", "pos", "row", "ts_ms", "ts_us", "ts_ns", "txId", "total_order", "data_collection_order"})
"""Fields of Debezium's ``source`` and ``transaction`` that are numbers: asked for as such, they are parsed fast."""
_OWN = frozenset({"op", "databaseName", "before", "after", "payload", "schema"})
DELETED_FIELD = "__deleted"
"""The field that Debezium adds to rows without an envelope, if deletes are kept among them."""
_FLAT_UPSERTS = (None, "i", "u", "c", "r", "insert", "update", "false")
_FLAT_DELETES = ("d", "delete", "true")
_Tree: TypeAlias = "dict[str, _Tree | pa.Field]"
UPSERT, DELETE, SKIP, UNKNOWN = 0, 1, 2, 3
"""Kinds of rows in a file."""


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """A batch of a file's rows, taken out of their envelope.

    Args:
        kinds: UPSERT, DELETE, SKIP or UNKNOWN (int8).
        images: by column id: the row as it is now; of a delete, at least its key.
        old_keys: by column id: the key that an upsert had before, NULL where it is not known.
        sequences: NULL where one is missing.
        created: which rows were created, as far as the operation says so.
        unavailable: by column id, for columns with such values: the rows whose value the source left out.
        ddl: messages about the source's columns, which are skipped.
    """

    kinds: pa.Array
    images: dict[int, pa.Array]
    old_keys: dict[int, pa.Array] | None
    sequences: pa.Array
    created: pa.Array
    unavailable: dict[int, pa.BooleanArray]
    ddl: int = 0


@dataclass(slots=True)
class ColumnEnvelope:
    """Rows with a column that says what became of them; a file of a full load has no such column.

    Args:
        fields: the table's columns.
        unused: columns of the file that are read and left out.
        marked: columns for which the file is asked to mark unavailable values (``mark_name``).
        tells: whether the file's rows have an operation. The first one decides: where only some have, a delete may have
            lost its own, and must not become an insert.
    """

    fields: tuple[Field, ...]
    sequence: Field
    settings: CdcSettings
    unused: tuple[str, ...] = ()
    marked: tuple[Field, ...] = ()
    has_operation: bool | None = None

    @property
    def _paths(self) -> tuple[str, ...]:
        """The columns that hold the sequence, in the table's spelling."""
        return tuple(own_names(self.settings.sequence_from, self.fields))

    @property
    def schema(self) -> pa.Schema:
        """The schema to read the file with. Raises SchemaError."""
        operation, paths = self.settings.operation, self._paths
        if any(field.name.lower() == operation.lower() for field in self.fields):
            raise SchemaError(f"property cdc_operation: {operation!r} is a column of the table; name the file's own")
        made = bool(paths) and self.sequence.name not in paths  # the file does not have the column
        columns = [field for field in self.fields if not (made and field == self.sequence)]
        kind = self.sequence.arrow_type
        for field in columns:
            if field.name in paths and field.arrow_type != kind and not t.is_string(kind):
                raise SchemaError(f"property cdc_sequence_from: column {field.name!r} is no {kind}, as the sequence is")
        more = [path for path in dict.fromkeys(paths) if path not in {field.name for field in columns}]
        known = {operation, *more, *(field.name for field in columns)}
        return pa.schema(
            [
                (operation, pa.string()),
                *((field.name, field.arrow_type) for field in columns),
                *((path, kind) for path in more),
                *((name, pa.string()) for name in self.unused if name not in known),
                *_mark_fields(self.marked),
            ]
        )

    def options(self, options: ReadOptions) -> ReadOptions:
        """How to read the file, given what the table asks for."""
        return options

    def open(self, batch: pa.RecordBatch) -> ChangeBatch:
        """The changes of a batch."""
        paths = self._paths
        words = pc.ascii_lower(pc.utf8_trim_whitespace(batch[self.settings.operation]))
        if self.settings.envelope == "dms":
            kinds = _kinds(words, (None, "i", "u"), ("d",))
        else:
            kinds = _kinds(words, _FLAT_UPSERTS, _FLAT_DELETES)
        silent = pc.is_null(words)
        if self.has_operation is None and len(batch):
            self.has_operation = not silent[0].as_py()
        kinds = pc.if_else(silent if self.has_operation else pc.invert(silent), UNKNOWN, kinds).cast(pa.int8())
        if DELETED_FIELD in self.unused and self.settings.operation != DELETED_FIELD:
            is_deleted = pc.equal(pc.ascii_lower(pc.utf8_trim_whitespace(batch[DELETED_FIELD])), "true")
            kinds = pc.if_else(pc.fill_null(is_deleted, False), DELETE, kinds).cast(pa.int8())
        parts = [batch[path] for path in paths] or [batch[self.sequence.name]]
        sequences = _sequence(parts, self.sequence) if paths else parts[0]
        images = {field.id: batch[field.name] for field in self.fields if field != self.sequence}
        marks = {field.id: batch[mark_name(field.name)] for field in self.marked}
        unavailable = _unavailable(images, kinds, self.settings, marks)
        names_nothing = UnavailableValue.of(self.settings.unavailable_value).find(sequences)
        sequences = sequences if names_nothing is None else pc.if_else(names_nothing, None, sequences)
        return ChangeBatch(kinds, images, None, sequences, pc.fill_null(pc.equal(words, "c"), False), unavailable)


@dataclass(frozen=True, slots=True)
class DebeziumEnvelope:
    """Events with the row before and after, and where in the source's log they stand."""

    fields: tuple[Field, ...]
    keys: tuple[Field, ...]
    sequence: Field
    settings: CdcSettings
    reject_extra: bool
    text_positions: Mapping[str, bool]
    unused: tuple[str, ...] = ()
    marked: tuple[Field, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The schema to read the file with."""
        own: _Tree = {"op": pa.field("op", pa.string()), "databaseName": pa.field("databaseName", pa.string())}
        for path in self.settings.sequence_from:
            names = path.split(".")
            if names[0] in _OWN:
                raise SchemaError(f"property cdc_sequence_from: {path!r} orders no deletes; take one in source")
            _insert_field(own, names, self._sequence_part_type(path))
        before = pa.struct([pa.field(field.name, field.arrow_type) for field in self.keys])
        image = [pa.field(field.name, field.arrow_type) for field in self._image]
        unused = [pa.field(name, pa.string()) for name in self.unused]
        after = pa.struct([*image, *unused, *_mark_fields(self.marked)])
        own["before"] = pa.field("before", before)
        own["after"] = pa.field("after", after, metadata=CLOSED if self.reject_extra else None)
        fields = _fields(own)
        return pa.schema([*fields, pa.field("payload", pa.struct(fields))])

    @property
    def _image(self) -> list[Field]:
        """The columns that ``after`` has: all but the sequence, which the envelope tells."""
        return [field for field in self.fields if field != self.sequence]

    def _sequence_part_type(self, path: str) -> pa.DataType:
        """The type to read a part of the sequence as: as the file has it, whatever the column is."""
        kind = self.sequence.arrow_type
        if not (t.is_string(kind) or t.is_integer(kind)):
            return kind
        if path in self.text_positions:
            return pa.string() if self.text_positions[path] else kind if t.is_integer(kind) else pa.int64()
        return pa.int64() if t.is_string(kind) and path.rpartition(".")[2] in _NUMBERS else kind

    def options(self, options: ReadOptions) -> ReadOptions:
        """How to read the file, given what the table asks for."""
        return replace(options, extra="ignore", null_lines="skip")

    def open(self, batch: pa.RecordBatch) -> ChangeBatch:
        """The changes of a batch."""
        wrapped = pc.is_valid(batch["payload"])

        def at(*path: str) -> pa.Array:
            """The values at a path, below ``payload`` or at the top."""
            bare = pc.struct_field(batch[path[0]], list(path[1:])) if len(path) > 1 else batch[path[0]]
            if not batch["payload"].null_count < len(batch):
                return bare
            return pc.if_else(wrapped, pc.struct_field(batch["payload"], list(path)), bare)

        op, before, after = at("op"), pc.is_valid(at("before")), pc.is_valid(at("after"))
        kinds = _kinds(op, ("c", "r", "u"), ("d",))
        nothing = pc.and_(pc.is_null(op), pc.invert(pc.or_(before, after)))
        told = pc.if_else(pc.equal(kinds, DELETE), before, after)  # an operation without its image tells nothing
        nothing = pc.or_(nothing, pc.fill_null(pc.equal(op, "m"), False))
        kinds = pc.if_else(nothing, SKIP, pc.if_else(told, kinds, UNKNOWN)).cast(pa.int8())
        deletes = pc.equal(kinds, DELETE)
        old = {field.id: at("before", field.name) for field in self.keys}
        images = {}
        for field in self._image:
            image = at("after", field.name)
            images[field.id] = pc.if_else(deletes, old[field.id], image) if field.id in old else image
        parts = [at(*path.split(".")) for path in self.settings.sequence_from]
        ddl = pc.sum(pc.and_(nothing, pc.is_valid(at("databaseName")))).as_py() or 0
        marks = {field.id: at("after", mark_name(field.name)) for field in self.marked}
        unavailable = _unavailable(images, kinds, self.settings, marks)
        created = pc.fill_null(pc.equal(op, "c"), False)
        return ChangeBatch(kinds, images, old, _sequence(parts, self.sequence), created, unavailable, ddl)


Envelope: TypeAlias = ColumnEnvelope | DebeziumEnvelope


def envelope(
    fields: Sequence[Field],
    keys: Sequence[Field],
    sequence: Field,
    settings: CdcSettings,
    *,
    reject_extra: bool,
    text_positions: Mapping[str, bool],
    unused: Sequence[str] = (),
    marked: Sequence[Field] = (),
) -> Envelope:
    """The envelope of a table's files.

    Args:
        fields: the table's columns.
        reject_extra: whether a row with a column that the table does not have is bad.
        unused: columns of the file's rows that are read and left out.
        text_positions: whether the file has text at the sequence's paths in the envelope, by path.
        marked: columns for which the file is asked to mark unavailable values (``mark_name``).
    """
    known, left_out, marks = tuple(fields), tuple(unused), tuple(marked)
    if settings.envelope == "debezium":
        return DebeziumEnvelope(known, tuple(keys), sequence, settings, reject_extra, text_positions, left_out, marks)
    return ColumnEnvelope(known, sequence, settings, left_out, marks)


def _mark_fields(marked: Sequence[Field]) -> list[pa.Field]:
    return [pa.field(mark_name(field.name), pa.int8()) for field in marked]


def _unavailable(
    images: dict[int, pa.Array], kinds: pa.Array, settings: CdcSettings, marks: Mapping[int, pa.Array]
) -> dict[int, pa.BooleanArray]:
    """The upserts whose value the source left out, by column; in ``images`` they become NULL."""
    placeholder, upserts = UnavailableValue.of(settings.unavailable_value), pc.equal(kinds, UPSERT)
    found: dict[int, pa.BooleanArray] = {}
    for id_, values in images.items():
        placed = placeholder.find(values)
        if id_ in marks and marks[id_].null_count < len(values):
            marked = pc.is_valid(marks[id_])
            placed = marked if placed is None else pc.or_(marked, pc.fill_null(placed, False))
        if placed is not None:
            found[id_] = pc.and_(pc.fill_null(placed, False), upserts)
            images[id_] = pc.if_else(found[id_], pa.scalar(None, values.type), values)
    return found


def _kinds(words: pa.Array, upserts: Sequence[str | None], deletes: Sequence[str]) -> pa.Array:
    known = pc.is_in(words, pa.array(upserts, pa.string()), skip_nulls=None not in upserts)
    gone = pc.is_in(words, pa.array(deletes, pa.string()), skip_nulls=True)
    return pc.if_else(known, UPSERT, pc.if_else(gone, DELETE, UNKNOWN)).cast(pa.int8())


def _sequence(parts: list[pa.Array], field: Field) -> pa.Array:
    """Joins the values at the paths to one sequence; NULL where one is missing."""
    if t.is_integer(field.arrow_type) and t.is_string(parts[0].type):
        return parse_position(parts[0]).cast(field.arrow_type)
    if not t.is_string(field.arrow_type):
        return parts[0]
    texts = [plain_text(part) if t.is_string(part.type) else part.cast(pa.string()) for part in parts]
    return pc.binary_join_element_wise(*map(_pad_digits, texts), "/")


def _pad_digits(text: pa.Array) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(text, "^[0-9]+$"), pc.utf8_lpad(text, DIGITS, "0"), text)


def _insert_field(tree: _Tree, path: list[str], kind: pa.DataType) -> None:
    """Puts a field of this type at a path."""
    name, rest = path[0], path[1:]
    below = tree.setdefault(name, {} if rest else pa.field(name, kind))
    if isinstance(below, dict) != bool(rest):
        raise SchemaError(f"property cdc_sequence_from: one path ends at {name!r}, another goes on from there")
    if isinstance(below, dict):
        _insert_field(below, rest, kind)


def _fields(tree: _Tree) -> list[pa.Field]:
    return [
        below if isinstance(below, pa.Field) else pa.field(name, pa.struct(_fields(below)))
        for name, below in tree.items()
    ]
