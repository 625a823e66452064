"""The landing buckets: maps objects to tables, opens them, and tags or removes them once their rows are committed.

docs/ingest.md has the rules of ``ingest_landing`` (Afterwards). The ingest function needs no right to delete anything.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from msgspec import Struct

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import InputError, LimitError, ObjectNotFoundError
from dolmen.format.ingest_properties import LandingPolicy
from dolmen.format.layout import check_table_name
from dolmen.ingest.announcements import Drop
from dolmen.store import open_store
from dolmen.store.base import MatchingDeleteStore, ObjectStore, TaggingStore, scheme_of, unquoted_url

PREFIX = "landing/"
REJECTED = "rejected"


def rejects_url(landing_url: str) -> str:
    """The URL of rejects, unless a setting names another one."""
    return f"{landing_url.rstrip('/')}/{REJECTED}"


TAG = "dolmen-landing"
MAX_TAGS = 10  # docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html
_TAG_VALUES: dict[LandingPolicy, str] = {"tag": "ingested", "expire": "expire"}


class LandingPath(Struct, frozen=True):
    """The path of an object below the landing prefix: ``<table>/<anything>``."""

    path: str

    @property
    def table(self) -> str:
        """The table that it is for. Raises InputError if the path has no directory that can name a table."""
        folder, slash, _ = self.path.partition("/")
        if not slash:
            raise InputError("not in a directory that names a table: drop it into landing/<table>/")
        return check_table_name(folder)


@dataclass(frozen=True)
class Landing:
    """The buckets that files are dropped into."""

    database_url: str
    prefix: str = PREFIX  # the start of the keys of drops; empty for the whole bucket
    # a store that replaces every bucket (a directory on one machine); None opens the drop's own bucket
    url: str | None = None
    rejected_url: str | None = None  # where rejects go; None is ``rejected/`` in the bucket of the drop
    runtime: Runtime = field(default_factory=Runtime)
    handover_url: str | None = None  # where records of drops for jobs are written; None if there are no jobs
    _stores: dict[str, ObjectStore] = field(default_factory=dict, repr=False, compare=False)

    def path_of(self, drop: Drop) -> LandingPath | None:
        """The path of a drop below the landing prefix; None if the object is not to be ingested.

        Ignores files behind symbolic links in a directory: otherwise users who may drop files could make dolmen read
        files that they may not read themselves.
        """
        path = drop.key.removeprefix(self.prefix)
        if not drop.key.startswith(self.prefix) or not path or path.endswith("/"):
            return None
        if is_temporary(path) or self._is_outside_landing(drop):
            return None
        drop_url = f"{unquoted_url(self._bucket_url(drop))}/{drop.key}"
        for url in (self.database_url, self._rejected_url(drop), self.handover_url):
            if url and drop_url.startswith(f"{unquoted_url(url).rstrip('/')}/"):
                return None
        return LandingPath(path)

    def table(self, drop: Drop) -> str | None:
        """The name of the table that a drop is for; None if it is for none."""
        path = self.path_of(drop)
        try:
            return path.table if path else None
        except InputError:
            return None

    def open(self, drop: Drop) -> BinaryIO:
        """Opens the dropped object: this version or, in a bucket without versions, this ETag."""
        store = self.store(drop)
        if drop.version is not None:
            return store.open_input(drop.key, version=drop.version)
        return store.open_input(drop.key, etag=etag_in(store, drop.etag))

    def store(self, drop: Drop) -> ObjectStore:
        """The bucket of a drop."""
        return self._open(self._bucket_url(drop))

    def root(self, drop: Drop) -> str:
        """The URL below which files are dropped, as ``<table>/<name>``."""
        return f"{self.store(drop).url}/{self.prefix}".rstrip("/")

    def rejects_store(self, drop: Drop) -> ObjectStore:
        """The store that a drop goes to if it is rejected."""
        return self._open(self._rejected_url(drop))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without runtime and stores: another process opens its own."""
        fields = (self.database_url, self.prefix, self.url, self.rejected_url, self.handover_url)
        return _landing_of_this_process, fields

    def _is_outside_landing(self, drop: Drop) -> bool:
        if self.url is None:
            return False
        try:
            file = self.store(drop).local_path(drop.key)
        except InputError:  # no file has such a name; the reader reports it
            return False
        if file is None:
            return False
        root = os.path.realpath(file.removesuffix(drop.key))
        return not os.path.realpath(file).startswith(os.path.join(root, ""))

    def _bucket_url(self, drop: Drop) -> str:
        return (self.url or drop.bucket_url).rstrip("/")

    def _rejected_url(self, drop: Drop) -> str:
        return self.rejected_url or rejects_url(self._bucket_url(drop))

    def _open(self, url: str) -> ObjectStore:
        if url not in self._stores:
            self._stores[url] = open_store(url, self.runtime)
        return self._stores[url]


def _landing_of_this_process(
    database_url: str, prefix: str, url: str | None, rejected_url: str | None, handover_url: str | None
) -> Landing:
    return Landing(database_url, prefix, url, rejected_url, shared_runtime(), handover_url)


def is_temporary(path: str) -> bool:
    """Whether a path ``<table>/...`` is that of an unfinished file: ``_`` or ``.`` begins a part below the table."""
    folder, *below = path.split("/")
    return folder.startswith(".") or any(part.startswith((".", "_")) for part in below)


def etag_in(store: ObjectStore, etag: str) -> str:
    """Converts an ETag without quotes, as in notifications, to the form that a store writes."""
    scheme = scheme_of(store.url)
    return f'"{etag}"' if scheme is None or scheme.has_quoted_etags else etag


def exists(store: ObjectStore, key: str) -> bool:
    """Whether there is an object of this key: one request."""
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True


def apply_landing_policy(landing: Landing, drop: Drop, policy: LandingPolicy) -> None:
    """Tags or removes an ingested file, as its table's ``ingest_landing`` says. Idempotent.

    A file that is deleted, or was overwritten by another drop, needs nothing. Raises LimitError for ten other tags.
    """
    value, store = _TAG_VALUES.get(policy), landing.store(drop)
    if value is None:
        return
    with suppress(ObjectNotFoundError):
        if isinstance(store, TaggingStore):
            _tag(landing, store, drop, value)
        elif policy == "expire" and isinstance(store, MatchingDeleteStore):
            store.delete_if_match(drop.key, drop.etag)


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
        # Overwritten meanwhile: the tag may be on the new object, which is not ingested yet.
        tags = store.tags(drop.key)
        if tags.pop(TAG, None) is not None:
            store.set_tags(drop.key, tags)


def _is_unchanged(landing: Landing, drop: Drop) -> bool:
    """Whether the key still has the dropped object. In a bucket without versions a tag goes to the current object."""
    return landing.store(drop).head(drop.key).etag == etag_in(landing.store(drop), drop.etag)
