"""``dolmen erase`` and ``forget``: deletes that also hold for older versions, late drops, clones and the disk.

``dolmen erasures``: how far erasures have come, and whether their receipts are true.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any, Optional, TypeAlias

import typer
from rich.markup import escape

import dolmen
from dolmen.base.units import utc
from dolmen.cli.exit_codes import DAMAGED, DECLINED
from dolmen.cli.inputs import INPUT_HELP, open_inputs, parse_keys
from dolmen.cli.options import DatabaseUrl, InputForm, Json, Message, Request, TableName, Yes, app, open_existing
from dolmen.cli.output import commit_facts, console, errors, print_commit, print_json, print_rows
from dolmen.errors import InputError
from dolmen.transactions.erase import ErasureResult

Within: TypeAlias = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="The rows leave the disk within this time, such as 2d. Default: the setting erase_within."),
]


@app.command()
def erase(
    table: TableName,
    database: DatabaseUrl,
    where: Annotated[Optional[str], typer.Option(help="Predicate, e.g. 'user_id = 42'. TRUE erases all.")] = None,  # noqa: UP045
    keys: Annotated[str, typer.Option(help="Primary keys with commas.")] = "",
    keys_file: Annotated[Optional[str], typer.Option(help=f"A file with the key columns: {INPUT_HELP}.")] = None,  # noqa: UP045
    form: InputForm = None,
    on: Annotated[str, typer.Option(help="Key columns, if not the primary key.")] = "",
    within: Within = None,
    yes: Yes = False,
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Delete rows for good: from older versions, tags and clones too, and from the disk within erase_within."""
    if sum((where is not None, bool(keys), keys_file is not None)) != 1:
        raise InputError("give exactly one of --where, --keys and --keys-file")
    db = open_existing(database)
    target, columns = db.table(table), [name.strip() for name in on.split(",")] if on else None
    erase_them = partial(target.erase, on=columns, within=within, request=request_id, message=message)
    ask(f"erase these rows of {table}, in all versions and clones?", yes, as_json)
    if keys_file is None:
        chosen = parse_keys(db, table, keys, columns) if keys else None
        done = erase_them(where, keys=chosen)
    else:
        with open_inputs([keys_file], form, again=True) as [file]:
            done = erase_them(keys=file.read_keys(target, columns))
    _print(done, as_json)


@app.command()
def forget(
    subjects: Annotated[
        list[str], typer.Argument(metavar="SUBJECT...", help="Who is forgotten: a value, or several, of the column.")
    ],
    database: DatabaseUrl,
    text: Annotated[bool, typer.Option("--text", help="42 is a text, and no number.")] = False,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="Also if only tables that were dropped since may have rows about them.")
    ] = False,
    within: Within = None,
    yes: Yes = False,
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Erase all rows about somebody, in every table that has a column as its subject, in one commit."""
    db = open_existing(database)
    ask("erase all rows about whom you name, in all tables, versions and clones?", yes, as_json)
    values = [value if text else _number_or_text(value) for value in subjects]
    _print(db.forget(values, dropped=dropped, within=within, request=request_id, message=message), as_json)


def _number_or_text(value: str) -> int | str:
    is_number = value.removeprefix("-").isdecimal() and value.isascii()
    return int(value) if is_number and str(int(value)) == value else value  # 007 is a text


def ask(question: str, yes: bool, as_json: bool) -> None:
    """Asks before something that can't be undone.

    Raises:
        InputError: nobody can answer.
        Exit: the answer is no.
    """
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise InputError("this can't be undone. The question needs a terminal, so nothing was changed: give --yes")
    if not typer.confirm(question, err=True):
        errors.print("declined: nothing was changed")
        raise typer.Exit(DECLINED)


def _print(done: ErasureResult, as_json: bool) -> None:
    if as_json:
        due = {} if done.due_at is None else {"due_at": done.due_at.isoformat()}
        sources = {"sources": list(done.sources)}
        print_json({**commit_facts(done.commit), "erasure": done.id, **due, **sources, **_publications(done)})
        return
    print_commit(done.commit, as_json)
    due_text = "" if done.due_at is None else f", gone from the disk by {done.due_at:%Y-%m-%d %H:%M} UTC"
    console.print(f"erasure {done.id}{due_text}", highlight=False)
    for source in done.sources:
        errors.print(f"{source}, which this was cloned from, keeps its rows: erase there too", highlight=False)
    for published in done.publications.published:
        console.print(f"{published.table}: published as Iceberg, version {published.version}", highlight=False)
    for name in done.publications.by_hand:
        way_out = f"dolmen publish-iceberg --table {name}"
        errors.print(escape(f"{name}: it is published as Iceberg by hand, and readers see the rows: {way_out}"))
    for name, error in done.publications.failures.items():
        errors.print(escape(f"{name}: not published as Iceberg yet, and readers see the rows: {error}"))


def _publications(done: ErasureResult) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if done.publications.published:
        found["published"] = {each.table: each.version for each in done.publications.published}
    if done.publications.failures:
        found["unpublished"] = {name: str(error) for name, error in done.publications.failures.items()}
    if done.publications.by_hand:
        found["published_by_hand"] = list(done.publications.by_hand)
    return found


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
