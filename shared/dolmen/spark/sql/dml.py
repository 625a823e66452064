"""DELETE, UPDATE and MERGE of SQL: Spark evaluates conditions and values, and dolmen hides and writes rows.

Values get the types of their columns as Spark casts them when it stores them. The commit depends on all tables that
were read. ``write.merge_frame`` merges a DataFrame by keys, and keeps it over repeated attempts. Here conditions and
values are pieces of the user's SQL, which only a whole query can resolve. Both share the job and the changes
(``write.row_actions``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.base.runtime import cached_property
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.predicate.ast import Constant, Predicate
from dolmen.predicate.bind import ForeignCondition
from dolmen.spark.frame_types import is_own, origins_in_plan, quote, spark_schema, spark_type
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.sql.attachment import Attachment, Views, is_same_name
from dolmen.spark.sql.catalyst import (
    check_single_rows,
    count_join_conditions,
    find_column_indexes,
    find_equal_columns,
    read_condition,
)
from dolmen.spark.tasks import FILE, ROW, mark_of
from dolmen.spark.write.row_actions import (
    ACTION,
    Action,
    Source,
    action_sql,
    apply_actions,
    join_kind,
    matched_twice_error,
)
from dolmen.sql.statements import DeleteStatement, MergeClause, MergeStatement, Target, UpdateStatement
from dolmen.transactions.merge.clauses import check_updatable
from dolmen.transactions.transaction import Transaction, unit_of

Values: TypeAlias = list[tuple[Field, str]]  # expressions by column
_POLICY = "spark.sql.storeAssignmentPolicy"
_DAYS = s.DateType, s.TimestampType, s.TimestampNTZType
_BOTH = "__matched"  # whether a row has both a target row and a source row
_KINDS = ("matched", "not matched", "not matched by source")


@dataclass(frozen=True)
class RowChange:
    """A change of rows on one version of a table, by a statement whose WITH is ``ctes``."""

    transaction: Transaction
    attachment: Attachment
    table: str
    target: Target
    views: Views
    ctes: str
    case_sensitive: bool
    request: str | None

    @cached_property
    def entry(self) -> TableEntry:
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
        """The target without a row, for queries that are only analysed."""
        schema = spark_schema(self.fields).add(FILE, "string").add(ROW, "long")
        return self._from(self.views.spark.createDataFrame([], schema))

    def rows(self, where: Predicate | None, *, whole: bool) -> str:
        """The target's rows with their positions. The commit depends on the rows that are read. Raises SchemaError.

        ``where`` is TRUE for all rows that may change. ``whole`` reads all columns, because rows are written again.
        """
        reserved = next((field.name for field in self.entry.schema.fields if is_own(field.name)), None)
        if whole and reserved is not None:
            raise SchemaError(f"column {reserved!r} has a name that rows' positions need: rename it")
        fields = self.entry.schema.fields if whole else self.fields
        columns = [field.name for field in fields if not is_own(field.name)]
        table = self.transaction.table(self.table)
        return self._from(to_spark(table, columns, where, with_positions=True, spark=self.views.spark))

    def _from(self, frame: DataFrame) -> str:
        return f"`{self.views.make(frame)}` AS {quote(self.target.alias)}"

    def column(self, name: str) -> str:
        return f"{quote(self.target.alias)}.{quote(name)}"

    def select(self, columns: str, source: str, piece: str, where: str | None = None) -> DataFrame:
        """Analyses a query with the statement's WITH before it. Raises InputError, which names the ``piece``."""
        lines = [self.ctes, "SELECT", columns, "FROM", source]
        if where is not None:
            lines += ["WHERE (", where, ")"]
        return self.views.run("\n".join(lines), piece)

    def check(self, query: DataFrame, piece: str) -> None:
        """Checks that a query over ``empty`` gives each target row once, and depends on the tables that it reads.

        Raises InputError for an aggregate, a window or a generator.
        """
        check_single_rows(query, piece)
        self.depend_on(query)

    def depend_on(self, frame: DataFrame) -> None:
        """Makes the commit valid only if the tables that a frame reads in the newest version have not changed."""
        current = self.attachment.origins()
        for origin in origins_in_plan(frame):
            if origin in current:
                unit_of(self.transaction).depend_on_rows(current[origin], None)


