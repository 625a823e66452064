"""UPDATE and MERGE: rows that change are hidden by their positions and written again, in one commit.

Of a merge, the source is in memory, and the target's rows that may have its keys are streamed past it. The commit is
refused if others change the rows that were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base import arguments
from dolmen.errors import InputError, RowError, SchemaError, short_repr
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.format.types import to_mask
from dolmen.predicate.parse import Where
from dolmen.rows.changes.row_matching import equal_rows
from dolmen.rows.scan.conditions import Condition, columns_of, read_condition
from dolmen.rows.scan.engines.expressions import Evaluator, Sides
from dolmen.rows.write.casts import lossless_cast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_digest import RowDigest
from dolmen.rows.write.row_input import as_batches
from dolmen.transactions.keys import key_fields
from dolmen.transactions.merge.clauses import (
    SOURCE,
    TARGET,
    Clause,
    Clauses,
    Delete,
    Expression,
    RepeatedValue,
    RowTemplate,
    SideColumn,
    Term,
    check_updatable,
    is_primary_key,
    terms_of,
)
from dolmen.transactions.merge.merge_source import MAX_PAIRS, PAIR_BYTES, Indices, KeyIndex, SourceRows
from dolmen.transactions.row_arguments import NewColumns, rows_content
from dolmen.transactions.row_locations import STEP_ROWS, HiddenRows, RowLocations
from dolmen.transactions.row_statements import TableChange

if TYPE_CHECKING:
    from dolmen.rows.scan.engines.sql import KeptRows

ACTION = "__dolmen_action"  # the column of changed rows that says what a merge did to them: INSERT, UPDATE or DELETE

NewValues: TypeAlias = Mapping[str, Any]
"""New values by column: Python values, which are the same in all rows, or ``Expression``."""


def update_rows(change: TableChange, values: NewValues, where: Where) -> None:
    """Adds the statements of ``Table.update``, unless its request was applied before."""
    unit, entry, request = change.unit, change.entry, change.request
    condition: Where = "TRUE" if where is None else where
    bound = read_condition(condition, entry.schema, now_us=unit.now_us)
    terms = _new_values(entry, values)
    if not unit.has_applied(request):
        with unit.savepoint():
            _update(change, terms, bound)
    if unit.needs_content(request):
        by_name = sorted([column, *_term_content(column, term)] for column, term in terms.items())
        unit.add_content(request, "update", change.name, by_name, *rows_content(entry, condition, None))


def _new_values(entry: TableEntry, values: NewValues) -> dict[str, Expression | RepeatedValue]:
    """Reads the argument ``set`` of an update.

    Raises:
        InputError: it is not a mapping, or a value is not of its column's type.
        SchemaError: there is no such column, or it is part of the primary key or orders changes (CDC).
        RowError: NULL for a column that is not nullable.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"set={short_repr(values)} is not a mapping of columns to values")
    if not values:
        raise InputError("this update changes nothing: name the columns that change, set={...}")
    terms: dict[str, Expression | RepeatedValue] = {}
    for name, value in values.items():
        field = entry.schema.field(arguments.text("set", name))
        check_updatable(entry, field)
        if field.name in terms:
            raise InputError(f"set names column {field.name!r} twice")
        if isinstance(value, Expression):
            terms[field.name] = Expression(arguments.text(f"set: {name}", value.sql))
        else:
            terms[field.name] = RepeatedValue(_constant(field, value))
    return terms


def _constant(field: Field, value: Any) -> pa.Array:
    schema = pa.schema([pa.field(field.name, field.arrow_type, field.nullable)])
    try:
        [batch] = conform(as_batches([{field.name: value}], schema), schema, lossless_cast)
    except RowError as error:
        raise type(error)(error.reason, column=field.name) from None
    except SchemaError as error:
        shown = short_repr(value)
        hint = f"; SQL over the row's columns is dolmen.Expression({shown})" if isinstance(value, str) else ""
        raise InputError(f"set: value {shown} of column {field.name!r}: {error}{hint}") from error
    return batch.column(0)


def _term_content(name: str, term: Expression | RepeatedValue) -> list[str]:
    """The content of a new value for the digest of a request."""
    if isinstance(term, Expression):
        return ["sql", term.sql]
    digest = RowDigest(pa.schema([(name, term.value.type)]))
    digest.update(pa.record_batch([term.value], [name]))
    return ["value", digest.hexdigest()]


