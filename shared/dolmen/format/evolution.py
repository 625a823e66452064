"""Changes of a table's columns: each makes a new entry of the table, and touches no file.

A column is its id. Files keep the columns that they were written with; what a reader makes of a file follows from the
entry alone. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from dolmen.errors import InputError, SchemaError
from dolmen.format.column_history import (
    NestedPath,
    can_widen,
    is_date_to_timestamp,
    is_successor,
    nested_widening_problem,
    widen,
    widen_stats,
    widening_problem,
)
from dolmen.format.manifest import COLUMN_DEFAULTS, WIDENED_COLUMNS, Mark, Sequences, TableEntry
from dolmen.format.properties import columns_named, sequence_column, with_renamed_column
from dolmen.format.schema import (
    Field,
    Schema,
    check_column_names,
    is_nested,
    number_field,
    storable,
)
from dolmen.format.types import Json, short_type

MAX_COMMENT = 1_000
"""Characters of a comment."""


class SchemaChange(Protocol):
    """One change of a table's columns, by their names at that time."""

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """The table's entry after the change, which has the timestamp ``ts``.

        Raises:
            SchemaError: the columns do not allow it.
        """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it changes."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Adds a column at the end.

    Args:
        type: an Arrow type that can be stored.
        default: JSON form of the value in existing rows and, until it is changed, in new rows without one.
        is_path: whether a name with points may be the path of a field inside a column, and not a column's own name.
            It is not in the repr, by which it is known what a request asks for.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    default: Json = None
    comment: str = ""
    is_path: bool = dataclasses.field(default=True, repr=False)

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        schema = entry.schema
        place = NestedPath.of(schema, self.name) if self.is_path else None
        if place is not None:
            return self._apply_inside(place, entry, ts)
        if self.is_path and "." in self.name:
            own = quoted_name(self.name)
            if own is None:
                above = self.name.rpartition(".")[0]
                raise SchemaError(
                    f"no column {above!r} with fields, so none can be added as {self.name!r}; there are: "
                    f"{', '.join(known.name for known in schema.fields)}. A column whose own name has a point is "
                    f"added in double quotes: {chr(34)}{self.name}{chr(34)}"
                )
            return dataclasses.replace(self, name=own, is_path=False).apply(entry, ts)
        if not self.nullable and self.default is None:
            raise SchemaError(
                f"column {self.name!r} is not nullable and has no default, so existing rows would have no value in it: "
                "give a default"
            )
        field, next_id = number_field(pa.field(self.name, self.type, self.nullable), schema.next_id)
        if is_nested(field.arrow_type) and self.default is not None:
            raise SchemaError(
                f"column {self.name!r} of type {short_type(field.arrow_type)} can have no default but NULL"
            )
        check_column_names([*(known.name for known in schema.fields), self.name])
        added = msgspec.structs.replace(
            field, comment=self.comment, added_ts=ts, initial_default=self.default, write_default=self.default
        )
        return _with_fields(entry, (*schema.fields, added), next_id=next_id, altered_ts=ts)

    def _apply_inside(self, place: NestedPath, entry: TableEntry, ts: int) -> TableEntry:
        if not self.nullable or self.default is not None:
            raise SchemaError(
                f"field {self.name!r} is inside of a column: it is NULL in existing rows, and has no default"
            )
        if self.comment:
            raise SchemaError(f"field {self.name!r} is inside of a column: only columns have comments")
        field, next_id = number_field(pa.field(place.name, self.type), entry.schema.next_id)
        added = msgspec.structs.replace(field, added_ts=ts)
        return _with_column(entry, place.change(lambda fields: (*fields, added)), ts, next_id)

    @property
    def columns(self) -> tuple[str, ...]:
        """See SchemaChange."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drops a column. What files hold of it is never shown again, and goes when they are compacted."""

    name: str

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        schema = entry.schema
        place = NestedPath.of(schema, self.name)
        if place is not None:
            return _with_column(entry, place.change(lambda fields: _without(fields, place.find(fields))), ts)
        field = schema.field(self.name)
        if len(schema.fields) == 1:
            raise SchemaError(f"column {self.name!r} is the only one: drop the table")
        if field.id in entry.primary_key:
            raise SchemaError(f"column {self.name!r} is part of the primary key, by which rows are replaced")
        if field.id in entry.sort_key:
            raise SchemaError(f"column {self.name!r} is part of the sort key: set another one first")
        if used := columns_named(entry.properties).get(field.name):
            raise SchemaError(f"column {self.name!r} is named by the setting {used}: change that first")
        left = tuple(known for known in schema.fields if known.id != field.id)
        return _with_fields(entry, left, dropped=(*schema.dropped, field))

    @property
    def columns(self) -> tuple[str, ...]:
        """See SchemaChange."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Gives a column another name. Settings that name it follow."""

    name: str
    to: str

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        place = NestedPath.of(entry.schema, self.name)
        if place is not None:
            if "." in self.to:
                raise SchemaError(
                    f"field {self.name!r} can't be called {self.to!r}: the new name is the field's own, without the "
                    "path to it, and without points"
                )
            return _with_column(entry, place.replace(lambda field: msgspec.structs.replace(field, name=self.to)), ts)
        field = entry.schema.field(self.name)
        if field.name == self.to:
            raise InputError(f"column {self.name!r} has this name already: give another one")
        if _tells_changes(entry, field):
            raise SchemaError(
                f"column {self.name!r} identifies or orders changes (CDC), and deletes are remembered by it, so it "
                "can't be renamed"
            )
        fields = _replaced(entry.schema, msgspec.structs.replace(field, name=self.to))
        check_column_names([known.name for known in fields])
        properties = with_renamed_column(entry.properties, field.name, self.to)
        return msgspec.structs.replace(_with_fields(entry, fields, altered_ts=ts), properties=properties)

    @property
    def columns(self) -> tuple[str, ...]:
        """See SchemaChange."""
        return self.name, self.to


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Gives a column a type that has all values of its own. Files keep the narrower type, and are read exactly."""

    name: str
    type: pa.DataType

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        wide = storable(self.type)
        place = NestedPath.of(entry.schema, self.name)
        if place is not None:
            return _with_column(entry, place.replace(lambda field: self._widened_inside(field, wide)), ts)
        field = entry.schema.field(self.name)
        narrow = field.arrow_type
        if narrow == wide:
            raise SchemaError(f"column {self.name!r} has the type {short_type(wide)} already")
        if reason := widening_problem(narrow, wide):
            raise SchemaError(
                f"column {self.name!r} can't change from {short_type(narrow)} to {short_type(wide)}: {reason}"
            )
        if _tells_changes(entry, field):
            raise SchemaError(
                f"column {self.name!r} identifies or orders changes (CDC), and deletes are remembered by its values, "
                "so its type can't change"
            )
        if not can_widen(field.write_default, narrow, wide):
            raise SchemaError(
                f"column {self.name!r} can't become a timestamp: its default is a day before -290308 or after 294247, "
                "the years that timestamps have: give it another default first"
            )
        return self.widen(entry, ts)

    def widen(self, entry: TableEntry, ts: int) -> TableEntry:
        """The entry with the wider type of a whole column, without looking at what changes (CDC) need."""
        field, wide = entry.schema.field(self.name), storable(self.type)
        narrow = field.arrow_type
        changed = msgspec.structs.replace(
            field,
            type=str(wide),
            widened_ts=ts,
            initial_default=widen(field.initial_default, narrow, wide),
            write_default=widen(field.write_default, narrow, wide),
        )
        if entry.sequences is not None and field.name == sequence_column(entry.properties):
            entry = msgspec.structs.replace(entry, sequences=_widened_sequences(entry.sequences, narrow, wide))
        entry = _with_fields(entry, _replaced(entry.schema, changed), altered_ts=ts)
        return widen_entry(entry, {field.id: (narrow, wide)} if is_date_to_timestamp(narrow, wide) else {})

    def _widened_inside(self, field: Field, wide: pa.DataType) -> Field:
        narrow = field.arrow_type
        if narrow == wide:
            raise SchemaError(f"field {self.name!r} has the type {short_type(wide)} already")
        if reason := nested_widening_problem(narrow, wide):
            raise SchemaError(
                f"field {self.name!r} can't change from {short_type(narrow)} to {short_type(wide)}: {reason}"
            )
        return msgspec.structs.replace(field, type=str(wide))

    @property
    def columns(self) -> tuple[str, ...]:
        """See SchemaChange."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class MakeNullable:
    """Allows NULL in a column."""

    name: str

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        place = NestedPath.of(entry.schema, self.name)
        if place is not None:
            return _with_column(entry, place.replace(lambda field: msgspec.structs.replace(field, nullable=True)), ts)
        field = entry.schema.field(self.name)
        if field.id in entry.primary_key:
            raise SchemaError(f"column {self.name!r} is part of the primary key, which is never NULL")
        return _with_fields(entry, _replaced(entry.schema, msgspec.structs.replace(field, nullable=True)))

    @property
    def columns(self) -> tuple[str, ...]:
        """See SchemaChange."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class SetDefault:
    """Changes the value of new rows that come without the column; existing rows keep theirs."""

    name: str
    default: Json

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        field = entry.schema.field(self.name)
        if is_nested(field.arrow_type) and self.default is not None:
            raise SchemaError(
                f"column {self.name!r} of type {short_type(field.arrow_type)} can have no default but NULL"
            )
        return _with_fields(entry, _replaced(entry.schema, msgspec.structs.replace(field, write_default=self.default)))

    @property
    def columns(self) -> tuple[str, ...]:
        """See SchemaChange."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class Reorder:
    """Changes the order in which scans return columns: these first, the others behind them as they were."""

    columns: tuple[str, ...]

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        first = [entry.schema.field(name) for name in self.columns]
        if len({field.id for field in first}) < len(first):
            raise SchemaError(f"a column stands twice in {list(self.columns)}")
        return _with_fields(entry, (*first, *(field for field in entry.schema.fields if field not in first)))


