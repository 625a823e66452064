"""Commands that list versions, tags and tables, show them, and bring earlier ones back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.markup import escape
from typer import Argument, Option

from dolmen.api.database import Database
from dolmen.cli.options import (
    DatabaseUrl,
    Json,
    TableName,
    Yes,
    ask,
    command,
    complete,
    complete_tag,
    moment_of,
    open_existing,
    snapshot_of,
)
from dolmen.cli.output import cell_text, commit_facts, counts, print_commit, print_json, print_rows, say
from dolmen.errors import InputError, TagExistsError
from dolmen.format.types import from_json, to_scalar
from dolmen.transactions.snapshot import Moment
from dolmen.transactions.unit_of_work import Commit

_TIME = "%Y-%m-%d %H:%M:%S"


@command()
def history(
    database: DatabaseUrl, limit: Annotated[int, Option(help="The most commits to list.")] = 20, as_json: Json = False
) -> None:
    """List commits, newest first."""
    commits = open_existing(database).history(limit)
    if as_json:
        for commit in commits:
            print_json(commit_facts(commit))
        return
    texts: dict[str, Callable[[Commit], str]] = {
        "requests": lambda commit: ", ".join(commit.requests),
        "message": lambda commit: commit.message,
        "metadata": lambda commit: ", ".join(f"{key}={value}" for key, value in commit.metadata.items()),
    }
    more = [name for name, text in texts.items() if any(map(text, commits))]
    print_rows(
        ["version", "time (UTC)", "did", "counts", *more],
        (
            (
                commit.version,
                f"{commit.created_at:{_TIME}}",
                _operation_text(commit),
                counts(commit),
                *(texts[name](commit) for name in more),
            )
            for commit in commits
        ),
    )


def _operation_text(commit: Commit) -> str:
    """The changes of a commit, after the operation's name where that says more."""
    if not commit.did:
        return commit.operation
    is_plain = len(commit.did) == 1 and commit.operation.removesuffix("_table").replace("_", " ") == commit.did[0].what
    return commit.done if is_plain else f"{commit.operation}: {commit.done}"


@command()
def tables(database: DatabaseUrl, moment: Any = None, as_json: Json = False) -> None:
    """List the tables."""
    snapshot = snapshot_of(open_existing(database), moment)
    facts = [snapshot.table(name).describe() for name in snapshot.tables()]
    if as_json:
        print_json(facts)
    else:
        print_rows(
            ["table", "rows in files", "files", "bytes", "unresolved deletes"],
            (
                (f["table"], f"{f['rows_in_files']:,}", f["files"], f"{f['bytes']:,}", len(f["unresolved_deletes"]))
                for f in facts
            ),
        )


@command()
def show(table: TableName, database: DatabaseUrl, moment: Any = None, as_json: Json = False) -> None:
    """Show a table: columns, keys, files, unresolved deletes."""
    target = snapshot_of(open_existing(database), moment).table(table)
    facts = target.describe()
    if as_json:
        print_json(facts)
        return
    print_rows(
        ["", ""],
        (
            (name.replace("_", " "), _plain(value))
            for name, value in facts.items()
            if value != {} and name not in ("columns", "defaults", "comments", "unresolved_deletes")
        ),
    )
    defaults, comments = _defaults(target.schema, facts["defaults"]), facts["comments"]
    more = {header: by_name for header, by_name in (("default", defaults), ("comment", comments)) if by_name}
    print_rows(
        ["column", "type", *more],
        ((name, kind, *(one.get(name) for one in more.values())) for name, kind in facts["columns"].items()),
    )
    if facts["unresolved_deletes"]:
        print_rows(["commit_ts", "unresolved delete"], (d.values() for d in facts["unresolved_deletes"]))


def _defaults(schema: pa.Schema, defaults: Mapping[str, Any]) -> dict[str, str]:
    """Defaults by column, each as a cell of a scan shows it."""
    types = {name: schema.field(name).type for name in defaults}
    return {name: cell_text(to_scalar(from_json(json, types[name]), types[name])) for name, json in defaults.items()}


