"""Commands that show what there is: commits, tables, and one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pyarrow as pa
import typer

from dolmen.cli.options import DatabaseUrl, TableName, app, open_existing
from dolmen.cli.options import Json as AsJson
from dolmen.cli.output import cell_text, commit_facts, counts, print_json, print_rows
from dolmen.cli.versions import At, Tag, Version, snapshot_of
from dolmen.format.types import Json, from_json, to_scalar
from dolmen.transactions.unit_of_work import Commit


@app.command()
def history(
    database: DatabaseUrl,
    limit: Annotated[int, typer.Option(help="The most commits to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List commits, newest first."""
    commits = open_existing(database).history(limit)
    if as_json:
        for commit in commits:
            print_json(commit_facts(commit))
        return
    more = [name for name in ("requests", "message") if any(getattr(commit, name) for commit in commits)]
    print_rows(
        ["version", "time (UTC)", "did", "counts", *more],
        (
            (
                commit.version,
                f"{commit.created_at:%Y-%m-%d %H:%M:%S}",
                _did(commit),
                counts(commit),
                *(", ".join(commit.requests) if name == "requests" else commit.message for name in more),
            )
            for commit in commits
        ),
    )


def _did(commit: Commit) -> str:
    """The deeds of a commit, with the operation's name where that says more."""
    if not commit.did:
        return commit.operation
    own = len(commit.did) == 1 and commit.operation.removesuffix("_table").replace("_", " ") == commit.did[0].what
    return commit.done if own else f"{commit.operation}: {commit.done}"


@app.command()
def tables(
    database: DatabaseUrl, version: Version = None, at: At = None, tag: Tag = None, as_json: AsJson = False
) -> None:
    """List the tables."""
    snapshot = snapshot_of(open_existing(database), version, at, tag)
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


@app.command()
def show(
    table: TableName,
    database: DatabaseUrl,
    version: Version = None,
    at: At = None,
    tag: Tag = None,
    as_json: AsJson = False,
) -> None:
    """Show a table: columns, keys, files, unresolved deletes."""
    target = snapshot_of(open_existing(database), version, at, tag).table(table)
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


def _defaults(schema: pa.Schema, defaults: Mapping[str, Json]) -> dict[str, str]:
    """Defaults by column, each as a cell of a scan shows it."""
    types = {name: schema.field(name).type for name in defaults}
    return {name: cell_text(to_scalar(from_json(json, types[name]), types[name])) for name, json in defaults.items()}


def _plain(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)
