"""UPDATE: rows for which a predicate is TRUE get new values, in one commit.

The rows are read, hidden by their positions and written again; all others stay as they are in their files. What was
read is claimed: the commit is refused if others have deleted rows of the table meanwhile, or added some that may match.

The new values of an update: constants, and SQL expressions over the columns of a row.

Rows that are replaced: hidden by their positions, and written again, by statements of one commit.

The one row of each primary key that a merge goes by, in a table where ``append`` has made several of some keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.arguments import short_repr, text
from dolmen.base.units import MIB
from dolmen.commit.statements.row_changes import DeletePositions, Write
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.predicate import Predicate, Where, columns, parse
from dolmen.rows.scan.engines.expressions import Evaluator
from dolmen.rows.scan.plan import View
from dolmen.rows.scan.scan import PositionedRows, Scan, rows_with_positions
from dolmen.rows.write.casts import lossless
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_digest import RowDigest
from dolmen.rows.write.row_input import as_batches
from dolmen.transactions import row_statements
from dolmen.transactions.merge.clauses import Expression, RowTemplate, Same, SideColumn, Term, check_updatable
from dolmen.transactions.merge.merge_source import KeyIndex
from dolmen.transactions.unit_of_work import UnitOfWork

NewValues: TypeAlias = Mapping[str, Any]
"""New values by column: Python values, which are the same in all rows, or ``Expression``."""


@dataclass(frozen=True)
class Assignments:
    """The new values of an update, by column."""

    terms: Mapping[str, Expression | Same]

    @classmethod
    def of(cls, entry: TableEntry, values: NewValues) -> Assignments:
        """Reads the argument ``set`` of an update.

        Raises:
            InputError: it is no mapping, or a value is none of its column's type.
            SchemaError: there is no such column, or it is part of the primary key or orders changes (CDC).
            RowError: NULL for a column that is not nullable.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"set={short_repr(values)} is no mapping of columns to values")
        if not values:
            raise InputError("an update that changes nothing: say which columns change, set={...}")
        terms: dict[str, Expression | Same] = {}
        for name, value in values.items():
            field = entry.schema.field(text("set", name))
            check_updatable(entry, field)
            if field.name in terms:
                raise InputError(f"set names column {field.name!r} twice")
            if isinstance(value, Expression):
                terms[field.name] = Expression(text(f"set: {name}", value.sql))
            else:
                terms[field.name] = Same(_constant(field, value))
        return cls(terms)

    @property
    def texts(self) -> list[str]:
        """The SQL expressions."""
        return [term.sql for term in self.terms.values() if isinstance(term, Expression)]

    def content(self) -> list[Any]:
        """The content for the digest of a request; the order of columns makes no difference."""
        return sorted([name, *_content(name, term)] for name, term in self.terms.items())


def _constant(field: Field, value: Any) -> pa.Array:
    schema = pa.schema([pa.field(field.name, field.arrow_type, field.nullable)])
    try:
        [batch] = conform(as_batches([{field.name: value}], schema), schema, lossless)
    except RowError as error:
        raise RowError(error.reason, column=field.name) from None
    except SchemaError as error:
        told = f"set: value {short_repr(value)} of column {field.name!r}: {error}"
        if isinstance(value, str):
            told += f"; SQL over the row's columns is dolmen.Expression({short_repr(value)})"
        raise InputError(told) from error
    return batch.column(0)


def _content(name: str, term: Expression | Same) -> list[str]:
    if isinstance(term, Expression):
        return ["sql", term.sql]
    digest = RowDigest(pa.schema([(name, term.value.type)]))
    digest.update(pa.record_batch([term.value], [name]))
    return ["value", digest.hexdigest()]


STEP = 65_536


STEP_BYTES = 64 * MIB
"""The number of rows that are worked on at once: large row groups are split, small ones are joined."""


Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlacedRows:
    """Rows of one or several files, with their places.

    Args:
        rows: the rows.
        paths: of the files.
        files: the place of each row's file among ``paths``, ascending.
        positions: of each row in its file.
    """

    rows: pa.RecordBatch
    paths: Sequence[str]
    files: Places
    positions: Places


