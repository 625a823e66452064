"""The order of a table's rows, such as ``day(at) DESC NULLS FIRST, id``: its text, and how an entry has it.

An entry has the id of a column for its ascending order with NULLs last, and a text such as ``day(3) desc nulls first``
for any other order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.partition_by import PartitionTerm, parse_term
from dolmen.format.schema import Field, Schema, SortKey, is_nested
from dolmen.format.transforms import Transform
from dolmen.format.types import short_type

_ITEM = re.compile(r'((?:"(?:[^"]|"")*"|\([^)]*\)|\[[^\]]*\]|[^,])*),')
_TERM = re.compile(r"(.+?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.I | re.S)
_STORED = re.compile(r"(?:(\w+)(?:\[(\d+)\])?\((\d+)\)|(\d+))( desc)?( nulls first)?")


class SortTerm(NamedTuple):
    """A column, or a transform of it, and its direction. NULLs come last, unless ``nulls_first``; NaN is greatest."""

    id: int
    transform: Transform = Transform()
    descending: bool = False
    nulls_first: bool = False

    @property
    def is_plain(self) -> bool:
        return self == SortTerm(self.id)

    def text(self, schema: Schema) -> str:
        """The term in SQL; for a plain ascending one, only the column's name."""
        name = schema.by_id[self.id].name
        return name if self.is_plain else str(PartitionTerm(self.transform, name)) + self._direction.upper()

    @property
    def stored(self) -> int | str:
        if self.is_plain:
            return self.id
        term = str(self.id) if self.transform == Transform() else f"{self.transform}({self.id})"
        return term + self._direction

    @property
    def _direction(self) -> str:
        return " desc" * self.descending + " nulls first" * self.nulls_first


@lru_cache(256)
def sort_terms(key: SortKey) -> tuple[SortTerm, ...]:
    """The terms of an entry's sort key. Raises InputError if one can't be read."""
    return tuple(SortTerm(each) if isinstance(each, int) else _parse_stored(each) for each in key)


def _parse_stored(text: str) -> SortTerm:
    found = _STORED.fullmatch(text)
    if found is None:
        raise InputError(f"{short_repr(text)} is not a term of a sort key")
    name, size, inside, alone, descending, nulls_first = found.groups()
    transform = Transform.of(name, int(size) if size else None) if name else Transform()
    return SortTerm(int(inside or alone), transform, bool(descending), bool(nulls_first))


def sort_ids(key: SortKey) -> list[int]:
    """The ids of a sort key's columns."""
    return [term.id for term in sort_terms(key)]


def sort_texts(key: SortKey, schema: Schema) -> list[str]:
    """The terms of a sort key, as people write them."""
    return [term.text(schema) for term in sort_terms(key)]


def parse_sort_key(texts: str | Iterable[str], schema: Schema) -> SortKey:
    """Parses terms with commas between them, or a list of terms. Raises InputError and SchemaError."""
    names = {field.name.lower() for field in schema.fields}
    items = [texts] if isinstance(texts, str) else list(texts)
    parts = [part for item in items for part in ([item] if item.lower() in names else _ITEM.findall(item + ","))]
    terms = [_parse(part if part.lower() in names else part.strip(), names, schema) for part in parts]
    if len({term[:2] for term in terms}) < len(terms):
        raise SchemaError(f"a column occurs twice in the sort key {', '.join(parts)}")
    return tuple(term.stored for term in terms)


def _parse(text: str, names: Iterable[str], schema: Schema) -> SortTerm:
    found = None if text.lower() in names else _TERM.fullmatch(text)
    expression, direction, nulls = found.groups() if found else (text, None, None)
    term = None if expression.lower() in names else parse_term(expression)
    term = term or PartitionTerm(Transform(), expression)
    field = schema.field(term.column)
    check_sortable([field])
    if term.transform != Transform():
        term.transform.check(field.name, field.arrow_type, "rows can't be sorted")
    return SortTerm(field.id, term.transform, (direction or "").lower() == "desc", (nulls or "").lower() == "first")


def check_sortable(fields: Sequence[Field]) -> None:
    """Raises SchemaError for nested columns, by which rows can't be sorted."""
    for field in fields:
        if is_nested(field.arrow_type):
            raise SchemaError(f"rows can't be sorted by column {field.name!r} of type {short_type(field.arrow_type)}")
