"""Takes changes out of their envelopes, and composes their sequences; docs/cdc.md describes the envelopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.errors import SchemaError
from dolmen.format.ingest_properties import CdcSettings
from dolmen.format.schema import Field, own_names
from dolmen.ingest.cdc.placeholders import UnavailableValue
from dolmen.ingest.formats.source_file import CLOSED, ReadOptions, mark_name

_LSN = r"^(?P<high>[0-9A-Fa-f]{1,8})/(?P<low>[0-9A-Fa-f]{1,8})$"
_DIGITS = r"^[0-9]{1,18}$"


def _parse_position(text: pa.Array) -> pa.Array:
    """Positions in a source's log as int64: digits alone, and PostgreSQL's ``0/16E9458``; NULL for any other text."""
    text = pc.utf8_trim_whitespace(text)
    nothing = pa.scalar(None, pa.string())
    plain = pc.if_else(pc.match_substring_regex(text, _DIGITS), text, nothing).cast(pa.int64())
    halves = pc.extract_regex(text, _LSN)
    high, low = (
        pc.binary_join_element_wise("0x", pc.struct_field(halves, half), "").cast(pa.int64())
        for half in ("high", "low")
    )
    return pc.coalesce(plain, pc.add(pc.multiply(high, 1 << 32), low))


def _plain_position(text: pa.Array) -> pa.Array:
    """Positions in text, with PostgreSQL's ``0/16E9458`` as its number."""
    is_lsn = pc.match_substring_regex(text, _LSN)
    if pc.any(is_lsn).as_py() is not True:
        return text
    return pc.if_else(is_lsn, _parse_position(text).cast(pa.string()), text)


DIGITS = 20
_NUMBERS = frozenset({"lsn", "pos", "row", "ts_ms", "ts_us", "ts_ns", "txId", "total_order", "data_collection_order"})
"""Fields of Debezium's ``source`` and ``transaction`` that are numbers: the parser is fast if asked for numbers."""
_OWN = frozenset({"op", "databaseName", "before", "after", "payload", "schema"})
DELETED_FIELD = "__deleted"  # the field that Debezium adds to rows without an envelope, if deletes are kept among them
_FLAT_UPSERTS = (None, "i", "u", "c", "r", "insert", "update", "false")
_FLAT_DELETES = ("d", "delete", "true")
_Tree: TypeAlias = "dict[str, _Tree | pa.Field]"
UPSERT, DELETE, SKIP, UNKNOWN = 0, 1, 2, 3  # kinds of rows in a file


class ChangeBatch(Struct, frozen=True):
    """A batch of a file's rows, without their envelope."""

    kinds: pa.Array  # UPSERT, DELETE, SKIP or UNKNOWN (int8)
    images: dict[int, pa.Array]  # by column id: the row after the change; for a delete, at least its key
    old_keys: dict[int, pa.Array] | None  # by column id: the key that an upsert had before, NULL if unknown
    sequences: pa.Array  # NULL if missing
    created: pa.Array  # whether the operation says that the change created its row
    # by column id, only for columns with such values: the rows whose value the source left out
    unavailable: dict[int, pa.BooleanArray]
    ddl: int = 0  # messages about the source's columns, which are skipped


