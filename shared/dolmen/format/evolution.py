"""Changes of a table's columns: each makes a new entry of the table, and touches no file.

A column is its id. Files keep the columns that they were written with; readers map them by the entry alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.base.records import replace, repr_without
from dolmen.errors import InputError, LimitError, SchemaError
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
from dolmen.format.column_terms import parse_sort_key, partition_terms, sort_ids, sort_terms
from dolmen.format.manifest import (
    CHECKS,
    COLUMN_DEFAULTS,
    DEFAULT_FUNCTIONS,
    WIDENED_COLUMNS,
    Mark,
    Sequences,
    TableEntry,
)
from dolmen.format.properties import check_comment, named_columns, sequence_column, with_renamed_column
from dolmen.format.schema import (
    CheckConstraint,
    Default,
    DefaultFunction,
    Field,
    Schema,
    check_column_names,
    is_nested,
    number_field,
    stored_type,
    time_json,
)
from dolmen.format.types import short_type


class SchemaChange(Protocol):
    """One change of a table's columns, by their names at that time."""

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        """The table's entry after the change, which has the timestamp ``ts``. Raises SchemaError."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it changes."""


class _ColumnChange(Struct, frozen=True):
    name: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)


class AddColumn(_ColumnChange, frozen=True):
    """Adds a column at the end."""

    type: pa.DataType  # an Arrow type that can be stored
    nullable: bool = True
    # JSON form of the value in existing rows and, until it is changed, in new rows without one. For ``now()`` existing
    # rows get the time of the commit, and for ``uuid()`` NULL.
    default: Default = None
    comment: str = ""
    # whether a name with dots may be the path of a field inside a column, and not a column's own name. It is not in
    # the repr, whose digest identifies a request.
    is_path: bool = True

    def __repr__(self) -> str:
        return repr_without(self, "is_path")

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        schema = entry.schema
        path = NestedPath.of(schema, self.name) if self.is_path else None
        if path is not None:
            return self._apply_inside(path, entry, ts)
        if self.is_path and "." in self.name:
            own = unquote_name(self.name)
            if own is None:
                above = self.name.rpartition(".")[0]
                raise SchemaError(
                    f"no column {above!r} with fields, so none can be added as {self.name!r}; there are: "
                    f"{', '.join(field.name for field in schema.fields)}. A column whose own name has a dot is "
                    f'added in double quotes: "{self.name}"'
                )
            return replace(self, name=own, is_path=False).apply(entry, ts)
        is_random = self.default == DefaultFunction("uuid")
        if not self.nullable and is_random:
            raise SchemaError(
                f"column {self.name!r} is not nullable, and existing rows get no uuid(): add it, update it, and then "
                "set_not_null"
            )
        if not self.nullable and self.default is None:
            raise SchemaError(
                f"column {self.name!r} is not nullable and has no default, so existing rows would have no value in it: "
                "give a default"
            )
        field, next_id = number_field(pa.field(self.name, self.type, self.nullable), schema.next_id)
        _check_default(field, self.default)
        check_column_names([*(column.name for column in schema.fields), self.name])
        initial = self.default
        if isinstance(initial, DefaultFunction):
            initial = None if is_random else time_json(ts, field.arrow_type)
        added = msgspec.structs.replace(
            field, comment=self.comment, added_ts=ts, initial_default=initial, **_default_members(self.default)
        )
        return _with_fields(entry, (*schema.fields, added), next_id=next_id, altered_ts=ts)

    def _apply_inside(self, path: NestedPath, entry: TableEntry, ts: int) -> TableEntry:
        if not self.nullable or self.default is not None:
            raise SchemaError(
                f"field {self.name!r} is inside a column: it is NULL in existing rows, and has no default"
            )
        if self.comment:
            raise SchemaError(f"field {self.name!r} is inside a column: only columns have comments")
        field, next_id = number_field(pa.field(path.name, self.type), entry.schema.next_id)
        added = msgspec.structs.replace(field, added_ts=ts)
        return _with_column(entry, path.change(lambda fields: (*fields, added)), ts, next_id)


