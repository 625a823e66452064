"""The property ``partition_by`` of a table, such as ``day(event_time), tenant``: its text and its terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dolmen.base.records import replace
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.schema import Schema
from dolmen.format.transforms import Transform
from dolmen.format.types import quote_name

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
            raise InputError(f"{short_repr(text[at:].strip())} is no column or transform of one, as in {_EXAMPLE}")
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
