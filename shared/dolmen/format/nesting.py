"""Fields inside a column: found by a dotted path, changed, and compared with those of another version.

A path leads from a column through the fields of structs, ``element`` of lists and ``value`` of maps: ``address.zip``,
``orders.element.price``. A column whose own name is the whole path comes first. Names may hold points themselves: the
longest that fits is taken, first of the column, then of each field. Pure.

Values of nested columns in the fields that the column has now: by ids, whatever the fields were called before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.errors import SchemaError
from dolmen.format.column_history import is_date_to_timestamp, narrowing
from dolmen.format.schema import Field, Schema, TypeJson, check_field_names, field_id, is_nested

Changed: TypeAlias = Callable[[tuple[Field, ...]], tuple[Field, ...]]
"""Makes new fields of those of one struct; of the one child of a list, or of the value of a map."""


@dataclass(frozen=True, slots=True)
class NestedPlace:
    """A place inside a column: a field of a struct, the elements of a list, or the values of a map.

    Args:
        column: the column.
        path: steps to what the field is in, from the column on.
        name: the field's own name there.
    """

    column: Field
    path: tuple[str, ...]
    name: str

    @classmethod
    def of(cls, schema: Schema, name: str) -> NestedPlace | None:
        """The place that a name means; None for a column, there or not."""
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

    def change(self, change: Changed) -> Field:
        """The column with other fields at this place.

        Raises:
            SchemaError: there is no such place, or its fields can't be changed so.
        """
        return msgspec.structs.replace(self.column, type=self._change(self.column.type, self.path, change))

    def replace(self, change: Callable[[Field], Field]) -> Field:
        """The column with another field at this place. Raises SchemaError: there is none."""

        def replaced(fields: tuple[Field, ...]) -> tuple[Field, ...]:
            self.find(fields)
            return tuple(change(field) if field.name.lower() == self.name.lower() else field for field in fields)

        return self.change(replaced)

    def find(self, fields: tuple[Field, ...]) -> Field:
        """The field of this place among those of its struct. Raises SchemaError with the names there are."""
        for field in fields:
            if field.name.lower() == self.name.lower():
                return field
        there = ", ".join(field.name for field in fields)
        raise SchemaError(f"column {self.column.name!r} has no field {self.name!r} there; there are: {there}")

    def _change(self, json: TypeJson, path: tuple[str, ...], change: Changed) -> TypeJson:
        kind, children = self._children(json)
        if path:
            inner = NestedPlace(self.column, (), path[0])

            def descend(field: Field) -> Field:
                return msgspec.structs.replace(field, type=self._change(field.type, path[1:], change))

            inner.find(children)
            changed = tuple(descend(field) if field.name.lower() == path[0].lower() else field for field in children)
        else:
            changed = change(children)
        if kind == "struct":
            if not changed:
                raise SchemaError(
                    f"field {self.name!r} of column {self.column.name!r} is the only one: drop the struct"
                )
            check_field_names([field.name for field in changed])
            return {"struct": [_builtins(field) for field in changed]}
        if [field.name for field in changed] != [field.name for field in children]:
            raise SchemaError(f"column {self.column.name!r}: a {kind} has no fields that come, go or get other names")
        (child,) = changed
        stored = _builtins(msgspec.structs.replace(child, name=_stored_name(json)))
        return {"list": stored} if kind == "list" else {"map": [json["map"][0], stored]}  # type: ignore[index]

    def _children(self, json: TypeJson) -> tuple[str, tuple[Field, ...]]:
        if isinstance(json, str):
            raise SchemaError(f"column {self.column.name!r}: what is of type {json} has no fields")
        return _children(json)


def _children(json: dict[str, Any]) -> tuple[str, tuple[Field, ...]]:
    """The kind of a type, and its fields as paths name them."""
    ((kind, inner),) = json.items()
    if kind == "struct":
        return kind, tuple(map(_child, inner))
    if kind == "list":
        return kind, (msgspec.structs.replace(_child(inner), name="element"),)
    return kind, (msgspec.structs.replace(_child(inner[1]), name="value"),)


def _split_path(json: TypeJson, path: str) -> tuple[tuple[str, ...], str]:
    """The steps of a path below this type, and the name at its end, which need not be there."""
    if isinstance(json, str):
        *missing, last = path.split(".")
        return tuple(missing), last
    types = {field.name: field.type for field in _children(json)[1]}
    if "." not in path or path in types:
        return (), path
    fitting = [name for name, kind in types.items() if not isinstance(kind, str) and path.startswith(f"{name}.")]
    step = max(fitting, key=len, default=path.partition(".")[0])
    steps, last = _split_path(types.get(step, ""), path[len(step) + 1 :])
    return (step, *steps), last


def is_successor(json: TypeJson, now: TypeJson, base_ts: int) -> bool:
    """Whether values of one type fit another that it may have become: all of its fields are there, as wide or wider.

    Args:
        base_ts: see ``dolmen.format.evolution.same_column``.
    """
    if isinstance(json, str) or isinstance(now, str):
        return isinstance(json, str) and isinstance(now, str) and _widens(json, now)
    ((kind, before),) = json.items()
    if now.keys() != json.keys():
        return False
    after = now[kind]
    if kind == "list":
        return _same(_child(before), _child(after), base_ts)
    if kind == "map":
        return all(_same(_child(one), _child(other), base_ts) for one, other in zip(before, after, strict=True))
    there = {field.id: field for field in map(_child, after)}
    return all(field.id in there and _same(field, there[field.id], base_ts) for field in map(_child, before))


def wider_ids(json: TypeJson, now: TypeJson, id_: int) -> set[int]:
    """Ids of the columns and fields of one type that have a narrower type, or one of another kind, in the other."""
    before, after = _leaves(json, id_), _leaves(now, id_)
    return {each for each in before.keys() & after.keys() if not _widens(before[each], after[each])}


def fields_inside(json: TypeJson) -> Iterator[Field]:
    """All fields inside a type, at every depth; none for a type that is not nested."""
    for inner in () if isinstance(json, str) else json.values():
        for child in map(_child, inner if isinstance(inner, (list, tuple)) else [inner]):
            yield child
            yield from fields_inside(child.type)


def _leaves(json: TypeJson, id_: int) -> dict[int, str]:
    """The types of a column and of all its fields that have none inside, by id."""
    if isinstance(json, str):
        return {id_: json}
    found: dict[int, str] = {}
    for inner in json.values():
        for child in map(_child, inner if isinstance(inner, (list, tuple)) else [inner]):
            found |= _leaves(child.type, child.id)
    return found


def check_nested_widening(narrow: pa.DataType, wide: pa.DataType) -> str:
    """Why a field inside a column can't get another type; "" where it can."""
    if is_date_to_timestamp(narrow, wide):
        return "there are no statistics of fields, so nothing tells whether all its days are timestamps"
    return narrowing(narrow, wide)


