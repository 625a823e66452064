"""Keeps, tags or expires a dropped file once its rows are committed, as its table asks.

On S3 the object gets a tag, beside those it has: ``dolmen-landing=ingested``, or ``dolmen-landing=expire``, at which a
lifecycle rule of the bucket removes it. So the ingest function needs no right to delete anything. In a plain
directory, which has neither tags nor a lifecycle, ``tag`` changes nothing, and ``expire`` removes the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from dolmen.errors import LimitError, ObjectNotFoundError
from dolmen.format.ingest_properties import LandingPolicy
from dolmen.ingest.announcements import Drop
from dolmen.ingest.landing import Landing, etag_of_drop
from dolmen.store.local.store import LocalStore

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
