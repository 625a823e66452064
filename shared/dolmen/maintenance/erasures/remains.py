"""Counts what a bucket with versioning keeps of deleted objects: neither the database nor its collection reaches it."""

from __future__ import annotations

from collections.abc import Iterable

from dolmen.errors import AccessDeniedError, InputError
from dolmen.format.receipts import Remains
from dolmen.store.base import ObjectInfo, ObjectStore
from dolmen.store.schemes import S3, scheme_of

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


def _sum(infos: Iterable[ObjectInfo]) -> Remains:
    objects = size = 0
    oldest = 0
    for info in infos:
        objects, size = objects + 1, size + info.size
        oldest = min(oldest or info.last_modified_us, info.last_modified_us)
    return Remains(objects, size, oldest)
