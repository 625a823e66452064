"""Tables as relations of Spark's plans, whose files are chosen when a query is planned, by its filters.

Spark's optimizer gives the conditions and columns of a query to a ``_ScanBuilder``. A rule then puts the plan of
``to_spark`` in the place of the scan: Spark's own readers read the files that the manifest does not exclude. A
condition that means the same to dolmen is evaluated there alone; Spark evaluates the others, or the rest of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from dolmen.commit.head import context_of
from dolmen.format.schema import Field
from dolmen.predicate import bind
from dolmen.predicate.ast import Predicate
from dolmen.rows.scan.scan import plan_of
from dolmen.spark.frame_types import Origin, items, spark_schema
from dolmen.spark.read.native_parquet import warn_once
from dolmen.spark.sql.catalog.jvm_objects import (
    JavaObjectMethods,
    add_rule,
    array,
    called_by_spark,
    interfaces,
    java_class,
    python_object,
    seq,
    v2_columns,
    value_of_session,
)
from dolmen.spark.sql.catalyst import kind_of_node, read_pushed
from dolmen.spark.tasks import Py4JError, is_remote
from dolmen.transactions.readable_table import ReadableTable
from dolmen.transactions.snapshot import PinnedTable

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

CONNECTOR = "org.apache.spark.sql.connector"
_PREFIX = f"dolmen scan {os.getpid()}."  # begins the descriptions of this process's scans, with their numbers
_numbers = count(1)
_sessions: set[str] = set()  # the sessions with the rule


class TableMethods(JavaObjectMethods):
    """The methods that Spark calls on every table; a subclass has a ``spark``."""

    spark: SparkSession
    _abilities: tuple[str, ...] = ()

    def id(self) -> str | None:
        return None

    def version(self) -> None:
        return None

    currentVersion = version  # noqa: N815 - its name in Spark 4.0

    def partitioning(self) -> JavaObject:
        return array(self.spark, f"{CONNECTOR}.expressions.Transform")

    def properties(self) -> JavaObject:
        return self.spark._jvm.java.util.HashMap()

    def constraints(self) -> JavaObject:
        return array(self.spark, f"{CONNECTOR}.catalog.constraints.Constraint")

    def capabilities(self) -> JavaObject:
        return value_of_session(self.spark, f"{self._abilities}", self._java_abilities)

    def _java_abilities(self) -> JavaObject:
        found = self.spark._jvm.java.util.HashSet()
        for name in self._abilities:
            found.add(java_class(self.spark, f"{CONNECTOR}.catalog.TableCapability").valueOf(name))
        return found


class TableRelation(TableMethods):
    """A table in one version, for Spark's planner. Raises SchemaError: Spark lacks a column's type.

    If it ``follows``, a query sees the newest version that this process has seen, as long as the columns are the same:
    so it sees the process's own commits.
    """

    Java = interfaces(f"{CONNECTOR}.catalog.Table", f"{CONNECTOR}.catalog.SupportsRead")

    _abilities: tuple[str, ...] = ("BATCH_READ",)

    def __init__(self, spark: SparkSession, table: ReadableTable, *, follows: bool = False) -> None:
        plan = plan_of(table.scan(limit=0))  # of no file
        self.spark, self.table, self.entry, self._follows = spark, table, plan.entry, follows
        self.origin = Origin(plan.entry.uuid, plan.version)
        self._schema = self.origin.mark(spark_schema(plan.output))
        self._java_schema: JavaObject | None = None
        self._by_name = {field.name: field for field in plan.output}
        super().__init__(table.name)
        self._hash = hash(self.origin) & 0x7FFFFFFF

    def toString(self) -> str:  # noqa: N802
        return f"{self._name} {self.origin.table}@{self.origin.version}"

    def name(self) -> str:
        return self._name

    def id(self) -> str | None:
        return self.entry.uuid

    def schema(self) -> JavaObject:
        if self._java_schema is None:
            kind = java_class(self.spark, "org.apache.spark.sql.types.DataType")
            self._java_schema = kind.fromJson(self._schema.json())
        return self._java_schema

    def columns(self) -> JavaObject:
        return v2_columns(self.spark, self.schema())

    def newScanBuilder(self, options: Any) -> _ScanBuilder:  # noqa: N802
        return _ScanBuilder(self.spark, self._table_to_read(), self.schema(), self._by_name)

    def _table_to_read(self) -> ReadableTable:
        context, name = context_of(self.table), self.table.name
        newest = context.head.cached.manifest if self._follows and context.head.cached else None
        if newest is None or newest.version <= self.origin.version or name not in newest.tables:
            return self.table
        entry = context.segments.whole(newest.tables[name])
        is_same = entry.uuid == self.entry.uuid and entry.schema == self.entry.schema
        return PinnedTable(context, name, newest) if is_same else self.table

    def frame(self) -> DataFrame:
        """The table as a DataFrame. Raises Py4JError, TypeError: this version of Spark has other internals."""
        ensure_rule(self.spark)
        jvm, none = self.spark._jvm, self.spark._jvm.scala.Option.empty()
        relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation.create(self, none, none)
        made = jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.spark._jsparkSession, relation)
        return DataFrame(made, self.spark)


class _ScanBuilder(JavaObjectMethods):
    """Takes the conditions and the columns of a query."""

    Java = interfaces(
        "org.apache.spark.sql.internal.connector.SupportsPushDownCatalystFilters",
        f"{CONNECTOR}.read.SupportsPushDownRequiredColumns",
    )

    def __init__(self, spark: SparkSession, table: ReadableTable, schema: Any, fields: Mapping[str, Field]) -> None:
        super().__init__("dolmen scan")
        self.spark, self._table, self._schema, self._fields = spark, table, schema, fields
        self._predicates: list[Predicate] = []

    @called_by_spark
    def pushFilters(self, filters: Any) -> JavaObject:  # noqa: N802
        """Takes the conditions that mean the same to dolmen, and returns those that Spark evaluates."""
        rest = []
        for each in items(filters):
            condition = read_pushed(each, self._fields)
            if condition.predicate is not None:
                self._predicates.append(condition.predicate)
            if not condition.is_exact:
                rest.append(each)
        return seq(self.spark, rest)

    def pushedFilters(self) -> JavaObject:  # noqa: N802
        return array(self.spark, f"{CONNECTOR}.expressions.filter.Predicate")

    def pruneColumns(self, required: Any) -> None:  # noqa: N802
        self._schema = required

    def build(self) -> _Scan:
        where = bind.conjunction(self._predicates) if self._predicates else None
        return _Scan(self.spark, self._table, self._schema, where, self._fields)


class _Scan(JavaObjectMethods):
    """A query's scan of a table: its columns, and the predicate that chooses files. A rule replaces it by its plan."""

    Java = interfaces(f"{CONNECTOR}.read.Scan")

    def __init__(
        self,
        spark: SparkSession,
        table: ReadableTable,
        schema: Any,
        where: Predicate | None,
        fields: Mapping[str, Field],
    ) -> None:
        super().__init__(f"{_PREFIX}{next(_numbers)}")
        self.spark, self._table, self._columns, self._where = spark, table, schema, where
        self._fields = fields

    def description(self) -> str:
        return self._name

    def readSchema(self) -> JavaObject:  # noqa: N802
        return self._columns

    def filter(self, condition: Any) -> None:
        """Takes the condition of the filter above the scan. It only chooses files: Spark still runs the filter."""
        self._where = read_pushed(condition, self._fields).predicate

    @called_by_spark
    def reading_plan(self) -> JavaObject:
        """The plan that reads the rows, with the columns of the scan."""
        names = list(self._columns.fieldNames())
        rows = None if names else _row_count(self._table, self._where)
        if rows is None:
            frame = self._table.to_spark(names or None, self._where, spark=self.spark)
            frame = frame if names else frame.select()
        else:
            frame = self.spark.range(rows).select()
        return frame._jdf.queryExecution().optimizedPlan()


