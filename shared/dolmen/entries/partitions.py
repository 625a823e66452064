"""The partition of a data file, by its entry alone: by bounds of its columns, or by values that its writer recorded."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import quote

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.column_terms import PartitionTerm, partition_terms
from dolmen.format.entries import DataFile
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field, Schema
from dolmen.format.transforms import Transform
from dolmen.format.types import Json, Plain, from_json, to_json
from dolmen.predicate import bind
from dolmen.predicate.ast import Predicate
from dolmen.predicate.constants import Value
from dolmen.predicate.domains import domain_of
from dolmen.predicate.text import plain_text

Partition: TypeAlias = tuple[Plain, ...]  # the values of a table's terms that some rows have in common

_MOST_ALTERNATIVES = 1_000
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"  # Hive's name for NULL


class PartitionSpec(Struct, frozen=True):
    """The terms of a partitioned table, with their columns."""

    terms: Sequence[tuple[PartitionTerm, Field]]

    @classmethod
    def of(cls, entry: TableEntry) -> PartitionSpec | None:
        """The spec of a table; None if it has no partitions."""
        terms = partition_terms(entry.properties)
        return cls.of_terms(terms, entry.schema) if terms else None

    @classmethod
    def of_terms(cls, terms: Iterable[PartitionTerm], schema: Schema) -> PartitionSpec:
        return cls([(term, schema.field(term.column)) for term in terms])

    def of_file(self, file: DataFile) -> Partition | None:
        """The partition of all rows of a file; None if they are of several, or its entry does not show it."""
        values = []
        for term, field in self.terms:
            found = self._recorded(file, term, field) or _proven(file, term.transform, field)
            if found is None:
                return None
            values += found
        return tuple(values)

    def record(self, file: DataFile, partition: Partition) -> DataFile:
        """The entry of a file, whose rows are all of this partition, with the values that its bounds do not prove."""
        recorded: dict[str, Json] = {}
        for (term, field), value in zip(self.terms, partition, strict=True):
            if _proven(file, term.transform, field) is None:
                recorded[_key(term.transform, field)] = to_json(value)
        return msgspec.structs.replace(file, partitions=recorded) if recorded else file

    def values(self, rows: pa.Table) -> list[pa.Array]:
        """The values of each term, for some rows."""
        columns = (rows[field.name].combine_chunks() for _, field in self.terms)
        return [
            term.transform.array(pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column)
            for (term, _), column in zip(self.terms, columns, strict=True)
        ]

    def name(self, partition: Partition) -> str:
        """A partition as folders of Hive: ``event_time_day=2026-11-29/tenant=acme``."""
        return "/".join(
            f"{quote(term.name, safe='')}={_folder(term.transform, field.arrow_type, value)}"
            for (term, field), value in zip(self.terms, partition, strict=True)
        )

    def divide(self, files: Iterable[DataFile]) -> dict[Partition | None, list[DataFile]]:
        """Files by their partition, in the order of the first one of each."""
        parts: dict[Partition | None, list[DataFile]] = {}
        for file in files:
            parts.setdefault(self.of_file(file), []).append(file)
        return parts

    def predicate(self, partitions: Collection[Partition]) -> Predicate:
        """TRUE for all rows of some partitions, and no others. Raises InputError: no predicate says that."""
        first, field = self.terms[0]
        if len(self.terms) == 1 and first.transform.name == "identity":
            values = [Value(domain_of(field.arrow_type), value) for (value,) in partitions if value is not None]
            is_null = [bind.is_null(field)] if len(values) < len(partitions) else []
            return bind.disjunction([bind.one_of(field, values), *is_null])
        if len(partitions) > _MOST_ALTERNATIVES:
            raise InputError(f"{len(partitions):,} partitions at once: at most {_MOST_ALTERNATIVES:,} can be named")
        return bind.disjunction(
            bind.conjunction(
                _is_in(term.transform, field, value) for (term, field), value in zip(self.terms, each, strict=True)
            )
            for each in partitions
        )

    def _recorded(self, file: DataFile, term: PartitionTerm, field: Field) -> list[Plain] | None:
        key = _key(term.transform, field)
        if key not in file.partitions:
            return None
        try:
            return [from_json(file.partitions[key], term.transform.result_type(field.arrow_type))]
        except SchemaError:
            return None


def _key(transform: Transform, field: Field) -> str:
    """The key of a recorded value. The hash of a date differs from that of the timestamp that it may become."""
    return f"{transform}({'date ' if pa.types.is_date(field.arrow_type) else ''}{field.id})"


_KEY = re.compile(r"(identity|year|month|day|hour|bucket|truncate)(?:\[([1-9]\d{0,9})\])?\((?:date )?([1-9]\d{0,9})\)")


def recorded_values(file: DataFile) -> Iterator[tuple[Transform, int, Json]]:
    """The values that a file's entry records: of which transform of which column (by its id). Raises InputError."""
    for key, value in file.partitions.items():
        found = _KEY.fullmatch(key)
        if found is None:
            raise InputError(f"{short_repr(key)} is not a transform of a column")
        yield Transform.of(found[1], int(found[2]) if found[2] else None), int(found[3]), value


def _proven(file: DataFile, transform: Transform, field: Field) -> list[Plain] | None:
    """The value that all rows have by the bounds of the column, in a list; None if they may have several."""
    bounds = column_bounds(file, field)
    if bounds.nulls == file.rows:
        return [None]
    if bounds.nulls != 0 or bounds.min is None or bounds.max is None:
        return None
    if not transform.keeps_order:
        return [_value(transform, bounds.min, field.arrow_type)] if bounds.min == bounds.max else None
    least, greatest = (_value(transform, end, field.arrow_type) for end in (bounds.min, bounds.max))
    return [least] if least == greatest else None


def _is_in(transform: Transform, field: Field, value: Plain) -> Predicate:
    """TRUE for the rows whose transform has this value. Raises InputError: no predicate says that."""
    if value is None:
        return bind.is_null(field)
    domain = domain_of(field.arrow_type)
    if transform.name == "identity" or (isinstance(value, str) and len(value) < transform.size):
        return bind.compare("=", field, Value(domain, value))
    if isinstance(value, str):
        return bind.text_match("startswith", field, Value(domain, value))
    ends = transform.range_of(value, field.arrow_type)
    if ends is None:
        raise InputError(f"rows of a partition by {transform} can't be named by a predicate: overwrite with where=")
    least, end = (Value(domain, each) for each in ends)
    return bind.conjunction([bind.compare(">=", field, least), bind.compare("<", field, end)])


@lru_cache(16_384)
def _value(transform: Transform, value: Plain, kind: pa.DataType) -> Plain:
    return transform.value(value, kind)


def _folder(transform: Transform, kind: pa.DataType, value: Plain) -> str:
    if value is None:
        return NULL_FOLDER
    if isinstance(value, int) and transform.name == "year":
        return f"{1970 + value:04}"
    if isinstance(value, int) and transform.name == "month":
        return f"{1970 + value // 12:04}-{value % 12 + 1:02}"
    if isinstance(value, int) and transform.name == "hour":
        return f"{plain_text(value // 24, pa.date32())}-{value % 24:02}"
    text = quote(plain_text(value, transform.result_type(kind)), safe="")
    return text if text != NULL_FOLDER else text.replace("_", "%5F", 1)
