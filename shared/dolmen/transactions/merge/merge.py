"""MERGE: joins a source with a table, and updates, deletes and inserts rows in one commit.

The source is in memory; the target's rows that may have its keys are streamed past it. Rows that change are hidden by
their positions and written again, all others stay as they are in their files.

The plan of a merge: which columns it reads, and which rows each clause makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from dolmen.base import arguments
from dolmen.errors import InputError, RowError
from dolmen.format.arrow_arrays import to_mask
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field, own_names
from dolmen.rows.scan.engines.expressions import Evaluator, Sides
from dolmen.transactions import row_statements
from dolmen.transactions.merge.clauses import Clause, Clauses, Delete, Expression, Insert, RowTemplate, SideColumn, Term
from dolmen.transactions.merge.merge_source import MAX_PAIRS, PAIR_BYTES, KeyIndex, SourceRows
from dolmen.transactions.merge.update import (
    STEP,
    HiddenRows,
    LatestRows,
    PlacedRows,
    Places,
    RepeatedKeyError,
    claimed_rows,
    replace_rows,
)
from dolmen.transactions.reading import key_fields
from dolmen.transactions.unit_of_work import UnitOfWork

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
        return np.flatnonzero(to_mask(condition.cast(pa.bool_()).fill_null(False)))

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


def merge_rows(
    unit: UnitOfWork,
    name: str,
    source: SourceRows,
    on: str | Sequence[str],
    clauses: Clauses,
    request: str | None,
) -> None:
    """Adds the statements of ``Table.merge``, which are those of an upsert or a delete where that is the same.

    Raises:
        InputError: several source rows match one target row, or DuckDB refuses an expression.
        SchemaError, RowError: columns or values do not fit.
        DuplicateKeyError: a row that it inserts has a primary key that the table, or another such row, has.
    """
    entry = unit.entry(name)
    fields = key_fields(entry, on)
    if is_upsert(entry, source, on, clauses):
        if KeyIndex(source.keys(fields), fields).repeated:
            raise _key_twice(fields)  # no row of a merge is the last
        row_statements.upsert(unit, name, source.rows, on, request)
        return
    if clauses.is_delete:
        keys = source.keys(fields).drop_null()
        row_statements.delete(unit, name, keys=keys, on=keys.column_names, request=request)
        return
    clauses = clauses.named_as(entry.schema)
    if not unit.has_applied(request):
        evaluator = Evaluator() if clauses.texts else None
        try:
            merging = _StreamedMerge(unit, name, entry, fields, source, clauses, evaluator)
            try:
                with unit.savepoint():
                    merging.run(request)
            except RepeatedKeyError:
                with unit.savepoint():
                    merging.run(request, once=True)
        finally:
            if evaluator:
                evaluator.close()
    if unit.needs_content(request):
        names = sorted(field.name for field in fields)
        unit.add_content(request, "merge", name, names, *clauses.content(), source.digest())


def is_upsert(entry: TableEntry, source: SourceRows, on: str | Sequence[str], clauses: Clauses) -> bool:
    """Whether a merge only replaces whole rows by their primary key, which needs no reading."""
    primary = {entry.schema.by_id[id_].name for id_ in entry.primary_key}
    whole = set(source.rows.schema.names) == {field.name for field in entry.schema.fields}
    return clauses.is_upsert and whole and set(own_names(arguments.names("on", on), entry.schema)) == primary


class _StreamedMerge:
    """A merge in one transaction."""

    def __init__(
        self,
        unit: UnitOfWork,
        name: str,
        entry: TableEntry,
        fields: tuple[Field, ...],
        source: SourceRows,
        clauses: Clauses,
        evaluator: Evaluator | None,
    ) -> None:
        self._unit, self._name, self._entry, self._fields = unit, name, entry, fields
        self._source, self._clauses = source, clauses
        self._index = KeyIndex(source.keys(fields), fields)
        self._plan = ClausesPlan(clauses, entry, fields, source, evaluator)

    def run(self, request: str | None, *, once: bool = False) -> None:
        """Reads, and adds the statements.

        Args:
            once: several rows of the table may have one primary key.

        Raises:
            RepeatedKeyError: several have, and one of them would change.
        """
        count = self._source.rows.num_rows
        self._hidden, self._latest = HiddenRows(), None
        self._met, self._changed = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        if self._clauses.not_matched and _is_primary(self._fields, self._entry):
            if self._index.nulls:
                raise RowError("NULL in the primary key: it equals nothing", column=self._fields[0].name)
            if self._index.repeated:
                raise _key_twice(self._fields)
        if self._index.rows == 0 and not self._clauses.by_source:
            return
        where = None if self._clauses.by_source else self._index.predicate()
        found = claimed_rows(self._unit, self._name, self._plan.needed(), where)
        if once:
            keys = [field.name for field in self._fields]
            rows_with_ts = claimed_rows(self._unit, self._name, keys, where, with_commit_ts=True)
            self._latest = LatestRows(self._index, count, self._fields, rows_with_ts)
        ids = tuple(sorted(field.id for field in self._fields))
        rows = self._changes(found)
        checked = self._clauses.may_insert_twice(self._entry, [field.name for field in self._fields])
        if self._clauses.not_matched and not checked:
            rows = chain(rows, self._insert())
        replace_rows(self._unit, self._name, self._entry, rows, self._hidden, request, ids)
        if checked:  # behind the rows that go: one of these may have the key
            inserts = row_statements.insert(self._unit, self._name, self._entry, self._insert(), request)
            if inserts:
                self._unit.add(inserts)

    def _changes(self, found: Iterator[PlacedRows]) -> Iterator[pa.RecordBatch]:
        for placed in found:
            yield from self._change(placed)
        if self._latest:
            self._latest.hide_others(self._hidden, self._changed)

    def _change(self, placed: PlacedRows) -> Iterator[pa.RecordBatch]:
        """Applies the clauses for rows of the target."""
        target = placed.rows
        keys = [target[field.name] for field in self._fields]
        alone = np.ones(target.num_rows, np.bool_)
        for first, last, left, right in self._index.pairs(keys, self._most_pairs(target)):
            alone[left] = False
            if self._plan.matched and _is_primary(self._fields, self._entry):
                left, right = self._once(placed, left, right)
            self._met[right] = True
            if not self._plan.matched or len(left) == 0:
                continue
            sides = {TARGET: target.take(pa.array(left)), SOURCE: self._source.rows.take(pa.array(right))}
            changed = np.zeros(last - first, np.int64)
            for plan, places, own in choose(self._plan.matched, sides):
                np.add.at(changed, left[places] - first, 1)
                self._changed[right[places]] = True
                yield from plan.make(own)
            if not self._clauses.deletes_only and (changed > 1).any():
                raise _matched_twice()
            self._hidden.add(placed, first + np.flatnonzero(changed))
        if self._plan.by_source and alone.any():
            places = np.flatnonzero(alone)
            for plan, chosen, own in choose(self._plan.by_source, {TARGET: target.take(pa.array(places))}):
                self._hidden.add(placed, places[chosen])
                yield from plan.make(own)

    def _once(self, placed: PlacedRows, left: Places, right: Places) -> tuple[Places, Places]:
        """The pairs of which the target row is the only one of its key, or the last one of several."""
        if self._latest:
            return self._latest.choose(placed, left, right)
        if self._met[right].any() or len(np.unique(right)) < len(right):
            raise RepeatedKeyError
        return left, right

    def _most_pairs(self, target: pa.RecordBatch) -> int:
        """The number of pairs whose rows take about ``PAIR_BYTES``."""
        source = self._source.rows
        row_bytes = target.nbytes / target.num_rows + source.nbytes / max(1, source.num_rows)
        return max(1, min(MAX_PAIRS, int(PAIR_BYTES / max(1.0, row_bytes))))

    def _insert(self) -> Iterator[pa.RecordBatch]:
        """Applies the clauses for rows of the source that match nothing."""
        new = np.flatnonzero(~self._met)
        for start in range(0, len(new), STEP):
            rows = self._source.rows.take(pa.array(new[start : start + STEP]))
            for plan, _, own in choose(self._plan.not_matched, {SOURCE: rows}):
                yield from plan.make(own)


def _is_primary(fields: Sequence[Field], entry: TableEntry) -> bool:
    return {field.id for field in fields} == set(entry.primary_key)


def _matched_twice() -> InputError:
    return InputError(
        "several source rows match one row of the table, and would each update or delete it: keep one source row of "
        "each key, or tell them apart by conditions"
    )


def _key_twice(fields: Sequence[Field]) -> InputError:
    listed = ", ".join(repr(field.name) for field in fields)
    return InputError(
        f"several rows of the source have the same key (columns {listed}), and none is the last: keep one of each"
    )
