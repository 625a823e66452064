"""Counts what neither the database nor its collection reaches: what a bucket with versioning keeps of deleted objects,
and what lies in other places, such as those of dropped and of rejected files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from dolmen.base.runtime import Runtime
from dolmen.errors import Error
from dolmen.format.receipts import MOST_OUTSIDE, Outside, Remains
from dolmen.store.base import ObjectInfo, ObjectStore
from dolmen.store.schemes import S3, scheme_of
from dolmen.store.url import open_store

_PREFIXES = ("data/", "iceberg/", "manifest/", "segment/", "tombstone/")
"""Prefixes of all objects that may hold values. There are always manifests."""


def noncurrent_remains(store: ObjectStore) -> Remains | None:
    """The older versions of the database's objects. Stores other than S3 keep none; None if it can't be found out.

    A server that knows of no versions may refuse to list them, or list nothing, not even the newest ones.
    """
    if scheme_of(store.url) is not S3:
        return Remains()
    from dolmen.store.s3.store import S3Store
    from dolmen.store.s3.versions import all_versions

    if not isinstance(store, S3Store):
        return None
    listed = [_Versions(all_versions(store, prefix)) for prefix in _PREFIXES]
    try:
        found = _sum(info for each in listed for info in each.noncurrent())
    except Error:  # whatever it is: the receipt says that it is not known, and hinders nothing
        return None
    return found if any(each.newest for each in listed) else None


class _Versions:
    """Versions as a bucket lists them.

    Args:
        newest: how many of them were the newest of their object.
    """

    def __init__(self, listed: Iterable[tuple[ObjectInfo, bool]]) -> None:
        self._listed, self.newest = listed, 0

    def noncurrent(self) -> Iterator[ObjectInfo]:
        """The others."""
        for info, is_newest in self._listed:
            if is_newest:
                self.newest += 1
            else:
                yield info


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
    except Error:
        return Outside(url)
    return Outside(url, found.objects, found.bytes, found.oldest_at)


def _sum(infos: Iterable[ObjectInfo]) -> Remains:
    objects = size = 0
    oldest = 0
    for info in infos:
        objects, size = objects + 1, size + info.size
        oldest = min(oldest or info.last_modified_us, info.last_modified_us)
    return Remains(objects, size, oldest)