def find_field(fields: Sequence[Field], name: str, table: str, *, case_sensitive: bool) -> Field:
    matches = [field for field in fields if is_same_name(field.name, name, case_sensitive=case_sensitive)]
    if len(matches) != 1:
        names = ", ".join(field.name for field in fields)
        raise SchemaError(f"{'no' if not matches else 'more than one'} column {name!r} in table {table!r}: {names}")
    return matches[0]


def check_updates(
    change: RowChange,
    query: DataFrame,
    fields: Sequence[Field],
    source_columns: Sequence[str] = (),
    equal: Collection[tuple[Field, str]] = (),
) -> None:
    """Raises SchemaError if an update may change the primary key, or the order of changes (CDC).

    A value stays the same if it is the column itself, or a column of the source that is ``equal`` to it by ``ON``.
    ``query`` shows the values first, over the target's view and, in a MERGE, the source's after it.
    """
    indexes = find_column_indexes(query, len(fields))
    first = len(change.fields) + 2  # after these the target's view has a row's file and position: RowChange.empty
    columns: dict[int, Field | str] = {**dict(enumerate(change.fields)), **dict(enumerate(source_columns, first))}
    for field, index in zip(fields, indexes, strict=True):
        column = None if index is None else columns.get(index)
        if column != field and (field, column) not in equal:
            check_updatable(change.entry, field)


def cast_values(spark: SparkSession, frame: DataFrame, targets: Sequence[tuple[Field, str]]) -> list[Column]:
    """Casts a frame's columns ``__value_0``, ``__value_1``, ... to the types of the columns that get the values.

    Spark's ANSI policy applies even if ``spark.sql.ansi.enabled`` is off: types that it does not store are refused
    (InputError, SchemaError), and values that do not fit fail the job.
    """
    policy = (spark.conf.get(_POLICY, None) or "ANSI").upper()
    return [_cast_value(frame, f"__value_{index}", *target, policy) for index, target in enumerate(targets)]


def _cast_value(frame: DataFrame, name: str, field: Field, text: str, policy: str) -> Column:
    source, target = frame.schema[name].dataType, spark_type(field.arrow_type)
    column = F.col(name)
    if source.simpleString() == target.simpleString() or isinstance(source, s.NullType):
        return column.cast(target).alias(name)
    types = f"{text}: a value of type {source.simpleString()} for column {field.name!r} of {target.simpleString()}"
    if policy != "ANSI":
        raise InputError(f"{types}: with {_POLICY}={policy} write the cast yourself")
    if _fits(source, target):
        return column.cast(target).alias(name)
    nested = s.ArrayType, s.MapType, s.StructType, s.VariantType
    if isinstance(source, nested) or isinstance(target, nested) or not can_store(source, target):
        raise SchemaError(f"{types}: cast it")
    fitting = column.try_cast(target)
    error = RowError(f"a value does not fit {target.simpleString()}", column=field.name)
    misfit = F.raise_error(F.lit(mark_of(error)))
    return F.when(column.isNotNull() & fitting.isNull(), misfit).otherwise(fitting).alias(name)


def _fits(source: s.DataType, target: s.DataType) -> bool:
    """Whether all values in a list, map or struct fit, because only literals are cast."""
    if isinstance(source, s.ArrayType) and isinstance(target, s.ArrayType):
        pairs = [(source.elementType, target.elementType)]
    elif isinstance(source, s.MapType) and isinstance(target, s.MapType):
        pairs = [(source.keyType, target.keyType), (source.valueType, target.valueType)]
    elif isinstance(source, s.StructType) and isinstance(target, s.StructType) and source.names == target.names:
        pairs = [(field.dataType, wider.dataType) for field, wider in zip(source, target, strict=True)]
    else:
        return False
    return all(_fits(*pair) or _is_literal_of(*pair) for pair in pairs)


def _is_literal_of(source: s.DataType, target: s.DataType) -> bool:
    """Whether all values of a flat type fit another one: NULL, integers in wider types, decimals as floats."""
    if source == target or isinstance(source, s.NullType):
        return True
    integers = [s.ByteType, s.ShortType, s.IntegerType, s.LongType]
    if type(source) in integers and type(target) in integers:
        return integers.index(type(source)) < integers.index(type(target))
    return isinstance(source, (s.IntegralType, s.DecimalType)) and isinstance(target, (s.FloatType, s.DoubleType))