@dataclass(frozen=True, slots=True)
class SetComment:
    """Says what a column is, for people; an empty text says nothing."""

    name: str
    comment: str

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        check_comment(self.comment)
        field = entry.schema.field(self.name)
        return _with_fields(entry, _replaced(entry.schema, msgspec.structs.replace(field, comment=self.comment)))

    @property
    def columns(self) -> tuple[str, ...]:
        """See SchemaChange."""
        return (self.name,)


@dataclass(frozen=True, slots=True)
class SetSortKey:
    """Sorts rows by other columns from now on. Compaction sorts existing files so."""

    columns: tuple[str, ...]

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """See SchemaChange."""
        fields = tuple(entry.schema.field(name) for name in self.columns)
        if len({field.id for field in fields}) < len(fields):
            raise SchemaError("a column stands twice in the key")
        for field in fields:
            if is_nested(field.arrow_type):
                raise SchemaError(
                    f"rows can't be sorted by column {field.name!r} of type {short_type(field.arrow_type)}"
                )
        return msgspec.structs.replace(entry, sort_key=tuple(field.id for field in fields))


def quoted_name(name: str) -> str | None:
    """The column's own name that stands in double quotes, as in SQL; None without them."""
    return name[1:-1].replace('""', '"') if len(name) > 2 and name[0] == name[-1] == '"' else None


