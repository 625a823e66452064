"""A database as a catalog of a Spark session: ``spark.sql("DELETE FROM dolmen.events WHERE id = 1")``.

Spark keeps its catalogs in a map, which has no method to add one: ``install`` puts a Python object there, that Spark
calls as it calls the class of a jar. Reads are those of ``table_relations``, writes those of ``write.from_frame``:
Spark gives a DataFrame. UPDATE, MERGE, and a DELETE whose condition is not a predicate go through
``dolmen.spark.sql``. A statement is one commit, also CREATE TABLE AS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as s

from dolmen.api.database import Database
from dolmen.api.table import Table
from dolmen.commit.head import context_of
from dolmen.commit.statements.row_changes import Write
from dolmen.errors import InputError, TableNotFoundError
from dolmen.format.column_terms import PartitionTerm, partition_terms, sort_texts
from dolmen.format.schema import Field, constant
from dolmen.predicate.ast import Predicate
from dolmen.rows.scan.plan import stored_schema_of
from dolmen.spark.frame_types import quote, spark_type, worker_schema
from dolmen.spark.sql.catalog.catalog_changes import change_table, cluster_by, default_value
from dolmen.spark.sql.catalog.jvm_objects import (
    JavaObjectMethods,
    array,
    called_by_spark,
    gateway_of,
    interfaces,
    java_class,
    python_object,
    v2_columns,
)
from dolmen.spark.sql.catalog.table_relations import CONNECTOR, TableMethods, TableRelation, ensure_rule
from dolmen.spark.sql.catalyst import kind_of_node, read_pushed
from dolmen.spark.tasks import Py4JJavaError
from dolmen.spark.write.from_frame import UnchangedSince, append, overwrite, write_frame
from dolmen.spark.write.write_tasks import DigestMode
from dolmen.transactions.readable_table import ReadableTable
from dolmen.transactions.snapshot import Snapshot
from dolmen.transactions.transaction import Exist, Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_RESERVED = frozenset(("provider", "owner", "location", "external", "is_managed_location", "table_type", "collation"))
"""Properties that Spark itself gives a new table."""
_OWN = "primary_key", "sort_key"  # properties by which CREATE TABLE gives the keys: Spark's SQL has no syntax for them


class CatalogTable(TableRelation):
    """A table of a catalog, which Spark reads and changes."""

    Java = interfaces(
        f"{CONNECTOR}.catalog.Table",
        f"{CONNECTOR}.catalog.SupportsRead",
        f"{CONNECTOR}.catalog.SupportsWrite",
        f"{CONNECTOR}.catalog.TruncatableTable",
    )

    _abilities = (
        "BATCH_READ", "BATCH_WRITE", "V1_BATCH_WRITE", "TRUNCATE", "OVERWRITE_BY_FILTER", "OVERWRITE_DYNAMIC",
    )  # fmt: skip

    def __init__(self, catalog: Catalog, newest: Table, table: ReadableTable, *, is_older: bool, writes: bool) -> None:
        super().__init__(catalog.spark, table)
        self._name, self._target, self._is_older = f"{catalog.name()}.{table.name}", newest, is_older
        fields = [self._by_name[field.name] for field in self._schema]
        for column, field in zip(self._schema, fields, strict=True):
            if field.comment:
                column.metadata["comment"] = field.comment
        if writes:
            self._schema = s.StructType([_with_default(*each) for each in zip(self._schema, fields, strict=True)])

    def partitioning(self) -> JavaObject:
        terms = [_transform(self.spark, term) for term in partition_terms(self.entry.properties)]
        return array(self.spark, f"{CONNECTOR}.expressions.Transform", terms)

    def properties(self) -> JavaObject:
        """The settings, with the keys."""
        found, entry = super().properties(), self.entry
        keys = entry.schema.names_of(entry.primary_key), sort_texts(entry.sort_key, entry.schema)
        shown = {name: ",".join(texts) for name, texts in zip(_OWN, keys, strict=True) if texts}
        for name, value in {**entry.properties, **shown, "provider": "dolmen"}.items():
            found.put(name, value if isinstance(value, str) else json.dumps(value))
        return found

    def newWriteBuilder(self, info: Any) -> _WriteBuilder:  # noqa: N802
        return _WriteBuilder(self.spark, partial(_write, self._newest, _RowOptions.of(info.options())))

    @called_by_spark
    def truncateTable(self, options: Any = None) -> bool:  # noqa: N802
        self._newest().delete("TRUE")
        return True

    def supportedCustomMetrics(self) -> JavaObject:  # noqa: N802
        return array(self.spark, f"{CONNECTOR}.metric.CustomMetric")

    def reportDriverMetrics(self) -> JavaObject:  # noqa: N802
        return array(self.spark, f"{CONNECTOR}.metric.CustomTaskMetric")

    def _newest(self) -> Table:
        if self._is_older:
            raise InputError(f"an older version of {self._name} can't be changed: leave out the version, or restore it")
        return self._target


class _RowOptions(Struct, frozen=True):
    """Options of a write, by the names that other formats have for them."""

    request: str | None
    replace_where: str | None
    is_dynamic: bool

    @classmethod
    def of(cls, options: Any) -> _RowOptions:
        is_dynamic = str(options.get("partitionOverwriteMode")).lower() == "dynamic"
        return cls(options.get("request"), options.get("replaceWhere"), is_dynamic)

    @property
    def keeps_others(self) -> bool:
        """Whether an overwrite keeps the table, and some of its rows."""
        return self.is_dynamic or self.replace_where is not None


def _write(find_table: Callable[[], Table], options: _RowOptions, frame: DataFrame, builder: _WriteBuilder) -> None:
    mode, text = builder.mode, options.replace_where
    if mode == "append":
        if text is not None:
            raise InputError("replaceWhere says which rows an overwrite replaces, and this is an append")
        append(find_table(), frame, request=options.request)
        return
    table = find_table()
    by_partition = mode == "partitions" or (mode == "all" and text is None and options.is_dynamic)
    # A table without partitions is one partition, as Spark has it.
    by_partition = by_partition and bool(partition_terms(table.settings()))
    where = builder.where if text is None else text
    assert (mode == "some") == (builder.where is not None), "the rule of the optimizer has not run"
    checks = text is not None
    overwrite(table, frame, where=where, by_partition=by_partition, check=checks, request=options.request)


def _transform(spark: SparkSession, term: PartitionTerm) -> JavaObject:
    make, transform = spark._jvm.org.apache.spark.sql.connector.expressions.Expressions, term.transform
    column = quote(term.column)
    if transform.name == "bucket":
        return make.bucket(transform.size, array(spark, "java.lang.String", [column]))
    if transform.name == "truncate":
        values = [make.literal(transform.size), make.column(column)]
        return make.apply("truncate", array(spark, f"{CONNECTOR}.expressions.Expression", values))
    return getattr(make, "identity" if transform.name == "identity" else f"{transform.name}s")(column)


def _with_default(column: s.StructField, field: Field) -> s.StructField:
    """The column with its default, which Spark writes where an INSERT does not name it.

    Where Spark can't express the default, the column may not be left out: it would be NULL.
    """
    if field.write_default is None and not field.write_function:
        return column
    sql = _default_sql(field)
    if sql is None:
        return s.StructField(column.name, column.dataType, False, column.metadata)
    metadata = {**(column.metadata or {}), "CURRENT_DEFAULT": sql, "EXISTS_DEFAULT": sql}
    return s.StructField(column.name, column.dataType, column.nullable, metadata)


def _default_sql(field: Field) -> str | None:
    kind = spark_type(field.arrow_type).simpleString()
    if field.write_function:
        return "current_timestamp()" if field.write_function == "now" and kind == "timestamp" else None
    value = constant(field.write_default, field.arrow_type, 1)[0].as_py()
    match value:
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case bytes():
            return f"X'{value.hex()}'"
        case bool() | int() | float() | Decimal() | date():
            return f"CAST('{value}' AS {kind})"
    return None


class _WriteBuilder(JavaObjectMethods):
    """Learns which rows the new ones replace; ``build`` returns the object that receives the DataFrame."""

    Java = interfaces(
        f"{CONNECTOR}.write.SupportsOverwriteV2",
        f"{CONNECTOR}.write.SupportsDynamicOverwrite",
        f"{CONNECTOR}.write.V1Write",
        "org.apache.spark.sql.sources.InsertableRelation",
    )

    def __init__(self, spark: SparkSession, write: Callable[[DataFrame, _WriteBuilder], None]) -> None:
        super().__init__("dolmen write")
        self.spark, self._write = spark, write
        self.mode: Literal["append", "all", "some", "partitions"] = "append"
        self.where: Predicate | None = None
        """The rows that are replaced in mode "some", which ``Catalog.change_plan`` finds in the plan."""

    def truncate(self) -> _WriteBuilder:
        self.mode = "all"
        return self

    def canOverwrite(self, conditions: Any) -> bool:  # noqa: N802
        return True

    def overwrite(self, conditions: Any) -> _WriteBuilder:
        self.mode = "some"
        return self

    def overwriteDynamicPartitions(self) -> _WriteBuilder:  # noqa: N802
        self.mode = "partitions"
        return self

    def build(self) -> _WriteBuilder:
        return self

    def description(self) -> str:
        return self._name

    def toInsertableRelation(self) -> _WriteBuilder:  # noqa: N802
        return self

    def supportedCustomMetrics(self) -> JavaObject:  # noqa: N802
        return array(self.spark, f"{CONNECTOR}.metric.CustomMetric")

    def reportDriverMetrics(self) -> JavaObject:  # noqa: N802
        return array(self.spark, f"{CONNECTOR}.metric.CustomTaskMetric")

    @called_by_spark
    def insert(self, rows: Any, overwrite: bool) -> None:
        self._write(DataFrame(rows, self.spark), self)


class _NewTable(TableMethods):
    """A table of CREATE TABLE AS, which one commit creates with its rows."""

    _abilities = ("V1_BATCH_WRITE", "TRUNCATE")

    Java = interfaces(f"{CONNECTOR}.catalog.StagedTable", f"{CONNECTOR}.catalog.SupportsWrite")

    def __init__(self, catalog: Catalog, name: str, columns: Any, create: Callable[[Transaction], None]) -> None:
        super().__init__(f"{catalog.name()}.{name}")
        self.spark, self._catalog, self._table = catalog.spark, catalog, name
        self._columns, self._create, self._is_done = columns, create, False

    name = JavaObjectMethods.toString
    description = JavaObjectMethods.toString

    def columns(self) -> Any:
        return self._columns

    def schema(self) -> JavaObject:
        return self.spark._jvm.org.apache.spark.sql.connector.catalog.CatalogV2Util.v2ColumnsToStructType(self._columns)

    def reportDriverMetrics(self) -> JavaObject:  # noqa: N802
        return array(self.spark, f"{CONNECTOR}.metric.CustomTaskMetric")

    def newWriteBuilder(self, info: Any) -> _WriteBuilder:  # noqa: N802
        options = _RowOptions.of(info.options())

        def write(frame: DataFrame, builder: _WriteBuilder) -> None:
            if options.keeps_others and self._table in self._catalog.database.tables():  # saveAsTable, mode "overwrite"
                builder.mode = "all"
                _write(lambda: self._catalog.database.table(self._table), options, frame, builder)
                self._is_done = True
            else:
                self._commit(frame)

        return _WriteBuilder(self.spark, write)

    @called_by_spark
    def commitStagedChanges(self) -> None:  # noqa: N802
        if not self._is_done:
            self._commit(None)

    def abortStagedChanges(self) -> None:  # noqa: N802
        """Does nothing: nothing was committed."""

    def _commit(self, frame: DataFrame | None) -> None:
        transaction = Transaction(UnitOfWork(context_of(self._catalog.database), "create_table", newest=True))
        unit = unit_of(transaction)
        if frame is not None and self._table in unit.tables:  # it may read the table that it replaces
            UnchangedSince(None, force=False).add_to(transaction, self._table, frame)
        self._create(transaction)
        if frame is not None:
            entry = unit.entry(self._table)
            if files := tuple(write_frame(transaction, self._table, frame, DigestMode.NONE).files):
                unit.add(Write(self._table, entry.uuid, files, schema=entry.schema))
        transaction.commit()
        self._is_done = True


class Catalog(JavaObjectMethods):
    """The tables of a database, by Spark's interface of catalogs."""

    Java = interfaces(f"{CONNECTOR}.catalog.StagingTableCatalog", f"{CONNECTOR}.catalog.ProcedureCatalog")

    run_statement: Callable[..., object]
    """``dolmen.spark.sql``. It and the procedures are set by their modules, which import this one."""
    procedure: Callable[[SparkSession, Database, str], Any]
    procedure_names: Sequence[str]

    def __init__(self, spark: SparkSession, database: Database, name: str) -> None:
        super().__init__(name)
        self.spark, self.database = spark, database

    name = JavaObjectMethods.toString

    def initialize(self, name: str, options: Any) -> None:
        """Does nothing: everything is known already."""

    def defaultNamespace(self) -> JavaObject:  # noqa: N802
        return array(self.spark, "java.lang.String")

    def capabilities(self) -> JavaObject:
        found, kind = self.spark._jvm.java.util.HashSet(), f"{CONNECTOR}.catalog.TableCatalogCapability"
        found.add(java_class(self.spark, kind).valueOf("SUPPORT_COLUMN_DEFAULT_VALUE"))
        return found

    def tableStateOptionKeys(self) -> JavaObject:  # noqa: N802 - of Spark 4.3, as the next
        return self.spark._jvm.java.util.HashSet()

    changelogStateOptionKeys = tableStateOptionKeys  # noqa: N815

    def useNullableQuerySchema(self) -> bool:  # noqa: N802
        return True

    def supportedCustomMetrics(self) -> JavaObject:  # noqa: N802
        return array(self.spark, f"{CONNECTOR}.metric.CustomMetric")

    @called_by_spark
    def listTables(self, namespace: Any) -> JavaObject:  # noqa: N802
        identifier = self.spark._jvm.org.apache.spark.sql.connector.catalog.Identifier
        names = self.database.tables()
        return array(self.spark, f"{CONNECTOR}.catalog.Identifier", [identifier.of(namespace, name) for name in names])

    @called_by_spark
    def listTableSummaries(self, namespace: Any) -> JavaObject:  # noqa: N802
        summary = self.spark._jvm.org.apache.spark.sql.connector.catalog.TableSummary
        found = [summary.of(each, "MANAGED") for each in self.listTables(namespace)]
        return array(self.spark, f"{CONNECTOR}.catalog.TableSummary", found)

    @called_by_spark
    def loadTable(self, identifier: Any, at: Any = None, options: Any = None) -> CatalogTable:  # noqa: N802
        """The newest version, or one by its number, tag or time in microseconds; ``at`` may be the rights to write."""
        if options is not None:  # Spark 4.3 gives both in a TableContext
            travel, rights = at.timeTravel(), at.writePrivileges()
            at = None if rights.isEmpty() else rights
            if travel.isPresent():
                found = travel.get()
                at = found.version() if kind_of_node(found) == "AsOfVersion" else found.micros()
        name, is_older = self._table_name(identifier), isinstance(at, (str, int))
        try:
            if isinstance(at, str):
                snapshot = self.database.at(version=int(at)) if at.isdecimal() else self.database.at(tag=at)
            elif is_older:
                snapshot = self.database.at(timestamp=at)
            else:
                context = context_of(self.database)
                snapshot = Snapshot(context, context.head.refresh().manifest)
            table = snapshot.table(name)
            rights = set() if at is None or is_older else {str(right) for right in at}
            return CatalogTable(self, self.database.table(name), table, is_older=is_older, writes=bool(rights))
        except TableNotFoundError as error:
            missing = self.spark._jvm.org.apache.spark.sql.catalyst.analysis.NoSuchTableException(identifier)
            raise Py4JJavaError(str(error), missing) from error

    @called_by_spark
    def loadChangelog(self, identifier: Any, *how: Any) -> None:  # noqa: N802
        raise InputError(f"{self._name}.{self._table_name(identifier)}: the function table_changes reads its changes")

    @called_by_spark
    def createTableLike(self, identifier: Any, *how: Any) -> None:  # noqa: N802
        name = f"{self._name}.{self._table_name(identifier)}"
        raise InputError(f"{name}: CREATE TABLE ... AS SELECT ... LIMIT 0 makes a table with the columns of another")

    def invalidateTable(self, identifier: Any) -> None:  # noqa: N802
        """Does nothing: nothing is cached."""

    @called_by_spark
    def tableExists(self, identifier: Any) -> bool:  # noqa: N802
        return self._table_name(identifier) in self.database.tables()

    @called_by_spark
    def createTable(self, identifier: Any, *how: Any) -> CatalogTable:  # noqa: N802
        self._stage(identifier, how, "error").commitStagedChanges()
        return self.loadTable(identifier)

    @called_by_spark
    def stageCreate(self, identifier: Any, *how: Any) -> _NewTable:  # noqa: N802
        return self._stage(identifier, how, "error")

    @called_by_spark
    def stageReplace(self, identifier: Any, *how: Any) -> _NewTable:  # noqa: N802
        self.loadTable(identifier)
        return self._stage(identifier, how, "replace")

    @called_by_spark
    def stageCreateOrReplace(self, identifier: Any, *how: Any) -> _NewTable:  # noqa: N802
        return self._stage(identifier, how, "replace")

    def _stage(self, identifier: Any, how: Sequence[Any], exist: Exist) -> _NewTable:
        """A new table, by a ``TableInfo``, or by columns, partitions and properties."""
        if len(how) == 1:
            [info] = how
            how = info.columns(), info.partitions(), info.properties()
        columns, partitions, properties = how
        if not isinstance(columns, Sequence):  # a StructType, of older versions of Spark
            columns = v2_columns(self.spark, columns)
        if "location" in properties:
            raise InputError(
                "LOCATION, or the option path: the tables of a database are where it is; adopt() takes files"
            )
        terms = [each for each in partitions if each.name() != "cluster_by"]
        partition_by = ", ".join(each.toString().replace("`", '"') for each in terms) or None
        name, schema = self._table_name(identifier), worker_schema(_struct(columns))
        settings = {
            key: properties[key] for key in properties if key not in _RESERVED and not key.startswith("option.")
        }
        for each in partitions:
            if each not in terms:
                settings["cluster_by"] = cluster_by(each.references())
        key, sort_key = (settings.pop(each, "") for each in _OWN)
        comments = {column.name(): column.comment() for column in columns if column.comment()}
        defaults = {
            column.name(): default_value(self.spark, column.defaultValue().getSql(), column.dataType())
            for column in columns
            if column.defaultValue() is not None
        }

        def create(transaction: Transaction) -> None:
            primary_key = [part.strip() for part in key.split(",")] if key else None
            fields = [field.with_nullable(False) if field.name in (primary_key or ()) else field for field in schema]
            own = pa.schema(fields), primary_key, sort_key or None, settings
            table = transaction.create_table(name, *own, partition_by=partition_by, exist=exist)
            for column, text in comments.items():
                table.comment(column, text)
            for column, value in defaults.items():
                table.set_default(column, value)

        return _NewTable(self, name, columns, create)

    @called_by_spark
    def alterTable(self, identifier: Any, changes: Any) -> CatalogTable:  # noqa: N802
        """Makes all changes in one commit."""

        def alter(transaction: Transaction) -> None:
            table = transaction.table(self._table_name(identifier))
            for change in changes:
                change_table(self.spark, table, change)

        replay(context_of(self.database), alter, "alter")
        return self.loadTable(identifier)

    @called_by_spark
    def dropTable(self, identifier: Any) -> bool:  # noqa: N802
        if not self.tableExists(identifier):
            return False
        self.database.drop_table(self._table_name(identifier))
        return True

    purgeTable = dropTable  # noqa: N815 - rows stay as long as versions do

    @called_by_spark
    def renameTable(self, old: Any, new: Any) -> None:  # noqa: N802
        self.database.rename_table(self._table_name(old), self._table_name(new))

    @called_by_spark
    def loadProcedure(self, identifier: Any) -> Any:  # noqa: N802
        return self.procedure(self.spark, self.database, identifier.name().lower())

    @called_by_spark
    def listProcedures(self, namespace: Any) -> JavaObject:  # noqa: N802
        identifier = self.spark._jvm.org.apache.spark.sql.connector.catalog.Identifier
        system = array(self.spark, "java.lang.String", ["system"])
        found = [identifier.of(system, name) for name in self.procedure_names]
        return array(self.spark, f"{CONNECTOR}.catalog.Identifier", found)

    @called_by_spark
    def change_plan(self, plan: Any, relation: Any) -> JavaObject:
        """The plan that Spark runs in the place of a DELETE, an UPDATE, a MERGE or an overwrite of some rows.

        By then Spark has checked the statement. The plan becomes a write, because that is all that Spark can run here:
        its commit deletes by a condition that means the same to dolmen, or gives the text to ``dolmen.spark.sql``.
        """
        kind, option = kind_of_node(plan), self.spark._jvm.scala.Option
        if kind == "OverwritePartitionsDynamic":
            return self._append_data(plan.table(), plan.query(), plan.write())
        builder = python_object(plan.write().get()) if kind == "OverwriteByExpression" else None
        if builder is not None and builder.mode != "some":  # of all rows, perhaps of a table that this creates
            return plan
        table = self.database.table(self._table_name(relation.identifier().get()))
        predicate = None
        if kind in ("DeleteFromTable", "OverwriteByExpression"):
            fields = {field.name: field for field in stored_schema_of(table).fields}
            condition = plan.condition() if kind == "DeleteFromTable" else plan.deleteExpr()
            found = read_pushed(condition, fields)
            predicate = found.predicate if found.is_exact else None
        if builder is not None:
            if predicate is None:
                raise InputError(
                    f"{condition.sql()}: Spark has to evaluate this condition row by row: delete these rows, and append"
                )
            builder.where = predicate
            return plan
        text = plan.origin().sqlText()
        if predicate is None and not text.isDefined():
            raise InputError(
                f"{kind} of {self._name}.{table.name}: dolmen.spark.merge does what DataFrame.mergeInto does"
            )

        def run(frame: DataFrame, builder: _WriteBuilder) -> None:
            if predicate is None:
                self.run_statement(text.get(), spark=self.spark)
            else:
                table.delete(predicate)

        logical = self.spark._jvm.org.apache.spark.sql.catalyst.plans.logical
        rows = getattr(getattr(logical, "LocalRelation$"), "MODULE$").apply(relation.output())
        return self._append_data(relation, rows, option.apply(_WriteBuilder(self.spark, run)))

    def _append_data(self, relation: Any, rows: Any, write: Any) -> JavaObject:
        jvm = self.spark._jvm
        options, query = jvm.PythonUtils.toScalaMap({}), jvm.scala.Option.apply(rows)
        flags = [False] * (2 if self.spark.version >= "4.3" else 1)  # by name, and with new columns
        return jvm.org.apache.spark.sql.catalyst.plans.logical.AppendData(relation, rows, options, *flags, write, query)

    def _table_name(self, identifier: Any) -> str:
        """The table's name, in lower case as all are. The jar lists tables in a schema with the catalog's name."""
        if list(identifier.namespace()) not in ([], [self._name]):
            parts = ".".join([*identifier.namespace(), identifier.name()])
            raise InputError(f"{self._name}.{parts}: a database has tables and no schemas: {self._name}.table")
        return str(identifier.name()).lower()


