"""Partition specs of publications: ``partition_by`` of a table becomes a spec, and each data file a partition of one.

See "Partitioning", "Partition Evolution" and appendix A of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base.records import replace
from dolmen.base.units import DAY_US, days_since_epoch, since_epoch
from dolmen.entries.partitions import Partition, PartitionSpec
from dolmen.entries.segments.row_bounds import column_bounds
from dolmen.format.column_terms import PartitionTerm, parse_partition_by
from dolmen.format.entries import DataFile
from dolmen.format.layout import build_decoders
from dolmen.format.schema import Field
from dolmen.format.types import Plain

_FIRST_DAY, _LAST_DAY = days_since_epoch(date.min), days_since_epoch(date.max)


class FilePartition(NamedTuple):
    """The partition of a file: the id of its spec, and a value for each of the spec's fields."""

    spec: int = 0
    values: Partition = ()


UNPARTITIONED = FilePartition()


class SpecField(Struct, frozen=True, rename="kebab"):
    """A partition field, as in the metadata's JSON."""

    source_id: int
    field_id: int
    name: str
    transform: str

    def term(self, columns: Mapping[int, Field]) -> tuple[PartitionTerm, Field]:
        """The transform, and its column with the type that Iceberg transforms: it has no integers below 32 bits."""
        field = columns[self.source_id]
        (parsed,) = parse_partition_by(f"{self.transform}(x)")
        if field.arrow_type in (pa.int8(), pa.int16()):
            field = replace(field, type="int32")
        return parsed, field


class Spec(Struct, frozen=True, rename="kebab"):
    """A partition spec, as in the metadata's JSON."""

    spec_id: int
    fields: tuple[SpecField, ...] = ()


build_decoders(Spec)


class BoundSpec:
    """A spec with the published columns by their id. The types of its values are ``kinds``."""

    def __init__(self, spec: Spec, columns: Mapping[int, Field]) -> None:
        self.spec = spec
        self._terms = [each.term(columns) for each in spec.fields]
        self._dolmen = PartitionSpec(self._terms)
        self.kinds = [_kind(term, field) for term, field in self._terms]

    def of_file(self, file: DataFile) -> FilePartition | None:
        """The partition of all rows of a file; None if it is unknown, or if Iceberg's readers do not know the value."""
        values = self._dolmen.of_file(file)
        if values is None:
            return None
        for value, kind, (term, field) in zip(values, self.kinds, self._terms, strict=True):
            if not _is_value_right_in_readers(value, kind, term, field, file):
                return None
        return FilePartition(self.spec.spec_id, values)

    def avro_fields(self) -> list[dict[str, Any]]:
        """The fields of the record ``partition`` in manifests."""
        return [
            {
                "name": each.name if each.name.isascii() and each.name.isidentifier() else f"r{each.field_id}",
                "type": ["null", _avro(kind, each.field_id)],
                "default": None,
                "field-id": each.field_id,
            }
            for each, kind in zip(self.spec.fields, self.kinds, strict=True)
        ]


class PartitionSpecs(Struct, frozen=True):
    """All specs of a publication; ``default`` is the id of the one for new files. Spec 0 has no partitions."""

    specs: tuple[Spec, ...] = (Spec(0),)
    default: int = 0
    last_id: int = 999

    def with_default(self, terms: Sequence[PartitionTerm], columns: Mapping[int, Field]) -> PartitionSpecs:
        """These specs, and that of a table's terms as the default, without terms that readers cannot take.

        Fields of the same column and transform have the same id in all specs. Begins again if readers would refuse an
        earlier spec, because its column is gone, because a column that is not its own has the name of its field, or
        because it has values of a fixed size, as earlier publications may.
        """
        ids = {field.name: id_ for id_, field in columns.items()}
        known = {(each.source_id, each.transform): each for spec in self.specs for each in spec.fields}
        if any(
            each.source_id not in columns
            or ids.get(each.name, each.source_id) != each.source_id
            or _is_unreadable(each.transform, columns[each.source_id].arrow_type)
            for each in known.values()
        ):
            return PartitionSpecs(last_id=self.last_id).with_default(terms, columns)
        last_id, fields, unpublished = self.last_id, list[SpecField](), unpublished_terms(terms, columns)
        for term in terms:
            source = ids.get(term.column)
            if source is None or _transform_and_column(term) in unpublished:
                continue
            key = source, str(term.transform)
            if key not in known:
                last_id += 1
                taken = {each.name for each in known.values()} | (ids.keys() - {term.column})
                names = (term.name, f"{term.name}_{term.transform.size or last_id}", f"{term.name}_{last_id}")
                known[key] = SpecField(source, last_id, next(each for each in names if each not in taken), key[1])
            fields.append(known[key])
        for spec in self.specs:
            if spec.fields == tuple(fields):
                return replace(self, default=spec.spec_id)
        new = Spec(self.specs[-1].spec_id + 1, tuple(fields))
        return PartitionSpecs((*self.specs, new), new.spec_id, last_id)

    def has_all(self, earlier: PartitionSpecs) -> bool:
        """Whether all earlier specs are still there."""
        return self.specs[: len(earlier.specs)] == earlier.specs

    def continues(self, earlier: PartitionSpecs) -> bool:
        """Whether files keep their partitions of earlier specs. The first spec of a table is for all its files."""
        return self.has_all(earlier) and not len(earlier.specs) == 1 < len(self.specs)

    def bind(self, columns: Mapping[int, Field]) -> dict[int, BoundSpec]:
        """All specs by their id: the default first, then the newest."""
        order = sorted(self.specs, key=lambda spec: (spec.spec_id == self.default, spec.spec_id), reverse=True)
        return {spec.spec_id: BoundSpec(spec, columns) for spec in order}