def check_comment(comment: str) -> None:
    """Raises InputError for a comment that is too long."""
    if len(comment) > MAX_COMMENT:
        raise InputError(f"a comment of {len(comment):,} characters: at most {MAX_COMMENT:,} are allowed")


def needed_features(schema: Schema) -> tuple[str, ...]:
    """The features of the format that a reader of such columns must know."""
    needed = {
        COLUMN_DEFAULTS: any(field.initial_default is not None for field in schema.fields),
        WIDENED_COLUMNS: any(field.widened_ts for field in schema.fields),
    }
    return tuple(feature for feature, is_needed in needed.items() if is_needed)


def check_written_under(schema: Schema, entry: TableEntry, base_ts: int) -> None:
    """Checks that files of older columns may become part of a table as it is now.

    Args:
        schema: the columns when the files were written.
        base_ts: see ``same_column``.

    Raises:
        SchemaError: a column of the files is gone, or a value of the table's columns is not known in them.
    """
    now = entry.schema
    for field in schema.fields:
        there = same_column(now, field, base_ts)
        if there is None:
            other_type = next((one.type for one in now.fields if one.id == field.id and one.type != field.type), None)
            what = "was dropped" if other_type is None else f"is {other_type}, and was {field.type} before,"
            raise SchemaError(f"column {field.name!r} {what} meanwhile")
        if field.nullable and not there.nullable:
            raise SchemaError(f"column {field.name!r} does not allow NULL any more")
    written = {field.id for field in schema.fields}
    for field in now.fields:
        if field.id not in written and field.initial_default != field.write_default:
            raise SchemaError(f"column {field.name!r} was added meanwhile, and its default changed")