def _plain(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def _complete_tables(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the newest version's tables, and of the tagged version's if the command has a tag."""
    tag = context.params.get("tag")
    return complete(context, incomplete, lambda db: {*db.tables(), *(db.at(tag=tag).tables() if tag else ())})


@command()
def tag(
    name: Annotated[
        str,
        Argument(
            help="Name of the tag: letters, digits, _, . and -, with no . or - first, and no 'iceberg.'.",
            autocompletion=complete_tag,
        ),
    ],
    database: DatabaseUrl,
    version: Annotated[int | None, Option(help="Tag this version; the newest by default.")] = None,
    at: Annotated[str | None, Option(help="Tag the version that was the newest at this time (ISO 8601, UTC).")] = None,
    until: Annotated[
        str | None, Option(help="When the tag ends: a time (ISO 8601, UTC), or a duration such as 90d.")
    ] = None,
    move: Annotated[bool, Option("--move", help="Move an existing tag to this version.")] = False,
    drop: Annotated[bool, Option("--drop", help="Drop the tag. Its version may expire from now on.")] = False,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Give a name to a version. The version, with all that it needs, is kept as long as it has a tag."""
    db = open_existing(database)
    if drop:
        if version is not None or at is not None or until is not None or move:
            raise InputError("--drop takes the name alone: leave out --version, --at, --until and --move")
        _print_done(db.drop_tag(name, **about), as_json)
        return
    _check_source(db, moment_of(version, at, None))
    try:
        commit = db.tag(name, version, timestamp=at, until=until, move=move, **about)
    except TagExistsError:
        raise TagExistsError(f"there is a tag {name!r} already: --move moves it to another version") from None
    _print_done(commit, as_json)


@command()
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


@command()
def restore(
    database: DatabaseUrl,
    tables: Annotated[
        list[str] | None,
        Argument(
            help="Names of tables in that version. By default all: then tables created since are dropped.",
            autocompletion=_complete_tables,
        ),
    ] = None,
    moment: Any = None,
    yes: Yes = False,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Make tables what they were in an earlier version, in one commit that copies nothing. Later versions stay."""
    if moment == Moment():
        raise InputError("give --version, --at or --tag: the version to go back to")
    db = open_existing(database)
    if not yes and not tables:
        newest, older = db.at(version=db.version).manifest, snapshot_of(db, moment, settled=True).manifest
        remaining = {entry.uuid for entry in older.tables.values()}
        dropped = sorted(name for name, entry in newest.tables.items() if entry.uuid not in remaining)
        also = f", which drops {', '.join(dropped)}" if dropped else ""
        ask(
            f"restore all tables as they were in version {older.version}{also}?",
            as_json,
            "without the name of a table all tables are restored. ",
            ", or names of tables",
        )
    else:
        _check_source(db, moment, settled=True)
    at = {"version": moment.version, "timestamp": moment.timestamp, "tag": moment.tag}
    commit = db.restore(**at, tables=list(tables) if tables else None, **about)
    _print_done(commit, as_json)


@command()
def clone(
    source: Annotated[
        str, Argument(help="The table, under its name in that version.", autocompletion=_complete_tables)
    ],
    name: Annotated[str, Argument(help="Name of the new table.")],
    database: DatabaseUrl,
    moment: Any = None,
    about: Any = None,
    as_json: Json = False,
) -> None:
    """Make a copy of a table, as it is or as it was, that shares its files: no data is copied."""
    db = open_existing(database)
    _check_source(db, moment)
    request = about.pop("request")
    with db.transaction("clone", **about) as tx:
        tx.clone(source, name, moment.version, timestamp=moment.timestamp, tag=moment.tag, request=request)
        commit = tx.commit()
    _print_done(commit, as_json)


def _print_done(commit: Commit, as_json: bool) -> None:
    """Prints a commit with its changes, which name the version."""
    if as_json or not commit.did:
        print_commit(commit, as_json)
        return
    done = ": ".join(filter(None, (escape(commit.done), counts(commit))))
    say(f"version [bold]{commit.version}[/] {done}", markup=True)


def _check_source(db: Database, moment: Moment, *, settled: bool = False) -> None:
    """Checks the version that a change goes back to, if a time names it. Warns and raises as ``snapshot_of`` does."""
    if moment.timestamp is not None:
        snapshot_of(db, moment, settled=settled)
