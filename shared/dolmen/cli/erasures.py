"""``dolmen erasures``: how far erasures have come, and whether their receipts are true."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

import dolmen
from dolmen.base.units import utc
from dolmen.cli.erase import ask
from dolmen.cli.exit_codes import DAMAGED
from dolmen.cli.options import DatabaseUrl, Json, Yes, app, open_existing
from dolmen.cli.output import console, print_json, print_rows
from dolmen.errors import InputError

_ACTIONS = ("list", "show", "verify", "hurry")


@app.command()
def erasures(
    database: DatabaseUrl,
    action: Annotated[str, typer.Argument(metavar="[list|show|verify|hurry]", help="What to do.")] = "list",
    id_: Annotated[str, typer.Argument(metavar="[ID]", help="The erasure, to show, verify or hurry it.")] = "",
    gone: Annotated[bool, typer.Option("--all", help="List those that are gone from the disk, too.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """List erasures, show the receipt of one, verify it, or hurry it. Exit code 7: the database contradicts a receipt.

    hurry rewrites the files that hold the rows now, and lets all versions before that expire, with their tags.
    """
    if action not in _ACTIONS or (action == "list") == bool(id_):
        raise InputError("give nothing, list, show ID, verify ID or hurry ID")
    db = open_existing(database)
    if action == "list":
        _print_list(db, gone, as_json)
    elif action in ("show", "hurry"):
        if action == "hurry":
            ask("rewrite its files now, and let all versions before that expire, with their tags?", yes, as_json)
        shown = db.receipt(id_) if action == "show" else db.hurry_erasure(id_)
        print_json(shown.to_dict()) if as_json else _print_facts(shown.facts())
    else:
        check = db.verify_receipt(id_)
        print_json(check.to_dict()) if as_json else _print_facts(check.facts())
        if not check.ok:
            raise typer.Exit(DAMAGED)


def _print_list(db: dolmen.Database, gone: bool, as_json: bool) -> None:
    found = db.receipts(gone=gone)
    if as_json:
        print_json([each.to_dict() for each in found])
        return
    print_rows(
        ["erasure", "state", "asked for (UTC)", "due (UTC)", "next"],
        (
            (each.id, each.state, _time(each.receipt.requested_at), _time(each.receipt.due_at), each.next_step)
            for each in found
        ),
    )


def _print_facts(facts: list[tuple[str, str]]) -> None:
    for name, told in facts:
        console.print(f"[bold]{name}[/]: {escape(told)}", highlight=False, soft_wrap=True)


def _time(at_us: int) -> str:
    return f"{utc(at_us):%Y-%m-%d %H:%M}" if at_us else ""
