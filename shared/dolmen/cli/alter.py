"""The command that changes a table's columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Optional

import pyarrow as pa
import typer

from dolmen.cli.options import DatabaseUrl, Json, Message, Request, TableName, app, open_existing
from dolmen.cli.output import print_commit
from dolmen.declaration.columns import parse_column, parse_columns
from dolmen.declaration.defaults import parse_default
from dolmen.errors import InputError

Texts = Optional[list[str]]  # noqa: UP045


@app.command()
def alter(
    table: TableName,
    database: DatabaseUrl,
    rename: Annotated[Texts, typer.Option(help="OLD=NEW: rename a column.")] = None,
    drop: Annotated[Texts, typer.Option(help="COLUMN: drop it; older versions keep it.")] = None,
    add: Annotated[Texts, typer.Option(help="'COLUMN TYPE [NOT NULL]': add a column at the end.")] = None,
    default: Annotated[
        Texts, typer.Option(help="COLUMN=VALUE: of rows without the column; those of now, too, if it is added here.")
    ] = None,
    nullable: Annotated[Texts, typer.Option(help="COLUMN: allow NULL in it.")] = None,
    widen: Annotated[Texts, typer.Option(help="COLUMN=TYPE: a type that has all values of its own.")] = None,
    comment: Annotated[Texts, typer.Option(help="COLUMN=TEXT: what the column is; no text takes that away.")] = None,
    first: Annotated[str, typer.Option(help="COLUMN,...: scans return these first.")] = "",
    sort_key: Annotated[Optional[str], typer.Option(help="COLUMN,...: sort new files by these; '' by none.")] = None,  # noqa: UP045
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Change a table's columns in one commit that touches no file, in the order of the options below."""
    if not any((rename, drop, add, default, nullable, widen, comment, first)) and sort_key is None:
        raise InputError("nothing says what to change: give --add, --drop, --rename, ... (dolmen alter --help)")
    db = open_existing(database)
    with db.transaction("alter", message=message) as tx:
        target = tx.table(table)
        for old, new in _pairs("--rename", rename):
            target.rename_column(old, new, request=request_id)
        for name in drop or ():
            target.drop_column(name, request=request_id)
        defaults = dict(_pairs("--default", default))
        for text in add or ():
            for field in parse_columns(text):
                value = _default(field, defaults.pop(field.name, None))
                target.add_column(field.name, field.type, value, nullable=field.nullable, request=request_id)
        for name, text in defaults.items():
            column = tx.entry(table).schema.field(name)
            target.set_default(name, _default(column.to_arrow(), text), request=request_id)
        for name in nullable or ():
            target.make_nullable(name, request=request_id)
        for name, text in _pairs("--widen", widen):
            target.widen_column(name, _wider_type(name, text), request=request_id)
        for name, text in _pairs("--comment", comment):
            target.comment(name, text, request=request_id)
        if first:
            target.reorder([name.strip() for name in first.split(",")], request=request_id)
        if sort_key is not None:
            target.set_sort_key(
                [name.strip() for name in sort_key.split(",")] if sort_key else None, request=request_id
            )
        commit = tx.commit()
    print_commit(commit, as_json)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _pairs(option: str, texts: list[str] | None) -> Iterator[tuple[str, str]]:
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{option} {text!r}: write NAME=VALUE")
        yield name.strip(), value.strip()


def _wider_type(name: str, text: str) -> pa.DataType:
    column = parse_column(name, text)
    if not column.nullable:
        raise InputError(
            f"--widen {name}={text}: give the type alone: a column that is NOT NULL stays so, and no other becomes so"
        )
    return column.type


def _default(column: pa.Field, text: str | None) -> pa.Scalar | None:
    """A default as it is written in a command; no text, or none after the equals sign, is NULL."""
    if not text:
        return None
    try:
        return parse_default(column, text)
    except InputError as error:
        raise InputError(f"--default {column.name}={text}: {error}") from error
