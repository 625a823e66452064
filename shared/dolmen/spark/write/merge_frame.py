"""MERGE: joins the rows of a DataFrame with those of a table, and changes the table in one commit.

Target rows that change are hidden and written again; all others stay in their files. The commit depends on the rows
that were read, so a commit that may have changed these makes the merge start again on the newest version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.api.table import Table
from dolmen.base.runtime import cached_property
from dolmen.commit.head import context_of
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.rows.write.conform import plan_conform
from dolmen.rows.write.row_digest import content_digest
from dolmen.spark.frame_types import is_own, quote, spark_schema, worker_schema
from dolmen.spark.read.to_frame import to_spark
from dolmen.spark.sessions import check_table
from dolmen.spark.tasks import FILE, ROW, reason_of
from dolmen.spark.write.frame_columns import match_names
from dolmen.spark.write.from_frame import UnchangedSince, bind_request, check_frame, delete, upsert
from dolmen.spark.write.row_actions import (
    ACTION,
    Action,
    Source,
    action_sql,
    apply_actions,
    are_equal,
    casts_of_computed,
    join_kind,
)
from dolmen.spark.write.write_tasks import duplicate_key_error
from dolmen.transactions.keys import key_fields
from dolmen.transactions.merge.clauses import (
    Clause,
    Clauses,
    Delete,
    Insert,
    SideColumn,
    WhenMatched,
    WhenNotMatched,
    WhenNotMatchedBySource,
    is_primary_key,
    terms_of,
)
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import Commit

MOST_BROADCAST = 1_000_000  # the most source keys that are sent to all executors, to filter the target
_LAST, _FIRST = "__counts", "__first"


def merge(
    table: Table,
    frame: DataFrame,
    on: str | Sequence[str],
    when_matched: WhenMatched = "update",
    when_not_matched: WhenNotMatched = "insert",
    when_not_matched_by_source: WhenNotMatchedBySource = None,
    *,
    since: int | None = None,
    force: bool = False,
    request: str | None = None,
) -> Commit:
    """Updates, deletes and inserts rows of a table by those of a DataFrame, in one commit (SQL's MERGE).

    A row of the table (``target``) and one of the DataFrame (``source``) match when the columns ``on`` are equal in
    both; NULL equals nothing. The first clause whose condition is TRUE applies to a row. Expressions are Spark's SQL
    over ``target.<column>`` and ``source.<column>``.

    It reads the columns it needs, of rows whose keys are within the source's, and repeats itself when others delete
    rows of the table, or add rows that may match. ``on`` the primary key, with all columns updated and inserted, it is
    an ``upsert``, which reads nothing. A primary key is one row: where ``append`` has made several, the last
    committed one counts, and if it changes the others are deleted.

    Args:
        frame: evaluated once. It may have columns that the table lacks, for expressions.
        on: columns of both.
        when_matched: "update" gives the target row all values that the source has; a mapping of columns to expressions
            changes just these; "delete"; ``Update(values, when=...)`` and ``Delete(when=...)`` have conditions; a list
            of several; None leaves it unchanged.
        when_not_matched: for source rows without a target row: "insert", a mapping, ``Insert(values, when=...)``, a
            list, or None.
        when_not_matched_by_source: for target rows without a source row: "delete", a mapping, ``Update``, ``Delete``, a
            list, or None. Anything but None reads the whole table.
        since, force: as for ``upsert``: the source is evaluated once, and so can't be made again for a newer version.
        request: an id under which this is applied once, however often it is tried.

    Raises:
        InputError: several source rows match one target row; no clause; an expression that Spark refuses.
        SchemaError: columns or types do not match the table's, or an update sets a column of the primary key that is
            not among ``on``; raised before a task begins.
        RowError: a value does not fit; or ``on`` is the primary key, and has a NULL.
        DuplicateKeyError: a row that it inserts would have a primary key that another row has.
        ConflictError: others have added or deleted rows after the oldest version that the DataFrame reads of this
            table; or they changed what the merge itself read, a hundred times in a row.
        PySparkException: a task failed for a reason outside dolmen.
    """
    check_table(table)
    check_frame(frame)
    unchanged = UnchangedSince.of(since, force)
    clauses = Clauses.of(when_matched, when_not_matched, when_not_matched_by_source)
    entry = context_of(table).segments.whole(context_of(table).head.refresh().manifest.table(table.name))
    fields, clauses = key_fields(entry, on), clauses.with_names_of(entry.schema)
    frame = match_names(frame, entry.schema)
    names = [field.name for field in fields]
    table_columns = [field.name for field in entry.schema.fields]
    if missing := [name for name in names if name not in frame.columns]:
        raise SchemaError(f"the DataFrame has no column {missing[0]!r}, by which the merge joins")
    if clauses.is_upsert(entry, names, frame.columns):
        return upsert(table, frame, names, since=since, force=force, request=request)
    if clauses.is_delete:
        columns = [F.col(quote(name)) for name in names]
        keys = frame.select(*columns).where(reduce(Column.__and__, (column.isNotNull() for column in columns)))
        return delete(table, keys, names, since=since, force=force, request=request)
    if reserved := [name for name in (*frame.columns, *table_columns) if is_own(name)]:
        raise SchemaError(
            f"column {reserved[0]!r}: merges have columns of that name themselves; rename it (withColumnRenamed)"
        )
    source = Source(frame, fields)

    def digest() -> str:
        return content_digest("merge", table.name, sorted(names), *clauses.content(), source.sums.content())

    def run(transaction: Transaction) -> None:
        entry = unit_of(transaction).entry(table.name)
        plan = MergePlan(clauses, entry, key_fields(entry, names), frame.columns)
        if not transaction.has_applied(request):
            plan.check(frame)
            unchanged.add_to(transaction, table.name, frame)
        if not bind_request(transaction, request, digest):
            plan.apply(transaction, table.name, frame.sparkSession, source, request)

    try:
        return replay(context_of(table), run, "merge")[1]
    finally:
        source.close()


@dataclass(frozen=True)
class MergePlan:
    """The plan of a merge on one version: a join on ``fields`` that gives each row its action and its new values."""

    clauses: Clauses
    entry: TableEntry
    fields: tuple[Field, ...]
    source_columns: Sequence[str]

    def __post_init__(self) -> None:
        self.clauses.check_columns(set(self._names), self.source_columns)
        self.clauses.check_updates(self.entry, [field.name for field in self.fields], self.source_columns)

    def check(self, source: DataFrame) -> None:
        """Checks each expression with Spark, and the type of its result with dolmen. Raises InputError, SchemaError."""
        source = source.alias("source")
        columns = [field for field in self.entry.schema.fields if field.name in self.needed_columns()]
        target = source.sparkSession.createDataFrame([], spark_schema(columns)).alias("target")
        both = target.join(source, F.lit(True))
        for number, clause in enumerate(self.clauses.all):
            scope = both if number < len(self.clauses.matched) else target
            if isinstance(clause, Insert):
                scope = source
            if clause.when is not None:
                kind = self._types(scope, {"when": clause.when})["when"].dataType
                if not isinstance(kind, s.BooleanType):
                    raise InputError(f"when={clause.when!r} is not a condition: it is of type {kind.simpleString()}")
            values = self._values(clause)
            if values is not None:
                find_casts = casts_of_computed(self._computed_columns(values))
                plan_conform(worker_schema(self._types(scope, values)), self.entry.schema, find_casts=find_casts)

    def apply(
        self, transaction: Transaction, table: str, spark: SparkSession, source: Source, request: str | None
    ) -> None:
        """Reads the target, and adds the changes to the transaction. Raises RowError, InputError, DuplicateKeyError."""
        clauses, summary, names = self.clauses, source.summary, [field.name for field in self.fields]
        if clauses.inserts_by_primary_key(self.entry, names):
            if summary.nulls:
                raise RowError("NULL in the primary key: it equals nothing", column=names[0])
            if summary.has_repeats:
                raise duplicate_key_error(names)
        if summary.rows == 0 and not clauses.by_source:
            return
        target = to_spark(
            transaction.table(table),
            self.needed_columns(),
            None if clauses.by_source else summary.predicate(self.fields),
            with_commit_ts=self.keeps_one,
            with_positions=True,
            spark=spark,
        )
        apply_actions(
            transaction,
            table,
            self.rows(target, source),
            self.actions,
            key=self.fields if clauses.takes_all_matched else (),
            checks_repeats=summary.has_repeats and not clauses.deletes_all_matched,
            checks_keys=clauses.may_insert_twice(self.entry, names),
            request=request,
        )

    def needed_columns(self) -> list[str]:
        """The table's columns to read: those joined on and those in expressions, or all if some keep their values."""
        if any(text == _column("target", name) for name, text in self._texts):
            return self._names
        keys = {field.name for field in self.fields}
        return [name for name in self._names if name in keys or self.clauses.may_name(name)]

    @cached_property
    def actions(self) -> list[Action]:
        actions = []
        for clause in self.clauses.all:
            values = self._values(clause)
            columns = None if values is None else tuple((name, self._texts[name, values[name]]) for name in values)
            computed = frozenset() if values is None else frozenset(self._computed_columns(values))
            actions.append(Action(not isinstance(clause, Insert), columns, computed))
        if self.keeps_one:
            actions.append(Action(True, None))  # the older rows of a key are hidden with the last one
        return actions

    @property
    def keeps_one(self) -> bool:
        """Whether of several rows of one primary key, which ``append`` may make, the one committed last counts."""
        return self._reads_target and is_primary_key([field.name for field in self.fields], self.entry)

    def rows(self, target: DataFrame, source: Source) -> DataFrame:
        """All rows that have an action, for tasks: ``target`` has the columns ``needed`` and the rows' positions."""
        clauses = self.clauses
        keys = [F.col(f"source.{name}") for name in source.keys]
        target_keys = [F.col(f"target.{quote(field.name)}") for field in self.fields]
        sides = self._sift(target, source).alias("target"), source.frame.alias("source")
        if self._reads_target:
            in_source, in_target = f"source.{Source.IN_SOURCE} IS NOT NULL", f"target.{ROW} IS NOT NULL"
            position = [F.col(f"target.{ROW}").alias(ROW), F.col(f"target.{FILE}").alias(FILE)]
        else:
            sides, in_source, in_target = sides[::-1], "TRUE", "FALSE"
            position = [F.lit(None).cast("bigint").alias(ROW), F.lit(None).cast("string").alias(FILE)]
        kinds = clauses.matched, clauses.not_matched, clauses.by_source
        conditions = [[clause.when for clause in kind] for kind in kinds]
        rows = sides[0].join(sides[1], are_equal(target_keys, keys), join_kind(conditions))
        rows = rows.withColumn(ACTION, F.expr(action_sql(in_source, in_target, conditions)))
        if clauses.by_source:
            keys = [F.coalesce(key, target_key) for key, target_key in zip(keys, target_keys, strict=True)]
        if self.keeps_one:
            rows = self._keep_one_row_per_key(rows, keys)
        named_keys = [key.alias(name) for key, name in zip(keys, source.keys, strict=True)]
        changes = rows.where(F.col(ACTION).isNotNull()).select(ACTION, *position, *named_keys, *self._value_columns())
        return changes.hint("rebalance", *source.keys)

    def _sift(self, target: DataFrame, source: Source) -> DataFrame:
        """Filters out most target rows that match nothing, so that the join moves few rows."""
        summary = source.summary
        if self.clauses.by_source or summary.rows > MOST_BROADCAST or (summary.lists_all and len(self.fields) == 1):
            return target
        names = [f"_{name}" for name in source.keys]
        keys = source.frame.select(*(F.col(name).alias(alias) for name, alias in zip(source.keys, names, strict=True)))
        target_keys = [F.col(quote(field.name)) for field in self.fields]
        return target.join(F.broadcast(keys), are_equal(target_keys, map(F.col, names)), "left_semi")

    def _keep_one_row_per_key(self, rows: DataFrame, keys: Sequence[Column]) -> DataFrame:
        """Keeps the action of each key's last committed row. If it has one, the key's other rows are hidden.

        NULL equals nothing: each row with NULL in its key stands for itself.
        """
        order = [F.col(f"target.{name}") for name in (COMMIT_TS, FILE, ROW)]
        has_null = reduce(Column.__or__, (key.isNull() for key in keys))
        by_row = Window.partitionBy(*keys, *order[1:])
        by_key = Window.partitionBy(*keys, *(F.when(has_null, column) for column in order[1:]))
        is_last = F.dense_rank().over(by_key.orderBy(*(column.desc_nulls_last() for column in order))) == 1
        is_first = F.row_number().over(by_row.orderBy(F.col(ACTION))) == 1  # several source rows may match a row
        ranked = rows.withColumn(_LAST, is_last).withColumn(_FIRST, is_first)
        changes = F.max(F.when(F.col(_LAST), F.col(ACTION))).over(by_key).isNotNull()
        others = F.when(changes & F.col(_FIRST), F.lit(len(self.clauses.all)))
        return ranked.withColumn(ACTION, F.when(F.col(_LAST), F.col(ACTION)).otherwise(others))

    def _value_columns(self) -> list[Column]:
        """The values of all clauses. An expression is evaluated only in rows of its own clauses."""
        users: dict[int, list[int]] = {}
        for number, action in enumerate(self.actions):
            for _, index in action.columns or ():
                users.setdefault(index, []).append(number)
        return [
            F.when(F.col(ACTION).isin(users[index]), self._expression(text)).alias(f"__value_{index}")
            for (_, text), index in self._texts.items()
        ]

    @cached_property
    def _names(self) -> list[str]:
        return [field.name for field in self.entry.schema.fields]

    @property
    def _reads_target(self) -> bool:
        return bool(self.clauses.matched or self.clauses.by_source)

    @cached_property
    def _texts(self) -> dict[tuple[str, str], int]:
        """All expressions, by the column that gets their value, with the numbers of their values."""
        items = (item for clause in self.clauses.all for item in (self._values(clause) or {}).items())
        return {item: number for number, item in enumerate(dict.fromkeys(items))}

    def _values(self, clause: Clause) -> dict[str, str] | None:
        """The row that a clause writes: expressions by column."""
        if isinstance(clause, Delete):
            return None
        terms = terms_of(clause, self._names, self.source_columns).items()
        return {name: _column(t.side, t.name) if isinstance(t, SideColumn) else t.sql for name, t in terms}

    def _computed_columns(self, values: dict[str, str]) -> Iterable[str]:
        """The columns that get a computed value, not that of another column."""
        return (name for name, text in values.items() if text not in self._plain)

    @cached_property
    def _plain(self) -> set[str]:
        return {_column(side, name) for side in ("source", "target") for name in (*self._names, *self.source_columns)}

    def _expression(self, text: str) -> Column:
        """The column of an expression. Column names are not parsed: a session may read quoted ones as patterns."""
        return F.col(text) if text in self._plain else F.expr(f"({text})")

    def _types(self, frame: DataFrame, texts: dict[str, str]) -> s.StructType:
        try:
            return frame.select(*(self._expression(text).alias(name) for name, text in texts.items())).schema
        except (AnalysisException, ParseException) as error:
            if len(texts) > 1:  # find the expression that Spark refuses
                for name, text in texts.items():
                    self._types(frame, {name: text})
                raise
            (text,) = texts.values()
            raise InputError(f"Spark can't evaluate {text!r} in this clause: {reason_of(error)}") from error


def _column(side: str, name: str) -> str:
    return f"{side}.{quote(name)}"
