"""Commands on earlier versions: tags, and tables as they were."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape

from dolmen.cli.exit_codes import DECLINED
from dolmen.cli.options import DatabaseUrl, Json, Message, Request, Yes, app, complete, open_existing
from dolmen.cli.output import console, counts, errors, print_commit, print_json, print_rows
from dolmen.cli.versions import At, Tag, Version, check_source, complete_tag, snapshot_of
from dolmen.errors import InputError, TagExistsError
from dolmen.format.manifest import Manifest
from dolmen.transactions.unit_of_work import Commit

_TIME = "%Y-%m-%d %H:%M:%S"


def _complete_tables(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the present tables and, where a tag is named, of those in its version."""
    tag = context.params.get("tag")
    return complete(context, incomplete, lambda db: {*db.tables(), *(db.at(tag=tag).tables() if tag else ())})


@app.command()
def tag(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the tag: letters, digits, _, . and -, with no . or - first, and no 'iceberg.'.",
            autocompletion=complete_tag,
        ),
    ],
    database: DatabaseUrl,
    version: Annotated[int | None, typer.Option("--version", help="Tag this version; the newest by default.")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="Tag the version that was the newest at this time (ISO 8601, UTC)."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="The end of the tag: a time (ISO 8601, UTC), or a duration from now, as in 90d."),
    ] = None,
    move: Annotated[bool, typer.Option("--move", help="Let the name leave the version that it names so far.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the tag. Its version may expire from now on.")] = False,
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Give a name to a version. It is kept, with all that it needs, as long as it has a tag."""
    db = open_existing(database)
    if drop:
        if version is not None or at is not None or until is not None or move:
            raise InputError("--drop takes the name alone: leave out --version, --at, --until and --move")
        _print_done(db.drop_tag(name, request=request_id, message=message), as_json)
        return
    check_source(db, version, at, None)
    try:
        commit = db.tag(name, version, timestamp=at, until=until, move=move, request=request_id, message=message)
    except TagExistsError:
        raise TagExistsError(f"there is a tag {name!r} already: --move moves it to another version") from None
    _print_done(commit, as_json)


@app.command()
def tags(database: DatabaseUrl, as_json: Json = False) -> None:
    """List the tags: names of versions that are kept."""
    found = open_existing(database).tags()
    if as_json:
        print_json(
            [
                {"tag": name, "version": one.version, "created_at": one.created_at.isoformat()}
                | ({"until": one.until.isoformat()} if one.until else {})
                for name, one in found.items()
            ]
        )
    else:
        print_rows(
            ["tag", "version", "time (UTC)", "until (UTC)"],
            (
                (name, one.version, f"{one.created_at:{_TIME}}", f"{one.until:{_TIME}}" if one.until else None)
                for name, one in found.items()
            ),
        )


@app.command()
def restore(
    database: DatabaseUrl,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of tables in that version. By default all: then tables created since are dropped.",
            autocompletion=_complete_tables,
        ),
    ] = None,
    version: Version = None,
    at: At = None,
    tag: Tag = None,
    yes: Yes = False,
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Make tables what they were in an earlier version, in one commit that copies nothing. Versions since then stay."""
    if version is None and at is None and tag is None:
        raise InputError("give --version, --at or --tag: the version to go back to")
    db = open_existing(database)
    if not yes and not tables:
        _ask(db.at(version=db.version).manifest, snapshot_of(db, version, at, tag, settled=True).manifest, as_json)
    else:
        check_source(db, version, at, tag, settled=True)
    commit = db.restore(
        version, timestamp=at, tag=tag, tables=list(tables) if tables else None, request=request_id, message=message
    )
    _print_done(commit, as_json)


@app.command()
def clone(
    source: Annotated[
        str, typer.Argument(help="The table, under its name in that version.", autocompletion=_complete_tables)
    ],
    name: Annotated[str, typer.Argument(help="Name of the new table.")],
    database: DatabaseUrl,
    version: Version = None,
    at: At = None,
    tag: Tag = None,
    request_id: Request = None,
    message: Message = None,
    as_json: Json = False,
) -> None:
    """Make a second table of a table, now or as it was, without copying its data."""
    db = open_existing(database)
    check_source(db, version, at, tag)
    with db.transaction("clone", message=message) as tx:
        tx.clone(source, name, version, timestamp=at, tag=tag, request=request_id)
        commit = tx.commit()
    _print_done(commit, as_json)


def _ask(now: Manifest, then: Manifest, as_json: bool) -> None:
    """Asks before all tables become what they were, and says which go.

    Raises:
        InputError: nobody can answer.
        Exit: the answer is no.
    """
    if as_json or not sys.stdin.isatty():
        raise InputError(
            "without the name of a table all tables are restored. The question needs a terminal, so nothing was "
            "changed: give --yes, or names of tables"
        )
    there = {entry.uuid for entry in then.tables.values()}
    gone = sorted(name for name, entry in now.tables.items() if entry.uuid not in there)
    told = f", which drops {', '.join(gone)}" if gone else ""
    if not typer.confirm(f"restore all tables as they were in version {then.version}{told}?", err=True):
        errors.print("declined: nothing was changed")
        raise typer.Exit(DECLINED)


def _print_done(commit: Commit, as_json: bool) -> None:
    """Prints a commit with its deeds, which name the version."""
    if as_json or not commit.did:
        print_commit(commit, as_json)
        return
    told = counts(commit)
    done = f"version [bold]{commit.version}[/] {escape(commit.done)}{': ' + told if told else ''}"
    console.print(done, highlight=False)
