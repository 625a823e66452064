"""Counts what neither the database nor its collection reaches: what a bucket with versioning keeps of deleted objects,
and what lies in other places, such as those of dropped and of rejected files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from dolmen.errors import AccessDeniedError, InputError, StoreUnavailableError
from dolmen.format.receipts import MOST_OUTSIDE, Outside, Remains
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectInfo, ObjectStore
from dolmen.store.schemes import S3, scheme_of
from dolmen.store.url import open_store

_PREFIXES = ("data/", "manifest/", "segment/", "tombstone/")
"""Prefixes of all objects that may hold values."""


def noncurrent_remains(store: ObjectStore) -> Remains | None:
    """The older versions of the database's objects. Stores other than S3 keep none; None if it can't be found out."""
    if scheme_of(store.url) is not S3:
        return Remains()
    from dolmen.store.s3.store import S3Store
    from dolmen.store.s3.versions import noncurrent_versions

    if not isinstance(store, S3Store):
        return None
    try:
        return _sum(info for prefix in _PREFIXES for info in noncurrent_versions(store, prefix))
    except (AccessDeniedError, InputError):
        return None


def outside_remains(urls: Sequence[str], before_us: int, runtime: Runtime) -> tuple[Outside, ...]:
    """The objects at places outside the database. A place that can't be listed is told as such, and hinders nothing.

    Args:
        urls: the places, as stores are named.
        before_us: only objects that were last modified before this time, in microseconds.
    """
    return tuple(_at(url, before_us, runtime) for url in urls)


def _at(url: str, before_us: int, runtime: Runtime) -> Outside:
    try:
        listed = open_store(url, runtime).list("")
        found = _sum(islice((info for info in listed if info.last_modified_us < before_us), MOST_OUTSIDE))
    except (AccessDeniedError, InputError, StoreUnavailableError):
        return Outside(url)
    return Outside(url, found.objects, found.bytes, found.oldest_at)


def _sum(infos: Iterable[ObjectInfo]) -> Remains:
    objects = size = 0
    oldest = 0
    for info in infos:
        objects, size = objects + 1, size + info.size
        oldest = min(oldest or info.last_modified_us, info.last_modified_us)
    return Remains(objects, size, oldest)
