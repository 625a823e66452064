"""Records of the drops that a function hands over to a job. They outlive the messages that announced the drops.

A record is one object, ``<digest>.json``, below a URL of its own (``DOLMEN_HANDED_URL``)::

    {"format": 1, "drops": [{"bucket": "...", "key": "...", "size": 1, "etag": "...", "version": null, ...}, ...]}

It is created before its message is acknowledged, and its name is a digest of its content: a message that is delivered
again writes the same record. A job removes a record when all of its drops are finished. A job that dies leaves it to
the next one. A drop that is ingested twice is applied once, by ``Drop.id``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from dolmen.api.database import Database
from dolmen.errors import (
    CorruptionError,
    Error,
    InputError,
    ObjectNotFoundError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from dolmen.format.layout import build_decoders
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.drop_outcomes import DropOutcome
from dolmen.ingest.landing import Landing
from dolmen.store.base import ObjectInfo, ObjectStore, create
from dolmen.transactions.transaction import unit_of

FORMAT = 1
_NAME = re.compile(r"([0-9a-f]{64})\.json")


class HandoverRecord(Struct, frozen=True):
    """The drops of one or more messages, each once, ordered by their ids. ``key`` is the record's."""

    key: str
    drops: tuple[Drop, ...]


class PendingRecords(Struct, frozen=True):
    """The number of records, and the age of the oldest; 0 if there are none."""

    records: int
    age_seconds: float


class _RecordBody(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    drops: tuple[Drop, ...]


class HandoverRecords:
    """The records in one store, which may have other objects too."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """The URL of the store, as ``open_store`` takes it."""
        return self._store.url

    def add(self, drops: Sequence[Drop]) -> str:
        """Writes a record, unless it exists, and returns its key. Raises InputError if there are no drops."""
        if not drops:
            raise InputError("a record of no drops: there is nothing to hand over")
        each = {drop.id: drop for drop in drops}
        body = msgspec.json.encode(_RecordBody(FORMAT, tuple(each[id_] for id_ in sorted(each))))
        key = f"{sha256(body).hexdigest()}.json"
        create(self._store, key, body, self._store.clock.runtime)
        return key

    def read_all(self) -> Iterator[HandoverRecord]:
        """Yields the records that exist when it is called, oldest first by the store's clock.

        It skips a record that another job has removed, and raises the error of an unreadable one after all the others.

        Raises:
            CorruptionError: a record differs from its digest; names it.
            UnsupportedFormatError: a newer dolmen wrote a record.
        """
        unreadable: CorruptionError | UnsupportedFormatError | None = None
        for info in sorted(self._list(), key=lambda info: (info.last_modified_us, info.key)):
            try:
                yield self._read(info.key)
            except ObjectNotFoundError:
                continue
            except (CorruptionError, UnsupportedFormatError) as error:
                unreadable = unreadable or error
        if unreadable is not None:
            raise unreadable

    def count(self) -> PendingRecords:
        """Counts the records: one request for each thousand."""
        records, oldest_us = 0, None
        for info in self._list():
            records += 1
            oldest_us = info.last_modified_us if oldest_us is None else min(oldest_us, info.last_modified_us)
        age_us = 0 if oldest_us is None else max(0, self._store.clock.now_us - oldest_us)
        return PendingRecords(records, age_us / 1e6)

    def remove(self, record: HandoverRecord) -> None:
        """Removes a record whose drops are all finished. If that fails, ingesting it again does no harm."""
        for outcome in self._store.delete([record.key]):
            if outcome.error is not None:
                raise StoreUnavailableError(f"cannot remove {self.url}/{outcome.key}: {outcome.error}")

    def _list(self) -> Iterator[ObjectInfo]:
        return (info for info in self._store.list("") if _NAME.fullmatch(info.key))

    def _read(self, key: str) -> HandoverRecord:
        body = self._store.get(key).body
        if f"{sha256(body).hexdigest()}.json" != key:
            raise CorruptionError(key, "its name is not the digest of its content")
        try:
            format = msgspec.json.decode(body, type=_AnyRecord).format  # first: a newer record may have other members
            if format > FORMAT:
                reason = f"{key} is a record of format {format}; this dolmen knows {FORMAT}: upgrade it"
                raise UnsupportedFormatError(reason)
            if format < FORMAT:
                raise CorruptionError(key, f"not a record of drops: format {format}")
            return HandoverRecord(key, msgspec.json.decode(body, type=_RecordBody).drops)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptionError(key, f"not a record of drops: {error}") from error


class _AnyRecord(msgspec.Struct):
    format: int


build_decoders(_RecordBody, _AnyRecord)


def hand_over(
    database: Database,
    landing: Landing,
    records: HandoverRecords,
    drops: Sequence[Drop],
    *,
    larger_than: int | None,
    has_backlog: bool,
    auto_create: bool,
) -> dict[int, DropOutcome]:
    """Writes ONE record of the drops for a job, and leaves all others to the caller.

    The others are not files of a table, were ingested before, or have no table.

    Args:
        larger_than: hand over drops of more bytes than this; None: size does not matter.
        has_backlog: whether many messages wait; then drops of any size are handed over.
        auto_create: also hand over a drop whose table does not exist: the job creates it.

    Returns:
        By index in ``drops``, the outcomes for the job: ``handed``, or ``failed`` if the record may be missing.
    """
    chosen = {
        index: drop
        for index, drop in enumerate(drops)
        if (has_backlog or (larger_than is not None and drop.size > larger_than)) and landing.path_of(drop) is not None
    }
    if not chosen:
        return {}
    try:
        newest = database.transaction()
        names = {index: landing.table(drop) for index, drop in chosen.items()}
        if not auto_create and not set(names.values()).issubset(newest.tables()):
            unit_of(newest).refresh()  # the cached version may be older than the table
        done, tables = unit_of(newest).find_applied({drop.id for drop in chosen.values()}), newest.tables()
        open_ = {
            index: drop
            for index, drop in chosen.items()
            if drop.id not in done and (auto_create or names[index] in tables)
        }
        if open_:
            records.add(list(open_.values()))
    except Error as error:
        return {index: DropOutcome(drop, "failed", error=error) for index, drop in chosen.items()}
    return {index: DropOutcome(drop, "handed") for index, drop in open_.items()}