def can_store(source: s.DataType, target: s.DataType) -> bool:
    """Whether Spark's ANSI policy stores flat values of one type in a column of another. Repeats Spark's
    ``Cast.canANSIStoreAssign``, which Spark Connect does not offer."""
    if isinstance(target, s.StringType):
        return isinstance(source, (s.AtomicType, s.CalendarIntervalType))
    if isinstance(source, _DAYS) and isinstance(target, _DAYS):
        return True
    return isinstance(source, s.NumericType) and isinstance(target, s.NumericType)


def delete_rows(change: RowChange, statement: DeleteStatement) -> None:
    """Adds a delete to a transaction: by a predicate that means the same as the condition, or else by positions."""
    condition = ForeignCondition(Constant(True), is_exact=True)
    if statement.where is not None:
        query = change.select("1", change.empty(), statement.where, statement.where)
        change.check(query, statement.where)
        condition = read_condition(query, dict(enumerate(change.fields)))
    if condition.predicate is not None and condition.is_exact:
        change.transaction.table(change.table).delete(condition.predicate, request=change.request)
        return
    columns = f"CAST(0 AS INT) AS {ACTION}, `{FILE}`, `{ROW}`"
    source = change.rows(condition.predicate, whole=False)
    rows = change.select(columns, source, statement.where or "", statement.where)
    apply_actions(change.transaction, change.table, rows, [Action(True, None)], request=change.request)


def update_rows(change: RowChange, statement: UpdateStatement) -> None:
    """Adds an update to a transaction. Raises InputError, SchemaError."""
    assignments = [(change.field(name), text) for name, text in statement.values]
    names = [field.name for field, _ in assignments]
    _check_each_once(names, "UPDATE")
    names += [field.name for field in change.entry.schema.fields if field.name not in names]
    values, texts = _select_list([text for _, text in assignments]), ", ".join(text for _, text in assignments)
    numbers = range(len(assignments), len(names))
    old_values = [f"{change.column(names[number])} AS __value_{number}" for number in numbers]
    query = change.select(values, change.empty(), texts, statement.where)
    change.check(query, texts)
    check_updates(change, query, [field for field, _ in assignments])
    condition = read_condition(query, dict(enumerate(change.fields)))
    source = change.rows(condition.predicate, whole=True)
    frame = change.select(", ".join([values, *old_values, f"`{FILE}`", f"`{ROW}`"]), source, texts, statement.where)
    casts = cast_values(change.views.spark, frame, assignments)
    kept = [F.col(f"__value_{number}") for number in numbers]
    rows = frame.select(F.lit(0).cast("int").alias(ACTION), FILE, ROW, *casts, *kept)
    action = Action(True, tuple((name, index) for index, name in enumerate(names)))
    apply_actions(change.transaction, change.table, rows, [action], request=change.request)


def _select_list(texts: Sequence[str]) -> str:
    return ", ".join(f"(\n{text}\n) AS __value_{index}" for index, text in enumerate(texts))


def _check_each_once(names: Sequence[str], action: str) -> None:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{action} sets column {repeated[0]!r} twice")


def merge_rows(change: RowChange, statement: MergeStatement) -> None:
    """Adds a merge to a transaction. Raises InputError, SchemaError."""
    args = change.views.args
    if args is not None and not isinstance(args, Mapping):
        raise InputError("a MERGE takes only named parameters: write :name, and give args a mapping")
    for kind in _KINDS:
        if any(clause.when is None for clause in [each for each in statement.clauses if each.kind == kind][:-1]):
            raise InputError(f"WHEN {kind.upper()}: only the last clause may be without a condition")
    source = change.select("*", statement.source, statement.source)
    change.depend_on(source)
    if reserved := [name for name in source.columns if is_own(name)]:
        raise SchemaError(f"column {reserved[0]!r} of the source has a name that merges use themselves: rename it")
    source = source.persist()  # it is read for its keys, and again for the join
    try:
        _SqlMerge(change, statement, source).run()
    finally:
        source.unpersist()


