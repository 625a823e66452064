"""Erasures as users ask for them, and as they are listed: deletes that also reach older versions and the disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from dolmen.base import arguments
from dolmen.base.units import parse_duration, utc
from dolmen.commit.context import Context
from dolmen.commit.statements.erasures import Erase
from dolmen.entries.segments.erasures_in_force import erasures_of, reaches
from dolmen.errors import ErasureNotFoundError, InputError
from dolmen.format.erasures import Erasure, erasure_id
from dolmen.format.keys import Keys
from dolmen.format.manifest import Manifest
from dolmen.predicate import Where
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions import row_statements
from dolmen.transactions.publisher import ErasurePublications, publisher
from dolmen.transactions.results import Commit
from dolmen.transactions.unit_of_work import UnitOfWork

Subject: TypeAlias = int | str
"""A value that says whom a row is about, in the type of the tables' columns."""

MOST_SUBJECTS = 1_000
"""The most subjects of one erasure, which stand in the manifest until they are gone."""


@dataclass(frozen=True)
class ErasureResult:
    """The result of an erasure: from this commit on nobody sees the rows, in whichever version.

    Args:
        id: of the erasure, under which ``Database.erasure`` and ``dolmen erasures`` know it.
        commit: the commit that made it; "nothing" if its request was applied before.
        due_at: the time by which its rows have left the disk; None if the request was applied before.
        sources: tables that it does not reach, though one that it reaches was cloned from them. As long as they have
            the rows, in files of both, the rows do not leave the disk.
        publications: what became of tables that are published as Iceberg, which are published at once.
    """

    id: str
    commit: Commit
    due_at: datetime | None
    sources: tuple[str, ...] = ()
    publications: ErasurePublications = field(default_factory=ErasurePublications)

    @classmethod
    def of(cls, id_: str, commit: Commit, context: Context) -> ErasureResult:
        """The result of a commit of this process, once published tables with such rows are published again.

        Without such tables it costs no request. An error of a publication is in the result.
        """
        head, publications = context.head.cached, publisher().publish_erasures(context, [id_])
        listed = head.manifest.erasures if head is not None and not commit.already else ()
        erasure = next((erasure for erasure in reversed(listed) if erasure.id == id_), None)
        if head is None or erasure is None:
            return cls(id_, commit, None, (), publications)
        return cls(id_, commit, utc(erasure.due_at), unreached_sources(erasure, head.manifest), publications)


@dataclass(frozen=True)
class ErasedColumns:
    """The part of an erasure in one table, and in its clones.

    Args:
        table: the table's name now; None if it was dropped.
        uuid: the table's uuid.
        columns: the columns by which its rows were named, as they were called then.
    """

    table: str | None
    uuid: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class ListedErasure:
    """An erasure that still applies to older versions, late drops and the disk. It contains no value.

    Args:
        id: 32 hexadecimal digits.
        version: the version that it made, from which nobody sees the rows.
        commit_ts: the timestamp of its deletes.
        requested_at: when it was asked for, by the store's clock.
        due_at: the time by which its rows have left the disk.
        tables: the tables that it names.
        subjects: number of those who are forgotten; 0 if it names rows of one table.
        request: id of its request; None without one.
    """

    id: str
    version: int
    commit_ts: int
    requested_at: datetime
    due_at: datetime
    tables: tuple[ErasedColumns, ...]
    subjects: int
    request: str | None

    @classmethod
    def of(cls, erasure: Erasure, newest: Manifest) -> ListedErasure:
        """Makes it from the erasure as manifests hold it."""
        tables = (
            ErasedColumns(newest.name_of(erased.uuid), erased.uuid, tuple(field.name for field in erased.columns))
            for erased in erasure.tables
        )
        return cls(
            erasure.id,
            erasure.version,
            erasure.ts,
            utc(erasure.requested_at),
            utc(erasure.due_at),
            tuple(tables),
            len(erasure.subject),
            erasure.request or None,
        )


def unreached_sources(erasure: Erasure, manifest: Manifest) -> tuple[str, ...]:
    """Names of the tables that an erasure does not reach, and that tables which it reaches were cloned from."""
    is_reached = {entry.uuid: reaches(erasure, entry) for entry in manifest.tables.values()}
    sources = {uuid for entry in manifest.tables.values() if is_reached[entry.uuid] for uuid in entry.lineage}
    return tuple(
        sorted(name for name, entry in manifest.tables.items() if entry.uuid in sources and not is_reached[entry.uuid])
    )


