"""DELETE and UPDATE of SQL, and the parts that MERGE shares with them.

Spark evaluates the condition and the new values, and dolmen hides and writes rows (``write.row_actions``). Values get
the types of their columns as Spark casts them when it stores them. The commit depends on all tables that were read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.base.runtime import cached_property
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.predicate import Constant, Predicate
from dolmen.predicate.bind import ForeignCondition
from dolmen.spark.failures import mark_of
from dolmen.spark.file_tasks import FILE, ROW
from dolmen.spark.origin import origins_read
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.spark_types import is_own, quote, spark_schema, spark_type
from dolmen.spark.sql.attachment import Attachment, Views
from dolmen.spark.sql.catalyst import check_single_rows, find_shown_columns, read_condition
from dolmen.spark.sql.statement import DeleteStatement, SqlStatement, Target, UpdateStatement
from dolmen.spark.write.row_actions import ACTION, Action, apply_actions
from dolmen.transactions.merge.clauses import check_updatable
from dolmen.transactions.transaction import Transaction, unit_of


@dataclass(frozen=True)
class RowChange:
    """A change of rows on one version of a table. The statement has views in place of older versions."""

    transaction: Transaction
    attachment: Attachment
    table: str
    target: Target
    views: Views
    statement: SqlStatement
    case_sensitive: bool
    request: str | None

    @cached_property
    def entry(self) -> TableEntry:
        """The table's entry."""
        return unit_of(self.transaction).entry(self.table)

    @cached_property
    def fields(self) -> list[Field]:
        """The columns that Spark has types for."""
        found = []
        for field in self.entry.schema.fields:
            try:
                spark_schema([field])
            except SchemaError:
                continue
            found.append(field)
        return found

    def field(self, name: str) -> Field:
        """The column of this name, by the session's case sensitivity. Raises SchemaError."""
        return find_field(self.entry.schema.fields, name, self.table, case_sensitive=self.case_sensitive)

    def empty(self) -> str:
        """A view of the target's columns without a row, for queries that are only analysed."""
        schema = spark_schema(self.fields).add(FILE, "string").add(ROW, "long")
        return self.views.make(self.views.spark.createDataFrame([], schema))

    def rows(self, where: Predicate | None, *, whole: bool) -> str:
        """A view of the target's rows with their positions. The commit depends on the rows that are read.

        Args:
            where: TRUE for all rows that may change.
            whole: all columns are needed, because rows are written again.

        Raises:
            SchemaError: Spark lacks the type of a column, or uses its name itself.
        """
        fields = self.entry.schema.fields if whole else self.fields
        columns = [field.name for field in fields if not is_own(field.name)]
        own = next((field.name for field in self.entry.schema.fields if is_own(field.name)), None)
        if whole and own is not None:
            raise SchemaError(f"column {own!r} has a name that rows' positions need: rename it")
        table = self.transaction.table(self.table)
        frame = to_spark(table, columns, where, with_positions=True, spark=self.views.spark)
        return self.views.make(frame)

    def from_target(self, view: str) -> str:
        """The view under the name by which expressions know the target."""
        return f"`{view}` AS {quote(self.target.alias)}"

    def own(self, name: str) -> str:
        """A column of the target in SQL."""
        return f"{quote(self.target.alias)}.{quote(name)}"

    def select(self, shown: str, source: str, what: str, where: str | None = None) -> DataFrame:
        """Analyses a query with the statement's WITH before it.

        Args:
            source: the text after FROM.
            what: the piece of the user's SQL that the query is made for.

        Raises:
            InputError: Spark refuses it.
        """
        lines = [self.statement.ctes, "SELECT", shown, "FROM", source]
        if where is not None:
            lines += ["WHERE (", where, ")"]
        return self.views.run("\n".join(lines), what)

    def check(self, analysed: DataFrame, what: str) -> None:
        """Checks that a frame gives each row of the target once, and depends on the tables that it reads.

        Args:
            analysed: over ``empty``, so it reads the target itself only in subqueries.

        Raises:
            InputError: an aggregate, a window or a generator.
        """
        check_single_rows(analysed, what)
        self.depend_on(analysed)

    def depend_on(self, frame: DataFrame) -> None:
        """Makes the commit valid only if the tables that a frame reads in the newest version have not changed."""
        current = self.attachment.origins()
        for origin in origins_read(frame):
            if origin in current:
                unit_of(self.transaction).claim(current[origin], None)

    def write(self, rows: DataFrame, actions: Sequence[Action], *, once: bool, new: bool = False) -> None:
        """Runs the job of the actions, and adds the changes to the transaction. See ``apply_actions``."""
        apply_actions(self.transaction, self.table, rows, actions, once=once, new=new, request=self.request)


