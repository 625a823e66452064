"""The columns of a table that is made of Parquet files, found in the files by field ids or by names.

Reasons why files cannot be adopted are all collected before any is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from dolmen.adopt.candidate_file import FileShape
from dolmen.errors import AdoptionError, SchemaError
from dolmen.format.column_history import has_same_fields, is_date_to_timestamp, widening_problem
from dolmen.format.layout import ColumnsBy
from dolmen.format.schema import (
    COMMIT_TS_ID,
    Field,
    MappedColumn,
    Schema,
    check_column_names,
    child_fields,
    field_id,
    field_id_metadata,
    is_nested,
    type_to_json,
)
from dolmen.format.types import short_type
from dolmen.rows.scan.data_objects import AdoptedColumn, find_mapped_column

_MOST_LINES = 50

READ_BY_ENGINE = (
    "Do not load its files: they may contain rows that the table has deleted. Read the table with an engine of its "
    "format, and append the rows that it returns"
)
"""The advice for tables of other formats: only their metadata shows which rows of the files are deleted."""


class AdoptionRefusals:
    """Collects reasons by file and column. A reason that many files share is one line with their number."""

    def __init__(self, *advice: str) -> None:
        self._reasons: dict[tuple[str, str], tuple[int, str]] = {}
        self._advice = advice
        """The advice that ends the error; empty for that of ``AdoptionError``."""
        self.belong_to_table = False
        """True if the files belong to a table of another format: they must not be loaded either."""

    def add(self, file: str, reason: str, column: str = "", files: int = 1) -> None:
        """Adds a reason that applies to some files; "" means all files, or no particular column."""
        count, first = self._reasons.get((column, reason), (0, file))
        self._reasons[column, reason] = count + files, first

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def lines(self) -> list[str]:
        """The reasons as text, those about columns last."""
        lines = []
        for (column, reason), (files, first) in sorted(self._reasons.items()):
            about = f"column {column!r}: " if column else ""
            where = f" ({f'{files:,} files, the first is ' if files > 1 else ''}{first})" if first else ""
            lines.append(f"{about}{reason}{where}")
        return lines

    def check(self, source: str) -> None:
        """Raises AdoptionError, whose message names ``source``, if there is any reason."""
        if not self._reasons:
            return
        lines = self.lines()
        more = [f"... and {len(lines) - _MOST_LINES:,} more reasons"] if len(lines) > _MOST_LINES else []
        advice = [READ_BY_ENGINE] if self.belong_to_table else self._advice
        raise AdoptionError(source, [*lines[:_MOST_LINES], *more], *advice)


NARROWER = 1
"""The value of ``widened_ts`` before the commit, for a column that is narrower, or has other fields, in some files."""

_GREATEST_ID = 2_147_483_447  # Iceberg reserves greater field ids for its own columns, such as row ids


@dataclass(frozen=True)
class FilesOfShape:
    """Files with the same columns: their number, and the first of them, for messages."""

    shape: FileShape
    files: int
    first: str


@dataclass(frozen=True)
class AdoptedColumns:
    """The schema, with a mapping of names if some files lack field ids, and each shape's way to find columns."""

    schema: Schema
    columns_by: tuple[ColumnsBy, ...]


def columns_of_files(
    shapes: Sequence[FilesOfShape], refusals: AdoptionRefusals, folders: Sequence[pa.Field] = ()
) -> AdoptedColumns:
    """The columns of plain files, then of folders. Adds reasons to ``refusals``: if there are any, ignore the result.

    Columns of the same name must have the same type in all files. A column that a file lacks is NULL in its rows.
    """
    by_name: dict[str, list[tuple[FilesOfShape, AdoptedColumn]]] = {}
    for each in shapes:
        for unreadable in each.shape.unreadable:
            refusals.add(each.first, unreadable.reason, unreadable.name, each.files)
        for column in each.shape.columns:
            by_name.setdefault(column.name, []).append((each, column))
        refuse_repeated_names(each, refusals)
    for name, group in by_name.items():
        _add_conflicts(name, group, refusals)
    columns_by = tuple(decide_columns_by(each, refusals) for each in shapes)
    try:
        check_column_names([*by_name, *(field.name for field in folders)])
        if not by_name and not refusals:
            raise SchemaError("a table needs at least one column")
    except SchemaError as error:
        refusals.add("", str(error))
    if refusals:
        return AdoptedColumns(Schema((), 1), columns_by)
    merged = []
    for name, group in by_name.items():
        best = next((column for _, column in group if column.id is not None), group[0][1])
        nullable = len(group) < len(shapes) or any(column.nullable for _, column in group)
        metadata = None if best.id is None else field_id_metadata(best.id)
        merged.append(pa.field(name, best.type, nullable, metadata))
    merged += folders
    own_ids = [id_ for field in merged for id_ in _ids(field)]
    ids = iter(range(max(own_ids, default=0) + 1, COMMIT_TS_ID))
    fields = tuple(_number_field(field, ids) for field in merged)
    schema = Schema(fields, next(ids))
    if "names" in columns_by:
        schema = msgspec.structs.replace(schema, mapping=tuple(map(map_column, fields[: len(by_name)])))
    return AdoptedColumns(schema, columns_by)


