"""``dolmen apply``: makes tables match a file that declares them, and shows the differences first.

The command that changes a table's columns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Optional

import pyarrow as pa
import typer
from rich.text import Text

import dolmen
from dolmen.cli.exit_codes import DECLINED, INCOMPLETE
from dolmen.cli.options import DatabaseUrl, Json, Message, Request, TableName, Yes, app, open_existing
from dolmen.cli.output import commit_facts, console, errors, print_commit, print_json
from dolmen.declaration import Declaration, DeclarationPlan, DeclaredChange, plan
from dolmen.declaration.column_text import parse_column, parse_columns, parse_default
from dolmen.declaration.declaration_plan import ROUNDS
from dolmen.errors import ConflictError, InputError
from dolmen.transactions.transaction import unit_of

_SIGNS = {"add": ("+", "green"), "change": ("~", "yellow"), "remove": ("-", "red")}


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="A YAML file that declares tables; - is standard input.")],
    database: DatabaseUrl,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop columns that the file does not declare; older versions keep them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the differences only.")] = False,
    yes: Yes = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --dry-run: end with 9 if there is something to do.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make tables, their columns and settings match a file, in one commit; show the differences first.

    Exit codes: 0 done, or nothing to do; 2 the file must be corrected, or a table can't become what it declares; 4
    declined, or somebody else changes the same; 9 with --dry-run --exit-code: there is something to do.
    """
    declaration = Declaration.parse(sys.stdin.read(), "standard input") if str(file) == "-" else Declaration.read(file)
    db = dolmen.open(database)
    asks = not (yes or dry_run)
    for left in reversed(range(ROUNDS)):
        wanted = plan(db, declaration, drop=drop)
        if not as_json:
            _print(wanted)
        if wanted.changes and asks and (as_json or not sys.stdin.isatty()):
            raise InputError("the question needs a terminal, so nothing was changed: give --yes, or --dry-run to look")
        if dry_run:
            if as_json:
                print_json(_facts(wanted))
            raise typer.Exit(INCOMPLETE if exit_code and wanted.changes else 0)
        if wanted.changes and asks and not typer.confirm("apply this?", err=True):
            errors.print("declined: nothing was changed")
            raise typer.Exit(DECLINED)
        try:
            commit = wanted.commit()
        except ConflictError as error:
            if not left:
                raise
            errors.print(f"{error}", markup=False, highlight=False)
            continue
        if as_json:
            print_json(_facts(wanted) | {"commit": commit_facts(commit)})
        elif wanted.changes:
            print_commit(commit, as_json)
        return


def _facts(wanted: DeclarationPlan) -> dict[str, Any]:
    return {"version": wanted.version, "changes": _rows(wanted.changes), "undropped": _rows(wanted.undropped)}


def _rows(changes: Iterable[DeclaredChange]) -> list[dict[str, Any]]:
    return [asdict(change) for change in changes]


def _print(wanted: DeclarationPlan) -> None:
    """Prints the differences, in one block per table."""
    if not wanted.changes:
        console.print(f"nothing to do; version [bold]{wanted.version}[/] is what {wanted.declaration.file!r} declares")
    heading: str | None = ""
    for change in wanted.changes:
        if change.table != heading:
            heading = change.table
            sign, style = _SIGNS["add" if change.what == "table" else "change"]
            name = "database" if heading is None else f"table {heading}"
            console.print(Text(f"{sign} {name}", style=f"bold {style}"), soft_wrap=True)
        if change.what != "table":
            sign, style = _SIGNS[change.kind]
            console.print(Text(f"    {sign} {_describe(change)}", style=style), soft_wrap=True)
    for change in wanted.undropped:
        column = f"column {change.name} {change.before} of table {change.table}"
        console.print(Text(f"  {column} is not declared, and stays: --drop drops it"), soft_wrap=True)


def _describe(change: DeclaredChange) -> str:
    sides = " -> ".join(_value_text(side) for side in (change.before, change.after) if side is not None)
    match change.what:
        case "column":
            return f"column {change.name} {sides}"
        case "default" | "comment":
            return f"{change.what} of {change.name}: {sides}"
        case "rename" | "order":
            return f"{change.what}: {sides}"
        case "primary_key" | "sort_key":
            return f"{change.what.replace('_', ' ')}: {sides}"
    return f"{change.name}: {sides}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(repr(one) if not one.strip() else one for one in value)
    return repr(value) if not str(value).strip() else str(value)


Texts = Optional[list[str]]  # noqa: UP045


@app.command()
def alter(
    table: TableName,
    database: DatabaseUrl,
    rename: Annotated[Texts, typer.Option(help="OLD=NEW: rename a column.")] = None,
    drop: Annotated[Texts, typer.Option(help="COLUMN: drop it; older versions keep it.")] = None,
    add: Annotated[Texts, typer.Option(help="'COLUMN TYPE [NOT NULL]': add a column at the end.")] = None,
    default: Annotated[
        Texts,
        typer.Option(help="COLUMN=VALUE: for rows without the column; also for existing rows if it is added here."),
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
            column = unit_of(tx).entry(table).schema.field(name)
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