def find_field(fields: Sequence[Field], name: str, table: str, *, case_sensitive: bool) -> Field:
    """The column of a name, as Spark finds it. Raises SchemaError."""
    found = [
        field for field in fields if field.name == name or (not case_sensitive and field.name.lower() == name.lower())
    ]
    if len(found) != 1:
        there = ", ".join(field.name for field in fields)
        raise SchemaError(f"{'no' if not found else 'more than one'} column {name!r} in table {table!r}: {there}")
    return found[0]


def check_updates(
    change: RowChange,
    analysed: DataFrame,
    fields: Sequence[Field],
    given: Sequence[str] = (),
    equal: Collection[tuple[Field, str]] = (),
) -> None:
    """Checks that no update changes the primary key, or the order of changes (CDC).

    A value stays the same if it is the column itself, or a column of the source that ``ON`` wants equal to it.

    Args:
        analysed: a query that shows the values first, over the target's view and, in a MERGE, the source's after it.
        fields: the columns of the values.
        given: names of the source's columns.
        equal: columns of the target, each with a column of the source that has the same value.

    Raises:
        SchemaError: such a column may get another value.
    """
    shown = find_shown_columns(analysed, len(fields))
    first = len(change.fields) + 2  # after these the target's view has a row's file and position: RowChange.empty
    columns: dict[int, Field | str] = {**dict(enumerate(change.fields)), **dict(enumerate(given, first))}
    for field, index in zip(fields, shown, strict=True):
        column = None if index is None else columns.get(index)
        if column != field and (field, column) not in equal:
            check_updatable(change.entry, field)


_POLICY = "spark.sql.storeAssignmentPolicy"
_DAYS = s.DateType, s.TimestampType, s.TimestampNTZType


class StoreCasts:
    """Casts by Spark's ANSI policy, whether ``spark.sql.ansi.enabled`` is on or not.

    Types that it does not store are refused, and values that do not fit fail the job.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._policy = (spark.conf.get(_POLICY, None) or "ANSI").upper()

    def column(self, frame: DataFrame, name: str, field: Field, what: str) -> Column:
        """A frame's column, which a piece of SQL gave, in the type of a table's column.

        Raises:
            SchemaError: Spark or dolmen does not store values of its type in such a column.
        """
        own, target = frame.schema[name].dataType, spark_type(field.arrow_type)
        column = F.col(quote(name))
        if own.simpleString() == target.simpleString() or isinstance(own, s.NullType):
            return column.cast(target)
        said = f"{what}: a value of type {own.simpleString()} for column {field.name!r} of {target.simpleString()}"
        if self._policy != "ANSI":
            raise InputError(f"{said}: with {_POLICY}={self._policy} write the cast yourself")
        if _fits(own, target):
            return column.cast(target)
        nested = s.ArrayType, s.MapType, s.StructType, s.VariantType
        if isinstance(own, nested) or isinstance(target, nested) or not can_store(own, target):
            raise SchemaError(f"{said}: cast it")
        fitting = column.try_cast(target)
        reason = f"a value does not fit {target.simpleString()}"
        misfit = F.raise_error(F.lit(mark_of(RowError(reason, column=field.name))))
        return F.when(column.isNotNull() & fitting.isNull(), misfit).otherwise(fitting)


def _fits(own: s.DataType, target: s.DataType) -> bool:
    """Whether all values in a list, map or struct fit, because only literals are cast."""
    if isinstance(own, s.ArrayType) and isinstance(target, s.ArrayType):
        pairs = [(own.elementType, target.elementType)]
    elif isinstance(own, s.MapType) and isinstance(target, s.MapType):
        pairs = [(own.keyType, target.keyType), (own.valueType, target.valueType)]
    elif isinstance(own, s.StructType) and isinstance(target, s.StructType) and own.names == target.names:
        pairs = [(field.dataType, other.dataType) for field, other in zip(own, target, strict=True)]
    else:
        return False
    return all(_fits(*pair) or _is_literal_of(*pair) for pair in pairs)


def _is_literal_of(own: s.DataType, target: s.DataType) -> bool:
    """Whether all values of a flat type fit another one: NULL, integers in wider types, decimals as floats."""
    if own == target or isinstance(own, s.NullType):
        return True
    integers = [s.ByteType, s.ShortType, s.IntegerType, s.LongType]
    if type(own) in integers and type(target) in integers:
        return integers.index(type(own)) < integers.index(type(target))
    return (
        isinstance(own, (s.IntegralType, s.DecimalType))
        and isinstance(target, s.FractionalType)
        and not isinstance(target, s.DecimalType)
    )


def can_store(own: s.DataType, target: s.DataType) -> bool:
    """Whether Spark's ANSI policy stores flat values of another type in a column, as Spark's own
    ``Cast.canANSIStoreAssign`` says, which a session of Spark Connect can't be asked for."""
    if isinstance(target, s.StringType):
        return isinstance(own, (s.AtomicType, s.CalendarIntervalType))
    if isinstance(own, _DAYS) and isinstance(target, _DAYS):
        return True
    return isinstance(own, s.NumericType) and isinstance(target, s.NumericType)