class HiddenRows:
    """Positions of rows that are to be hidden, by the path of their file."""

    def __init__(self) -> None:
        self.positions: dict[str, BitMap] = {}

    def add(self, placed: PlacedRows, places: Places) -> None:
        """Adds some of the rows.

        Args:
            places: of the rows, ascending.
        """
        if len(places) == 0:
            return
        files, positions = placed.files[places], placed.positions[places].astype(np.uint32)
        starts = np.append(0, np.flatnonzero(np.diff(files)) + 1)
        for file, own in zip(files[starts], np.split(positions, starts[1:]), strict=True):
            self.positions.setdefault(placed.paths[file], BitMap()).update(BitMap(own))


def claimed_rows(
    unit: UnitOfWork,
    name: str,
    columns: Sequence[str],
    predicate: Predicate | None,
    *,
    with_commit_ts: bool = False,
) -> Iterator[PlacedRows]:
    """Reads rows on which the commit depends: it is refused if others change them. The claim is made at once.

    Args:
        columns: names.
        predicate: only rows for which it is TRUE; all by default.
    """
    unit.claim(name, predicate)
    view = View(unit.context, unit.manifest, name, unit.uploads.read)
    scan = Scan(view, columns=columns, where=predicate, with_commit_ts=with_commit_ts)
    return _in_steps(rows_with_positions(scan))


def replace_rows(
    unit: UnitOfWork,
    name: str,
    entry: TableEntry,
    rows: Iterable[pa.RecordBatch],
    hidden: HiddenRows,
    request: str | None,
    columns: tuple[int, ...] = (),
) -> None:
    """Writes rows, and adds the statements that hide others and show these.

    Args:
        rows: of exactly the table's schema; taken once.
        hidden: complete when the last of ``rows`` was taken.
        columns: ids of the columns by which rows were found, for the history.
    """
    unit.begin_upload()
    passing = unit.passing(entry, rows, leave_out=False)  # one that is left out would be deleted
    files = row_statements.write_rows(unit, name, entry, passing)
    if hidden.positions or unit.changes(entry.uuid):
        # Earlier statements may be why it hides nothing, and a rebase may remove them (Change.without).
        unit.add(DeletePositions.of(name, entry.uuid, hidden.positions, request, columns))
    if files:
        unit.add(Write(name, entry.uuid, files, request=request, schema=entry.schema))


def _in_steps(found: Iterable[PositionedRows]) -> Iterator[PlacedRows]:
    """Cuts large batches, and joins small ones."""
    held: list[PositionedRows] = []
    rows = size = 0
    for batch, path, positions in found:
        for start in range(0, batch.num_rows, STEP):
            part = batch.slice(start, STEP)
            if held and (rows + part.num_rows > STEP or size + part.nbytes > STEP_BYTES):
                yield _joined(held)
                held, rows, size = [], 0, 0
            held.append((part, path, positions[start : start + STEP]))
            rows += part.num_rows
            size += part.nbytes
    if held:
        yield _joined(held)


def _joined(parts: Sequence[PositionedRows]) -> PlacedRows:
    rows = parts[0][0] if len(parts) == 1 else pa.concat_batches([rows for rows, _, _ in parts])
    files = np.repeat(np.arange(len(parts)), [part.num_rows for part, _, _ in parts])
    return PlacedRows(rows, [path for _, path, _ in parts], files, np.concatenate([places for _, _, places in parts]))


_SIDE = "target"


def update_rows(unit: UnitOfWork, name: str, values: NewValues, where: Where, request: str | None) -> None:
    """Adds the statements of an update to a transaction, unless its request was applied before.

    Args:
        values: by column: Python values, or ``Expression``.
        where: only rows for which it is TRUE; None = all rows.

    Raises:
        InputError, SchemaError, RowError: values that do not fit; nothing was added.
    """
    entry = unit.entry(name)
    condition: Where = "TRUE" if where is None else where
    predicate = parse(condition, entry.schema, now_us=unit.now_us)
    assignments = Assignments.of(entry, values)
    if not unit.has_applied(request):
        with unit.savepoint():
            _update(unit, name, entry, assignments, predicate, request)
    if unit.needs_content(request):
        chosen = row_statements.rows_content(entry, condition, None)
        unit.add_content(request, "update", name, assignments.content(), *chosen)