def refuse_repeated_names(each: FilesOfShape, refusals: AdoptionRefusals) -> None:
    """Refuses files that have a column twice."""
    for name, count in Counter(column.name for column in each.shape.columns).items():
        if count > 1:
            refusals.add(each.first, "the file has two columns of this name", name, each.files)


def map_column(field: Field) -> MappedColumn:
    """A column in the mapping of names to ids, with the current names of the column and its fields.

    The element of a list and the key and value of a map have the names that Iceberg's readers expect.
    """
    inner = list(map(map_column, child_fields(field.type)))
    if isinstance(field.type, dict) and "struct" not in field.type:
        names = ("element",) if "list" in field.type else ("key", "value")
        inner = [msgspec.structs.replace(each, names=(name,)) for each, name in zip(inner, names, strict=True)]
    return MappedColumn(field.id, (field.name,), tuple(inner))


def ids_by_name(shape: FileShape, schema: Schema, columns_by: ColumnsBy) -> dict[str, int]:
    """The ids of a file's columns that the table has, by name in the file."""
    ids: dict[str, int] = {}
    for column in shape.columns:
        source = column if columns_by == "ids" else find_mapped_column(schema.mapping, column.name)
        if source is not None and source.id is not None and source.id in schema.by_id:
            ids[column.name] = source.id
    return ids


def compare_column(column: AdoptedColumn | None, field: Field) -> tuple[str, bool]:
    """The reason why a file's column cannot be the table's column, and True if it is narrower or has other fields."""
    if column is None:
        lacks = not field.nullable and field.initial_default is None
        return ("the file lacks it, and it cannot be NULL" if lacks else ""), False
    current = field.arrow_type
    reason = next(_mismatches(column.type, current), "")
    if is_nested(current):
        return reason, not has_same_fields(column.type, current)
    return reason, column.type != current


def _mismatches(file_type: pa.DataType, current: pa.DataType) -> Iterator[str]:
    if not is_nested(file_type) or not is_nested(current):
        if is_date_to_timestamp(file_type, current):
            yield "it is a date in the file, and a timestamp in the table"
        elif reason := widening_problem(file_type, current):
            yield f"it is {file_type} in the file, and {current} in the table: {reason}"
        return
    if file_type.id != current.id:
        yield f"it is {file_type} in the file, and {current} in the table"
        return
    by_id = {field_id(file_type.field(index)): file_type.field(index) for index in range(file_type.num_fields)}
    for index in range(current.num_fields):
        field = current.field(index)
        same = by_id.get(field_id(field))
        if same is None and (not pa.types.is_struct(current) or not field.nullable):
            yield f"the file lacks the field {field.name!r} inside it"
        elif same is not None:
            yield from _mismatches(same.type, field.type)


def field_ids(columns: Iterable[AdoptedColumn]) -> list[int | None]:
    """The field ids of a file's columns and of all fields inside them; None for a field without id."""
    ids: list[int | None] = []
    for column in columns:
        ids += [column.id, *_inner_ids(column.type)]
    return ids


def decide_columns_by(each: FilesOfShape, refusals: AdoptionRefusals) -> ColumnsBy:
    """Decides how to find the columns of files: by ids if all columns have one, otherwise by names."""
    ids = field_ids(each.shape.columns)
    if all(id_ is None for id_ in ids):
        return "names"
    if None in ids:
        refusals.add(each.first, "some columns of the file have field ids, and others have none", files=each.files)
    elif len(set(ids)) < len(ids):
        refusals.add(each.first, "two columns of the file have the same field id", files=each.files)
    elif any(not 0 < (id_ or 0) <= _GREATEST_ID for id_ in ids):
        refusals.add(each.first, "a field id of the file is less than 1, or too large", files=each.files)
    return "ids"


def _add_conflicts(name: str, group: Sequence[tuple[FilesOfShape, AdoptedColumn]], refusals: AdoptionRefusals) -> None:
    """Refuses files in which the type or the field ids of a column differ from those in the first file."""
    (files, first), *others = group
    with_id = next((column for _, column in group if column.id is not None), first)
    for each, column in others:
        if column.type != first.type:
            reason = f"it is {short_type(first.type)} in {files.first}, and {short_type(column.type)} here"
            refusals.add(each.first, reason, name, each.files)
        elif column.id is not None and field_ids([column]) != field_ids([with_id]):
            refusals.add(each.first, f"its field ids differ from those in {files.first}", name, each.files)


def _inner_ids(arrow_type: pa.DataType) -> Iterator[int | None]:
    for index in range(arrow_type.num_fields):
        field = arrow_type.field(index)
        id_ = field_id(field)
        yield None if id_ is None or id_ < 0 else id_
        yield from _inner_ids(field.type)


def _ids(field: pa.Field) -> list[int]:
    own = field_id(field)
    return [id_ for id_ in (own, *_inner_ids(field.type)) if id_ is not None and id_ > 0]


def _number_field(field: pa.Field, ids: Iterator[int]) -> Field:
    """Gives a column without ids new ones: the parent's id precedes the children's. Existing ids stay."""
    id_ = field_id(field)
    id_ = next(ids) if id_ is None or id_ < 0 else id_
    type_json = type_to_json(field.type, lambda child: _number_field(child, ids))
    return Field(id=id_, name=field.name, type=type_json, nullable=field.nullable)
