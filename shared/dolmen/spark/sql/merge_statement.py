"""MERGE of SQL: Spark joins target and source by any condition, and chooses the clause of each row.

It is planned apart from ``write.spark_merge``, whose source is a frame that is joined by keys and kept over repeated
attempts: here conditions and values are pieces of the user's SQL, which only a whole query can resolve. Both share how
a clause is chosen, the job, and the changes (``write.row_actions``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.base.runtime import cached_property
from dolmen.errors import InputError, SchemaError
from dolmen.format.schema import Field
from dolmen.predicate import Predicate
from dolmen.spark.failures import mark_of
from dolmen.spark.file_tasks import FILE, ROW
from dolmen.spark.spark_types import is_own, quote
from dolmen.spark.sql.catalyst import count_join_conditions, find_equal_columns
from dolmen.spark.sql.change_rows import RowChange, StoreCasts, check_updates
from dolmen.spark.sql.statement import MergeClause, MergeStatement
from dolmen.spark.write.frame_source import Source
from dolmen.spark.write.row_actions import ACTION, Action, action_sql, join_kind, matched_twice_error

_BOTH = "__matched"
"""Whether a row has both a target row and a source row."""
_ORDER = ("matched", "not matched", "not matched by source")


Plan: TypeAlias = list[tuple[MergeClause, list[tuple[Field, str]] | None]]
"""Each clause with the row that it writes, if it writes one: expressions by column."""


def merge_matching(change: RowChange, statement: MergeStatement) -> None:
    """Adds a merge to a transaction.

    Raises:
        InputError: Spark refuses a piece of it, or several source rows match one target row.
        SchemaError: a column does not exist, or can't hold values of this type.
    """
    _SqlMerge(change, statement).run()


@dataclass(frozen=True)
class _SqlMerge:
    change: RowChange
    statement: MergeStatement

    def run(self) -> None:
        args = self.change.views.args
        if args is not None and not isinstance(args, Mapping):
            raise InputError("a MERGE takes named parameters alone: write :name, and give args a mapping")
        self._check_reachable()
        source = self.change.select("*", self.statement.source, self.statement.source)
        self.change.depend_on(source)
        if own := [name for name in source.columns if is_own(name)]:
            raise SchemaError(f"column {own[0]!r} of the source has a name that merges use themselves: rename it")
        source = source.persist()  # it is read for its keys, and again for the join
        try:
            self._run(source)
        finally:
            source.unpersist()

    def _run(self, source: DataFrame) -> None:
        change, views = self.change, self.change.views
        given = views.make(source.withColumn(Source.HERE, F.lit(True)))
        empty = change.empty()
        self._check_scopes(given, empty)
        joined = f"{change.from_target(empty)} JOIN {self._source(given)} ON (\n{self.statement.on}\n)"
        analysed = change.select("1", joined, self.statement.on)
        change.check(analysed, self.statement.on)
        needs_target = any(clause.kind != "not matched" for clause in self._clauses)
        by_source = self._of_kind("not matched by source")
        keys = None if by_source else self._keys(analysed, source)
        where = None if keys is None else keys.predicate
        plan = self._plan(source.columns)
        new = bool(self._of_kind("not matched") and change.entry.primary_key) and not self._inserts_keys(keys, plan)
        equal = find_equal_columns(analysed, dict(enumerate(change.fields)), source.columns, may_cast=True)
        self._check_updates(plan, given, empty, equal, source.columns)
        change.check(self._rows(given, empty, plan), self.statement.on)
        frame = self._rows(given, change.rows(where, whole=needs_target), plan)
        once = bool(self._of_kind("matched")) and not self._deletes_only
        if once and any(clause.when is not None for clause in self._of_kind("matched")[-1:]):
            again = F.sum(F.when(F.col(_BOTH), 1)).over(Window.partitionBy(FILE, ROW)) > 1
            fails = F.raise_error(F.lit(mark_of(matched_twice_error()))).cast("int")
            frame = frame.withColumn(ACTION, F.when(again, fails).otherwise(F.col(ACTION)))
        casts = StoreCasts(views.spark)
        values = [
            casts.column(frame, f"__value_{index}", field, text).alias(f"__value_{index}")
            for index, (field, text, _) in enumerate(self._values(plan))
        ]
        rows = frame.where(F.col(ACTION).isNotNull()).select(ACTION, FILE, ROW, *values)
        numbers = iter(range(len(values)))
        actions = [
            Action(
                clause.kind != "not matched",
                None if columns is None else tuple((field.name, next(numbers)) for field, _ in columns),
            )
            for clause, columns in plan
        ]
        change.write(rows.hint("rebalance"), actions, once=once, new=new)

    @cached_property
    def _clauses(self) -> list[MergeClause]:
        return [clause for kind in _ORDER for clause in self._of_kind(kind)]

    def _of_kind(self, kind: str) -> list[MergeClause]:
        return [clause for clause in self.statement.clauses if clause.kind == kind]

    @property
    def _deletes_only(self) -> bool:
        """Whether several source rows may match one target row."""
        return [(clause.action, clause.when) for clause in self._of_kind("matched")] == [("delete", None)]

    def _check_reachable(self) -> None:
        for kind in _ORDER:
            for clause in self._of_kind(kind)[:-1]:
                if clause.when is None:
                    raise InputError(f"WHEN {kind.upper()}: only the last clause may be without a condition")

    @property
    def _alias(self) -> str:
        return quote(self.statement.source_alias or "__source_rows")

    def _source(self, view: str) -> str:
        return f"`{view}` AS {self._alias}"

    def _check_scopes(self, given: str, empty: str) -> None:
        """Raises InputError if a clause names columns of the side that its rows do not have."""
        for clause in self._clauses:
            texts = [text for _, text in clause.values or ()] + ([clause.when] if clause.when else [])
            if clause.kind == "matched" or not texts:
                continue
            side = self._source(given) if clause.kind == "not matched" else self.change.from_target(empty)
            shown = ", ".join(f"(\n{text}\n)" for text in texts)
            self.change.check(self.change.select(shown, side, ", ".join(texts)), ", ".join(texts))

    def _plan(self, given: Sequence[str]) -> Plan:
        found: Plan = []
        fields = self.change.entry.schema.fields
        for clause in self._clauses:
            if clause.action == "delete":
                found.append((clause, None))
                continue
            if clause.values is None:
                values = [(field, f"{self._alias}.{quote(self._given(field, given))}") for field in fields]
            else:
                values = [(self.change.field(name), text) for name, text in clause.values]
            names = [field.name for field, _ in values]
            if repeated := [name for name in names if names.count(name) > 1]:
                raise InputError(f"{clause.action.upper()} sets column {repeated[0]!r} twice")
            if clause.action == "update":
                values += [(field, self.change.own(field.name)) for field in fields if field.name not in names]
            found.append((clause, values))
        return found

    def _check_updates(
        self, plan: Plan, given: str, empty: str, equal: Sequence[tuple[Field, str]], columns: Sequence[str]
    ) -> None:
        """Checks that no clause changes the primary key of a row, or its position in the order of changes.

        Args:
            given, empty: the views of source and target.
            equal: columns of the target, each with the source's of the same value.
            columns: names of the source's columns.
        """
        own = self.change.from_target(empty)
        for clause, values in plan:
            set_by_user = [(field, text) for field, text in values or () if text != self.change.own(field.name)]
            if clause.action != "update" or not set_by_user:
                continue
            shown = ", ".join(f"(\n{text}\n) AS __value_{index}" for index, (_, text) in enumerate(set_by_user))
            what = ", ".join(text for _, text in set_by_user)
            matched = clause.kind == "matched"
            analysed = self.change.select(shown, f"{own} CROSS JOIN {self._source(given)}" if matched else own, what)
            self.change.check(analysed, what)
            fields = [field for field, _ in set_by_user]
            check_updates(self.change, analysed, fields, *((columns, equal) if matched else ()))

    def _given(self, field: Field, given: Sequence[str]) -> str:
        """The source's column for a column of the table, for ``*``. Raises SchemaError."""
        sensitive = self.change.case_sensitive
        alike = [name for name in given if name == field.name or (not sensitive and name.lower() == field.name.lower())]
        if len(alike) != 1:
            raise SchemaError(f"*: the source has {len(alike) or 'no'} columns {field.name!r}: name the columns")
        return alike[0]

    @staticmethod
    def _values(plan: Plan) -> list[tuple[Field, str, int]]:
        """All values, with the numbers of their clauses."""
        return [(*value, number) for number, (_, values) in enumerate(plan) for value in values or ()]

    def _rows(self, given: str, target: str, plan: Plan) -> DataFrame:
        """The rows that have an action, or two sides."""
        own, other = self.change.from_target(target), self._source(given)
        here, there = f"{self._alias}.`{Source.HERE}` IS NOT NULL", f"{self.change.own(ROW)} IS NOT NULL"
        matched, new, left = (self._of_kind(kind) for kind in _ORDER)
        on = f"ON (\n{self.statement.on}\n)"
        if not (matched or left):
            joined, there = f"{other} LEFT ANTI JOIN {own} {on}", "FALSE"
            where = f"CAST(NULL AS STRING) AS `{FILE}`, CAST(NULL AS BIGINT) AS `{ROW}`"
        else:
            how = join_kind(matched=bool(matched), not_matched=bool(new), by_source=bool(left))
            joined = f"{own} {how.upper()} JOIN {other} {on}"
            where = f"{self.change.own(FILE)} AS `{FILE}`, {self.change.own(ROW)} AS `{ROW}`"
        action = action_sql(here, there, *([clause.when for clause in clauses] for clauses in (matched, new, left)))
        values = [
            f"CASE WHEN {ACTION} = {number} THEN (\n{text}\n) END AS __value_{index}"
            for index, (_, text, number) in enumerate(self._values(plan))
        ]
        shown = ", ".join([f"{action} AS {ACTION}", f"{there} AND {here} AS {_BOTH}", where, *values])
        return self.change.select(shown, joined, self.statement.on)

    def _keys(self, analysed: DataFrame, source: DataFrame) -> _Keys | None:
        """The columns that must be equal for rows to match, with their values in the source; None without any."""
        pairs = find_equal_columns(analysed, dict(enumerate(self.change.fields)), source.columns)
        if not pairs:
            return None
        fields = tuple(field for field, _ in pairs)
        keys = source.select(*(F.col(quote(name)).alias(field.name) for field, name in pairs))
        nullable = [field.nullable for field in fields]
        # A column that is not nullable refuses NULL when the row is written; others are counted here.
        summarized = Source(keys if all(nullable) else keys.na.drop(), fields)
        try:
            summary = summarized.summarize()
        finally:
            summarized.close()
        only = count_join_conditions(analysed) == len(pairs) and len(set(nullable)) == 1
        return _Keys(pairs, summary.predicate(fields), only and not (summary.repeated or summary.nulls))

    def _inserts_keys(self, keys: _Keys | None, plan: Plan) -> bool:
        """Whether each inserted row has the primary key by which it matches nothing, and which the source has once."""
        if keys is None or not keys.once:
            return False
        primary = set(self.change.entry.primary_key)
        names = {field.id: name for field, name in keys.pairs}
        inserted = [values or [] for clause, values in plan if clause.kind == "not matched"]
        return names.keys() == primary and all(
            self._is_given({field.id: text for field, text in values}.get(id_, ""), name)
            for values in inserted
            for id_, name in names.items()
        )

    def _is_given(self, text: str, name: str) -> bool:
        """Whether an expression of an INSERT is a column of the source."""
        plain = text.replace("`", "").strip().lower()
        alias = self._alias.replace("`", "").lower()
        return plain in (name.lower(), f"{alias}.{name.lower()}")


@dataclass(frozen=True)
class _Keys:
    """Columns that are equal in rows that match.

    Args:
        pairs: of the target's column and the source's.
        predicate: TRUE for all rows of the target that may match.
        once: nothing else makes rows match, and the source has each tuple once, and no NULL.
    """

    pairs: Sequence[tuple[Field, str]]
    predicate: Predicate
    once: bool
