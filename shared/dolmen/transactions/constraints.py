"""Constraints on rows that exist already: a check, NOT NULL, or a primary key is added once no row contradicts it.

Statistics prove that of most files, and the others are read. The commit reads rows that others have added meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.commit.draft import ColumnsChangedError, Draft
from dolmen.commit.head import Context
from dolmen.commit.statements.catalog import AlterTable
from dolmen.commit.statements.row_changes import CheckedStatement
from dolmen.commit.uploads import PendingUploads, needed_features
from dolmen.entries.index.sorting import KeyRuns
from dolmen.errors import InputError, LimitError, PredicateError, SchemaError, short_repr
from dolmen.format.evolution import AddCheck, AddPrimaryKey, SchemaChange, SetNotNull
from dolmen.format.schema import CheckConstraint, Field, Schema, is_nested
from dolmen.format.types import quote_name
from dolmen.predicate.ast import Column, IsNull, Not, Predicate, columns, to_builtins
from dolmen.predicate.evaluate import check_evaluates
from dolmen.predicate.parse import Where, parse
from dolmen.predicate.text import to_sql
from dolmen.rows.scan.plan import View
from dolmen.rows.scan.scan import Scan
from dolmen.transactions.keys import check_key
from dolmen.transactions.unit_of_work import UnitOfWork

MAX_CHECK_BYTES = 16_384  # the longest stored form of a check: every manifest has it, and every row is compared with it
MAX_NAME = 200
_YEARS_US = 10**15  # some decades: ``now()`` differs in all its parts


def add_check(unit: UnitOfWork, table: str, request: str | None, name: str, where: Where) -> None:
    """Adds the statement of ``Table.add_check``."""
    schema = unit.entry(table).schema
    condition = parse_check(where, schema)
    stored = to_builtins(condition)
    if (size := len(msgspec.json.encode(stored))) > MAX_CHECK_BYTES:
        raise LimitError(f"the condition of check {name!r} takes {size:,} bytes: at most {MAX_CHECK_BYTES:,}")
    check = CheckConstraint(_check_name(name), tuple(sorted(columns(condition))), stored)
    text = to_sql(condition, schema)
    problem = f"the check {name!r} ({text}) is FALSE for {{rows}}; scan(where={f'NOT ({text})'!r}) returns them"
    made = AddCheck(check, needed_features(condition))
    _add(unit, table, request, made, Not(condition), columns(condition), problem)


def parse_check(where: Where, schema: Schema) -> Predicate:
    """Binds the condition of a check. Raises PredicateError, also if it depends on the time."""
    condition = parse(where, schema, now_us=0)
    if not isinstance(where, Predicate) and parse(where, schema, now_us=_YEARS_US) != condition:
        raise PredicateError("a check can't depend on the time: leave out now() and current_date")
    check_evaluates(condition)
    return condition


def set_not_null(unit: UnitOfWork, table: str, request: str | None, name: str) -> None:
    """Adds the statement of ``Table.set_not_null``. Does nothing if the column is not nullable."""
    schema = unit.entry(table).schema
    field = schema.field(name)
    if not field.nullable:
        return
    violation = None if is_nested(field.arrow_type) else IsNull(Column(field.id, str(field.type)))
    shown = to_sql(violation, schema) if violation else ""
    hint = f"; scan(where={shown!r}) returns them" if shown else ""
    problem = f"column {field.name!r} is NULL in {{rows}}{hint}"
    _add(unit, table, request, SetNotNull(field.name), violation, {field.id}, problem)


def add_primary_key(unit: UnitOfWork, table: str, request: str | None, names: Sequence[str]) -> None:
    """Adds the statement of ``Table.add_primary_key``."""
    entry = unit.entry(table)
    fields = check_key(tuple(map(entry.schema.field, names)))
    if not fields:
        raise InputError("columns=[]: name the key's columns")
    made = AddPrimaryKey(tuple(field.name for field in fields))
    if not unit.has_applied(request):
        made.apply(entry, 0)  # raises before rows are read
        unit.depend_on_rows(table, None)
        with unit.context.reading(unit.manifest.version):
            _check_keys(View(unit.context, unit.manifest, table, unit.uploads.read), fields)
        unit.add(AlterTable(table, entry.uuid, entry.schema, entry.sort_key, (made,), request))
    unit.add_content(request, "alter", table, repr(made))


def _check_keys(view: View, fields: Sequence[Field]) -> None:
    """Raises SchemaError if a key is NULL, or several rows have it."""
    names = [field.name for field in fields]
    keys, nulls = KeyRuns(pa.schema([field.to_arrow() for field in fields])), 0
    for batch in Scan(view, columns=names).to_batches():
        nulls += sum(column.null_count for column in batch.columns)
        keys.add(batch.drop_null())
    listed = ", ".join(map(quote_name, names))
    if nulls:
        where = " OR ".join(f"{quote_name(name)} IS NULL" for name in names)
        raise SchemaError(f"{nulls:,} keys ({listed}) are NULL; scan(where={where!r}) returns the rows")
    repeated, _ = keys.repeated_rows(0)
    if repeated:
        query = f"FROM {quote_name(view.table)} SELECT {listed} GROUP BY ALL HAVING count(*) > 1"
        raise SchemaError(f"{repeated:,} keys ({listed}) have several rows each; db.sql({query!r}) returns them")


def _check_name(name: str) -> str:
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise InputError(f"name={short_repr(name)}: a check has a name of 1 to {MAX_NAME} printable characters")
    return name


def _add(
    unit: UnitOfWork,
    table: str,
    request: str | None,
    made: SchemaChange,
    violation: Predicate | None,
    ids: frozenset[int] | set[int],
    problem: str,
) -> None:
    entry = unit.entry(table)
    if not unit.has_applied(request):
        alter = AlterTable(table, entry.uuid, entry.schema, entry.sort_key, (made,), request)
        names = tuple(entry.schema.names_of(sorted(ids)))
        check = ViolationCheck(unit.context, table, entry.uuid, entry.schema, violation, names, problem)
        unit.add(CheckedStatement(alter, check))
    unit.add_content(request, "alter", table, repr(made))


class ViolationCheck(Struct, frozen=True):
    """Requires that no row of a table contradicts a constraint."""

    context: Context
    name: str
    uuid: str
    schema: Schema  # the columns for which the constraint was made
    violation: Predicate | None  # TRUE for rows that contradict it; None: the one column is NULL
    columns: tuple[str, ...]  # the names of its columns
    problem: str  # the message, with ``{rows}``

    def __call__(self, draft: Draft, uploads: PendingUploads, newer_than: int) -> None:
        """Reads the table: see ``dolmen.commit.statements.row_changes.RowsCheck``. Raises SchemaError."""
        entry = draft.table(self.name, self.uuid)
        if entry.schema.fields != self.schema.fields:
            raise ColumnsChangedError(f"table {self.name!r}: its columns were changed meanwhile: repeat the call")
        manifest = msgspec.structs.replace(draft.base, tables=dict(draft.tables))
        view = View(self.context, manifest, self.name, uploads.read)
        rows = self._count(view, newer_than)
        if rows:
            what = f"{rows:,} row{'s' if rows != 1 else ''} of table {self.name!r}"
            raise SchemaError(self.problem.format(rows=what) + "; change or delete them first")

    def _count(self, view: View, newer_than: int) -> int:
        if self.violation is not None:
            return Scan(view, where=self.violation, newer_than=newer_than).count()
        scan = Scan(view, columns=self.columns, newer_than=newer_than)
        return sum(batch.column(0).null_count for batch in scan.to_batches())