def _struct(columns: Sequence[Any]) -> s.StructType:
    fields = [
        {"name": each.name(), "type": json.loads(each.dataType().json()), "nullable": each.nullable(), "metadata": {}}
        for each in columns
    ]
    return s.StructType.fromJson({"type": "struct", "fields": fields})


def _catalogs(spark: SparkSession) -> Any:
    manager = spark._jsparkSession.sessionState().catalogManager()
    field = manager.getClass().getDeclaredField("catalogs")
    field.setAccessible(True)
    return field.get(manager)


def install(spark: SparkSession, database: Database, name: str) -> Catalog:
    """Makes a database a catalog of a session. Raises InputError: the session has a catalog of this name.

    It may be the one of the jar, which a Python driver does not use.
    """
    setting = spark.conf.get(f"spark.sql.catalog.{name}", None)
    if name.lower() in ("spark_catalog", "system", "session") or setting not in (None, "dolmen.spark.DolmenCatalog"):
        raise InputError(f"catalog={name!r}: the session has a catalog of this name: take another one")
    gateway_of(spark)
    ensure_rule(spark)
    catalog, catalogs = Catalog(spark, database, name), _catalogs(spark)
    if catalogs.contains(name):
        raise InputError(f"catalog={name!r}: the session has a catalog of this name: take another one")
    catalogs.put(name, catalog)
    return catalog


def uninstall(spark: SparkSession, name: str) -> None:
    """Takes a catalog out of a session."""
    _catalogs(spark).remove(name)