class DropColumn(_ColumnChange, frozen=True):
    """Drops a column. Files keep its values until they are compacted; no scan returns them again."""

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        schema = entry.schema
        path = NestedPath.of(schema, self.name)
        if path is not None:
            _refuse_if_checked(schema, path.column, "drop the check first")
            return _with_column(entry, path.change(lambda fields: _without(fields, path.find(fields))), ts)
        field = schema.field(self.name)
        if len(schema.fields) == 1:
            raise SchemaError(f"column {self.name!r} is the only one: drop the table")
        if field.id in entry.primary_key:
            raise SchemaError(f"column {self.name!r} is part of the primary key, by which rows are replaced")
        if field.id in sort_ids(entry.sort_key):
            raise SchemaError(f"column {self.name!r} is part of the sort key: set another one first")
        if used := named_columns(entry.properties).get(field.name):
            raise SchemaError(f"column {self.name!r} is named by the setting {used}: change that first")
        _refuse_if_checked(schema, field, "drop the check first")
        return _with_fields(entry, _without(schema.fields, field), dropped=(*schema.dropped, field))


class RenameColumn(Struct, frozen=True):
    """Gives a column another name. Settings that name it follow."""

    name: str
    to: str

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        path = NestedPath.of(entry.schema, self.name)
        if path is not None:
            if "." in self.to:
                raise SchemaError(
                    f"field {self.name!r} can't be called {self.to!r}: the new name is the field's own, without the "
                    "path to it, and without dots"
                )
            return _with_column(entry, path.replace(lambda field: msgspec.structs.replace(field, name=self.to)), ts)
        field = entry.schema.field(self.name)
        if field.name == self.to:
            raise InputError(f"column {self.name!r} has this name already: give another one")
        if _identifies_changes(entry, field):
            raise SchemaError(
                f"column {self.name!r} identifies or orders changes (CDC), and deletes are remembered by it, so it "
                "can't be renamed"
            )
        fields = _replace_field(entry.schema, msgspec.structs.replace(field, name=self.to))
        check_column_names([column.name for column in fields])
        properties = with_renamed_column(entry.properties, field.name, self.to)
        return msgspec.structs.replace(_with_fields(entry, fields, altered_ts=ts), properties=properties)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.name, self.to


class WidenColumn(_ColumnChange, frozen=True):
    """Gives a column a type that has all values of its own. Files keep the narrower type, and are read exactly."""

    type: pa.DataType

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        wide = stored_type(self.type)
        path = NestedPath.of(entry.schema, self.name)
        if path is not None:
            return _with_column(entry, path.replace(lambda field: self._widen_inside(field, wide)), ts)
        field = entry.schema.field(self.name)
        narrow = field.arrow_type
        _check_widening(f"column {self.name!r}", narrow, wide, widening_problem)
        if _identifies_changes(entry, field):
            raise SchemaError(
                f"column {self.name!r} identifies or orders changes (CDC), and deletes are remembered by its values, "
                "so its type can't change"
            )
        _check_transforms(entry, field, wide)
        if pa.types.is_floating(narrow):
            _refuse_if_checked(
                entry.schema, field, "its values may then compare differently: drop the check, and add it again"
            )
        if not can_widen(field.write_default, narrow, wide):
            raise SchemaError(
                f"column {self.name!r} can't become a timestamp: its default is a day before -290308 or after 294247, "
                "the years that timestamps have: give it another default first"
            )
        return self.widen(entry, ts)

    def widen(self, entry: TableEntry, ts: int) -> TableEntry:
        """The entry with the wider type of a whole column, without a check for changes (CDC)."""
        field, wide = entry.schema.field(self.name), stored_type(self.type)
        narrow = field.arrow_type
        changed = msgspec.structs.replace(
            field,
            type=str(wide),
            widened_ts=ts,
            initial_default=widen(field.initial_default, narrow, wide),
            write_default=widen(field.write_default, narrow, wide),
        )
        if entry.sequences is not None and field.name == sequence_column(entry.properties):
            entry = msgspec.structs.replace(entry, sequences=_widen_sequences(entry.sequences, narrow, wide))
        entry = _with_fields(entry, _replace_field(entry.schema, changed), altered_ts=ts)
        return widen_entry(entry, {field.id: (narrow, wide)} if is_date_to_timestamp(narrow, wide) else {})

    def _widen_inside(self, field: Field, wide: pa.DataType) -> Field:
        _check_widening(f"field {self.name!r}", field.arrow_type, wide, nested_widening_problem)
        return msgspec.structs.replace(field, type=str(wide))


