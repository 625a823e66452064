"""Batch reads of ``format("dolmen")``: the planner sorts the files into partitions, each of which a worker reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from dolmen.base.runtime import shared_runtime
from dolmen.base.units import MIB
from dolmen.commit.context import Context
from dolmen.commit.head import Head
from dolmen.entries.segments.erasures_in_force import with_erasures
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format.schema import COMMIT_TS, Field, Schema, is_nested
from dolmen.predicate import Predicate, bind, parse
from dolmen.predicate.bind import ConditionReader, Connective, UnsupportedConditionError
from dolmen.predicate.constants import NULL, Value, from_python
from dolmen.predicate.domains import Domain, Op, domain_of
from dolmen.rows.scan.scan import Scan, plan_of, scan_files
from dolmen.spark.failures import mark_dolmen_errors
from dolmen.spark.source.source import READ, Options, SourceTable
from dolmen.spark.spark_types import spark_arrow_schema, worker_schema
from dolmen.store import open_store
from dolmen.transactions.snapshot import PinnedTable

PARTITION_BYTES = 128 * MIB
"""The most bytes of files that are read together; a larger file is read by itself."""
FILE_BYTES = 4 * MIB
"""The cost of opening a file, in bytes read, so that one task does not get many small files."""
PARTITIONS = 64
"""Partitions are smaller than ``PARTITION_BYTES`` until there are this many tasks."""
_OPS: dict[str, Op] = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
_PATTERNS = {"StringStartsWith": "{}%", "StringEndsWith": "%{}", "StringContains": "%{}%"}
_ESCAPE = "\\"


@dataclass(frozen=True)
class SharedScan:
    """A scan that the planner and each worker make for themselves: one GET, and the segments, in each process."""

    table: SourceTable
    where: Predicate | None

    def scan(self) -> Scan:
        """The whole scan, planned on first use. Columns are in stored order, ``_commit_ts`` last."""
        return _scan(self)

    def read(self, paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of some of its files, in Spark's types."""
        with mark_dolmen_errors():
            scan = scan_files(self.scan(), set(paths))
            schema = spark_arrow_schema(scan.schema)
            for batch in scan.to_batches():
                yield batch.cast(schema).select(self.table.columns)


@lru_cache(maxsize=2)  # a worker gets the partitions of a query one after another
def _scan(shared: SharedScan) -> Scan:
    table, runtime = shared.table, shared_runtime()
    store = open_store(table.url, runtime)
    head = Head(store, runtime)
    try:
        manifest = head.read_manifest(table.manifest)
    except ObjectNotFoundError as error:
        head.check_kept(table.version)
        raise CorruptionError(table.manifest, "the manifest is missing") from error
    name, entry = table.table, manifest.table(table.table)
    tables = {**manifest.tables, name: with_erasures(entry, table.erasures, head.segments)}
    manifest = msgspec.structs.replace(manifest, tables=tables)
    stored = [name for name in table.columns if name != COMMIT_TS]
    core = PinnedTable(Context(store, runtime, head), table.table, manifest)
    # The scan can not read the hidden column alone: it reads another one, which is not returned.
    columns = stored or [table.schema.fields[0].name]
    return core.scan(columns, shared.where, with_commit_ts=COMMIT_TS in table.columns)


@dataclass(frozen=True)
class FilesPartition(InputPartition):  # type: ignore[misc]
    """Paths of the data files that one task reads."""

    paths: tuple[str, ...]


class Sized(Protocol):
    """A part of a read that goes to one task."""

    @property
    def size(self) -> int:
        """Bytes to read."""


Part = TypeVar("Part", bound=Sized)


