"""UPDATE: rows for which a predicate is TRUE get new values, in one commit.

The rows are read, hidden by their positions and written anew; all others stay as they are in their files. What was
read is claimed: the commit is refused if others have deleted rows of the table meanwhile, or added some that may match.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dolmen.format.manifest import TableEntry
from dolmen.predicate import Predicate, Where, columns, parse
from dolmen.rows.scan.expressions import Evaluator
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions import row_statements
from dolmen.transactions.merge.assignments import Assignments, NewValues
from dolmen.transactions.merge.rewriting import HiddenRows, claimed_rows, replace_rows
from dolmen.transactions.merge.row_template import RowTemplate, SideColumn, Term
from dolmen.transactions.unit_of_work import UnitOfWork

_SIDE = "target"


def update_rows(transaction: UnitOfWork, name: str, values: NewValues, where: Where, request: str | None) -> None:
    """Adds the statements of an update to a transaction, unless its request was applied before.

    Args:
        values: by column: Python values, or ``Expression``.
        where: only rows for which it is TRUE; None = all rows.

    Raises:
        InputError, SchemaError, RowError: values that do not fit; nothing was added.
    """
    entry = transaction.entry(name)
    condition: Where = "TRUE" if where is None else where
    predicate = parse(condition, entry.schema, now_us=transaction.now_us)
    assignments = Assignments.of(entry, values)
    asked = transaction.needs_content(request)
    if not transaction.has_applied(request):
        with transaction.savepoint():
            _update(transaction, name, entry, assignments, predicate, request)
    if request is not None and asked:
        said = row_statements.where_content(entry, condition)
        transaction.add_content(request, content_digest("update", name, assignments.content(), *said))


def _update(
    transaction: UnitOfWork,
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
        found = claimed_rows(transaction, name, needed, predicate)
        hidden = HiddenRows()

        def rows() -> Iterator[pa.RecordBatch]:
            for placed in found:
                hidden.add(placed, np.arange(placed.rows.num_rows))
                yield template.make({_SIDE: placed.rows})

        replace_rows(transaction, name, entry, rows(), hidden, request, tuple(sorted(columns(predicate))))
    finally:
        if evaluator:
            evaluator.close()
