"""DELETE and UPDATE: Spark evaluates the condition and the new values, and dolmen hides and writes rows."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from dolmen.errors import InputError
from dolmen.predicate import Constant, Predicate
from dolmen.spark.merge.tasks import ACTION, Action
from dolmen.spark.sql.agreement import agreed_predicate, wider_predicate
from dolmen.spark.sql.change import RowChange
from dolmen.spark.sql.fixed_columns import check_updates
from dolmen.spark.sql.statement import DeleteStatement, UpdateStatement
from dolmen.spark.sql.store_casts import StoreCasts
from dolmen.spark.tasks import FILE, ROW


def delete_rows(change: RowChange, statement: DeleteStatement) -> None:
    """Adds a delete to a transaction: a predicate, where dolmen and Spark agree on what it means, else positions.

    Raises:
        InputError: Spark refuses the condition.
    """
    predicate: Predicate | None = Constant(True)
    wider: Predicate | None = None
    if statement.where is not None:
        analysed = change.select("1", change.from_target(change.empty()), statement.where, statement.where)
        change.check(analysed, statement.where)
        fields = dict(enumerate(change.fields))
        predicate, wider = agreed_predicate(analysed, fields), wider_predicate(analysed, fields)
    if predicate is not None:
        change.transaction.table(change.table).delete(predicate, request=change.request)
        return
    source = change.from_target(change.rows(wider, whole=False))
    shown = f"CAST(0 AS INT) AS {ACTION}, `{FILE}`, `{ROW}`"
    rows = change.select(shown, source, statement.where or "", statement.where)
    change.write(rows, [Action(True, None)], once=False)


def update_rows(change: RowChange, statement: UpdateStatement) -> None:
    """Adds an update to a transaction.

    Raises:
        InputError: Spark refuses the condition or a value.
        SchemaError: a column that is not there, that no update may change, or that can't hold values of this type.
    """
    wanted = [(change.field(name), text) for name, text in statement.values]
    names = [field.name for field, _ in wanted]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"UPDATE sets column {repeated[0]!r} twice")
    values = ", ".join(f"(\n{text}\n) AS __value_{place}" for place, (_, text) in enumerate(wanted))
    kept = [field.name for field in change.entry.schema.fields if field.name not in names]
    others = "".join(f", {change.own(name)} AS __value_{place}" for place, name in enumerate(kept, len(wanted)))
    what = ", ".join(text for _, text in statement.values)
    analysed = change.select(values, change.from_target(change.empty()), what, statement.where)
    change.check(analysed, what)
    check_updates(change, analysed, [field for field, _ in wanted])
    wider = wider_predicate(analysed, dict(enumerate(change.fields)))
    source = change.from_target(change.rows(wider, whole=True))
    frame = change.select(f"{values}{others}, `{FILE}`, `{ROW}`", source, what, statement.where)
    casts = StoreCasts(change.views.spark)
    cast = [
        casts.column(frame, f"__value_{place}", field, text).alias(f"__value_{place}")
        for place, (field, text) in enumerate(wanted)
    ]
    carried = [F.col(f"__value_{place}") for place in range(len(wanted), len(names) + len(kept))]
    rows = frame.select(F.lit(0).cast("int").alias(ACTION), FILE, ROW, *cast, *carried)
    change.write(rows, [Action(True, tuple((name, place) for place, name in enumerate([*names, *kept])))], once=False)
