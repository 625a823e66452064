"""Columns of older versions and of the present one: wider types, fields inside columns, and former names.

A column is its id. Every value of an older type is one of the newer type, so files of the older type are read exactly,
as in Iceberg 3 (https://iceberg.apache.org/spec/#schema-evolution).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from dolmen.base import pc
from dolmen.base.units import DAY_US
from dolmen.errors import SchemaError
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.layout import CLOCK_STEP_US
from dolmen.format.schema import (
    Field,
    FormerName,
    Schema,
    TypeJson,
    check_field_names,
    child_fields,
    field_id,
    is_nested,
)
from dolmen.format.types import DATE, DECIMAL, TIMESTAMP, null_mask, to_mask, type_of

LAST_DAY = (2**63 - 1) // DAY_US
"""The last day, counted from 1970-01-01, whose midnight is a timestamp; the first one is as far before."""


def widening_problem(narrow: pa.DataType, wide: pa.DataType) -> str:
    """Why a column of one type can't change to another; "" where it can, and for the same type."""
    t = pa.types
    if narrow == wide or is_date_to_timestamp(narrow, wide):
        return ""
    for is_kind in (t.is_signed_integer, t.is_unsigned_integer, t.is_floating):
        if is_kind(narrow) and is_kind(wide):
            return "" if wide.bit_width > narrow.bit_width else "values that it has may not fit"
    if type_of(narrow) is DECIMAL and type_of(wide) is DECIMAL:
        if narrow.scale != wide.scale:
            return "the number of digits after the point can't change"
        return "" if wide.precision > narrow.precision else "values that it has may not fit"
    if t.is_integer(narrow) and t.is_integer(wide):
        return "signed and unsigned integers are written differently"
    if t.is_struct(narrow) and t.is_struct(wide):
        return "fields of a struct change one by one, by their paths: add_column('column.field', ...), widen_column ..."
    return "integers, floats, decimals and dates change to wider ones of their kind only"


def nested_widening_problem(narrow: pa.DataType, wide: pa.DataType) -> str:
    """Why a field inside a column can't get another type; "" where it can."""
    if is_date_to_timestamp(narrow, wide):
        return "there are no statistics of fields, so nothing shows whether all its days are timestamps"
    return widening_problem(narrow, wide)


def is_date_to_timestamp(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether values of the older type are days, and the newer type has their midnights."""
    return type_of(narrow) is DATE and type_of(wide) is TIMESTAMP


def widen(value: Any, narrow: pa.DataType, wide: pa.DataType) -> Any:
    """A plain value of the older type, or its JSON form, as that of the newer type.

    Days beyond all timestamps become the first or last midnight.
    """
    if value is None or not is_date_to_timestamp(narrow, wide):
        return value
    return max(-LAST_DAY, min(LAST_DAY, value)) * DAY_US


def can_widen(value: Any, narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether a plain value of the older type, or its JSON form, is one of the newer type. None is."""
    return value is None or not is_date_to_timestamp(narrow, wide) or abs(value) <= LAST_DAY


def widen_bounds(values: pa.Array, wide: pa.DataType) -> pa.Array:
    """Bounds in the older type as bounds in the newer one. See ``widen``."""
    if not is_date_to_timestamp(values.type, wide):
        return values
    days = np.clip(values.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64), -LAST_DAY, LAST_DAY)
    return pa.array(days * DAY_US, mask=to_mask(values.is_null())).cast(wide)


def widen_keys(keys: pa.Table, wide: pa.Schema) -> pa.Table:
    """Tuples of the older types in the newer ones, without those that no row of the newer types has."""
    for field, column in zip(wide, keys.columns, strict=True):
        if is_date_to_timestamp(column.type, field.type):
            days = column.cast(pa.int32()).to_numpy()
            keep = (days >= -LAST_DAY) & (days <= LAST_DAY)
            if not keep.all():
                return widen_keys(keys.filter(pa.array(keep)), wide)
    return keys.cast(wide)


def widen_stats(
    stats: Mapping[int, ColumnStats], changes: Mapping[int, tuple[pa.DataType, pa.DataType]]
) -> dict[int, ColumnStats]:
    """Statistics of columns in the JSON forms of the newer types; ``changes`` has the older and newer ones by id."""
    widened = dict(stats)
    for id_ in stats.keys() & changes.keys():
        own, (narrow, wide) = stats[id_], changes[id_]
        widened[id_] = msgspec.structs.replace(own, min=widen(own.min, narrow, wide), max=widen(own.max, narrow, wide))
    return widened