@dataclass(frozen=True)
class _SqlMerge:
    """A merge: Spark joins target and source by any condition, and chooses the clause of each row."""

    change: RowChange
    statement: MergeStatement
    source: DataFrame

    def run(self) -> None:
        change, on = self.change, self.statement.on
        empty = change.empty()
        self._check_scopes(empty)
        query = change.select("1", f"{empty} JOIN {self._source_view} ON (\n{on}\n)", on)
        change.check(query, on)
        matched, not_matched, by_source = self._kinds
        keys = None if by_source else self._keys(query)
        checks_keys = bool(not_matched and change.entry.primary_key) and not self._inserts_keys(keys)
        equal = find_equal_columns(query, dict(enumerate(change.fields)), self.source.columns, may_cast=True)
        self._check_updates(empty, equal)
        change.check(self._rows(empty), on)
        where = None if keys is None else keys.predicate
        frame = self._rows(change.rows(where, whole=bool(matched or by_source)))
        # Several source rows may match one target row if they can only delete it.
        deletes_all_matched = [(clause.action, clause.when) for clause in matched] == [("delete", None)]
        checks_repeats = bool(matched) and not deletes_all_matched
        if checks_repeats and matched[-1].when is not None:
            again = F.sum(F.when(F.col(_BOTH), 1)).over(Window.partitionBy(FILE, ROW)) > 1
            fails = F.raise_error(F.lit(mark_of(matched_twice_error()))).cast("int")
            frame = frame.withColumn(ACTION, F.when(again, fails).otherwise(F.col(ACTION)))
        values = cast_values(change.views.spark, frame, [(field, text) for field, text, _ in self._values])
        rows = frame.where(F.col(ACTION).isNotNull()).select(ACTION, FILE, ROW, *values)
        numbers = iter(range(len(values)))
        actions = [
            Action(
                clause.kind != "not matched",
                None if columns is None else tuple((field.name, next(numbers)) for field, _ in columns),
            )
            for clause, columns in self._plan
        ]
        apply_actions(
            change.transaction,
            change.table,
            rows.hint("rebalance"),
            actions,
            checks_repeats=checks_repeats,
            checks_keys=checks_keys,
            request=change.request,
        )

    @cached_property
    def _kinds(self) -> tuple[list[MergeClause], ...]:
        """The clauses for matched rows, for source rows alone, and for target rows alone."""
        return tuple([clause for clause in self.statement.clauses if clause.kind == kind] for kind in _KINDS)

    @cached_property
    def _alias(self) -> str:
        return quote(self.statement.source_alias or "__source_rows")

    @cached_property
    def _source_view(self) -> str:
        """A view of the source, with the alias that expressions use."""
        return f"`{self.change.views.make(self.source.withColumn(Source.IN_SOURCE, F.lit(True)))}` AS {self._alias}"

    def _check_scopes(self, empty: str) -> None:
        """Raises InputError if a clause names columns of the side that its rows do not have."""
        for clause in self.statement.clauses:
            texts = [text for _, text in clause.values or ()] + ([clause.when] if clause.when else [])
            if clause.kind != "matched" and texts:
                side, piece = self._source_view if clause.kind == "not matched" else empty, ", ".join(texts)
                self.change.check(self.change.select(_select_list(texts), side, piece), piece)

    @cached_property
    def _plan(self) -> list[tuple[MergeClause, Values | None]]:
        """Each clause, by its number, with the row that it writes, if it writes one."""
        plan: list[tuple[MergeClause, Values | None]] = []
        fields = self.change.entry.schema.fields
        for clause in (clause for kind in self._kinds for clause in kind):
            if clause.action == "delete":
                plan.append((clause, None))
                continue
            if clause.values is None:
                values = [(field, f"{self._alias}.{quote(self._source_column(field))}") for field in fields]
            else:
                values = [(self.change.field(name), text) for name, text in clause.values]
            names = [field.name for field, _ in values]
            _check_each_once(names, clause.action.upper())
            if clause.action == "update":
                values += [(field, self.change.column(field.name)) for field in fields if field.name not in names]
            plan.append((clause, values))
        return plan

    @cached_property
    def _values(self) -> list[tuple[Field, str, int]]:
        """All values, with the numbers of their clauses."""
        return [(*value, number) for number, (_, values) in enumerate(self._plan) for value in values or ()]

    def _source_column(self, field: Field) -> str:
        """The source's column for a column of the table, for ``*``. Raises SchemaError."""
        is_sensitive = self.change.case_sensitive
        alike: list[str] = [
            name for name in self.source.columns if is_same_name(name, field.name, case_sensitive=is_sensitive)
        ]
        if len(alike) != 1:
            raise SchemaError(f"*: the source has {len(alike) or 'no'} columns {field.name!r}: name the columns")
        return alike[0]

    def _check_updates(self, empty: str, equal: Sequence[tuple[Field, str]]) -> None:
        """Checks that no clause changes the primary key of a row, or its position in the order of changes."""
        for clause, values in self._plan:
            assignments = [(field, text) for field, text in values or () if text != self.change.column(field.name)]
            if clause.action != "update" or not assignments:
                continue
            piece, is_matched = ", ".join(text for _, text in assignments), clause.kind == "matched"
            rows = f"{empty} CROSS JOIN {self._source_view}" if is_matched else empty
            query = self.change.select(_select_list([text for _, text in assignments]), rows, piece)
            self.change.check(query, piece)
            fields = [field for field, _ in assignments]
            check_updates(self.change, query, fields, *((self.source.columns, equal) if is_matched else ()))

    def _rows(self, target: str) -> DataFrame:
        """The rows that have an action, or two sides."""
        column, on = self.change.column, f"ON (\n{self.statement.on}\n)"
        in_source, in_target = f"{self._alias}.`{Source.IN_SOURCE}` IS NOT NULL", f"{column(ROW)} IS NOT NULL"
        conditions = [[clause.when for clause in kind] for kind in self._kinds]
        matched, _, by_source = conditions
        if matched or by_source:
            rows = f"{target} {join_kind(conditions).upper()} JOIN {self._source_view} {on}"
            position = f"{column(FILE)} AS `{FILE}`, {column(ROW)} AS `{ROW}`"
        else:
            rows, in_target = f"{self._source_view} LEFT ANTI JOIN {target} {on}", "FALSE"
            position = f"CAST(NULL AS STRING) AS `{FILE}`, CAST(NULL AS BIGINT) AS `{ROW}`"
        action = action_sql(in_source, in_target, conditions)
        values = [
            f"CASE WHEN {ACTION} = {number} THEN (\n{text}\n) END AS __value_{index}"
            for index, (_, text, number) in enumerate(self._values)
        ]
        columns = [f"{action} AS {ACTION}", f"{in_target} AND {in_source} AS {_BOTH}", position, *values]
        return self.change.select(", ".join(columns), rows, self.statement.on)

    def _keys(self, query: DataFrame) -> _Keys | None:
        """The columns that must be equal for rows to match, with their values in the source; None without any."""
        pairs = find_equal_columns(query, dict(enumerate(self.change.fields)), self.source.columns)
        if not pairs:
            return None
        fields = tuple(field for field, _ in pairs)
        keys = self.source.select(*(F.col(quote(name)).alias(field.name) for field, name in pairs))
        nullable = {field.nullable for field in fields}
        # A column that is not nullable refuses NULL when the row is written; others are counted here.
        source = Source(keys if nullable == {True} else keys.na.drop(), fields)
        try:
            summary = source.summary
        finally:
            source.close()
        only = count_join_conditions(query) == len(pairs) and len(nullable) == 1
        return _Keys(pairs, summary.predicate(fields), only and not (summary.has_repeats or summary.nulls))

    def _inserts_keys(self, keys: _Keys | None) -> bool:
        """Whether inserted rows take their primary keys from the source's columns of the join, each key once."""
        names = {} if keys is None or not keys.is_unique else {field.id: name for field, name in keys.pairs}
        if names.keys() != set(self.change.entry.primary_key):
            return False
        for clause, values in self._plan:
            if clause.kind == "not matched":
                texts = {field.id: text for field, text in values or ()}
                expressions = [texts.get(id_, "NULL") for id_ in names]
                query = self.change.select(_select_list(expressions), self._source_view, ", ".join(expressions))
                if find_column_indexes(query, len(expressions)) != list(map(self.source.columns.index, names.values())):
                    return False
        return True


class _Keys(Struct, frozen=True):
    """Columns of target and source that are equal in rows that match."""

    pairs: Sequence[tuple[Field, str]]
    predicate: Predicate  # TRUE for all rows of the target that may match
    is_unique: bool  # nothing else makes rows match, and the source has each tuple once, and no NULL