def delete_rows(change: RowChange, statement: DeleteStatement) -> None:
    """Adds a delete to a transaction: by a predicate that means the same as the condition, or else by positions.

    Raises:
        InputError: Spark refuses the condition.
    """
    condition = ForeignCondition(Constant(True), is_exact=True)
    if statement.where is not None:
        analysed = change.select("1", change.from_target(change.empty()), statement.where, statement.where)
        change.check(analysed, statement.where)
        condition = read_condition(analysed, dict(enumerate(change.fields)))
    if condition.predicate is not None and condition.is_exact:
        change.transaction.table(change.table).delete(condition.predicate, request=change.request)
        return
    source = change.from_target(change.rows(condition.predicate, whole=False))
    shown = f"CAST(0 AS INT) AS {ACTION}, `{FILE}`, `{ROW}`"
    rows = change.select(shown, source, statement.where or "", statement.where)
    change.write(rows, [Action(True, None)], once=False)


def update_rows(change: RowChange, statement: UpdateStatement) -> None:
    """Adds an update to a transaction.

    Raises:
        InputError: Spark refuses the condition or a value.
        SchemaError: a column does not exist, may not be updated, or can't hold values of this type.
    """
    updated = [(change.field(name), text) for name, text in statement.values]
    names = [field.name for field, _ in updated]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"UPDATE sets column {repeated[0]!r} twice")
    values = ", ".join(f"(\n{text}\n) AS __value_{index}" for index, (_, text) in enumerate(updated))
    kept = [field.name for field in change.entry.schema.fields if field.name not in names]
    others = "".join(f", {change.own(name)} AS __value_{index}" for index, name in enumerate(kept, len(updated)))
    what = ", ".join(text for _, text in statement.values)
    analysed = change.select(values, change.from_target(change.empty()), what, statement.where)
    change.check(analysed, what)
    check_updates(change, analysed, [field for field, _ in updated])
    condition = read_condition(analysed, dict(enumerate(change.fields)))
    source = change.from_target(change.rows(condition.predicate, whole=True))
    frame = change.select(f"{values}{others}, `{FILE}`, `{ROW}`", source, what, statement.where)
    casts = StoreCasts(change.views.spark)
    cast = [
        casts.column(frame, f"__value_{index}", field, text).alias(f"__value_{index}")
        for index, (field, text) in enumerate(updated)
    ]
    carried = [F.col(f"__value_{index}") for index in range(len(updated), len(names) + len(kept))]
    rows = frame.select(F.lit(0).cast("int").alias(ACTION), FILE, ROW, *cast, *carried)
    change.write(rows, [Action(True, tuple((name, index) for index, name in enumerate([*names, *kept])))], once=False)
