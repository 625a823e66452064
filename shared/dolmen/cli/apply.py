"""``dolmen apply``: makes tables match a file that declares them, and shows the differences first."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import dolmen
from dolmen.cli.exit_codes import DECLINED, INCOMPLETE
from dolmen.cli.options import DatabaseUrl, Json, Yes, app
from dolmen.cli.output import commit_facts, console, errors, print_commit, print_json
from dolmen.declaration import Declaration, DeclarationPlan, DeclaredChange, plan
from dolmen.declaration.plan import ROUNDS
from dolmen.errors import ConflictError, InputError

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
