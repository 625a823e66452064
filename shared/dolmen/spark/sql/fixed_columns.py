"""Checks that UPDATE and MERGE leave alone what no update may change: the primary key, and the order of changes (CDC).

Spark has analysed the new values by then. A value is no other one if it is the column itself, or a column of the source
that ``ON`` wants equal to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark.sql import DataFrame

from dolmen.format.schema import Field
from dolmen.spark.sql.change import RowChange
from dolmen.transactions.merge.clauses import check_updatable


def check_updates(
    change: RowChange,
    analysed: DataFrame,
    fields: Sequence[Field],
    given: Sequence[str] = (),
    equal: Collection[tuple[Field, str]] = (),
) -> None:
    """Checks new values of columns.

    Args:
        analysed: a query that shows the values first, over the target's view and then, if there is one, the source's.
        fields: their columns.
        given: names of the source's columns.
        equal: columns of the target, each with one of the source that has the same value.

    Raises:
        SchemaError: a column that no update may change may get another value.
    """
    shown = _shown_places(analysed, len(fields))
    first = len(change.fields) + 2  # the view of the target has places of rows, too: see RowChange.empty
    columns: dict[int, Field | str] = {**dict(enumerate(change.fields)), **dict(enumerate(given, first))}
    for field, place in zip(fields, shown, strict=True):
        column = None if place is None else columns.get(place)
        if column != field and (field, column) not in equal:
            check_updatable(change.entry, field)


def _shown_places(analysed: DataFrame, count: int) -> list[int | None]:
    """For each of the first expressions of a SELECT, the place of the column that it is; None if it is none."""
    node: Any = analysed._jdf.queryExecution().analyzed()
    while node.getClass().getSimpleName() == "WithCTE":
        node = node.plan()
    output, shown = node.child().output(), node.projectList()
    places = {output.apply(place).exprId().id(): place for place in range(output.size())}
    found: list[int | None] = []
    for number in range(count):
        value = shown.apply(number).child()  # of its alias
        is_column = value.getClass().getSimpleName() == "AttributeReference"
        found.append(places.get(value.exprId().id()) if is_column else None)
    return found