def groups_of(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Groups files, or other parts, that are read together, in their order."""
    most = min(PARTITION_BYTES, max(FILE_BYTES, sum(part.size + FILE_BYTES for part in parts) // PARTITIONS))
    groups: list[tuple[Part, ...]] = []
    group, size = list[Part](), 0
    for part in parts:
        if group and size + part.size + FILE_BYTES > most:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(part)
        size += part.size + FILE_BYTES
    return [*groups, tuple(group)] if group else groups


class _PushedFilterReader(ConditionReader[Any]):
    """Reads the filters that Spark pushes, whose values Spark has cast to their columns' own types.

    Filters that Spark and dolmen understand differently are left to Spark: IN over floats, which Spark compares by
    their bits, and everything about nested columns.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def connective(self, node: Any) -> tuple[Connective, Sequence[Any]] | None:
        """See ``ConditionReader``. Spark pushes each conjunct by itself, and no OR."""
        return ("not", [node.child]) if type(node).__name__ == "Not" else None

    def atom(self, node: Any) -> Predicate:
        """See ``ConditionReader``."""
        if not isinstance(node, Filter) or len(node.attribute) != 1:
            raise UnsupportedConditionError
        field = self._schema.field(node.attribute[0])
        if is_nested(field.arrow_type):
            raise UnsupportedConditionError
        match type(node).__name__:
            case "IsNull":
                return bind.is_null(field)
            case "IsNotNull":
                return bind.negation(bind.is_null(field))
            case name if name in _PATTERNS:
                escaped = "".join(_ESCAPE + c if c in "%_" + _ESCAPE else c for c in node.value)
                return bind.like(field, Value(Domain.TEXT, _PATTERNS[name].format(escaped)), _ESCAPE, False)
            case "In" if not pa.types.is_floating(field.arrow_type):
                return bind.one_of(field, [_value(each, field) for each in node.value])
            case "EqualNullSafe":
                return bind.negation(bind.distinct_from(field, _value(node.value, field)))
            case name if name in _OPS:
                return bind.compare(_OPS[name], field, _value(node.value, field))
        raise UnsupportedConditionError


def _value(value: Any, field: Field) -> Value:
    """Spark's value as a constant of the column's own domain."""
    if value is None:
        return NULL
    domain = domain_of(field.arrow_type)
    if isinstance(value, float) and domain is not None and domain.is_float:  # the exact number, also of a float32
        return Value(Domain.FLOAT64, value)
    if isinstance(value, float):
        raise UnsupportedConditionError
    found = from_python(bytes(value) if isinstance(value, bytearray) else value)
    if found.kind is not domain:
        raise UnsupportedConditionError
    return found


def to_predicate(pushed: Filter, schema: Schema) -> Predicate | None:
    """The predicate of a filter that Spark pushes; None if Spark must evaluate it."""
    return _PushedFilterReader(schema).find(pushed)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads one version of a table.

    Args:
        where: only rows for which this is TRUE.
        arrow_schema: of the result, with NULLs allowed where Spark allows them: Spark 4.3 requires that.
    """

    def __init__(self, table: SourceTable, where: Predicate | None, arrow_schema: pa.Schema) -> None:
        self.table, self.where, self.arrow_schema = table, where, arrow_schema

    @property
    def shared(self) -> SharedScan:
        """The scan that goes to the workers."""
        return SharedScan(self.table, self.where)

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each group of files that statistics do not rule out; there may be none."""
        with mark_dolmen_errors():
            files = [file.file for file in plan_of(self.shared.scan()).files]
        return [FilesPartition(tuple(file.path for file in some)) for some in groups_of(files)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one partition. If there is none, Spark makes an empty one of its own."""
        if not isinstance(partition, FilesPartition):
            return iter(())
        return (batch.cast(self.arrow_schema) for batch in self.shared.read(partition.paths))


class PushingReader(BatchReader):
    """The same, with Spark's filters pushed: option ``push_filters``; docs/spark-sql.md says when that is wrong."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Takes filters that dolmen evaluates exactly as Spark does, and leaves the others to Spark."""
        found = [(each, to_predicate(each, self.table.schema)) for each in filters]
        taken = [self.where, *(predicate for _, predicate in found)]
        if exact := [predicate for predicate in taken if predicate is not None]:
            self.where = bind.conjunction(exact)
        return [each for each, predicate in found if predicate is None]


def reader(table: SourceTable, schema: s.StructType, options: Mapping[str, str]) -> DataSourceReader:
    """Makes the reader of a table. Raises SchemaError, PredicateError."""
    given = Options.of(options, READ)
    kind = PushingReader if given.flag("push_filters") else BatchReader
    return kind(table.with_schema(schema), parse_where(given, table.schema), worker_schema(schema))


def parse_where(given: Options, schema: Schema) -> Predicate | None:
    """The option ``where``, bound to a table's columns. Raises PredicateError."""
    text = given.text("where")
    # Which moment "now" is, is settled here, for all workers.
    return None if text is None else parse(text, schema, now_us=shared_runtime().clock_us())