def changed_forms(before: Schema, now: Schema) -> dict[int, tuple[pa.DataType, pa.DataType]]:
    """The columns whose values have another JSON form in the later schema: their older and newer type, by id."""
    if before is now or before.fields == now.fields:
        return {}
    pairs = ((field, now.by_id.get(field.id)) for field in before.fields)
    types = {one.id: (one.arrow_type, other.arrow_type) for one, other in pairs if other and other.type != one.type}
    return {id_: pair for id_, pair in types.items() if is_date_to_timestamp(*pair)}


def widen_files(files: tuple[DataFile, ...], before: Schema | None, now: Schema) -> tuple[DataFile, ...]:
    """Entries of files with statistics in the form of these columns; ``before`` are the files', None if the same."""
    changes = changed_forms(before, now) if before is not None else {}
    if not changes:
        return files
    return tuple(msgspec.structs.replace(file, stats=widen_stats(file.stats, changes)) for file in files)


class NestedPath(Struct, frozen=True):
    """The dotted path of a field inside a column: of a struct's field, a list's ``element`` or a map's ``value``.

    Names may contain dots themselves: the longest match is taken, first for the column, then for each field.
    """

    column: Field
    path: tuple[str, ...]  # steps from the column to the type that has the field
    name: str  # the field's own name there

    @classmethod
    def of(cls, schema: Schema, name: str) -> NestedPath | None:
        """The path that a name means; None for a column, whether it exists or not."""
        lower = name.lower()
        if "." not in name or any(field.name.lower() == lower for field in schema.fields):
            return None
        fitting = [
            field
            for field in schema.fields
            if is_nested(field.arrow_type) and lower.startswith(f"{field.name.lower()}.")
        ]
        if not fitting:
            return None
        column = max(fitting, key=lambda field: len(field.name))
        return cls(column, *_split_path(column.type, name[len(column.name) + 1 :]))

    def change(self, change: Callable[[tuple[Field, ...]], tuple[Field, ...]]) -> Field:
        """The column with other fields in the type that the path leads to. Raises SchemaError."""
        return self._change(self.column, self.path, change)

    def replace(self, change: Callable[[Field], Field]) -> Field:
        """The column with another field at the path. Raises SchemaError: there is none."""
        return self.change(lambda fields: self._replace(fields, self.name, change))

    def find(self, fields: tuple[Field, ...], name: str = "") -> Field:
        """The field of this name, by default that of the path. Raises SchemaError with the names there are."""
        name = name or self.name
        for field in fields:
            if field.name.lower() == name.lower():
                return field
        names = ", ".join(field.name for field in fields)
        raise SchemaError(f"column {self.column.name!r} has no field {name!r} there; there are: {names}")

    def _replace(self, fields: tuple[Field, ...], name: str, change: Callable[[Field], Field]) -> tuple[Field, ...]:
        own = self.find(fields, name)
        return tuple(change(field) if field is own else field for field in fields)

    def _change(
        self, field: Field, path: tuple[str, ...], change: Callable[[tuple[Field, ...]], tuple[Field, ...]]
    ) -> Field:
        json = field.type
        if isinstance(json, str):
            raise SchemaError(f"column {self.column.name!r}: a value of type {json} has no fields")
        kind, children = _path_fields(json)
        if path:
            changed = self._replace(children, path[0], lambda child: self._change(child, path[1:], change))
        else:
            changed = change(children)
        if kind == "struct":
            if not changed:
                raise SchemaError(
                    f"field {self.name!r} of column {self.column.name!r} is the only one: drop the struct"
                )
            check_field_names([child.name for child in changed])
            return msgspec.structs.replace(field, type={"struct": [msgspec.to_builtins(child) for child in changed]})
        if [child.name for child in changed] != [child.name for child in children]:
            raise SchemaError(f"column {self.column.name!r}: fields of a {kind} can't be added, dropped or renamed")
        stored = msgspec.to_builtins(msgspec.structs.replace(changed[0], name=child_fields(json)[-1].name))
        return msgspec.structs.replace(
            field, type={"list": stored} if kind == "list" else {"map": [json["map"][0], stored]}
        )


