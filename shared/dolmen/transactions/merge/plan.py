"""The plan of a merge: which columns it reads, and which rows each clause makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from dolmen.errors import InputError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.rows.scan.expressions import Evaluator, Sides
from dolmen.transactions.merge.clauses import Clause, Clauses, Delete, Insert
from dolmen.transactions.merge.row_template import Expression, RowTemplate, SideColumn, Term
from dolmen.transactions.merge.source import Places, SourceRows

TARGET, SOURCE = "target", "source"


class ClausePlan:
    """A clause: for which rows it is, and which rows it makes.

    Args:
        template: of the rows; None for a clause that only deletes.
    """

    def __init__(self, clause: Clause, template: RowTemplate | None, evaluator: Evaluator | None) -> None:
        self.when, self.template, self._evaluator = clause.when, template, evaluator

    def holds(self, sides: Sides) -> Places:
        """Places of the rows for which its condition is TRUE."""
        rows = next(iter(sides.values())).num_rows
        if self.when is None:
            return np.arange(rows)
        assert self._evaluator is not None
        [condition] = self._evaluator.evaluate([self.when], sides)
        return np.flatnonzero(condition.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False))

    def make(self, sides: Sides) -> Iterator[pa.RecordBatch]:
        """The rows that it writes instead of these, or in addition."""
        if self.template is not None and next(iter(sides.values())).num_rows:
            yield self.template.make(sides)


class ClausesPlan:
    """All clauses of a merge, on one version of a table.

    Args:
        clauses: as they were given.
        entry: the table's entry.
        fields: the columns that are joined on.
        source: the source's rows.
        evaluator: for expressions; None if there are none.

    Raises:
        InputError: DuckDB refuses an expression, or a condition is none.
        SchemaError: the columns or types of a clause don't fit the table, or it updates the primary key.
    """

    def __init__(
        self,
        clauses: Clauses,
        entry: TableEntry,
        fields: tuple[Field, ...],
        source: SourceRows,
        evaluator: Evaluator | None,
    ) -> None:
        self._names = [field.name for field in entry.schema.fields]
        self._given, self._evaluator, self._entry, self._source = source.rows.schema, evaluator, entry, source
        clauses.check_columns(self._names, self._given.names)
        self._clauses = clauses
        self._keys = {field.name for field in fields}
        clauses.check_updates(entry, self._keys, self._given.names)
        both = {TARGET: self._target_schema(), SOURCE: self._given}
        self.matched = [self._plan(clause, both) for clause in clauses.matched]
        self.not_matched = [self._plan(clause, {SOURCE: self._given}) for clause in clauses.not_matched]
        self.by_source = [self._plan(clause, {TARGET: both[TARGET]}) for clause in clauses.by_source]

    def needed(self) -> list[str]:
        """The table's columns to read: those joined on and those in expressions, or all if some keep their values."""
        taken = set(self._keys)
        for clause in (*self._clauses.matched, *self._clauses.by_source):
            taken.update(
                term.name
                for term in self._terms(clause).values()
                if isinstance(term, SideColumn) and term.side == TARGET
            )
        used = self._evaluator.uses(self._clauses.texts, self._names) if self._evaluator else []
        return [name for name in self._names if name in taken or name in used]

    def _target_schema(self) -> pa.Schema:
        needed = self.needed()
        return pa.schema(
            [(field.name, field.arrow_type) for field in self._entry.schema.fields if field.name in needed]
        )

    def _plan(self, clause: Clause, sides: dict[str, pa.Schema]) -> ClausePlan:
        if clause.when is not None:
            assert self._evaluator is not None
            [kind] = self._evaluator.types([clause.when], sides)
            if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
                raise InputError(f"when={clause.when!r} is no condition: it is of type {kind}")
        template = None
        if not isinstance(clause, Delete):
            terms = self._terms(clause)
            template = RowTemplate(self._entry.schema, terms, sides, self._evaluator, self._source.find)
        return ClausePlan(clause, template, self._evaluator)

    def _terms(self, clause: Clause) -> dict[str, Term]:
        """Where each column of the rows that a clause writes comes from; columns of the source where none are named."""
        if isinstance(clause, Delete):
            return {}
        terms: dict[str, Term] = {}
        if clause.values is not None:
            terms = {name: Expression(text or "NULL") for name, text in clause.values.items()}
        else:
            terms = {name: SideColumn(SOURCE, name) for name in self._names if name in self._given.names}
        if isinstance(clause, Insert):
            return terms
        return {name: terms.get(name, SideColumn(TARGET, name)) for name in self._names}


def choose(plans: Sequence[ClausePlan], sides: Sides) -> Iterator[tuple[ClausePlan, Places, Sides]]:
    """Gives each row to the first clause whose condition is TRUE.

    Yields:
        A clause, the places of its rows, and the rows.
    """
    rows = next(iter(sides.values())).num_rows
    left = np.arange(rows)
    for plan in plans:
        if len(left) == 0:
            return
        own = sides if len(left) == rows else take(sides, left)
        places = plan.holds(own)
        if len(places):
            yield plan, left[places], own if len(places) == len(left) else take(own, places)
        left = np.delete(left, places)


def take(sides: Sides, places: Places) -> Sides:
    """Some rows of all sides."""
    picked = pa.array(places)
    return {side: rows.take(picked) for side, rows in sides.items()}
