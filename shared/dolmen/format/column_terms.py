"""Terms of columns and transforms: a table's partitions (``day(event_time), tenant``), and the order of its rows.

The property ``partition_by`` is their text. The order, such as ``day(at) DESC NULLS FIRST, id``, is in a table's entry:
the id of a column for its ascending order with NULLs last, or a text such as ``day(3) desc nulls first``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct

from dolmen.base.records import replace
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.schema import Field, Schema, SortKey, is_nested
from dolmen.format.transforms import Transform
from dolmen.format.types import quote_name, short_type

MAX_TERMS, MAX_CLUSTERED = 16, 4

_NAME = r'"(?:[^"]|"")+"|[^\s"(),\[\]]+'
_TERM = re.compile(
    rf"\s*(?:(?P<plain>{_NAME})|(?P<function>\w+)\s*(?:\[\s*(?P<size>\d+)\s*\])?\s*"
    rf"\((?:\s*(?P<first>\d+)\s*,)?\s*(?P<column>{_NAME})\s*(?:,\s*(?P<last>\d+)\s*)?\))\s*(?:,|$)"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


class PartitionTerm(Struct, frozen=True):
    """A transform of a column."""

    transform: Transform
    column: str

    def __str__(self) -> str:
        name = self.column
        if not _PLAIN_NAME.fullmatch(name):
            name = quote_name(name)
        return name if self.transform.name == "identity" else f"{self.transform}({name})"

    @property
    def name(self) -> str:
        """The name of its values, as Iceberg's engines call it: ``event_time_day``."""
        word = {"identity": "", "truncate": "_trunc"}.get(self.transform.name, f"_{self.transform.name}")
        return self.column + word


def parse_partition_by(value: Any) -> tuple[PartitionTerm, ...]:
    """Parses terms with commas between them, or a list of terms. Raises InputError."""
    text = ", ".join(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else value
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{short_repr(value)} names no partitions: write columns or transforms, as in {_EXAMPLE}")
    terms: list[PartitionTerm] = []
    at = 0
    while at < len(text):
        found = _TERM.match(text, at)
        if found is None:
            raise InputError(f"{short_repr(text[at:].strip())} is not a column or a transform, as in {_EXAMPLE}")
        terms.append(_term(found))
        at = found.end()
    if text.rstrip().endswith(","):
        raise InputError(f"{short_repr(text)} ends with a comma")
    names = [term.name.lower() for term in terms]
    if repeated := next((str(term) for term, name in zip(terms, names, strict=True) if names.count(name) > 1), None):
        raise InputError(f"{repeated} is there twice{', perhaps with another number' if '[' in repeated else ''}")
    if len(terms) > MAX_TERMS:
        raise InputError(f"{len(terms)} terms: a table is partitioned by at most {MAX_TERMS}, and best by one or two")
    return tuple(terms)


_EXAMPLE = "'day(event_time), bucket[16](id), tenant'"


def parse_term(text: str) -> PartitionTerm | None:
    """Parses a column, or a transform of one; None if it is neither."""
    found = _TERM.fullmatch(text)
    return None if found is None else _term(found)


def _term(found: re.Match[str]) -> PartitionTerm:
    column = found["plain"] or found["column"]
    if column.startswith('"'):
        column = column[1:-1].replace('""', '"')
    sizes = [each for each in (found["size"], found["first"], found["last"]) if each]
    if len(sizes) > 1:
        raise InputError(f"{found[0].strip(' ,')} has several numbers")
    return PartitionTerm(Transform.of(found["function"] or "identity", int(sizes[0]) if sizes else None), column)


def parse_cluster_by(value: Any) -> tuple[str, ...]:
    """Parses the names of 1 to 4 columns, written as those of partitions. Raises InputError."""
    terms = parse_partition_by(value)
    if wrong := next((term for term in terms if term.transform != Transform()), None):
        raise InputError(f"{wrong}: rows are clustered by columns alone")
    if len(terms) > MAX_CLUSTERED:
        raise InputError(f"{len(terms)} columns: rows are clustered by at most {MAX_CLUSTERED}, and best by two")
    return tuple(term.column for term in terms)


def partition_text(terms: tuple[PartitionTerm, ...]) -> str:
    """The property's text."""
    return ", ".join(map(str, terms))


def partition_terms(properties: Mapping[str, Any]) -> tuple[PartitionTerm, ...]:
    """The terms of a table with these properties; none if it has no partitions."""
    value = properties.get("partition_by")
    return () if value is None else parse_partition_by(value)


def with_renamed_term(value: Any, column: str, to: str) -> str:
    """The property's text once a column is called ``to``."""
    terms = parse_partition_by(value)
    return partition_text(tuple(replace(each, column=to) if each.column == column else each for each in terms))


def check_partition_columns(terms: tuple[PartitionTerm, ...], schema: Schema) -> None:
    """Raises SchemaError if a column is not there, or its type has no such partitions."""
    for term in terms:
        field = schema.field(term.column)
        try:
            term.transform.check(field.name, field.arrow_type)
        except SchemaError as error:
            raise SchemaError(f"property partition_by: {error}") from None


_ITEM = re.compile(r'((?:"(?:[^"]|"")*"|\([^)]*\)|\[[^\]]*\]|[^,])*),')
_SORT_TERM = re.compile(r"(.+?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.I | re.S)
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
    terms = [_parse_sort_term(part if part.lower() in names else part.strip(), names, schema) for part in parts]
    if len({term[:2] for term in terms}) < len(terms):
        raise SchemaError(f"a column occurs twice in the sort key {', '.join(parts)}")
    return tuple(term.stored for term in terms)


def _parse_sort_term(text: str, names: Iterable[str], schema: Schema) -> SortTerm:
    found = None if text.lower() in names else _SORT_TERM.fullmatch(text)
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