def _path_fields(json: dict[str, Any]) -> tuple[str, tuple[Field, ...]]:
    """The kind of a nested type, and its fields as paths name them."""
    [kind] = json
    children = child_fields(json)
    if kind == "struct":
        return kind, children
    return kind, (msgspec.structs.replace(children[-1], name="element" if kind == "list" else "value"),)


def _split_path(json: TypeJson, path: str) -> tuple[tuple[str, ...], str]:
    """The steps of a path below this type, and the name at its end, which need not exist."""
    if isinstance(json, str):
        *missing, last = path.split(".")
        return tuple(missing), last
    types = {field.name: field.type for field in _path_fields(json)[1]}
    if "." not in path or path in types:
        return (), path
    fitting = [name for name, kind in types.items() if not isinstance(kind, str) and path.startswith(f"{name}.")]
    step = max(fitting, key=len, default=path.partition(".")[0])
    steps, last = _split_path(types.get(step, ""), path[len(step) + 1 :])
    return (step, *steps), last


def is_successor(json: TypeJson, now: TypeJson, base_ts: int) -> bool:
    """Whether values fit the type ``now``: all fields are there, as wide or wider. ``base_ts``: see ``same_column``."""
    if isinstance(json, str) or isinstance(now, str):
        return isinstance(json, str) and isinstance(now, str) and _widens(json, now)
    fields_now = {field.id: field for field in child_fields(now)}
    return json.keys() == now.keys() and all(
        field.id in fields_now and _is_same_field(field, fields_now[field.id], base_ts) for field in child_fields(json)
    )


def _is_same_field(before: Field, now: Field, base_ts: int) -> bool:
    if now.added_ts <= base_ts and now.added_ts != before.added_ts:
        return False
    return now.nullable >= before.nullable and is_successor(before.type, now.type, base_ts)


def _widens(json: str, now: str) -> bool:
    return json == now or not widening_problem(*(Field(0, "", each).arrow_type for each in (json, now)))


def fields_inside(json: TypeJson) -> Iterator[Field]:
    """All fields inside a type, at every depth; none for a type that is not nested."""
    for child in child_fields(json):
        yield child
        yield from fields_inside(child.type)


def keep_fields(field: Field, ids: Container[int]) -> Field:
    """A column with only those fields of its structs that have one of these ids, and the structs around them."""
    if isinstance(field.type, str) or "struct" not in field.type:
        return field
    children = (keep_fields(child, ids) for child in child_fields(field.type))
    kept = [child for child in children if child.id in ids or any(each.id in ids for each in fields_inside(child.type))]
    return msgspec.structs.replace(field, type={"struct": [msgspec.to_builtins(child) for child in kept]})


def wider_ids(json: TypeJson, now: TypeJson, id_: int) -> set[int]:
    """Ids of the columns and fields of one type that have a narrower type, or one of another kind, in the other."""
    before, after = (
        {field.id: field.type for field in (Field(id_, "", each), *fields_inside(each)) if isinstance(field.type, str)}
        for each in (json, now)
    )
    return {each for each in before.keys() & after.keys() if not _widens(before[each], after[each])}


def nested_values(array: pa.Array, own: pa.DataType, target: pa.DataType) -> pa.Array:
    """The values with the fields of another version, by id: fields that it lacks are left out, new ones are NULL.

    Args:
        own: the array's type.
        target: the present type; fields in both are as wide or wider there.
    """
    if pa.types.is_struct(target):
        return _struct_values(array, own, target)
    if pa.types.is_list(target):
        children = nested_values(array.values, own.value_type, target.value_type)
    elif pa.types.is_map(target):
        keys = nested_values(array.keys, own.key_type, target.key_type)
        items = nested_values(array.items, own.item_type, target.item_type)
        children = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    else:
        return array if array.type == target else array.cast(target)
    buffers: list[Any] = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, array.offset, [children])


def _struct_values(array: pa.Array, own: pa.DataType, target: pa.DataType) -> pa.Array:
    indexes = {field_id(field): index for index, field in enumerate(own)}
    children = []
    for field in target:
        index = indexes.get(field_id(field))
        if index is None:
            children.append(pa.nulls(len(array), field.type))
        else:
            children.append(nested_values(array.field(index), own.field(index).type, field.type))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=null_mask(array))


