"""The version that a command reads: the options that name it, and its snapshot."""

from __future__ import annotations

from typing import Annotated

import typer

import dolmen
from dolmen.cli.options import complete
from dolmen.cli.output import errors
from dolmen.errors import InputError, UnsettledTimestampError
from dolmen.transactions.snapshot import Snapshot


def complete_tag(context: typer.Context, incomplete: str) -> list[str]:
    """Names of tags for a shell's completion; none if the database cannot be read."""
    return complete(context, incomplete, lambda db: db.tags())


Version = Annotated[int | None, typer.Option("--version", help="Read this version.")]
At = Annotated[
    str | None, typer.Option("--at", help="Read the version that was the newest at this time (ISO 8601, UTC).")
]
Tag = Annotated[
    str | None,
    typer.Option("--tag", help="Read the version with this tag.", autocompletion=complete_tag),
]


def snapshot_of(
    db: dolmen.Database, version: int | None, at: str | None, tag: str | None, *, settled: bool = False
) -> Snapshot:
    """The version that options name; the newest if they name none. Says so if it is not settled yet.

    Raises:
        InputError: more than one option names a version.
        UnsettledTimestampError: it is not settled although ``settled`` is True, or its time is in the future.
    """
    check_one(version, at, tag)
    if version is None and at is None and tag is None:
        return db.at(version=db.version)
    snapshot = db.at(version, timestamp=at, tag=tag)
    if not snapshot.settled:
        reason = (
            f"version {snapshot.version} is not settled yet: for 20 minutes a commit under way may be dated before {at}"
        )
        if settled:
            raise UnsettledTimestampError(f"{reason}. Nothing was changed: --version {snapshot.version} takes it")
        errors.print(reason)
    return snapshot


def check_source(
    db: dolmen.Database, version: int | None, at: str | None, tag: str | None, *, settled: bool = False
) -> None:
    """Checks the options for the version that a change goes back to. Says so and raises as ``snapshot_of`` does."""
    check_one(version, at, tag)
    if at is not None:
        snapshot_of(db, version, at, tag, settled=settled)


def check_one(version: int | None, at: str | None, tag: str | None) -> None:
    """Raises InputError if more than one option names a version."""
    if [version, at, tag].count(None) < 2:
        raise InputError("give only one of --version, --at and --tag")