def _update(change: TableChange, new: Mapping[str, Expression | RepeatedValue], condition: Condition) -> None:
    entry = change.entry
    texts = [term.sql for term in new.values() if isinstance(term, Expression)]
    with _evaluator(texts) as evaluator:
        names = [field.name for field in entry.schema.fields]
        column_names = evaluator.uses(texts, names) if evaluator else []
        needed = [column for column in names if column in column_names or column not in new] or names[:1]
        terms: dict[str, Term] = {column: SideColumn(TARGET, column) for column in needed}
        template = RowTemplate(change.row_schema, {**terms, **new}, {TARGET: _target_schema(entry, needed)}, evaluator)
        targets = change.rows_to_change(needed, condition)
        hidden: HiddenRows = {}

        def rows() -> Iterator[pa.RecordBatch]:
            for target, locations in targets:
                locations.hide(hidden)
                yield template.make({TARGET: target})

        change.replace_rows(rows(), hidden, tuple(sorted(columns_of(condition))))


@contextmanager
def _evaluator(texts: Sequence[str]) -> Iterator[Evaluator | None]:
    """An evaluator of expressions; None if there are none."""
    evaluator = Evaluator() if texts else None
    try:
        yield evaluator
    finally:
        if evaluator:
            evaluator.close()


def _target_schema(entry: TableEntry, names: Sequence[str]) -> pa.Schema:
    return pa.schema([(field.name, field.arrow_type) for field in entry.schema.fields if field.name in names])


def merge_rows(
    change: TableChange,
    source: SourceRows,
    on: str | Sequence[str],
    clauses: Clauses,
    new_columns: NewColumns = "refuse",
    changed: KeptRows | None = None,
) -> None:
    """Adds the statements of ``Table.merge``. A merge that amounts to an upsert or a delete adds those statements.

    ``changed`` gets the rows that it inserts, updates and deletes: their ``ACTION``, and the table's columns. Then
    all rows are read and changed by their positions.
    """
    if new_columns != "refuse":
        extra = clauses.new_columns(change.entry.schema.arrow.names, source.rows.schema.names)
        added = [name for name in extra if new_columns == "add" and name not in source.untyped]
        change.add_columns([source.rows.schema.field(name) for name in added])
        source = source.without([name for name in extra if name not in added])
    unit, entry, request = change.unit, change.entry, change.request
    fields = key_fields(entry, on)
    if changed is None and clauses.is_upsert(entry, [field.name for field in fields], source.rows.schema.names):
        if KeyIndex(source.keys(fields), fields).repeated:
            raise _repeated_key_error(fields)  # rows of a merge have no order
        change.upsert(source.rows, on)
        return
    if changed is None and clauses.is_delete:
        keys = source.keys(fields).drop_null()
        change.delete(keys=keys, on=keys.column_names)
        return
    clauses = clauses.with_names_of(entry.schema)
    if not unit.has_applied(request):
        with _evaluator(clauses.texts) as evaluator:
            merging = _StreamedMerge(change, fields, source, clauses, evaluator, changed)
            try:
                with unit.savepoint():
                    merging.run()
            except RepeatedKeyError:
                with unit.savepoint():
                    merging.run(keys_repeat=True)
    if unit.needs_content(request):
        names = sorted(field.name for field in fields)
        unit.add_content(request, "merge", change.name, names, *clauses.content(), source.digest())


def changed_rows(
    change: TableChange, batches: Iterable[pa.RecordBatch], fields: tuple[Field, ...]
) -> Iterator[pa.RecordBatch]:
    """Rows, one of each key, without those that equal the table's only row of their key.

    Reads the rows that may have one of the keys: from now on the commit is refused if another commit changes these.
    """
    [rows] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    names = [field.name for field in fields]
    index = KeyIndex(pa.Table.from_batches([rows.select(names)]), fields)
    matches, is_equal = np.zeros(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.bool_)
    for target, _ in change.rows_to_change(rows.schema.names, index.predicate()):
        for _, _, at, found in index.pairs([target[name] for name in names], STEP_ROWS):
            np.add.at(matches, found, 1)
            pairs = target.take(pa.array(at)), rows.take(pa.array(found))
            is_equal[found[equal_rows(*(pair.columns for pair in pairs))]] = True
    is_changed = ~is_equal | (matches > 1)
    change.unit.skipped_rows += rows.num_rows - int(is_changed.sum())
    yield rows.filter(pa.array(is_changed))


