"""Earlier versions as the source of statements: names for them (tags), and tables as they were (restore, clone)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from dolmen.base import arguments
from dolmen.base.units import LAST_US, parse_duration, utc
from dolmen.commit.context import Context
from dolmen.commit.statements.catalog import CloneTable, DropTag, PutTag, Restore, table_and_memory
from dolmen.errors import InputError, InvalidNameError, TableExistsError, TableNotFoundError
from dolmen.format.layout import RESERVED_TAGS, Tag, check_table_name, check_tag_name
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions.snapshot import find_version, microseconds
from dolmen.transactions.unit_of_work import UnitOfWork

Time: TypeAlias = datetime | int | str
_DURATION = re.compile(r"\s*\d+\s*[a-z]+\s*")


@dataclass(frozen=True)
class TaggedVersion:
    """A version that has a name.

    Args:
        version: its number.
        created_at: its time, as ``Commit.created_at``.
        until: the time from which collection may remove the tag; None = never.
    """

    version: int
    created_at: datetime
    until: datetime | None

    @classmethod
    def of(cls, tag: Tag) -> TaggedVersion:
        """Makes it from the tag as manifests hold it."""
        return cls(tag.version, utc(tag.created_at), utc(min(tag.until, LAST_US)) if tag.until else None)


@dataclass(frozen=True)
class Moment:
    """An earlier version, as a user names it: by its number, by a time, or by a tag.

    Args:
        settled: refuse a time that is not settled (see ``Database.at``).
    """

    version: int | None = None
    timestamp: Time | None = None
    tag: str | None = None
    settled: bool = False

    def find(self, context: Context) -> Manifest:
        """The version as it is stored. Raises InputError unless it is named in one way; see ``Database.at``."""
        base = context.head.refresh()
        return find_version(context, base, self.version, self.timestamp, self.tag, settled=self.settled)[0]

    def find_or_newest(self, context: Context) -> Manifest:
        """The same; the newest version if none is named."""
        if all(given is None for given in (self.version, self.timestamp, self.tag)):
            return context.head.refresh().manifest
        return self.find(context)

    @property
    def digest(self) -> str:
        """Its part of the digest of a request."""
        return content_digest("moment", self.version, None if self.timestamp is None else str(self.timestamp), self.tag)


def put_tag(
    unit: UnitOfWork, name: str, moment: Moment, until: Time | None, *, move: bool, request: str | None
) -> None:
    """Adds the statement of ``Database.tag`` to a transaction."""
    check_tag_name(name)
    if name.startswith(RESERVED_TAGS):
        raise InvalidNameError(
            f"tag {name!r}: names that begin with {RESERVED_TAGS!r} are dolmen's own: choose another"
        )
    arguments.flag("move", move)
    asked = unit.needs_content(request)
    if not unit.has_applied(request):
        named = moment.find_or_newest(unit.context)
        if named.version == 0:
            raise InputError("the database has no version yet, so there is none to tag")
        end = 0 if until is None else _end(until, unit.context.store.clock.current_us)
        unit.add(PutTag(name, Tag(named.version, named.key, named.created_at, end), move, request=request))
    if request is not None and asked:
        unit.add_content(
            request, content_digest("tag", name, moment.digest, None if until is None else str(until), move)
        )


def drop_tag(unit: UnitOfWork, name: str, request: str | None) -> None:
    """Adds the statement of ``Database.drop_tag`` to a transaction."""
    check_tag_name(name)
    asked = unit.needs_content(request)
    if not unit.has_applied(request):
        unit.add(DropTag(name, request=request))
    if request is not None and asked:
        unit.add_content(request, content_digest("drop_tag", name))


def restore_table(unit: UnitOfWork, name: str, moment: Moment, request: str | None) -> None:
    """Adds the statement of ``Table.restore`` to a transaction."""
    asked = unit.needs_content(request)
    if not unit.has_applied(request):
        uuid, then = unit.entry(name).uuid, moment.find(unit.context)
        known = then.name_of(uuid)
        if known is None:
            raise TableNotFoundError(
                f"table {name!r} did not exist in version {then.version}, so nothing can be restored"
            )
        entries = _whole_entries(unit.context, then)
        tables = table_and_memory(name, entries[known], entries)
        unit.add(Restore(name, uuid, then.version, then.commit_ts, tables, present=True, request=request))
    if request is not None and asked:
        unit.add_content(request, content_digest("restore", name, moment.digest))


def restore_tables(unit: UnitOfWork, moment: Moment, names: str | Sequence[str] | None, request: str | None) -> None:
    """Adds the statements of ``Database.restore`` to a transaction."""
    names = None if names is None else arguments.names("tables", names)
    asked = unit.needs_content(request)
    if not unit.has_applied(request):
        then = moment.find(unit.context)
        entries = _whole_entries(unit.context, then)
        if names is None:
            unit.add(Restore(None, "", then.version, then.commit_ts, entries, request=request))
        for name in names or ():
            entry = entries[name] if name in entries else then.table(name)
            if name in unit.base.tables and unit.base.tables[name].uuid != entry.uuid:
                raise TableExistsError(
                    f"table {name!r} is another one than in version {then.version}: {_other_way(entry, entries)}"
                )
            tables = table_and_memory(name, entry, entries)
            unit.add(Restore(name, entry.uuid, then.version, then.commit_ts, tables, request=request))
    if request is not None and asked:
        unit.add_content(request, content_digest("restore", names, moment.digest))


def _other_way(entry: TableEntry, entries: Mapping[str, TableEntry]) -> str:
    """Says what to do if another table has the name of one that is to come back.

    Args:
        entries: all tables of the version.
    """
    for name, owner in entries.items():
        if owner.sequences is not None and owner.sequences.memory == entry.uuid:
            return f"it holds the deleted keys of {name!r}, and comes back with that: restore {name!r} alone"
    return "rename or drop it first, or clone the earlier one under another name"


def clone_table(unit: UnitOfWork, source: str, name: str, moment: Moment, request: str | None) -> None:
    """Adds the statement of ``Database.clone`` to a transaction."""
    check_table_name(name)
    asked = unit.needs_content(request)
    if not unit.has_applied(request):
        then = moment.find_or_newest(unit.context)
        arguments.text("source", source)
        then.table(source)
        entries = _whole_entries(unit.context, then)
        entry, new_uuid = entries[source], unit.context.runtime.uuid
        memory = [each for each in table_and_memory(source, entry, entries).values() if each is not entry]
        copy = (memory[0], new_uuid()) if memory else None
        unit.add(CloneTable(name, new_uuid(), then.version, then.commit_ts, entry, copy, request))
    if request is not None and asked:
        unit.add_content(request, content_digest("clone", source, name, moment.digest))


def _whole_entries(context: Context, manifest: Manifest) -> dict[str, TableEntry]:
    """The entries of all tables of a version; those of idle tables are fetched."""
    with context.reading(manifest.version):
        return {name: context.segments.whole(entry) for name, entry in manifest.tables.items()}


def _end(until: Time, now_us: int) -> int:
    """The end of a tag in microseconds, of a time or of a duration from now. Raises InputError."""
    if isinstance(until, str) and _DURATION.fullmatch(until):
        return now_us + parse_duration(until.strip())
    end = microseconds(until, "until")
    if end > LAST_US:
        raise InputError(
            f"until={arguments.short_repr(until)} is beyond the year 9999: leave it out for a tag without an end"
        )
    if end <= now_us:
        raise InputError(f"until={arguments.short_repr(until)} is over already")
    return end