@dataclass(slots=True)
class ColumnEnvelope:
    """Rows with a column for the operation, which a file of a full load lacks.

    The first row decides ``has_operation``: a delete without its operation must not become an insert. For the other
    arguments see ``choose_envelope``.
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
        is_composed = bool(paths) and self.sequence.name not in paths  # the file does not have the column
        columns = [field for field in self.fields if not (is_composed and field == self.sequence)]
        kind = self.sequence.arrow_type
        for field in columns:
            if field.name in paths and field.arrow_type != kind and not t.is_string(kind):
                raise SchemaError(f"property cdc_sequence_from: column {field.name!r} is no {kind}, as the sequence is")
        more = [path for path in dict.fromkeys(paths) if path not in {field.name for field in columns}]
        present = {operation, *more, *(field.name for field in columns)}
        return pa.schema(
            [
                (operation, pa.string()),
                *((field.name, field.arrow_type) for field in columns),
                *((path, kind) for path in more),
                *((name, pa.string()) for name in self.unused if name not in present),
                *_mark_fields(self.marked),
            ]
        )

    def options(self, options: ReadOptions) -> ReadOptions:
        return options

    def open(self, batch: pa.RecordBatch) -> ChangeBatch:
        paths = self._paths
        words = pc.ascii_lower(pc.utf8_trim_whitespace(batch[self.settings.operation]))
        if self.settings.envelope == "dms":
            kinds = _kinds(words, (None, "i", "u"), ("d",))
        else:
            kinds = _kinds(words, _FLAT_UPSERTS, _FLAT_DELETES)
        lacks_operation = pc.is_null(words)
        if self.has_operation is None and len(batch):
            self.has_operation = not lacks_operation[0].as_py()
        is_unknown = lacks_operation if self.has_operation else pc.invert(lacks_operation)
        kinds = pc.if_else(is_unknown, UNKNOWN, kinds).cast(pa.int8())
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
    """Events with the row before and after, and their position in the source's log. See ``choose_envelope``."""

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
        own: _Tree = {"op": pa.field("op", pa.string()), "databaseName": pa.field("databaseName", pa.string())}
        for path in self.settings.sequence_from:
            names = path.split(".")
            if names[0] in _OWN:
                raise SchemaError(f"property cdc_sequence_from: {path!r} cannot order deletes; use a path in source")
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
        """The columns that ``after`` has: all but the sequence, which is in the envelope."""
        return [field for field in self.fields if field != self.sequence]

    def _sequence_part_type(self, path: str) -> pa.DataType:
        kind = self.sequence.arrow_type
        if not (t.is_string(kind) or t.is_integer(kind)):
            return kind
        if path in self.text_positions:
            return pa.string() if self.text_positions[path] else kind if t.is_integer(kind) else pa.int64()
        return pa.int64() if t.is_string(kind) and path.rpartition(".")[2] in _NUMBERS else kind

    def options(self, options: ReadOptions) -> ReadOptions:
        return replace(options, extra="ignore", null_lines="skip")

    def open(self, batch: pa.RecordBatch) -> ChangeBatch:
        wrapped = pc.is_valid(batch["payload"])

        def value_at(*path: str) -> pa.Array:
            """The values at a path, below ``payload`` or at the top."""
            bare = pc.struct_field(batch[path[0]], list(path[1:])) if len(path) > 1 else batch[path[0]]
            if not batch["payload"].null_count < len(batch):
                return bare
            return pc.if_else(wrapped, pc.struct_field(batch["payload"], list(path)), bare)

        op, before, after = value_at("op"), pc.is_valid(value_at("before")), pc.is_valid(value_at("after"))
        kinds = _kinds(op, ("c", "r", "u"), ("d",))
        nothing = pc.and_(pc.is_null(op), pc.invert(pc.or_(before, after)))
        has_image = pc.if_else(pc.equal(kinds, DELETE), before, after)
        nothing = pc.or_(nothing, pc.fill_null(pc.equal(op, "m"), False))
        kinds = pc.if_else(nothing, SKIP, pc.if_else(has_image, kinds, UNKNOWN)).cast(pa.int8())
        deletes = pc.equal(kinds, DELETE)
        old = {field.id: value_at("before", field.name) for field in self.keys}
        images = {}
        for field in self._image:
            image = value_at("after", field.name)
            images[field.id] = pc.if_else(deletes, old[field.id], image) if field.id in old else image
        parts = [value_at(*path.split(".")) for path in self.settings.sequence_from]
        ddl = pc.sum(pc.and_(nothing, pc.is_valid(value_at("databaseName")))).as_py() or 0
        marks = {field.id: value_at("after", mark_name(field.name)) for field in self.marked}
        unavailable = _unavailable(images, kinds, self.settings, marks)
        created = pc.fill_null(pc.equal(op, "c"), False)
        return ChangeBatch(kinds, images, old, _sequence(parts, self.sequence), created, unavailable, ddl)