def _same(before: Field, now: Field, base_ts: int) -> bool:
    if now.added_ts <= base_ts and now.added_ts != before.added_ts:
        return False
    return before.id == now.id and now.nullable >= before.nullable and is_successor(before.type, now.type, base_ts)


def _widens(json: str, now: str) -> bool:
    if json == now:
        return True
    narrow, wide = (Field(0, "", each).arrow_type for each in (json, now))
    return not narrowing(narrow, wide)


def _child(json: Any) -> Field:
    return json if isinstance(json, Field) else msgspec.convert(json, Field)


def _stored_name(json: TypeJson) -> str:
    assert isinstance(json, dict)
    return _child(json["list"] if "list" in json else json["map"][1]).name


def _builtins(field: Field) -> dict[str, Any]:
    """A child in the form in which it is read again, so that a new schema equals itself when it is read."""
    child: dict[str, Any] = msgspec.to_builtins(field)
    return child


def nested_values(array: pa.Array, own: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """The values with the fields of another version: older ones that are gone are left out, new ones are NULL.

    Args:
        own: the array's type, whose fields have ids.
        wanted: the present type, whose fields have ids; fields in both are as wide or wider there.
    """
    if pa.types.is_struct(wanted):
        return _struct_values(array, own, wanted)
    if pa.types.is_list(wanted):
        children = nested_values(array.values, own.value_type, wanted.value_type)
    elif pa.types.is_map(wanted):
        keys = nested_values(array.keys, own.key_type, wanted.key_type)
        items = nested_values(array.items, own.item_type, wanted.item_type)
        children = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
    else:
        return array if array.type == wanted else array.cast(wanted)
    buffers: list[Any] = array.buffers()[:2]
    return pa.Array.from_buffers(wanted, len(array), buffers, array.null_count, array.offset, [children])


def has_same_fields(own: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two nested types have fields of the same ids, names and types in the same order.

    Fields of a file that have no ids go by their names.
    """
    if not pa.types.is_nested(own) or own.num_fields != wanted.num_fields:
        return bool(own == wanted)
    return own == wanted and all(
        field_id(own.field(place)) in (None, field_id(wanted.field(place)))
        and has_same_fields(own.field(place).type, wanted.field(place).type)
        for place in range(own.num_fields)
    )


def _struct_values(array: pa.Array, own: pa.DataType, wanted: pa.DataType) -> pa.Array:
    places = {field_id(own.field(place)): place for place in range(own.num_fields)}
    children = []
    for field in wanted:
        place = places.get(field_id(field))
        if place is None:
            children.append(pa.nulls(len(array), field.type))
        else:
            children.append(nested_values(array.field(place), own.field(place).type, field.type))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)