def erase_rows(
    unit: UnitOfWork, name: str, where: Where, keys: Keys | None, request: str | None, within: str | None = None
) -> str:
    """Adds the statement of ``Table.erase`` to a transaction; returns the id of the erasure.

    Args:
        keys: in place of ``where``, as ``row_statements.take_keys`` gives them.
    """
    within_us = _within_us(within)
    unit.context.head.refresh()  # for the server's clock: what was dropped before this time is late
    entry, asked = unit.entry(name), unit.needs_content(request)
    content, id_ = "", _id(unit, request)
    if request is not None:
        said = row_statements.where_content(entry, where) if keys is None else row_statements.keys_content(entry, keys)
        content = content_digest("erase", name, *said)
    if not unit.has_applied(request):
        uploads = unit.uploads
        if keys is None:
            made = row_statements.delete_where(unit.context, uploads, name, entry, where, request)
        else:
            made = row_statements.delete_keys(uploads, name, entry, keys, request)
            if not made.tombstones:  # an empty list: an erasure of no row has a receipt, too
                made = row_statements.delete_where(unit.context, uploads, name, entry, "FALSE", request)
        if made.tombstones:
            unit.add(
                Erase(
                    name,
                    entry.uuid,
                    id_,
                    unit.now_us,
                    made.tombstones[0],
                    entry.schema,
                    digest=content,
                    within_us=within_us,
                    request=request,
                )
            )
    if request is not None and asked:
        unit.add_content(request, content)
    return id_


def forget_subjects(
    unit: UnitOfWork,
    subject: Subject | Iterable[Subject],
    request: str | None,
    *,
    dropped: bool = False,
    within: str | None = None,
) -> str:
    """Adds the statement of ``Database.forget`` to a transaction; returns the id of the erasure."""
    within_us = _within_us(within)
    values, dropped = _subjects(subject), arguments.flag("dropped", dropped)
    unit.context.head.refresh()
    asked, id_ = unit.needs_content(request), _id(unit, request)
    content = content_digest("forget", *([type(value).__name__, value] for value in sorted(values, key=repr)))
    if not unit.has_applied(request):
        digest = content if request is not None else ""
        statement = Erase(
            None,
            "",
            id_,
            unit.now_us,
            subject=values,
            dropped=dropped,
            digest=digest,
            within_us=within_us,
            request=request,
        )
        unit.add(statement)
    if request is not None and asked:
        unit.add_content(request, content)
    return id_


def listed_erasures(context: Context) -> list[ListedErasure]:
    """The erasures that the newest version lists, oldest first."""
    newest = context.head.refresh().manifest
    with context.reading(newest.version):
        return [ListedErasure.of(erasure, newest) for erasure in erasures_of(newest, context.segments)]


def listed_erasure(context: Context, id_: str) -> ListedErasure:
    """One of them. Raises ErasureNotFoundError."""
    arguments.text("id", id_)
    found = next((each for each in listed_erasures(context) if each.id == id_), None)
    if found is None:
        raise ErasureNotFoundError(f"no erasure {id_!r} is listed any more, or there never was one")
    return found


def _within_us(within: str | None) -> int | None:
    return None if within is None else parse_duration(arguments.text("within", within))


def _id(unit: UnitOfWork, request: str | None) -> str:
    return unit.context.runtime.uuid() if request is None else erasure_id(arguments.request_id(request))


def _subjects(subject: Any) -> tuple[Subject, ...]:
    values = list(subject) if isinstance(subject, (list, tuple, set, frozenset, range)) else [subject]
    if not values:
        raise InputError("nothing says who is to be forgotten: give the value of a subject, or a list of them")
    if len(values) > MOST_SUBJECTS:
        raise InputError(f"{len(values):,} subjects in one request: at most {MOST_SUBJECTS:,} are allowed, so split it")
    return tuple(dict.fromkeys(map(_subject, values)))


def _subject(value: Any) -> Subject:
    if isinstance(value, str):
        return arguments.text("subject", value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"a subject is a whole number or a text, not {type(value).__name__}")
    return arguments.number("subject", value, most=2**64 - 1)  # of uint64