class ClausePlan(Struct, frozen=True):
    """A clause: its condition, and the template of the rows that it writes; None if it only deletes."""

    when: str | None
    template: RowTemplate | None

    def make(self, sides: Sides) -> Iterator[pa.RecordBatch]:
        """The rows that it writes in place of a target's row, or as new ones."""
        if self.template is not None and _row_count(sides):
            yield self.template.make(sides)


class _StreamedMerge:
    """A merge in one transaction; ``fields`` are the columns that are joined on.

    Raises InputError if DuckDB refuses an expression, SchemaError if a clause doesn't fit the table.
    """

    def __init__(
        self,
        change: TableChange,
        fields: tuple[Field, ...],
        source: SourceRows,
        clauses: Clauses,
        evaluator: Evaluator | None,
        changed: KeptRows | None,
    ) -> None:
        self._change, self._entry, self._fields, self._changed = change, change.entry, fields, changed
        self._row_schema = change.row_schema
        entry = change.entry
        self._source, self._clauses, self._evaluator = source, clauses, evaluator
        self._index = KeyIndex(source.keys(fields), fields)
        self._names, self._keys = [field.name for field in entry.schema.fields], [field.name for field in fields]
        self._is_on_primary_key = is_primary_key(self._keys, entry)
        source_names = source.rows.schema.names
        clauses.check_columns(self._names, source_names)
        clauses.check_updates(entry, self._keys, source_names)
        self._needed = self._needed_columns()
        sides = {TARGET: _target_schema(entry, self._needed), SOURCE: source.rows.schema}
        self._matched = [self._plan(clause, sides) for clause in clauses.matched]
        self._not_matched = [self._plan(clause, {SOURCE: sides[SOURCE]}) for clause in clauses.not_matched]
        self._by_source = [self._plan(clause, {TARGET: sides[TARGET]}) for clause in clauses.by_source]

    def _needed_columns(self) -> list[str]:
        """The table's columns to read: key columns, columns in expressions, and columns that keep their values."""
        target_columns = {
            term.name
            for clause in self._clauses.all
            if not isinstance(clause, Delete)
            for term in terms_of(clause, self._names, self._source.rows.schema.names).values()
            if isinstance(term, SideColumn) and term.side == TARGET
        }
        if self._changed is not None:
            return self._names
        named_columns = self._evaluator.uses(self._clauses.texts, self._names) if self._evaluator else []
        return [name for name in self._names if name in target_columns or name in named_columns or name in self._keys]

    def _plan(self, clause: Clause, sides: dict[str, pa.Schema]) -> ClausePlan:
        if clause.when is not None:
            assert self._evaluator is not None
            [kind] = self._evaluator.types([clause.when], sides)
            if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
                raise InputError(f"when={clause.when!r} is not a condition: it is of type {kind}")
        if isinstance(clause, Delete):
            return ClausePlan(clause.when, None)
        terms = terms_of(clause, self._names, self._source.rows.schema.names)
        template = RowTemplate(self._row_schema, terms, sides, self._evaluator, self._source.find)
        return ClausePlan(clause.when, template)

    def run(self, *, keys_repeat: bool = False) -> None:
        """Reads, and adds the statements.

        Raises RepeatedKeyError if several rows of the table have one primary key, and one of them would change, unless
        ``keys_repeat``.
        """
        count = self._source.rows.num_rows
        if self._changed is not None:
            self._changed.clear()
        self._hidden: HiddenRows = {}
        self._latest: LatestRows | None = None
        self._is_matched, self._is_changed = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        if self._clauses.inserts_by_primary_key(self._entry, self._keys):
            if self._index.nulls:
                raise RowError("NULL in the primary key: it equals nothing", column=self._fields[0].name)
            if self._index.repeated:
                raise _repeated_key_error(self._fields)
        if self._index.rows == 0 and not self._clauses.by_source:
            return
        where = None if self._clauses.by_source else self._index.predicate()
        targets = self._change.rows_to_change(self._needed, where)
        if keys_repeat:
            keys = self._change.rows_to_change(self._keys, where, with_commit_ts=True)
            self._latest = LatestRows(self._index, count, self._fields, keys)
        rows = self._changed_rows(targets)
        may_insert_twice = self._clauses.may_insert_twice(self._entry, self._keys)
        if self._clauses.not_matched and not may_insert_twice:
            rows = chain(rows, self._insert())
        ids = tuple(sorted(field.id for field in self._fields))
        self._change.replace_rows(rows, self._hidden, ids)
        if may_insert_twice:  # after the rows are hidden: one of them may have the key
            inserts = self._change.make_insert(self._insert())
            if inserts:
                self._change.unit.add(inserts)

    def _changed_rows(self, targets: Iterator[tuple[pa.RecordBatch, RowLocations]]) -> Iterator[pa.RecordBatch]:
        for target, locations in targets:
            yield from self._apply(target, locations)
        if self._latest:
            self._latest.hide_others(self._hidden, self._is_changed)

    def _apply(self, target: pa.RecordBatch, locations: RowLocations) -> Iterator[pa.RecordBatch]:
        """Applies the clauses for rows of the target."""
        keys = [target[name] for name in self._keys]
        is_unmatched = np.ones(target.num_rows, np.bool_)
        for first, last, targets, sources in self._index.pairs(keys, self._most_pairs(target)):
            is_unmatched[targets] = False
            if self._matched and self._is_on_primary_key:
                targets, sources = self._latest_pairs(locations, targets, sources)
            self._is_matched[sources] = True
            if not self._matched or len(targets) == 0:
                continue
            sides = {TARGET: target.take(pa.array(targets)), SOURCE: self._source.rows.take(pa.array(sources))}
            changed = np.zeros(last - first, np.int64)
            for plan, pairs, rows_of_clause in self._choose(self._matched, sides):
                np.add.at(changed, targets[pairs] - first, 1)
                self._is_changed[sources[pairs]] = True
                yield from self._make(plan, rows_of_clause)
            if not self._clauses.deletes_all_matched and (changed > 1).any():
                raise InputError(
                    "several source rows match one row of the table, and would each update or delete it: keep one "
                    "source row of each key, or tell them apart by conditions"
                )
            locations.take(first + np.flatnonzero(changed)).hide(self._hidden)
        if self._by_source and is_unmatched.any():
            rows = np.flatnonzero(is_unmatched)
            for plan, chosen, rows_of_clause in self._choose(self._by_source, {TARGET: target.take(pa.array(rows))}):
                locations.take(rows[chosen]).hide(self._hidden)
                yield from self._make(plan, rows_of_clause)

    def _make(self, plan: ClausePlan, sides: Sides) -> Iterator[pa.RecordBatch]:
        """The rows that a clause writes. Those that it changes are kept for the caller."""
        rows = list(plan.make(sides))
        if self._changed is not None:
            action = "DELETE" if plan.template is None else "UPDATE" if TARGET in sides else "INSERT"
            for batch in rows if plan.template else [sides[TARGET].select(self._names)]:
                names = pa.repeat(pa.scalar(action, pa.string()), batch.num_rows)
                self._changed.add(pa.RecordBatch.from_arrays([names, *batch.columns], schema=self._changed.schema))
        yield from rows

    def _latest_pairs(self, locations: RowLocations, targets: Indices, sources: Indices) -> tuple[Indices, Indices]:
        """The pairs whose target row is the only or the latest one of its key."""
        if self._latest:
            return self._latest.choose(locations, targets, sources)
        if self._is_matched[sources].any() or len(np.unique(sources)) < len(sources):
            raise RepeatedKeyError
        return targets, sources

    def _most_pairs(self, target: pa.RecordBatch) -> int:
        """The number of pairs whose rows take about ``PAIR_BYTES``."""
        source = self._source.rows
        row_bytes = target.nbytes / target.num_rows + source.nbytes / max(1, source.num_rows)
        return max(1, min(MAX_PAIRS, int(PAIR_BYTES / max(1.0, row_bytes))))

    def _insert(self) -> Iterator[pa.RecordBatch]:
        """Applies the clauses for rows of the source that match nothing."""
        unmatched = np.flatnonzero(~self._is_matched)
        for start in range(0, len(unmatched), STEP_ROWS):
            rows = self._source.rows.take(pa.array(unmatched[start : start + STEP_ROWS]))
            for plan, _, inserts in self._choose(self._not_matched, {SOURCE: rows}):
                yield from self._make(plan, inserts)

    def _choose(self, plans: Sequence[ClausePlan], sides: Sides) -> Iterator[tuple[ClausePlan, Indices, Sides]]:
        """Gives each row to the first clause whose condition is TRUE. Yields each clause with indices and rows."""
        remaining = np.arange(_row_count(sides))
        for plan in plans:
            if len(remaining) == 0:
                return
            rows = _take(sides, remaining)
            chosen = np.arange(len(remaining))
            if plan.when is not None:
                assert self._evaluator is not None
                [condition] = self._evaluator.evaluate([plan.when], rows)
                chosen = np.flatnonzero(to_mask(condition.cast(pa.bool_()).fill_null(False)))
            if len(chosen):
                yield plan, remaining[chosen], _take(rows, chosen)
            remaining = np.delete(remaining, chosen)


