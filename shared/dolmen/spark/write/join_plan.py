"""Plans a merge as Spark runs it: joins source and target, and gives each row its action and its new values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it
from pyspark.sql import types as s

from dolmen.base.runtime import cached_property
from dolmen.errors import InputError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.rows.write.conform import plan_conform
from dolmen.spark.file_tasks import FILE, ROW
from dolmen.spark.spark_types import quote, spark_schema, worker_schema
from dolmen.spark.write.frame_source import Source, SourceSummary
from dolmen.spark.write.row_actions import ACTION, Action, action_sql, casts_of_computed, join_kind
from dolmen.transactions.merge.clauses import Clause, Clauses, Delete, Insert, Update

_COUNTS, _FIRST = "__counts", "__first"
MOST_BROADCAST = 1_000_000
"""The most source keys that are sent to all executors, to filter the target."""


@dataclass(frozen=True)
class MergePlan:
    """The plan of a merge on one version of a table.

    Args:
        fields: the columns that are joined on.
        given: names of the source's columns.

    Raises:
        SchemaError: a clause names a column that the table lacks, or sets the primary key; or the source has a column
            that nothing names.
    """

    clauses: Clauses
    entry: TableEntry
    fields: tuple[Field, ...]
    given: Sequence[str]

    def __post_init__(self) -> None:
        self.clauses.check_columns({field.name for field in self.entry.schema.fields}, self.given)
        self.clauses.check_updates(self.entry, [field.name for field in self.fields], self.given)

    def check(self, source: DataFrame) -> None:
        """Checks each expression with Spark, and the type of its result with dolmen. Runs no job.

        Raises:
            InputError: Spark refuses an expression.
            SchemaError: the values of a clause don't fit the table.
        """
        source = source.alias("source")
        columns = [field for field in self.entry.schema.fields if field.name in self.needed()]
        target = source.sparkSession.createDataFrame([], spark_schema(columns)).alias("target")
        both = target.join(source, F.lit(True))
        for place, clause in enumerate(self.clauses.all):
            within = both if place < len(self.clauses.matched) else target
            if isinstance(clause, Insert):
                within = source
            if clause.when is not None:
                kind = self._typed(within, {"when": clause.when})["when"].dataType
                if not isinstance(kind, s.BooleanType):
                    raise InputError(f"when={clause.when!r} is no condition: it is of type {kind.simpleString()}")
            values = self._values(clause)
            if values is not None:
                finds = casts_of_computed(self._computed(values))
                plan_conform(worker_schema(self._typed(within, values)), self.entry.schema, finds=finds)

    def needed(self) -> list[str]:
        """The table's columns to read: those joined on and those in expressions, or all if some keep their values."""
        names = [field.name for field in self.entry.schema.fields]
        kept = {text for name, text in self._texts if text == _column("target", name)}
        if kept:
            return names
        keys = {field.name for field in self.fields}
        return [name for name in names if name in keys or self.clauses.name(name)]

    def actions(self) -> tuple[Action, ...]:
        """The actions, by the number of the clause."""
        found = []
        for clause in self.clauses.all:
            values = self._values(clause)
            columns = (
                None if values is None else tuple((name, self._texts[name, text]) for name, text in values.items())
            )
            computed = frozenset(self._computed(values or {}))
            found.append(Action(not isinstance(clause, Insert), columns, computed))
        if self.keeps_one:
            found.append(Action(True, None))  # the older rows of a key are hidden with the one that counts
        return tuple(found)

    def rows(self, target: DataFrame, source: Source, summary: SourceSummary) -> DataFrame:
        """All rows that have an action, for tasks.

        Args:
            target: the columns ``needed``, with positions, and the commit timestamp if it ``keeps_one``.
        """
        keys = [F.col(f"source.{name}") for name in source.keys]
        own = [F.col(f"target.{quote(field.name)}") for field in self.fields]
        left, right = self._sifted(target, source, summary).alias("target"), source.frame.alias("source")
        joined = self._joined(left, right, source.matches(own, keys))
        if self._target_is_there:
            where = [F.col(f"target.{ROW}").alias(ROW), F.col(f"target.{FILE}").alias(FILE)]
        else:
            where = [F.lit(None).cast("bigint").alias(ROW), F.lit(None).cast("string").alias(FILE)]
        if self.clauses.by_source:
            keys = [F.coalesce(key, other) for key, other in zip(keys, own, strict=True)]
        named = [key.alias(name) for key, name in zip(keys, source.keys, strict=True)]
        acted = joined.withColumn(ACTION, self._action())
        if self.keeps_one:
            acted = self._with_one_row_of_a_key(acted, keys)
        acted = acted.where(F.col(ACTION).isNotNull())
        return acted.select(ACTION, *where, *named, *self._columns()).hint("rebalance", *source.keys)

    @cached_property
    def _texts(self) -> dict[tuple[str, str], int]:
        """All expressions, by the column that gets their value, with the numbers of their values."""
        found: dict[tuple[str, str], int] = {}
        for clause in self.clauses.all:
            for item in (self._values(clause) or {}).items():
                found.setdefault(item, len(found))
        return found

    def _values(self, clause: Clause) -> dict[str, str] | None:
        """The row that a clause writes: expressions by column."""
        if isinstance(clause, Delete):
            return None
        names = [field.name for field in self.entry.schema.fields]
        values = clause.values
        if values is None:
            values = {name: _column("source", name) for name in names if name in self.given}
        if isinstance(clause, Update):
            values = {name: values.get(name, _column("target", name)) for name in names}
        return {name: text or "NULL" for name, text in values.items()}

    def _computed(self, values: Mapping[str, str]) -> list[str]:
        """The columns whose values are not those of another column."""
        return [name for name, text in values.items() if text not in self._own]

    @property
    def keeps_one(self) -> bool:
        """Whether several rows of one primary key, which ``append`` may make, count as the one committed last."""
        return self._target_is_there and {field.id for field in self.fields} == set(self.entry.primary_key)

    def _with_one_row_of_a_key(self, acted: DataFrame, keys: Sequence[Column]) -> DataFrame:
        """The action of the row of each key that was committed last. If it has one, the other rows are hidden."""
        place = [F.col(f"target.{name}") for name in (COMMIT_TS, FILE, ROW)]
        by_key, by_row = Window.partitionBy(*keys), Window.partitionBy(*keys, *place[1:])
        counts = F.dense_rank().over(by_key.orderBy(*(column.desc_nulls_last() for column in place))) == 1
        first = F.row_number().over(by_row.orderBy(F.col(ACTION))) == 1  # several source rows may match a row
        ranked = acted.withColumn(_COUNTS, counts).withColumn(_FIRST, first)
        changes = F.max(F.when(F.col(_COUNTS), F.col(ACTION))).over(by_key).isNotNull()
        others = F.when(changes & F.col(_FIRST), F.lit(len(self.clauses.all)))
        return ranked.withColumn(ACTION, F.when(F.col(_COUNTS), F.col(ACTION)).otherwise(others))

    @property
    def _target_is_there(self) -> bool:
        return bool(self.clauses.matched or self.clauses.by_source)

    def _joined(self, target: DataFrame, source: DataFrame, matches: Column) -> DataFrame:
        matched, not_matched, by_source = map(bool, self._kinds)
        sides = (target, source) if self._target_is_there else (source, target)
        how = join_kind(matched=matched, not_matched=not_matched, by_source=by_source)
        return sides[0].join(sides[1], matches, how)

    def _sifted(self, target: DataFrame, source: Source, summary: SourceSummary) -> DataFrame:
        """The target without most of the rows that match nothing, so that the join moves few."""
        if self.clauses.by_source or summary.rows > MOST_BROADCAST or (summary.listed and len(self.fields) == 1):
            return target
        names = [f"_{name}" for name in source.keys]
        keys = source.frame.select(*(F.col(name).alias(other) for name, other in zip(source.keys, names, strict=True)))
        own = [F.col(quote(field.name)) for field in self.fields]
        return target.join(F.broadcast(keys), source.matches(own, [F.col(name) for name in names]), "left_semi")

    @property
    def _kinds(self) -> tuple[Sequence[Clause], ...]:
        return self.clauses.matched, self.clauses.not_matched, self.clauses.by_source

    def _action(self) -> Column:
        """The number of the clause that applies to a row; NULL if none does."""
        in_source, in_target = "TRUE", "FALSE"
        if self._target_is_there:
            in_source, in_target = f"source.{Source.HERE} IS NOT NULL", f"target.{ROW} IS NOT NULL"
        kinds = ([clause.when for clause in clauses] for clauses in self._kinds)
        return F.expr(action_sql(in_source, in_target, *kinds))

    def _columns(self) -> list[Column]:
        """The values of all clauses. An expression is evaluated only in rows of its own clauses."""
        users: dict[int, list[int]] = {}
        for number, action in enumerate(self.actions()):
            for _, place in action.columns or ():
                users.setdefault(place, []).append(number)
        columns = []
        for (_, text), place in self._texts.items():
            column = F.when(F.col(ACTION).isin(users[place]), self._expression(text))
            columns.append(column.alias(f"__value_{place}"))
        return columns

    def _expression(self, text: str) -> Column:
        """The column of an expression. Column names are not parsed: a session may read quoted ones as patterns."""
        return F.col(text) if text in self._own else F.expr(f"({text})")

    @cached_property
    def _own(self) -> set[str]:
        names = {field.name for field in self.entry.schema.fields}.union(self.given)
        return {_column(side, name) for side in ("source", "target") for name in names}

    def _typed(self, frame: DataFrame, texts: dict[str, str]) -> s.StructType:
        """The types of expressions. Raises InputError for one that Spark refuses."""
        try:
            return frame.select(*(self._expression(text).alias(name) for name, text in texts.items())).schema
        except (AnalysisException, ParseException) as error:
            if len(texts) > 1:  # find the one that Spark refuses
                for name, text in texts.items():
                    self._typed(frame, {name: text})
                raise
            reason = str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]
            raise InputError(f"Spark can't evaluate {next(iter(texts.values()))!r} in this clause: {reason}") from error


def _column(side: str, name: str) -> str:
    return f"{side}.{quote(name)}"