Envelope: TypeAlias = ColumnEnvelope | DebeziumEnvelope


def choose_envelope(
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
    """Chooses the envelope of a table's files.

    Args:
        reject_extra: whether a row with a column that the table does not have is bad.
        text_positions: whether the file has text at the sequence's paths in the envelope, by path.
        unused: columns of the file's rows to read and leave out.
        marked: columns whose unavailable values are marked (``mark_name``).
    """
    columns, left_out, marks = tuple(fields), tuple(unused), tuple(marked)
    if settings.envelope == "debezium":
        return DebeziumEnvelope(columns, tuple(keys), sequence, settings, reject_extra, text_positions, left_out, marks)
    return ColumnEnvelope(columns, sequence, settings, left_out, marks)


def _mark_fields(marked: Sequence[Field]) -> list[pa.Field]:
    return [pa.field(mark_name(field.name), pa.int8()) for field in marked]


def _unavailable(
    images: dict[int, pa.Array], kinds: pa.Array, settings: CdcSettings, marks: Mapping[int, pa.Array]
) -> dict[int, pa.BooleanArray]:
    """The upserts whose value the source left out, by column; in ``images`` they become NULL."""
    placeholder, upserts = UnavailableValue.of(settings.unavailable_value), pc.equal(kinds, UPSERT)
    unavailable: dict[int, pa.BooleanArray] = {}
    for id_, values in images.items():
        mask = placeholder.find(values)
        if id_ in marks and marks[id_].null_count < len(values):
            marked = pc.is_valid(marks[id_])
            mask = marked if mask is None else pc.or_(marked, pc.fill_null(mask, False))
        if mask is not None:
            unavailable[id_] = pc.and_(pc.fill_null(mask, False), upserts)
            images[id_] = pc.if_else(unavailable[id_], pa.scalar(None, values.type), values)
    return unavailable


def _kinds(words: pa.Array, upserts: Sequence[str | None], deletes: Sequence[str]) -> pa.Array:
    is_upsert = pc.is_in(words, pa.array(upserts, pa.string()), skip_nulls=None not in upserts)
    is_delete = pc.is_in(words, pa.array(deletes, pa.string()), skip_nulls=True)
    return pc.if_else(is_upsert, UPSERT, pc.if_else(is_delete, DELETE, UNKNOWN)).cast(pa.int8())


def _sequence(parts: list[pa.Array], field: Field) -> pa.Array:
    """Joins the values at the paths to one sequence; NULL where one is missing."""
    if t.is_integer(field.arrow_type) and t.is_string(parts[0].type):
        return _parse_position(parts[0]).cast(field.arrow_type)
    if not t.is_string(field.arrow_type):
        return parts[0]
    texts = [_plain_position(part) if t.is_string(part.type) else part.cast(pa.string()) for part in parts]
    padded = [
        pc.if_else(pc.match_substring_regex(text, "^[0-9]+$"), pc.utf8_lpad(text, DIGITS, "0"), text) for text in texts
    ]
    return pc.binary_join_element_wise(*padded, "/")


def _insert_field(tree: _Tree, path: list[str], kind: pa.DataType) -> None:
    """Puts a field of this type at a path."""
    name, rest = path[0], path[1:]
    below = tree.setdefault(name, {} if rest else pa.field(name, kind))
    if isinstance(below, dict) != bool(rest):
        raise SchemaError(f"property cdc_sequence_from: one path ends at {name!r}, and another continues from there")
    if isinstance(below, dict):
        _insert_field(below, rest, kind)


def _fields(tree: _Tree) -> list[pa.Field]:
    return [
        below if isinstance(below, pa.Field) else pa.field(name, pa.struct(_fields(below)))
        for name, below in tree.items()
    ]