NO_PARTITIONS = PartitionSpecs()


def plain_values(record: Mapping[str, Any]) -> Iterator[Plain]:
    """The values of a record ``partition``, as fastavro reads it."""
    for value in record.values():
        if isinstance(value, datetime):
            yield since_epoch(value)
        elif isinstance(value, date):
            yield days_since_epoch(value)
        else:
            yield value


def _kind(term: PartitionTerm, field: Field) -> pa.DataType:
    """The type of a transform's result in Iceberg."""
    if term.transform.name in ("identity", "truncate"):
        return field.arrow_type
    return pa.date32() if term.transform.name == "day" else pa.int32()


def unpublished_terms(terms: Iterable[PartitionTerm], columns: Mapping[int, Field]) -> dict[str, str]:
    """The reason for each term that is in no spec although its column is published, by its transform and column.

    DuckDB 1.5 truncates texts by the characters that people see, not by code points, and most decimals wrongly.
    """
    types = {field.name: field.arrow_type for field in columns.values()}
    found = {}
    for term in terms:
        kind, transform = types.get(term.column, pa.null()), term.transform
        if transform.name == "truncate" and (t.is_string(kind) or t.is_decimal(kind)):
            what = "texts" if t.is_string(kind) else "decimals"
            reason = f"readers do not agree how to truncate {what}, so they do not know these partitions"
        elif _is_unreadable(transform.name, kind):
            reason = "Spark cannot read partitions of bytes of a fixed size, so readers do not know these"
        else:
            continue
        found[_transform_and_column(term)] = reason
    return found


def _is_unreadable(transform: str, kind: pa.DataType) -> bool:
    """Iceberg 1.12 for Java reads and writes values of ``fixed[n]`` in manifests as bytes with a length, against its
    specification: https://github.com/apache/iceberg/issues/17501"""
    return transform == "identity" and t.is_fixed_size_binary(kind)


def _transform_and_column(term: PartitionTerm) -> str:
    return f"identity({term})" if term.transform.name == "identity" else str(term)


def _is_value_right_in_readers(
    value: Plain, kind: pa.DataType, term: PartitionTerm, field: Field, file: DataFile
) -> bool:
    """Whether a value fits its type in Iceberg, and readers find the same one for each row of the file.

    pyiceberg 0.12 fails on NULL where a condition has OR. Python has only the years 1 to 9999. DuckDB 1.5 takes times
    before 1970 for a day, and a month, later. Readers do not agree on numbers that are truncated to less than the least
    one of their type.
    """
    if not isinstance(value, int) or t.is_boolean(kind):
        return value is not None
    if t.is_timestamp(field.arrow_type) and term.transform.name in ("day", "month") and value < 0:
        return False
    if t.is_temporal(kind):
        return _FIRST_DAY <= (value if t.is_date(kind) else value // DAY_US) <= _LAST_DAY
    if term.transform.name == "truncate":
        least = column_bounds(file, field).min
        if not isinstance(least, int) or not 0 <= least - value < term.transform.size:
            return False
    limit: int = 1 << kind.bit_width - 1
    return -limit <= value < limit


def _avro(kind: pa.DataType, id_: int) -> Any:
    """A type in Avro. Its name must be unique in a schema."""
    if t.is_decimal(kind):
        size = (10**kind.precision - 1).bit_length() // 8 + 1
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "name": f"decimal_{id_}", "size": size} | logical
    if t.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": f"fixed_{id_}", "size": kind.byte_width}
    if t.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": kind.tz is not None}
    if t.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    return {pa.bool_(): "boolean", pa.int64(): "long", pa.string(): "string", pa.binary(): "bytes"}.get(kind, "int")
