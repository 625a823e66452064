"""Change cursors: the places of readers of changes, which the database keeps, and keeps readable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from dolmen.api.table import Table
from dolmen.base import arguments
from dolmen.base.retry import CURSOR_OPENING, attempts
from dolmen.base.units import duration_text, parse_duration, utc
from dolmen.commit.context import Context
from dolmen.commit.statements.catalog import PutCursor
from dolmen.errors import ConflictError, TagNotFoundError, VersionExpiredError
from dolmen.format.manifest import Manifest
from dolmen.format.pointer import Cursor, check_tag_name
from dolmen.predicate import Parameters, Where
from dolmen.transactions.snapshot import manifest_at
from dolmen.transactions.unit_of_work import Commit, UnitOfWork

DEFAULT_AGE = "30d"


class ChangeCursor:
    """Reads the changes since the version that its reader has acknowledged, and moves on when it is told to.

    Until it is acknowledged, the same changes are given again, also to another process. No version from the place of
    the cursor on expires, unless the cursor has not moved for longer than its age.
    """

    def __init__(self, context: Context, name: str, place: Cursor) -> None:
        self._context, self.name, self._place = context, name, place
        self._until: Manifest | None = None

    @property
    def version(self) -> int:
        """The newest version that the reader has acknowledged."""
        return self._place.version

    @property
    def moved_at(self) -> datetime:
        """The time at which the cursor came to its place."""
        return utc(self._place.moved_at)

    @property
    def ends_at(self) -> datetime:
        """The time at which the cursor ends if it has not moved by then."""
        return utc(self._place.moved_at + self._place.age_us)

    @property
    def until(self) -> int:
        """The version up to which ``changes`` reads: the newest when it was first called since the last move."""
        return self._end.version

    @property
    def _end(self) -> Manifest:
        if self._until is None:
            self._until = self._context.head.refresh().manifest
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
            return Table(self._context, table).changes(
                self.version, self.until, columns=columns, where=where, parameters=parameters, net=net
            )
        except VersionExpiredError as error:
            raise self._ended(error) from None

    def acknowledge(self) -> Commit:
        """Moves the cursor to ``until``, once what was read is safe: all changes up to there count as read.

        If ``changes`` was not called since the last move, ``until`` is the newest version: then changes that nobody has
        read are not given again. To move to a version at which tables were read as a whole, ``reset`` the cursor to it.

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
        until, newest = self.until, self._context.head.known().manifest
        if self.version < newest.horizon > 1 and not newest.is_kept(self.version):
            gone = VersionExpiredError(
                f"version {max(self.version, 1)} has expired: the oldest kept is {newest.horizon}"
            )
            raise self._ended(gone)
        return self._move(until)

    def reset(self, version: int | None = None) -> Commit:
        """Moves the cursor to any kept version, the newest by default, whatever was read.

        Where tables were read as a whole, give the version at which they were: changes come from there on.

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
        return self._put(None)

    def _ended(self, error: VersionExpiredError) -> VersionExpiredError:
        return VersionExpiredError(
            f"cursor {self.name!r} at version {self.version}: {error}. It ended at {self.ends_at:%Y-%m-%d %H:%M} "
            f"UTC, as it had not moved for {duration_text(self._place.age_us)}: read the tables as a whole, and reset "
            "the cursor to the version at which they were read"
        )

    def _move(self, version: int) -> Commit:
        place = Cursor(version, self._context.store.clock.current_us, self._place.age_us)
        commit = self._put(place)
        self._place, self._until = place, None
        return commit

    def _put(self, place: Cursor | None) -> Commit:
        unit = UnitOfWork(self._context, "cursor")
        unit.add(PutCursor(self.name, self._place, place))
        return unit.commit()

    def __repr__(self) -> str:
        return f"<ChangeCursor {self.name} at version {self.version}, ends {self.ends_at:%Y-%m-%d %H:%M}Z>"


def open_cursor(
    context: Context, name: str, start: int | datetime | str | None, age: str | None, *, create: bool
) -> ChangeCursor:
    """Opens a cursor; makes it if there is none and ``create`` is True. See ``Database.cursor``."""
    check_tag_name(name, "cursor")
    age_us = parse_duration(DEFAULT_AGE if age is None else age)
    for _ in attempts(context.runtime, CURSOR_OPENING):
        base = context.head.refresh()
        there = base.manifest.cursors.get(name)
        if there is not None:
            return ChangeCursor(context, name, there)
        if not create:
            known = ", ".join(sorted(base.manifest.cursors)) or "none"
            raise TagNotFoundError(f"no cursor {name!r}; cursors: {known}. Leave out create=False to make it")
        first = base.manifest if start is None else manifest_at(context, base, start)
        place = Cursor(first.version, context.store.clock.current_us, age_us)
        try:
            unit = UnitOfWork(context, "cursor", newest=True)
            unit.add(PutCursor(name, None, place))
            unit.commit()
        except ConflictError:  # another reader made it
            continue
        return ChangeCursor(context, name, place)
    raise ConflictError(f"cursor {name!r} is made and removed again and again")