def _update(
    unit: UnitOfWork,
    name: str,
    entry: TableEntry,
    assignments: Assignments,
    predicate: Predicate,
    request: str | None,
) -> None:
    evaluator = Evaluator() if assignments.texts else None
    try:
        names = [field.name for field in entry.schema.fields]
        used = evaluator.uses(assignments.texts, names) if evaluator else []
        needed = [column for column in names if column in used or column not in assignments.terms] or names[:1]
        schema = pa.schema([(field.name, field.arrow_type) for field in entry.schema.fields if field.name in needed])
        terms: dict[str, Term] = {column: SideColumn(_SIDE, column) for column in names if column in needed}
        template = RowTemplate(entry.schema, {**terms, **assignments.terms}, {_SIDE: schema}, evaluator)
        found = claimed_rows(unit, name, needed, predicate)
        hidden = HiddenRows()

        def rows() -> Iterator[pa.RecordBatch]:
            for placed in found:
                hidden.add(placed, np.arange(placed.rows.num_rows))
                yield template.make({_SIDE: placed.rows})

        replace_rows(unit, name, entry, rows(), hidden, request, tuple(sorted(columns(predicate))))
    finally:
        if evaluator:
            evaluator.close()


_NO_ROWS = pa.record_batch([pa.nulls(0)], [""])


class RepeatedKeyError(Exception):
    """Several rows of the table have one primary key. Never leaves the merge, which then starts again."""


class LatestRows:
    """For each source row, the matching row that was committed last: the one that ``get`` returns, too.

    Args:
        index: of the source's keys.
        count: the number of source rows.
        fields: the columns of the primary key.
        rows: of the table, with these columns and the commit timestamp; taken once.
    """

    def __init__(self, index: KeyIndex, count: int, fields: Sequence[Field], rows: Iterable[PlacedRows]) -> None:
        self._paths: dict[str, int] = {}
        self._ts = np.full(count, -1, np.int64)
        self._file, self._position = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._others: list[tuple[PlacedRows, Places]] = []
        for placed in rows:
            ts = placed.rows[COMMIT_TS].cast(pa.int64()).to_numpy()
            files = self._files(placed)
            for _, _, left, right in index.pairs([placed.rows[field.name] for field in fields], STEP):
                order = np.lexsort((left, ts[left], right))
                left, right = left[order], right[order]
                last = np.append(right[1:] != right[:-1], True)[: len(right)]
                left, right = left[last], right[last]
                newer = ts[left] >= self._ts[right]
                left, right = left[newer], right[newer]
                self._ts[right], self._file[right] = ts[left], files[left]
                self._position[right] = placed.positions[left]

    def choose(self, placed: PlacedRows, left: Places, right: Places) -> tuple[Places, Places]:
        """Those pairs of target and source rows that count. The target rows of the others are noted."""
        counts = (self._files(placed)[left] == self._file[right]) & (placed.positions[left] == self._position[right])
        if not counts.all():
            others = left[~counts]
            where = PlacedRows(_NO_ROWS, placed.paths, placed.files[others], placed.positions[others])
            self._others.append((where, right[~counts]))
        return left[counts], right[counts]

    def hide_others(self, hidden: HiddenRows, changed: npt.NDArray[np.bool_]) -> None:
        """Hides the rows that were noted beside one that changes.

        Args:
            changed: whether the row that counts for a source row changes.
        """
        for placed, right in self._others:
            hidden.add(placed, np.flatnonzero(changed[right]))

    def _files(self, placed: PlacedRows) -> Places:
        numbers = [self._paths.setdefault(path, len(self._paths)) for path in placed.paths]
        return np.array(numbers, np.int64)[placed.files]
