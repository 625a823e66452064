"""Finds the columns, and the fields of structs, that names in predicates mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dolmen.errors import PredicateError, short_repr
from dolmen.format.schema import Field, Schema, child_fields
from dolmen.format.types import quote_name, short_type

_MOST_NAMES = 30
_PATH_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')
_QUOTED_PATH = re.compile(rf"(?:{_PATH_PART.pattern})(?:\.(?:{_PATH_PART.pattern}))*")
_HINTS = {
    "none": "write IS NULL", "nil": "write IS NULL", "nan": "write 'nan'", "inf": "write 'inf'",
    "infinity": "write 'inf'",
}  # fmt: skip


class InnerField(Field, frozen=True, kw_only=True):
    """A field of structs, named by its whole path; ``inside``: see ``ast.StructField``."""

    inside: tuple[int, ...]


class Name(NamedTuple):
    """A part of a name: in quotes, an exact match wins over names that differ only in case."""

    text: str
    quoted: bool


def field_inside(outer: Field, inner: Field) -> InnerField:
    """A field of a column that is a struct, or of a field inside one."""
    above = outer.inside if isinstance(outer, InnerField) else ()
    return InnerField(inner.id, f"{outer.name}.{inner.name}", inner.type, inside=(*above, outer.id))


def find_column(names: Sequence[Name], schema: Schema, *, is_list: bool = False) -> Field:
    """The column of this name, ignoring case, or the field of structs that the parts of a name lead to.

    Raises PredicateError if there is not exactly one, or it is nested; with ``is_list``, if it is not a list of plain
    values.
    """
    dotted = ".".join(name.text for name in names)
    if len(names) == 1 or any(name.quoted for name in names) or not _fields_of_name(dotted, schema.fields):
        return _follow(names, schema, is_list)
    try:
        _follow(names, schema, is_list)
    except PredicateError:
        raise PredicateError(
            f"the name of column {dotted!r} has a dot: write it in double quotes, {_quote([dotted])}"
        ) from None
    path = _quote(name.text for name in names)
    raise PredicateError(f"{dotted} could be column {_quote([dotted])} or field {path}: write it with the quotes")


def find_key(key: str, schema: Schema) -> Field:
    """The column, or the field of structs, that a key of a mapping means: a column of this name comes first."""
    whole = [Name(key, True)]
    if _fields_of_name(key, schema.fields) or "." not in key:
        return find_column(whole, schema)
    if '"' in key and _QUOTED_PATH.fullmatch(key):
        parts = [part.group() for part in _PATH_PART.finditer(key)]
        names = [Name(part[1:-1].replace('""', '"'), True) if part[0] == '"' else Name(part, False) for part in parts]
        return find_column(names, schema)
    paths = [path for path in _paths(key, schema.fields) if len(path) > 1]
    if len(paths) > 1:
        written = " or ".join(_quote(name.text for name in path) for path in paths)
        raise PredicateError(f"{key} could be field {written}: write it with the quotes")
    return find_column(paths[0] if paths else [Name(part, False) for part in key.split(".")], schema)


def _paths(key: str, fields: Iterable[Field]) -> Iterator[list[Name]]:
    """All ways to read a name with dots as names of fields, which may have dots themselves."""
    for field in fields:
        if key[: len(field.name)].lower() != field.name.lower():
            continue
        rest, name = key[len(field.name) :], Name(field.name, True)
        if not rest:
            yield [name]
        elif rest[0] == "." and not isinstance(field.type, str) and "struct" in field.type:
            yield from ([name, *path] for path in _paths(rest[1:], child_fields(field.type)))


def _follow(names: Sequence[Name], schema: Schema, is_list: bool) -> Field:
    fields, table = schema.fields, [name.text for name in names[:2]]
    if len(table) == 2 and not _fields_of_name(table[0], fields) and _fields_of_name(table[1], fields):
        raise PredicateError(
            f"no column {short_repr(table[0])}; write the column's name alone, {table[1]}", is_mistake=False
        )
    field = _find(names[0], fields, "")
    for name in names[1:]:
        if isinstance(field.type, str):
            raise PredicateError(f"column {field.name!r} is {short_type(field.type)}, which has no fields")
        if "struct" not in field.type:
            raise PredicateError(
                f"column {field.name!r} is nested: it is a {next(iter(field.type))}, and fields inside lists and maps "
                "cannot be used in predicates",
                is_mistake=False,
            )
        field = field_inside(field, _find(name, child_fields(field.type), field.name))
    if is_list:
        inner = child_fields(field.type)
        if inner and "list" in field.type and isinstance(inner[0].type, str):
            return field
        raise PredicateError(
            f"list_contains is for lists of plain values, and column {field.name!r} is {short_type(field.type)}",
            is_mistake=False,
        )
    if isinstance(field.type, str):
        return field
    advice = "of lists, predicates use list_contains alone, and maps cannot be used"
    if "struct" in field.type:
        advice = f"name one of its fields, such as {field.name}.{child_fields(field.type)[0].name}"
    raise PredicateError(f"column {field.name!r} is nested: {advice}", is_mistake=False)


def _fields_of_name(name: str, fields: Iterable[Field]) -> list[Field]:
    return [field for field in fields if field.name.lower() == name.lower()]


def _find(name: Name, fields: Sequence[Field], path: str) -> Field:
    """The column, or the field at ``path``, of this name. Raises PredicateError if there is not exactly one."""
    found = _fields_of_name(name.text, fields)
    what = f"field {path}.{name.text}" if path else f"column {name.text}"
    if name.quoted and len(found) > 1:
        found = [field for field in found if field.name == name.text] or found
    if len(found) > 1:
        raise PredicateError(f"{what} could be any of {', '.join(f.name for f in found)}: quote its exact name")
    if found:
        return found[0]
    names = [field.name for field in fields]
    close = difflib.get_close_matches(name.text.lower(), [each.lower() for each in names], 1, cutoff=0.7)
    similar = [each for each in names if each.lower() in close]
    listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    hint = f"did you mean {similar[0]!r}?" if similar else _HINTS.get(name.text.lower(), f"there are: {listed}")
    if path:
        raise PredicateError(f"column {path!r} has no field {short_repr(name.text)}; {hint}")
    text = "" if similar and not name.quoted else " (write texts in single quotes)"
    raise PredicateError(f"no column {short_repr(name.text)}{text}; {hint}")


def _quote(path: Iterable[str]) -> str:
    """The names of a path in double quotes."""
    return ".".join(map(quote_name, path))
