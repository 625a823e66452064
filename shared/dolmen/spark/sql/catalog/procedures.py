"""Procedures of a catalog: ``CALL lake.system.compact('events')``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from dolmen.api.database import Database
from dolmen.errors import InputError
from dolmen.spark.compaction_jobs import compact
from dolmen.spark.gc_and_index import gc
from dolmen.spark.sql.catalog.catalog import Catalog
from dolmen.spark.sql.catalog.jvm_objects import JavaObjectMethods, array, called_by_spark, interfaces
from dolmen.spark.sql.catalog.table_relations import CONNECTOR

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

Figures = dict[str, int]


def _compact(spark: SparkSession, database: Database, table: str) -> Figures:
    done = compact(spark, database, table)[table]
    return {"files_in": done.files_in, "files_out": done.files_out, "rows_deleted": done.rows_deleted}


def _gc(spark: SparkSession, database: Database) -> Figures:
    done = gc(spark, database)
    deleted = sum(amount.objects for amount in done.deleted.values())
    return {"versions_expired": done.versions_expired, "objects_deleted": deleted}


def _resolve(spark: SparkSession, database: Database, table: str) -> Figures:
    done = database.resolve(table)[table]
    return {"tombstones": done.tombstones, "rows": done.rows}


PROCEDURES: Mapping[str, tuple[Mapping[str, str], Callable[..., Figures]]] = {
    "compact": ({"table": "string"}, _compact),
    "drop_tag": ({"name": "string"}, lambda spark, database, name: {"version": database.drop_tag(name).version}),
    "gc": ({}, _gc),
    "resolve": ({"table": "string"}, _resolve),
    "restore": (
        {"table": "string", "version": "bigint"},
        lambda spark, database, table, version: {"version": database.table(table).restore(version).version},
    ),
    "tag": (
        {"name": "string", "version": "bigint"},
        lambda spark, database, name, version: {"version": database.tag(name, version).version},
    ),
}
"""The types of their parameters, and what they do."""


class CatalogProcedure(JavaObjectMethods):
    """A procedure, which returns its figures as rows."""

    Java = interfaces(
        f"{CONNECTOR}.catalog.procedures.UnboundProcedure", f"{CONNECTOR}.catalog.procedures.BoundProcedure"
    )

    def __init__(self, spark: SparkSession, database: Database, name: str) -> None:
        super().__init__(name)
        self.spark, self._database = spark, database

    name = description = JavaObjectMethods.toString

    @called_by_spark
    def bind(self, types: Any) -> CatalogProcedure:
        """Raises InputError: there is none of this name. Spark hides errors of ``loadProcedure``."""
        if self._name not in PROCEDURES:
            known = ", ".join(f"{each}({', '.join(PROCEDURES[each][0])})" for each in PROCEDURES)
            raise InputError(f"there is no procedure {self._name!r}; there are: {known}")
        return self

    def isDeterministic(self) -> bool:  # noqa: N802
        return False

    def parameters(self) -> JavaObject:
        jvm, kind = self.spark._jvm, f"{CONNECTOR}.catalog.procedures.ProcedureParameter"
        make, parse = getattr(jvm, kind), jvm.org.apache.spark.sql.types.DataType.fromDDL
        made = [getattr(make, "in")(name, parse(type_)).build() for name, type_ in PROCEDURES[self._name][0].items()]
        return array(self.spark, kind, made)

    @called_by_spark
    def call(self, row: Any) -> JavaObject:
        types, run = PROCEDURES[self._name]
        values = [
            None if row.isNullAt(index) else row.getLong(index) if type_ == "bigint" else row.getString(index)
            for index, type_ in enumerate(types.values())
        ]
        if None in values:
            raise InputError(f"{self._name}: a parameter is NULL")
        figures = run(self.spark, self._database, *values)
        rows = ", ".join(f"('{name}', {value}L)" for name, value in figures.items())
        found = self.spark._jvm.java.util.ArrayList()
        found.add(_ResultScan(self.spark.sql(f"VALUES {rows}").toDF("name", "value")))
        return found.iterator()


class _ResultScan(JavaObjectMethods):
    """The rows of a small DataFrame, which a procedure returns."""

    Java = interfaces(f"{CONNECTOR}.read.LocalScan")

    def __init__(self, frame: DataFrame) -> None:
        super().__init__("dolmen result")
        self._frame = frame._jdf

    description = JavaObjectMethods.toString

    def readSchema(self) -> JavaObject:  # noqa: N802
        return self._frame.schema()

    def rows(self) -> JavaObject:
        return self._frame.queryExecution().executedPlan().executeCollect()


Catalog.procedure, Catalog.procedure_names = CatalogProcedure, tuple(PROCEDURES)
