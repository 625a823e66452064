"""Cursors: named positions in the change feed. The database stores them, and keeps the versions that they need."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from dolmen.base import arguments
from dolmen.base.runtime import CURSOR_OPENING, attempts
from dolmen.base.units import duration_text, parse_duration, utc
from dolmen.commit.head import Context
from dolmen.commit.statements.catalog import PutCursor
from dolmen.errors import ConflictError, TagNotFoundError, VersionExpiredError
from dolmen.format.layout import Cursor, check_tag_name
from dolmen.predicate.parse import Parameters, Where
from dolmen.transactions.snapshot import Time, manifest_at, read_changes
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

DEFAULT_AGE = "30d"


class ChangeCursor:
    """Reads the changes since the version that its reader has acknowledged.

    Until the changes are acknowledged, it returns them again, even to another process. No version from its position
    on expires, unless the cursor has not moved for longer than its age.
    """

    def __init__(self, context: Context, name: str, position: Cursor) -> None:
        self._context, self.name, self._position = context, name, position
        self._until: int | None = None

    @property
    def version(self) -> int:
        """The newest version that the reader has acknowledged."""
        return self._position.version

    @property
    def moved_at(self) -> datetime:
        """The time at which the cursor reached its position."""
        return utc(self._position.moved_at)

    @property
    def ends_at(self) -> datetime:
        """The time at which the cursor ends if it has not moved by then."""
        return utc(self._position.moved_at + self._position.age_us)

    @property
    def until(self) -> int:
        """The version up to which ``changes`` reads: the newest version at its first call since the last move."""
        if self._until is None:
            self._until = self._context.head.refresh().manifest.version
        return self._until

    def changes(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        parameters: Parameters | None = None,
        net: bool = False,
    ) -> pa.RecordBatchReader:
        """Streams what is new in a table. All tables are read up to the same version, until the cursor moves.

        Args:
            table: its name in that version.
            columns, where, parameters, net: as for ``Table.changes``.

        Raises:
            VersionExpiredError: the cursor has ended, and versions that it has not seen have expired. Read the tables
                as a whole, and ``reset`` it.
            TableNotFoundError: that version has no such table.

        Examples:
            >>> cursor = db.cursor("copy", start=1)
            >>> cursor.changes("people", columns=["name"]).read_all()["name"].to_pylist()
            ['Ada', 'Grace', 'Linus']
        """
        try:
            return read_changes(self._context, table, self.version, self.until, columns, where, parameters, net=net)
        except VersionExpiredError as error:
            raise self._ended_error(error) from None

    def acknowledge(self) -> Commit:
        """Moves the cursor to ``until``: all changes up to there count as read. Call it once they are safe.

        If ``changes`` was not called since the last move, ``until`` is the newest version, and unread changes are
        skipped. To move to a version at which tables were read as a whole, ``reset`` the cursor to it.

        Raises:
            VersionExpiredError: as for ``changes``: it has ended, and versions that it has not seen have expired.
            ConflictError: another reader has moved the cursor.

        Examples:
            >>> cursor = db.cursor("copy", start=1)
            >>> rows = cursor.changes("people").read_all()
            >>> commit = cursor.acknowledge()
            >>> cursor.version
            3
        """
        until, newest = self.until, self._context.head.newest().manifest
        try:
            newest.check_kept(self.version)
        except VersionExpiredError as error:
            raise self._ended_error(error) from None
        return self._move(until)

    def reset(self, version: int | None = None) -> Commit:
        """Moves the cursor to any kept version, the newest by default, whatever was read.

        After reading tables as a whole, give the version at which they were read: changes follow from there.

        Raises:
            VersionExpiredError: the version has expired.
            ConflictError: another reader has moved the cursor.

        Examples:
            >>> cursor = db.cursor("copy")
            >>> commit = cursor.reset(1)
            >>> cursor.version
            1
        """
        newest = self._context.head.refresh().manifest.version
        return self._move(newest if version is None else arguments.number("version", version, 0))

    def remove(self) -> Commit:
        """Removes the cursor from the database; versions that only it kept expire. Raises ConflictError.

        Examples:
            >>> commit = db.cursor("copy").remove()
            >>> db.cursors()
            []
        """
        return self._store_position(None)

    def _ended_error(self, error: VersionExpiredError) -> VersionExpiredError:
        age = duration_text(self._position.age_us)
        return VersionExpiredError(
            f"cursor {self.name!r} at version {self.version}: {error}. It ended at {self.ends_at:%Y-%m-%d %H:%M} "
            f"UTC, because it had not moved for {age}: read the tables as a whole, and reset the cursor to the version "
            "at which they were read"
        )

    def _move(self, version: int) -> Commit:
        position = Cursor(version, self._context.store.clock.current_us, self._position.age_us)
        commit = self._store_position(position)
        self._position, self._until = position, None
        return commit

    def _store_position(self, position: Cursor | None) -> Commit:
        unit = UnitOfWork(self._context, "cursor")
        unit.add(PutCursor(self.name, self._position, position))
        return unit.commit()

    def __repr__(self) -> str:
        return f"<ChangeCursor {self.name} at version {self.version}, ends {self.ends_at:%Y-%m-%d %H:%M}Z>"


def open_cursor(context: Context, name: str, start: Time | None, age: str | None, *, create: bool) -> ChangeCursor:
    """Opens a cursor; makes it if there is none and ``create`` is True. See ``Database.cursor``."""
    check_tag_name(name, "cursor")
    age_us = parse_duration(DEFAULT_AGE if age is None else age)
    for _ in attempts(context.runtime, CURSOR_OPENING):
        base = context.head.refresh()
        if (existing := base.manifest.cursors.get(name)) is not None:
            return ChangeCursor(context, name, existing)
        if not create:
            names = ", ".join(sorted(base.manifest.cursors)) or "none"
            raise TagNotFoundError(f"no cursor {name!r}; cursors: {names}. Leave out create=False to make it")
        first = base.manifest if start is None else manifest_at(context, base, start)
        position = Cursor(first.version, context.store.clock.current_us, age_us)
        unit = UnitOfWork(context, "cursor", newest=True)
        try:
            unit.add(PutCursor(name, None, position))
            unit.commit()
        except ConflictError:  # another reader made it
            continue
        return ChangeCursor(context, name, position)
    raise ConflictError(f"other processes keep making and removing cursor {name!r}: try again later")