def _check_widening(
    what: str, narrow: pa.DataType, wide: pa.DataType, find_problem: Callable[[pa.DataType, pa.DataType], str]
) -> None:
    if narrow == wide:
        raise SchemaError(f"{what} has the type {short_type(wide)} already")
    if reason := find_problem(narrow, wide):
        raise SchemaError(f"{what} can't change from {short_type(narrow)} to {short_type(wide)}: {reason}")


def _check_transforms(entry: TableEntry, field: Field, wide: pa.DataType) -> None:
    """Raises SchemaError if a partition or a sort key has a transform of the column that its wider type does not."""
    transforms = [term.transform for term in partition_terms(entry.properties) if term.column == field.name]
    transforms += [term.transform for term in sort_terms(entry.sort_key) if term.id == field.id]
    for transform in transforms:
        if transform.name == "identity":  # every type that a column can become has it
            continue
        try:
            transform.check(field.name, wide)
        except SchemaError:
            raise SchemaError(
                f"column {field.name!r} can't change from {short_type(field.arrow_type)} to {short_type(wide)}: its "
                f"table is split or sorted by {transform} of it, which that type does not have; change partition_by "
                "or the sort key first"
            ) from None


class MakeNullable(_ColumnChange, frozen=True):
    """Allows NULL in a column."""

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        path = NestedPath.of(entry.schema, self.name)
        if path is not None:
            return _with_column(entry, path.replace(lambda field: msgspec.structs.replace(field, nullable=True)), ts)
        field = entry.schema.field(self.name)
        if field.id in entry.primary_key:
            raise SchemaError(f"column {self.name!r} is part of the primary key, which is never NULL")
        return _with_fields(entry, _replace_field(entry.schema, msgspec.structs.replace(field, nullable=True)))


class SetNotNull(_ColumnChange, frozen=True):
    """Forbids NULL in a column. The caller has made sure that there is none."""

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        field = entry.schema.field(self.name)
        return _with_fields(entry, _replace_field(entry.schema, msgspec.structs.replace(field, nullable=False)))


class AddPrimaryKey(Struct, frozen=True):
    """Gives a table a primary key. The caller has made sure that its values are distinct, and none is NULL."""

    columns: tuple[str, ...]

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        if entry.primary_key:
            names = ", ".join(entry.schema.names_of(entry.primary_key))
            raise SchemaError(f"there is a primary key already ({names}), which can't change: make another table")
        ids = tuple(entry.schema.field(name).id for name in self.columns)
        for name in self.columns:
            entry = SetNotNull(name).apply(entry, ts)
        return msgspec.structs.replace(entry, primary_key=ids)


MAX_CHECKS = 100  # the most checks of a table: each row is compared with all of them


class AddCheck(Struct, frozen=True):
    """Adds a check. The caller has made sure that it is FALSE for no row."""

    check: CheckConstraint
    needs: tuple[str, ...] = ()  # features of the format that its condition uses

    def __repr__(self) -> str:
        return repr_without(self, "needs")

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        schema, name = entry.schema, self.check.name
        if any(check.name.lower() == name.lower() for check in schema.checks):
            raise SchemaError(f"there is a check {name!r} already: drop it first, or choose another name")
        if len(schema.checks) >= MAX_CHECKS:
            raise LimitError(f"a table has at most {MAX_CHECKS} checks: join some of them by AND")
        return _with_checks(entry, (*schema.checks, self.check))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.check.name,)