class RepeatedKeyError(Exception):
    """Several rows of the table have one primary key. Never leaves the merge, which then starts again."""


class LatestRows:
    """For each source row, the matching row that was committed last, which ``get`` returns, too.

    ``rows`` are the table's, with its primary key (``fields``) and the commit timestamp; they are read once.
    """

    def __init__(
        self, index: KeyIndex, count: int, fields: Sequence[Field], rows: Iterable[tuple[pa.RecordBatch, RowLocations]]
    ) -> None:
        self._file_numbers: dict[str, int] = {}
        self._ts = np.full(count, -1, np.int64)
        self._file, self._position = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._others: list[tuple[RowLocations, Indices]] = []
        for batch, locations in rows:
            ts = batch[COMMIT_TS].cast(pa.int64()).to_numpy()
            files = self._files(locations)
            for _, _, targets, sources in index.pairs([batch[field.name] for field in fields], STEP_ROWS):
                order = np.lexsort((targets, ts[targets], sources))
                targets, sources = targets[order], sources[order]
                last = np.append(sources[1:] != sources[:-1], True)[: len(sources)]
                targets, sources = targets[last], sources[last]
                newer = ts[targets] >= self._ts[sources]
                targets, sources = targets[newer], sources[newer]
                self._ts[sources], self._file[sources] = ts[targets], files[targets]
                self._position[sources] = locations.positions[targets]

    def choose(self, locations: RowLocations, targets: Indices, sources: Indices) -> tuple[Indices, Indices]:
        """The pairs whose target row is the latest of its key. Remembers the target rows of the other pairs."""
        is_latest = self._files(locations)[targets] == self._file[sources]
        is_latest &= locations.positions[targets] == self._position[sources]
        if not is_latest.all():
            self._others.append((locations.take(targets[~is_latest]), sources[~is_latest]))
        return targets[is_latest], sources[is_latest]

    def hide_others(self, hidden: HiddenRows, changed: npt.NDArray[np.bool_]) -> None:
        """Hides the remembered rows whose latest row changes."""
        for locations, sources in self._others:
            locations.take(np.flatnonzero(changed[sources])).hide(hidden)

    def _files(self, locations: RowLocations) -> Indices:
        numbers = [self._file_numbers.setdefault(path, len(self._file_numbers)) for path in locations.paths]
        return np.array(numbers, np.int64)[locations.files]


def _row_count(sides: Sides) -> int:
    return int(next(iter(sides.values())).num_rows)


def _take(sides: Sides, indices: Indices) -> Sides:
    """Some rows of all sides, in their order."""
    if len(indices) == _row_count(sides):
        return sides
    return {side: rows.take(pa.array(indices)) for side, rows in sides.items()}


def _repeated_key_error(fields: Sequence[Field]) -> InputError:
    names = ", ".join(repr(field.name) for field in fields)
    return InputError(
        f"several rows of the source have the same key (columns {names}), and none is the last: keep one of each"
    )
