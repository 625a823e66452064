"""Landing places: which objects are rows for which table, and how they are opened."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import unquote

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import InputError, ObjectNotFoundError
from dolmen.format.layout import check_table_name
from dolmen.ingest.announcements import Drop
from dolmen.store.base import ObjectStore
from dolmen.store.local_store import LocalStore
from dolmen.store.url import open_store

PREFIX = "landing/"
REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class LandingPath:
    """The path of an object below the landing prefix: ``<table>/<anything>``."""

    path: str

    @property
    def table(self) -> str:
        """The table whose rows it holds.

        Raises:
            InputError: there is no table's directory in its path, or one that cannot be a table's name.
        """
        folder, slash, _ = self.path.partition("/")
        if not slash:
            raise InputError("not in a directory that names a table: drop it into landing/<table>/")
        return check_table_name(folder)


@dataclass(frozen=True)
class Landing:
    """The buckets that files are dropped into.

    Args:
        database_url: objects of the database itself are never taken for drops.
        prefix: what the keys of drops start with; empty for the whole bucket.
        url: a store that stands for every bucket (a directory on one machine); None opens ``s3://<bucket>``.
        rejected_url: where rejects go; None is ``rejected/`` in the bucket of the drop.
        handover_url: where records of drops for jobs are written; None if there are no jobs.
    """

    database_url: str
    prefix: str = PREFIX
    url: str | None = None
    rejected_url: str | None = None
    runtime: Runtime = field(default_factory=Runtime)
    handover_url: str | None = None
    _stores: dict[str, ObjectStore] = field(default_factory=dict, repr=False, compare=False)

    def place(self, drop: Drop) -> LandingPath | None:
        """The path of a drop below the landing prefix; None if the object is not to be ingested.

        Not ingested are objects outside the prefix, those of the database, rejects, records of a hand-over, temporary
        names (``_`` or ``.`` begins a part of the path below the table), and the "folders" of a console. In a
        directory, a file that a symbolic link brings in from outside is not ingested either: otherwise, a user who may
        drop files could make dolmen read files that the user may not.
        """
        path = drop.key.removeprefix(self.prefix)
        if not drop.key.startswith(self.prefix) or not path or path.endswith("/"):
            return None
        if is_temporary(path) or self._is_from_outside(drop):
            return None
        here = f"{unquote(self._bucket_url(drop.bucket))}/{drop.key}"
        own = (self.database_url, self._rejected_url(drop.bucket), self.handover_url)
        return (
            None if any(url and here.startswith(f"{unquote(url).rstrip('/')}/") for url in own) else LandingPath(path)
        )

    def table(self, drop: Drop) -> str | None:
        """The name of the table that a drop is for; None if it is for none."""
        place = self.place(drop)
        try:
            return place.table if place else None
        except InputError:
            return None

    def open(self, drop: Drop) -> BinaryIO:
        """The dropped object as a file: this version of it or, in a bucket that keeps none, this ETag.

        Raises:
            ObjectNotFoundError: it is gone.
            ObjectChangedError: it was overwritten.
        """
        store = self.store(drop)
        if drop.version is not None:
            return store.open_input(drop.key, version=drop.version)
        return store.open_input(drop.key, etag=etag_of_drop(store, drop))

    def store(self, drop: Drop) -> ObjectStore:
        """The bucket of a drop."""
        return self._open(self._bucket_url(drop.bucket))

    def root(self, drop: Drop) -> str:
        """The URL below which files are dropped: what is put there as ``<table>/<name>`` is ingested."""
        return f"{self.store(drop).url}/{self.prefix}".rstrip("/")

    def rejects_store(self, drop: Drop) -> ObjectStore:
        """The store that a drop goes to if it is rejected."""
        return self._open(self._rejected_url(drop.bucket))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without runtime and stores: another process opens its own."""
        fields = (self.database_url, self.prefix, self.url, self.rejected_url, self.handover_url)
        return _landing_of_this_process, fields

    def _is_from_outside(self, drop: Drop) -> bool:
        store = self.store(drop) if self.url is not None else None
        if not isinstance(store, LocalStore):
            return False
        try:
            file = store.local_path(drop.key) or ""
        except InputError:  # no file has such a name; the reader says what is wrong with it
            return False
        return not os.path.realpath(file).startswith(os.path.join(os.path.realpath(store.root), ""))

    def _bucket_url(self, bucket: str) -> str:
        return (self.url or f"s3://{bucket}").rstrip("/")

    def _rejected_url(self, bucket: str) -> str:
        return self.rejected_url or f"{self._bucket_url(bucket)}/{REJECTED}"

    def _open(self, url: str) -> ObjectStore:
        if url not in self._stores:
            self._stores[url] = open_store(url, self.runtime)
        return self._stores[url]


def _landing_of_this_process(
    database_url: str, prefix: str, url: str | None, rejected_url: str | None, handover_url: str | None
) -> Landing:
    return Landing(database_url, prefix, url, rejected_url, shared_runtime(), handover_url)


def is_temporary(path: str) -> bool:
    """Whether a path ``<table>/...`` is that of an unfinished file: a part of it begins with ``_`` or ``.``.

    The table's name itself may begin with ``_``.
    """
    folder, *below = path.split("/")
    return folder.startswith(".") or any(part.startswith((".", "_")) for part in below)


def etag_of_drop(store: ObjectStore, drop: Drop) -> str:
    """A drop's ETag as its store writes it: S3 puts quotes around, as HTTP does; its notifications and directories do
    not."""
    return etag_in(store, drop.etag)


def etag_in(store: ObjectStore, etag: str) -> str:
    """An ETag without quotes as a store writes it."""
    return etag if store.url.startswith("file:") else f'"{etag}"'


def exists(store: ObjectStore, key: str) -> bool:
    """Whether there is an object of this key: one request."""
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True
