"""Erasures: deletes that also reach older versions and the disk, as statements, as results, and as they are listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from msgspec import Struct

from dolmen.base import arguments
from dolmen.base.units import parse_duration, utc
from dolmen.commit.head import Context
from dolmen.commit.statements.erasures import Erase
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import ErasureNotFoundError, InputError, LimitError
from dolmen.format.manifest import Erasure, Manifest
from dolmen.format.receipts import erasure_id
from dolmen.predicate.parse import Parameters, Where
from dolmen.rows.write.row_digest import content_digest
from dolmen.transactions.row_arguments import choose_rows, rows_content
from dolmen.transactions.row_statements import TableChange
from dolmen.transactions.unit_of_work import UnitOfWork

Subject: TypeAlias = int | str  # the value of a table's subject column, such as a user's id

MOST_SUBJECTS = 1_000
"""The most subjects of one erasure: the manifest contains them until their rows have left the disk."""


class ErasedColumns(Struct, frozen=True):
    """The part of an erasure in one table, and in its clones."""

    table: str | None  # the table's name now; None if it was dropped
    uuid: str  # the table's uuid
    columns: tuple[str, ...]  # the names, at that time, of the columns that named its rows


class ListedErasure(Struct, frozen=True):
    """An erasure that still applies to older versions, late drops and the disk. It contains no value of a row.

    Args:
        id: 32 hexadecimal digits.
        version: the version that it made.
        commit_ts: the timestamp of its deletes.
        requested_at: the time of the request, by the store's clock.
        due_at: the time by which its rows have left the disk.
        tables: the tables that it names.
        subjects: the number of forgotten subjects; 0 if it names rows of one table.
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
        return cls(
            id=erasure.id,
            version=erasure.version,
            commit_ts=erasure.ts,
            requested_at=utc(erasure.requested_at),
            due_at=utc(erasure.due_at),
            tables=tuple(
                ErasedColumns(newest.name_of(table.uuid), table.uuid, tuple(field.name for field in table.columns))
                for table in erasure.tables
            ),
            subjects=len(erasure.subject),
            request=erasure.request or None,
        )


def erase_rows(
    change: TableChange,
    where: Where,
    parameters: Parameters | None,
    keys: Any,
    on: Sequence[str] | None,
    within: str | None,
) -> str:
    """Adds the statement of ``Table.erase``; returns the id of the erasure."""
    unit, name, entry, request = change.unit, change.name, change.entry, change.request
    predicate, keys_to_erase = choose_rows("erase", entry, where, parameters, keys, on)
    within_us = _within_us(within)
    unit.context.head.refresh()  # for the server's clock: files dropped before this time are late
    digest, id_ = "", _id(unit, request)
    if request is not None:
        digest = content_digest("erase", name, *rows_content(entry, predicate, keys_to_erase))
    if not unit.has_applied(request):
        write = change.delete_rows(predicate, keys_to_erase)
        if keys_to_erase is not None and not write.tombstones:  # an empty list: an erasure of no row has a receipt, too
            write = change.delete_rows("FALSE", None)
        if write.tombstones:
            rows = write.tombstones[0], entry.schema
            unit.add(
                Erase(name, entry.uuid, id_, unit.now_us, *rows, digest=digest, within_us=within_us, request=request)
            )
    if request is not None and unit.needs_content(request):
        unit.add_digest(request, digest)
    return id_


def forget_subjects(
    unit: UnitOfWork, subject: Subject | Iterable[Subject], dropped: bool, within: str | None, request: str | None
) -> str:
    """Adds the statement of ``Database.forget``; returns the id of the erasure."""
    within_us = _within_us(within)
    values, dropped = _subjects(subject), arguments.flag("dropped", dropped)
    unit.context.head.refresh()
    id_ = _id(unit, request)
    digest = content_digest("forget", *([type(value).__name__, value] for value in sorted(values, key=repr)))
    if not unit.has_applied(request):
        statement = Erase(
            None,
            "",
            id_,
            unit.now_us,
            subject=values,
            may_be_dropped=dropped,
            digest=digest if request is not None else "",
            within_us=within_us,
            request=request,
        )
        unit.add(statement)
    if request is not None and unit.needs_content(request):
        unit.add_digest(request, digest)
    return id_


def listed_erasures(context: Context) -> list[ListedErasure]:
    """The erasures that the newest version lists, oldest first."""
    newest = context.head.refresh().manifest
    with context.reading(newest.version):
        return [ListedErasure.of(erasure, newest) for erasure in erasures_of(newest, context.segments)]


def listed_erasure(context: Context, id_: str) -> ListedErasure:
    """A listed erasure by its id. Raises ErasureNotFoundError."""
    arguments.text("id", id_)
    for erasure in listed_erasures(context):
        if erasure.id == id_:
            return erasure
    raise ErasureNotFoundError(f"no erasure {id_!r} is listed: it has left the list, or never existed")


def _within_us(within: str | None) -> int | None:
    return None if within is None else parse_duration(arguments.text("within", within))


def _id(unit: UnitOfWork, request: str | None) -> str:
    return unit.context.runtime.uuid() if request is None else erasure_id(arguments.request_id(request))


def _subjects(subject: Any) -> tuple[Subject, ...]:
    values = list(subject) if isinstance(subject, (list, tuple, set, frozenset, range)) else [subject]
    if not values:
        raise InputError("no subject was given: give the value of a subject, or a list of them")
    check_subject_count(len(values))
    return tuple(dict.fromkeys(map(_subject, values)))


def check_subject_count(count: int) -> None:
    """Raises LimitError for more subjects than one erasure may have."""
    if count > MOST_SUBJECTS:
        raise LimitError(f"{count:,} subjects in one request: at most {MOST_SUBJECTS:,} are allowed, so split it")


def _subject(value: Any) -> Subject:
    if isinstance(value, str):
        return arguments.text("subject", value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"a subject is a whole number or a text, not {type(value).__name__}")
    return arguments.number("subject", value, most=2**64 - 1)  # of uint64
