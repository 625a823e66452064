"""The commands that change rows by values: ``update``, and ``merge`` with the rows of a file."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import pyarrow as pa
import typer

from dolmen.cli.inputs import INPUT_HELP, Input, open_inputs
from dolmen.cli.options import DatabaseUrl, Delimiter, InputForm, Json, Message, Request, TableName, app, open_existing
from dolmen.cli.output import print_commit
from dolmen.errors import InputError
from dolmen.transactions.merge.row_template import Expression

_NOTHING = "nothing"

Assignments = Annotated[
    list[str], typer.Option("--set", help="'COLUMN = EXPRESSION': its new value, in DuckDB's SQL; more than once.")
]


@app.command()
def update(
    table: TableName,
    database: DatabaseUrl,
    assignments: Assignments,
    where: Annotated[str, typer.Option(help="Predicate, e.g. 'user_id = 42'. TRUE updates all rows.")],
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Give rows new values, in one commit."""
    values = {name: Expression(text) for name, text in _parse(assignments).items()}
    commit = open_existing(database).table(table).update(values, where, request=request_id, message=message)
    print_commit(commit, as_json)


@app.command()
def merge(
    table: TableName,
    file: Annotated[str, typer.Argument(help=f"The source: {INPUT_HELP}.")],
    database: DatabaseUrl,
    on: Annotated[str, typer.Option(help="Columns of both, with commas; the primary key by default.")] = "",
    assignments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", help="'COLUMN = EXPRESSION' over target.COLUMN and source.COLUMN: updates only these."),
    ] = None,
    when_matched: Annotated[str, typer.Option(help="update, delete or nothing.")] = "update",
    when_not_matched: Annotated[str, typer.Option(help="insert or nothing.")] = "insert",
    when_not_matched_by_source: Annotated[str, typer.Option(help="delete or nothing.")] = _NOTHING,
    form: InputForm = None,
    delimiter: Delimiter = None,
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Update, delete and insert rows by those of a file, in one commit. Conditions are for Python (Table.merge)."""
    if assignments and when_matched != "update":
        raise InputError(f"--set says what an update changes, and --when-matched is {when_matched}")
    target = open_existing(database).table(table)
    names = [name.strip() for name in on.split(",")] if on else list(target.primary_key)
    if not names:
        raise InputError(f"table {table!r} has no primary key: name the columns of both, --on")
    matched: Any = _parse(assignments) if assignments else _act(when_matched)
    with open_inputs([file], form, delimiter, again=True) as [source]:
        commit = target.merge(
            source.read(_columns(source, target.schema)),
            names,
            matched,
            _act(when_not_matched),  # type: ignore[arg-type]
            _act(when_not_matched_by_source),  # type: ignore[arg-type]
            request=request_id,
            message=message,
        )
    print_commit(commit, as_json)


def _columns(source: Input, schema: pa.Schema) -> pa.Schema:
    """The columns of a file: those of the table in its types, others in inferred ones; the table's if it has none."""
    known = {field.name: field for field in schema}
    try:
        given = source.infer()
    except InputError:  # JSON lines without a row
        if source.survey():
            raise
        given = schema
    return pa.schema([known.get(field.name, field).with_nullable(True) for field in given])


def _act(word: str) -> str | None:
    return None if word == _NOTHING else word


def _parse(texts: list[str]) -> dict[str, str]:
    """Expressions by column, of ``COLUMN = EXPRESSION``."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, expression = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {text!r}: write COLUMN = EXPRESSION")
        if name.strip() in found:
            raise InputError(f"--set names column {name.strip()!r} twice")
        found[name.strip()] = expression.strip()
    return found
