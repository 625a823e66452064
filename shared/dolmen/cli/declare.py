"""Commands that declare tables: ``infer`` proposes one, ``apply`` compares with a file, ``alter`` changes columns."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.text import Text
from typer import Argument, Option

import dolmen
from dolmen.cli.exit_codes import INCOMPLETE
from dolmen.cli.inputs import INPUT_HELP, open_inputs
from dolmen.cli.options import (
    DatabaseUrl,
    DryRun,
    InputFormat,
    Json,
    TableName,
    Yes,
    ask,
    command,
    names_of,
    open_existing,
    parse_pairs,
)
from dolmen.cli.output import commit_facts, console, print_commit, print_json, print_text, warn
from dolmen.declaration import Declaration, DeclarationPlan, DeclaredChange, plan
from dolmen.declaration.declaration_plan import ROUNDS
from dolmen.errors import ConflictError, InputError
from dolmen.transactions.column_types import parse_column, parse_columns, parse_default
from dolmen.transactions.transaction import unit_of


@command()
def infer(
    file: Annotated[str, Argument(help=f"{INPUT_HELP}.")],
    form: InputFormat = None,
    as_yaml: Annotated[bool, Option("--yaml", help="Print a declaration of the table, for `dolmen apply`.")] = False,
    table: Annotated[str, Option("--table", help="The table's name in the declaration; by default the file's.")] = "",
    dialect: Any = None,
    as_json: Json = False,
) -> None:
    """Show how dolmen would read a file: its format and dialect, its columns, and what was assumed.

    Give options for what you already know about it.
    """
    if as_yaml and as_json:
        raise InputError("give one of --yaml and --json")
    with open_inputs([file], form, dialect, again=True) as [source]:
        found = source.infer()
    if as_json:
        print_json(found.facts())
    elif as_yaml:
        print_text(found.declaration(table or _table_name(file)).rstrip("\n"))
    else:
        print_text(str(found))


def _table_name(file: str) -> str:
    """A name for a table, by the name of a file."""
    stem = PurePath(file.rsplit("/", 1)[-1]).name.partition(".")[0].lower()
    name = re.sub(r"[^a-z0-9_]+", "_", stem).strip("_")[:64]
    return name if name and file != "-" else "data"


_SIGNS = {"add": ("+", "green"), "change": ("~", "yellow"), "remove": ("-", "red")}


@command()
def apply(
    file: Annotated[Path, Argument(help="A YAML file that declares tables; - is standard input.")],
    database: DatabaseUrl,
    drop: Annotated[bool, Option("--drop", help="Drop undeclared columns; older versions keep them.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    exit_code: Annotated[bool, Option("--exit-code", help="With --dry-run: end with 9 if there are changes.")] = False,
    as_json: Json = False,
) -> None:
    """Make tables, their columns and settings match a file, in one commit; show the differences first.

    Exit codes: 0 done, or nothing to do; 2 the file must be corrected, or a table can't be changed to match it;
    4 declined, or other commits change the same tables; 9 with --dry-run --exit-code: there is something to do.
    """
    declaration = Declaration.parse(sys.stdin.read(), "standard input") if str(file) == "-" else Declaration.read(file)
    db = dolmen.open(database)
    for attempts_left in reversed(range(ROUNDS)):
        planned = plan(db, declaration, drop=drop)
        if not as_json:
            _print(planned)
        if dry_run:
            if as_json:
                print_json(_facts(planned))
            raise typer.Exit(INCOMPLETE if exit_code and planned.changes else 0)
        if planned.changes and not yes:
            ask("apply this?", as_json, suffix=", or --dry-run to look")
        try:
            commit = planned.commit()
        except ConflictError as error:
            if not attempts_left:
                raise
            warn(str(error))
            continue
        if as_json:
            print_json(_facts(planned) | {"commit": commit_facts(commit)})
        elif planned.changes:
            print_commit(commit, as_json)
        return


def _facts(planned: DeclarationPlan) -> dict[str, Any]:
    changes, undropped = ([asdict(change) for change in each] for each in (planned.changes, planned.undropped))
    return {"version": planned.version, "changes": changes, "undropped": undropped}


def _print(planned: DeclarationPlan) -> None:
    """Prints the differences, in one block per table."""
    if not planned.changes:
        version, file = planned.version, planned.declaration.file
        console.print(f"nothing to do; version [bold]{version}[/] matches {file!r}")
    heading: str | None = ""
    for change in planned.changes:
        if change.table != heading:
            heading = change.table
            sign, style = _SIGNS["add" if change.what == "table" else "change"]
            name = "database" if heading is None else f"table {heading}"
            console.print(Text(f"{sign} {name}", style=f"bold {style}"), soft_wrap=True)
        if change.what != "table":
            sign, style = _SIGNS[change.kind]
            console.print(Text(f"    {sign} {_describe(change)}", style=style), soft_wrap=True)
    for change in planned.undropped:
        column = f"column {change.name} {change.before} of table {change.table}"
        console.print(Text(f"  {column} is not declared, and stays: --drop drops it"), soft_wrap=True)


def _describe(change: DeclaredChange) -> str:
    sides = " -> ".join(_value_text(side) for side in (change.before, change.after) if side is not None)
    match change.what:
        case "column":
            return f"column {change.name} {sides}"
        case "check":
            return f"check {change.name}: {sides}"
        case "default" | "comment":
            return f"{change.what} of {change.name}: {sides}"
        case "property":
            return f"{change.name}: {sides}"
    return f"{change.what.replace('_', ' ')}: {sides}"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(repr(text) if not text.strip() else text for text in value)
    return repr(value) if not str(value).strip() else str(value)


Texts = list[str] | None


@command()
def alter(
    table: TableName,
    database: DatabaseUrl,
    rename: Annotated[Texts, Option(help="OLD=NEW: rename a column.")] = None,
    drop: Annotated[Texts, Option(help="COLUMN: drop it; older versions keep it.")] = None,
    add: Annotated[Texts, Option(help="'COLUMN TYPE [NOT NULL]': add a column at the end.")] = None,
    default: Annotated[
        Texts, Option(help="COLUMN=VALUE: for rows without the column; also for existing rows if it is added here.")
    ] = None,
    nullable: Annotated[Texts, Option(help="COLUMN: allow NULL in it.")] = None,
    not_null: Annotated[Texts, Option(help="COLUMN: forbid NULL in it; no row may have it.")] = None,
    widen: Annotated[Texts, Option(help="COLUMN=TYPE: a type that includes all its values.")] = None,
    comment: Annotated[Texts, Option(help="COLUMN=TEXT: a description; no text removes it.")] = None,
    drop_check: Annotated[Texts, Option(help="NAME: drop a check.")] = None,
    add_check: Annotated[Texts, Option(help="NAME=PREDICATE: refuse rows for which it is FALSE.")] = None,
    primary_key: Annotated[str, Option(help="COLUMN,...: a primary key for a table without one.")] = "",
    first: Annotated[str, Option(help="COLUMN,...: scans return these first.")] = "",
    sort_key: Annotated[str | None, Option(help="'day(at) DESC, id': sort new files by these; '' for none.")] = None,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Change a table's columns in one commit that touches no file, in the order of the options below."""
    given = (rename, drop, add, default, nullable, not_null, widen, comment, drop_check, add_check, primary_key, first)
    if not any(given) and sort_key is None:
        raise InputError("no change is named: give --add, --drop, --rename, ... (dolmen alter --help)")
    db = open_existing(database)
    request_id = about.pop("request")
    with db.transaction("alter", **about) as tx:
        target = tx.table(table)
        for old, new in parse_pairs("--rename ", rename):
            target.rename_column(old, new, request=request_id)
        for name in drop or ():
            target.drop_column(name, request=request_id)
        defaults = dict(parse_pairs("--default ", default))
        for text in add or ():
            for field in parse_columns(text):
                value = _default(field, defaults.pop(field.name, None))
                target.add_column(field.name, field.type, value, nullable=field.nullable, request=request_id)
        for name, text in defaults.items():
            column = unit_of(tx).entry(table).schema.field(name)
            target.set_default(name, _default(column.to_arrow(), text), request=request_id)
        for name in nullable or ():
            target.make_nullable(name, request=request_id)
        for name in not_null or ():
            target.set_not_null(name, request=request_id)
        for name, text in parse_pairs("--widen ", widen):
            target.widen_column(name, _wider_type(name, text), request=request_id)
        for name, text in parse_pairs("--comment ", comment):
            target.comment(name, text, request=request_id)
        for name in drop_check or ():
            target.drop_check(name, request=request_id)
        for name, text in parse_pairs("--add-check ", add_check):
            target.add_check(name, text, request=request_id)
        if key := names_of(primary_key):
            target.add_primary_key(key, request=request_id)
        if order := names_of(first):
            target.reorder(order, request=request_id)
        if sort_key is not None:
            target.set_sort_key(sort_key or None, request=request_id)
        commit = tx.commit()
    print_commit(commit, as_json)


def _wider_type(name: str, text: str) -> pa.DataType:
    column = parse_column(name, text)
    if not column.nullable:
        raise InputError(f"--widen {name}={text}: give the type alone: widening keeps NOT NULL, and never adds it")
    return column.type


def _default(column: pa.Field, text: str | None) -> pa.Scalar | None:
    """A default of the command line; no text is NULL."""
    if not text:
        return None
    try:
        return parse_default(column, text)
    except InputError as error:
        raise InputError(f"--default {column.name}={text}: {error}") from error