class DropCheck(_ColumnChange, frozen=True):
    """Drops the check of this name."""

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        checks = entry.schema.checks
        remaining = tuple(check for check in checks if check.name.lower() != self.name.lower())
        if len(remaining) == len(checks):
            names = ", ".join(check.name for check in checks) or "none"
            raise SchemaError(f"no check {self.name!r}; there are: {names}")
        return _with_checks(entry, remaining)


class SetDefault(_ColumnChange, frozen=True):
    """Changes the value of new rows that lack the column; existing rows keep theirs."""

    default: Default

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        field = entry.schema.field(self.name)
        _check_default(field, self.default)
        changed = msgspec.structs.replace(field, **_default_members(self.default))
        return _with_fields(entry, _replace_field(entry.schema, changed))


class Reorder(Struct, frozen=True):
    """Changes the order in which scans return columns: these first, then the others in their order."""

    columns: tuple[str, ...]

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        first = [entry.schema.field(name) for name in self.columns]
        if len({field.id for field in first}) < len(first):
            raise SchemaError(f"a column occurs twice in {list(self.columns)}")
        return _with_fields(entry, (*first, *(field for field in entry.schema.fields if field not in first)))


class SetComment(_ColumnChange, frozen=True):
    """Describes a column, for people; an empty text removes the comment."""

    comment: str

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        check_comment(self.comment)
        field = entry.schema.field(self.name)
        return _with_fields(entry, _replace_field(entry.schema, msgspec.structs.replace(field, comment=self.comment)))


class SetSortKey(Struct, frozen=True):
    """Sorts new rows by other terms. Compaction sorts existing files so."""

    columns: tuple[str, ...]

    def apply(self, entry: TableEntry, ts: int) -> TableEntry:
        return msgspec.structs.replace(entry, sort_key=parse_sort_key(self.columns, entry.schema))


def unquote_name(name: str) -> str | None:
    """The column's own name in double quotes, as in SQL; None without them."""
    return name[1:-1].replace('""', '"') if len(name) > 2 and name[0] == name[-1] == '"' else None


def needed_features(schema: Schema) -> tuple[str, ...]:
    """The features of the format that a reader of such columns must know."""
    defaults = [COLUMN_DEFAULTS] if any(field.initial_default is not None for field in schema.fields) else []
    widened = [WIDENED_COLUMNS] if any(field.widened_ts for field in schema.fields) else []
    functions = [DEFAULT_FUNCTIONS] if any(field.write_function for field in schema.fields) else []
    return (*defaults, *widened, *([CHECKS] if schema.checks else ()), *functions)


def check_written_under(schema: Schema, entry: TableEntry, base_ts: int) -> None:
    """Checks that files of older columns may become part of a table.

    Raises SchemaError: a column of the files is dropped, or they do not tell the values of one of the table's columns.

    Args:
        schema: the columns when the files were written.
        base_ts: see ``same_column``.
    """
    now = entry.schema
    for field in schema.fields:
        present = same_column(now, field, base_ts)
        if present is None:
            other_type = next((one.type for one in now.fields if one.id == field.id and one.type != field.type), None)
            what = "was dropped" if other_type is None else f"is {other_type}, and was {field.type} before,"
            raise SchemaError(f"column {field.name!r} {what} meanwhile")
    written = {field.id for field in schema.fields}
    for field in now.fields:
        if field.id not in written and (field.write_function or field.initial_default != field.write_default):
            raise SchemaError(f"column {field.name!r} was added meanwhile, and its default changed")