def _row_count(table: ReadableTable, where: Predicate | None) -> int | None:
    """The number of rows for which a predicate is TRUE, by the manifest; None if files have to be read for that."""
    counts = [file.exact_rows for file in plan_of(table.scan(where=where)).files]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _reading_plan(node: Any) -> JavaObject:
    if kind_of_node(node) == "DataSourceV2ScanRelation":
        return python_object(node.scan()).reading_plan()
    scan = python_object(node.child().scan())
    scan.filter(node.condition())
    return scan.reading_plan()


def _change(plan: Any) -> JavaObject:
    """The plan that the table's catalog puts in the place of a plan that changes rows."""
    leaf = (plan.targetTable() if kind_of_node(plan) == "MergeIntoTable" else plan.table()).collectLeaves().head()
    relation = leaf.relation() if kind_of_node(leaf) == "DataSourceV2ScanRelation" else leaf
    is_in_catalog = kind_of_node(relation) == "DataSourceV2Relation" and relation.catalog().isDefined()
    catalog = python_object(relation.catalog().get()) if is_in_catalog else None
    return plan if catalog is None else catalog.change_plan(plan, relation)


def ensure_rule(spark: SparkSession) -> None:
    session = spark._jsparkSession.sessionUUID()
    if session not in _sessions:
        add_rule(spark, _PREFIX, _reading_plan, _change)
        _sessions.add(session)


def table_frame(spark: SparkSession, table: ReadableTable, *, follows: bool = False) -> DataFrame:
    """A table as a frame that leaves out files by the conditions of each query on it. See ``TableRelation``."""
    if not is_remote(spark):
        try:
            return TableRelation(spark, table, follows=follows).frame()
        except (Py4JError, TypeError) as error:  # this version of Spark has other internals
            warn_once(f"queries on views read all files: {type(error).__name__}")
    return table.to_spark(spark=spark)
