"""Outcomes of dropped files, as the ingest function logs and counts them.

Keeps, tags or expires a dropped file once its rows are committed, as its table asks.

On S3 the object gets a tag, beside those it has: ``dolmen-landing=ingested``, or ``dolmen-landing=expire``, at which a
lifecycle rule of the bucket removes it. So the ingest function needs no right to delete anything. In a plain
directory, which has neither tags nor a lifecycle, ``tag`` changes nothing, and ``expire`` removes the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from dolmen.errors import LimitError, ObjectNotFoundError
from dolmen.format.ingest_properties import LandingPolicy
from dolmen.ingest.announcements import Drop
from dolmen.ingest.landing import Landing, etag_of_drop
from dolmen.ingest.rejects.reject import Reject
from dolmen.store.local_store import LocalStore
from dolmen.transactions.results import Commit

DropStatus = Literal[
    "ingested", "duplicate", "rejected", "superseded", "ignored", "handed", "waiting", "postponed", "failed"
]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The rows of a file, by what was done with them.

    Args:
        appended: rows that were added.
        upserted: rows that replaced the rows with their keys, if there were any.
        deleted: deletes of a file of changes that were applied.
        unchanged: changes that had no effect, because a newer one of their key was known.
        ddl: messages about the columns of a source of changes, which were skipped.
        quarantined: rows that could not be read, and are among the rejects.
        erased: rows that were left out, as they were erased after the file was dropped.
    """

    appended: int = 0
    upserted: int = 0
    deleted: int = 0
    unchanged: int = 0
    quarantined: int = 0
    ddl: int = 0
    erased: int = 0

    @property
    def ingested(self) -> int:
        """Rows that are in the table now."""
        return self.appended + self.upserted


NO_ROWS = RowCounts()


@dataclass(frozen=True, slots=True)
class DropOutcome:
    """The outcome of a drop.

    Args:
        status: ``ingested``, with ``counts`` and ``version``; a ``duplicate`` of one that ``version`` ingested;
            ``rejected``, with ``reject`` and the ``error``; ``superseded``: gone, or overwritten by a newer object,
            which has an event of its own; ``ignored``: nothing that is to be ingested; ``handed``: noted for a job,
            which will ingest it; ``waiting`` for its table, which does not exist yet, and to be delivered again;
            ``postponed``: not begun, as time was running out; ``failed``: for the moment, by ``error``, and to be
            delivered again.
        reject: where the file is or, of one that is ingested, the rows that could not be read.
        column: the table's column that the error is about, if it is one: other names in a file are data.
        columns_added: how many columns the table got for it.
        columns_widened: how many columns of the table got a wider type for it.
        disposal_error: why the file could not be tagged or removed, though its rows are in the table.
    """

    drop: Drop
    status: DropStatus
    counts: RowCounts = NO_ROWS
    version: int | None = None
    reject: Reject | None = None
    error: Exception | None = None
    column: str | None = None
    disposal_error: Exception | None = None
    columns_added: int = 0
    columns_widened: int = 0


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of a batch of drops: an outcome for each, in their order, and the commit, if there was one."""

    outcomes: list[DropOutcome]
    commit: Commit | None


TAG = "dolmen-landing"


MAX_TAGS = 10
"""docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html"""


_VALUES: dict[LandingPolicy, str] = {"tag": "ingested", "expire": "expire"}


_ASIDE = ".dolmen-expiring-"
"""Prefix of the name of a file that is set aside before it is removed; the names of drops never begin with a dot."""


@runtime_checkable
class TaggingStore(Protocol):
    """A store whose objects have tags."""

    def tags(self, key: str, *, version: str | None = None) -> dict[str, str]:
        """An object's tags."""

    def set_tags(self, key: str, tags: Mapping[str, str], *, version: str | None = None) -> None:
        """Replaces all of them."""


def dispose(landing: Landing, drop: Drop, policy: LandingPolicy) -> None:
    """Does what a table's ``ingest_landing`` asks for with a file that is ingested. Repeated, it changes nothing.

    A file that is gone, or was overwritten by another drop, needs nothing.

    Raises:
        LimitError: the object has ten tags of others already.
        StoreUnavailableError, AccessDeniedError, ...: it could not be done.
    """
    value, store = _VALUES.get(policy), landing.store(drop)
    if value is None:
        return
    with suppress(ObjectNotFoundError):
        if isinstance(store, TaggingStore):
            _tag(landing, store, drop, value)
        elif policy == "expire" and isinstance(store, LocalStore):
            _remove(store, drop)


def _tag(landing: Landing, store: TaggingStore, drop: Drop, value: str) -> None:
    if drop.version is None and not _is_unchanged(landing, drop):
        return
    tags = store.tags(drop.key, version=drop.version)
    if tags.get(TAG) == value:
        return
    if len(tags.keys() | {TAG}) > MAX_TAGS:
        raise LimitError(f"{drop.source} has {len(tags)} tags, and an object can have {MAX_TAGS}: {TAG} is not set")
    store.set_tags(drop.key, {**tags, TAG: value}, version=drop.version)
    if drop.version is None and not _is_unchanged(landing, drop):
        # Overwritten at this very moment: the tag may stand on the new object, which nobody has ingested yet.
        tags = store.tags(drop.key)
        if tags.pop(TAG, None) is not None:
            store.set_tags(drop.key, tags)


def _is_unchanged(landing: Landing, drop: Drop) -> bool:
    """Whether the key still holds the dropped object: in a bucket without versions a tag goes to whatever is there."""
    return landing.store(drop).head(drop.key).etag == etag_of_drop(landing.store(drop), drop)


def _remove(store: LocalStore, drop: Drop) -> None:
    """Removes the file unless another one has its name by now: it is set aside first, then looked at."""
    folder = drop.key.rpartition("/")[0]
    key = f"{folder}/{_ASIDE}{hashlib.sha256(drop.key.encode()).hexdigest()[:16]}"
    path, aside = (os.path.join(store.root, *one.split("/")) for one in (drop.key, key))
    with store.verb(drop.key), suppress(FileNotFoundError):
        _restore_name(aside, path)  # what a crash left there
        os.rename(path, aside)
        if store.head(key).etag == drop.etag:
            os.unlink(aside)
        else:
            _restore_name(aside, path)


def _restore_name(aside: str, path: str) -> None:
    """Gives a file its name again, unless a newer one has it."""
    with suppress(FileNotFoundError):
        with suppress(FileExistsError):
            os.link(aside, path)
        os.unlink(aside)