def field_values(array: pa.Array, path: Iterable[int]) -> pa.Array:
    """The values of a field inside structs, by the ids on the way to it. NULL where a struct is, or lacks the field."""
    for id_ in path:
        fields = list(array.type) if pa.types.is_struct(array.type) else []
        index = next((index for index, field in enumerate(fields) if field_id(field) == id_), None)
        if index is None:
            return pa.nulls(len(array))
        array = pc.struct_field(array, [index])
    return array


def with_field_ids(array: pa.Array, own: pa.DataType) -> pa.Array:
    """A struct in this type with its ids, which Arrow's casts leave out; any other array as it is."""
    return array.cast(own).view(own) if pa.types.is_struct(own) else array


def has_same_fields(own: pa.DataType, target: pa.DataType) -> bool:
    """Whether two nested types have the same fields in the same order; fields without ids go by their names."""
    if not pa.types.is_nested(own) or own.num_fields != target.num_fields:
        return bool(own == target)
    pairs = ((own.field(index), target.field(index)) for index in range(own.num_fields))
    return own == target and all(
        field_id(one) in (None, field_id(other)) and has_same_fields(one.type, other.type) for one, other in pairs
    )


MOST_FORMER_NAMES = 256  # the most former names of a table in a schema: they are in each manifest

Names: TypeAlias = Mapping[int, str]  # names of columns at one time, by id. A column that did not exist has none.


def record_names(before: Schema, after: Schema, ts: int) -> Schema:
    """The later one of two schemas, with the names and positions that columns lost in the statement of ``ts``.

    A file that was dropped before a rename has the names of its time: ``Schema.former`` keeps them.
    """
    names = {field.id: field.name for field in after.fields}
    lost = (FormerName(field.id, field.name, ts) for field in before.fields if names.get(field.id) != field.name)
    former, since = (*before.former, *lost), named_since(before)
    if excess := former[:-MOST_FORMER_NAMES]:
        former, since = former[-MOST_FORMER_NAMES:], max(since, excess[-1].until_ts)
    order, placed = [field.id for field in before.fields], placed_since(before)
    if placed is None or order != [field.id for field in after.fields][: len(order)]:
        placed = ts
    return msgspec.structs.replace(after, former=former, named_since=since, placed_since=placed)


def named_since(schema: Schema) -> int:
    """The timestamp since which all names of a table's columns are known.

    An older dolmen records none: there, all that is known is when the columns were last altered.
    """
    return schema.altered_ts if schema.named_since is None else schema.named_since


def placed_since(schema: Schema) -> int | None:
    """The timestamp since which all columns have had their present positions; None if it is not known.

    Columns that are added at the end move no others.
    """
    if schema.named_since is not None:
        return schema.placed_since
    ids = [field.id for field in schema.fields]
    return schema.altered_ts if ids == sorted(ids) else None


def names_at(schema: Schema, ts: int) -> Names:
    """The names that columns had at a time, as far as they are known.

    A column that was added later counts with its name, unless another column had it: producers may be ahead.
    """
    latest = 2**63
    names: dict[int, tuple[int, str]] = {field.id: (latest, field.name) for field in schema.fields}
    for former in reversed(schema.former):
        if former.until_ts > ts:
            names[former.id] = former.until_ts, former.name
    owners: dict[str, tuple[int, int]] = {}
    for id_, (until, name) in names.items():
        owners[name] = min(owners.get(name, (until, id_)), (until, id_))
    return {id_: name for name, (_, id_) in owners.items()}


def names_around(schema: Schema, at_us: int | None) -> tuple[Names, ...]:
    """The possible sets of names that columns had at a time by the server's clock; None = at any time."""
    first, last = (0, 2**63 - 1) if at_us is None else (at_us - CLOCK_STEP_US, at_us + CLOCK_STEP_US)
    between = (name.until_ts for name in schema.former if first < name.until_ts <= last)
    return distinct_names(names_at(schema, ts) for ts in (first, *between, last))


def distinct_names(several: Iterable[Names]) -> tuple[Names, ...]:
    distinct: list[Names] = []
    for names in several:
        if names not in distinct:
            distinct.append(names)
    return tuple(distinct)