def with_constraints(written: TableEntry, entry: TableEntry) -> TableEntry:
    """The entry of a table with its older columns, and the constraints that rows in these must meet now."""
    before, now = written.schema, entry.schema
    ids, required = {field.id for field in before.fields}, {field.id for field in now.fields if not field.nullable}
    fields = tuple(
        msgspec.structs.replace(field, nullable=False) if field.nullable and field.id in required else field
        for field in before.fields
    )
    checks = tuple(check for check in now.checks if ids.issuperset(check.columns))
    if (fields, checks) == (before.fields, before.checks):
        return written
    return msgspec.structs.replace(written, schema=msgspec.structs.replace(before, fields=fields, checks=checks))


def same_column(schema: Schema, field: Field, base_ts: int) -> Field | None:
    """Finds a column of an older version in this one, perhaps with a wider type; None if it was dropped.

    A table that was dropped and restored may use an id twice, so the time of the column's addition counts too. A column
    that the same commit adds has no such time before the commit, and its id is its own. ``base_ts``: ``commit_ts`` of
    the version on which this one is made.
    """
    column = next((one for one in schema.fields if one.id == field.id), None)
    if column is None or not is_successor(field.type, column.type, base_ts):
        return None
    return column if column.added_ts > base_ts or column.added_ts == field.added_ts else None


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


def _refuse_if_checked(schema: Schema, field: Field, advice: str) -> None:
    """Raises SchemaError if a check names a column."""
    if check := next((check for check in schema.checks if field.id in check.columns), None):
        raise SchemaError(f"column {field.name!r} is named by the check {check.name!r}: {advice}")


def _with_checks(entry: TableEntry, checks: tuple[CheckConstraint, ...]) -> TableEntry:
    return msgspec.structs.replace(entry, schema=msgspec.structs.replace(entry.schema, checks=checks))


def _default_members(default: Default) -> dict[str, Any]:
    """The members of a field that say what its default is."""
    if isinstance(default, DefaultFunction):
        return {"write_default": None, "write_function": default.name}
    return {"write_default": default, "write_function": ""}


def _check_default(field: Field, default: Default) -> None:
    if is_nested(field.arrow_type) and default is not None:
        raise SchemaError(f"column {field.name!r} of type {short_type(field.arrow_type)} can have no default but NULL")


def _with_fields(entry: TableEntry, fields: Sequence[Field], **changes: Any) -> TableEntry:
    schema = msgspec.structs.replace(entry.schema, fields=tuple(fields), **changes)
    return msgspec.structs.replace(entry, schema=schema)


def _with_column(entry: TableEntry, changed: Field, ts: int, next_id: int | None = None) -> TableEntry:
    """The entry with other fields inside a column. Raises SchemaError: the column is nested too deeply."""
    stored_type(changed.arrow_type)
    fields = _replace_field(entry.schema, msgspec.structs.replace(changed, widened_ts=ts))
    return _with_fields(entry, fields, next_id=next_id or entry.schema.next_id, altered_ts=ts)


def _without(fields: tuple[Field, ...], dropped: Field) -> tuple[Field, ...]:
    return tuple(field for field in fields if field.id != dropped.id)


def _replace_field(schema: Schema, changed: Field) -> tuple[Field, ...]:
    return tuple(changed if field.id == changed.id else field for field in schema.fields)


def _widen_sequences(sequences: Sequences, narrow: pa.DataType, wide: pa.DataType) -> Sequences:
    return msgspec.structs.replace(
        sequences,
        greatest=widen(sequences.greatest, narrow, wide),
        forgotten_through=widen(sequences.forgotten_through, narrow, wide),
        marks=tuple(Mark(mark.ts, widen(mark.greatest, narrow, wide)) for mark in sequences.marks),
    )


def _identifies_changes(entry: TableEntry, field: Field) -> bool:
    if entry.sequences is None:
        return False
    return field.id in entry.primary_key or field.name == sequence_column(entry.properties)