def same_column(schema: Schema, field: Field, base_ts: int) -> Field | None:
    """Returns the column of this version that a column of an older one is; None if it is not there.

    Its type may have become wider since.

    A table that was dropped and restored may give an id a second time, so the time of the column's addition counts too.
    Of a column that the same commit has added, that time is not known before the commit, and the id is its own.

    Args:
        base_ts: ``commit_ts`` of the version on which this one is made.
    """
    there = next((one for one in schema.fields if one.id == field.id), None)
    if there is None or not is_successor(field.type, there.type, base_ts):
        return None
    return there if there.added_ts > base_ts or there.added_ts == field.added_ts else None


def widen_entry(entry: TableEntry, changes: Mapping[int, tuple[pa.DataType, pa.DataType]]) -> TableEntry:
    """A table's entry with all statistics in the JSON forms of columns' newer types. See ``widen_stats``."""
    if not changes:
        return entry
    return msgspec.structs.replace(
        entry,
        files=tuple(msgspec.structs.replace(file, stats=widen_stats(file.stats, changes)) for file in entry.files),
        segments=tuple(
            msgspec.structs.replace(segment, stats=widen_stats(segment.stats, changes)) for segment in entry.segments
        ),
    )


def _with_fields(
    entry: TableEntry,
    fields: Sequence[Field],
    *,
    next_id: int | None = None,
    dropped: Sequence[Field] | None = None,
    altered_ts: int | None = None,
) -> TableEntry:
    schema = entry.schema
    return msgspec.structs.replace(
        entry,
        schema=msgspec.structs.replace(
            schema,
            fields=tuple(fields),
            next_id=schema.next_id if next_id is None else next_id,
            dropped=schema.dropped if dropped is None else tuple(dropped),
            altered_ts=schema.altered_ts if altered_ts is None else altered_ts,
        ),
    )


def _with_column(entry: TableEntry, changed: Field, ts: int, next_id: int | None = None) -> TableEntry:
    """The entry with other fields inside a column. Raises SchemaError: the column is nested too deeply."""
    storable(changed.arrow_type)
    fields = _replaced(entry.schema, msgspec.structs.replace(changed, widened_ts=ts))
    return _with_fields(entry, fields, next_id=next_id, altered_ts=ts)


def _without(fields: tuple[Field, ...], gone: Field) -> tuple[Field, ...]:
    return tuple(field for field in fields if field.id != gone.id)


def _replaced(schema: Schema, changed: Field) -> tuple[Field, ...]:
    return tuple(changed if field.id == changed.id else field for field in schema.fields)


def _widened_sequences(sequences: Sequences, narrow: pa.DataType, wide: pa.DataType) -> Sequences:
    return msgspec.structs.replace(
        sequences,
        greatest=widen(sequences.greatest, narrow, wide),
        forgotten_through=widen(sequences.forgotten_through, narrow, wide),
        marks=tuple(Mark(mark.ts, widen(mark.greatest, narrow, wide)) for mark in sequences.marks),
    )


def _tells_changes(entry: TableEntry, field: Field) -> bool:
    """Whether a column identifies or orders the changes (CDC) of a table."""
    if entry.sequences is None:
        return False
    return field.id in entry.primary_key or field.name == sequence_column(entry.properties)
