"""The last step of an erasure: its receipt says that no object of the database holds its rows any more.

The receipt is written after the objects were deleted, and before the manifest forgets the erasure. So after a crash at
any point no receipt says "gone" too early, and none is missing.

The receipt also counts objects that collection does not reach: the older versions that a bucket with versioning keeps
of deleted objects, and objects outside the database, such as dropped and rejected files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec

from dolmen.base.runtime import Runtime
from dolmen.commit.context import Context
from dolmen.entries.segments.erasures_in_force import SUBJECT
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import AccessDeniedError, CorruptionError, Error, ObjectNotFoundError
from dolmen.format.layout import FORMAT_VERSION, is_adopted, parse_manifest_key, uuid_of
from dolmen.format.manifest import LeavingErasures, Manifest
from dolmen.format.receipts import MOST_OUTSIDE, ErasedFile, Outside, Receipt, Remains, receipt_key
from dolmen.iceberg.erased_tables import asks_for_publication
from dolmen.iceberg.publication_directory import PREFIX
from dolmen.maintenance.erasures.erasure_work import load_receipt, update_receipt
from dolmen.maintenance.gc.gc_plan import KnownIntent
from dolmen.maintenance.gc.mark import KeySet, released_since
from dolmen.rows.scan.data_objects import data_object
from dolmen.store import open_store
from dolmen.store.base import ObjectInfo, ObjectStore, VersionedStore, scheme_of

_PREFIXES = ("data/", "iceberg/", "manifest/", "segment/", "tombstone/")
"""Prefixes of all objects that may hold values. There are always manifests."""


def noncurrent_remains(store: ObjectStore) -> Remains | None:
    """The older versions of the database's objects, if its store may keep any; None if it can't be found out.

    A server that knows of no versions may refuse to list them, or list nothing, not even the newest ones.
    """
    scheme = scheme_of(store.url)
    if scheme is None or not scheme.may_keep_versions:
        return Remains()
    if not isinstance(store, VersionedStore):
        return None
    listed = [_Versions(store.all_versions(prefix)) for prefix in _PREFIXES]
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
    """Counts the objects at URLs outside the database. One that can't be listed is reported as such.

    Args:
        urls: URLs of stores.
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


class ReceiptFinisher:
    """Writes the receipts that may say "gone" now.

    Args:
        manifest: the version that the collection works on.
        intents: all intents.
        now_us: the server's clock.
        freed: all that was released up to this version is deleted.
        swept: orphans last modified before this time are deleted.
        published_before: finds the publications that may hold values of versions before one, by the table's uuid, and
            whether only another publication replaces them.
        kept: finds the objects that versions which can be read need.
        outside: URLs outside the database, whose objects the receipts count.
    """

    def __init__(
        self,
        context: Context,
        manifest: Manifest,
        intents: dict[str, KnownIntent],
        now_us: int,
        freed: int,
        swept: int,
        deadline: Callable[[], bool],
        published_before: Callable[[int], dict[str, bool]],
        kept: Callable[[], KeySet],
        outside: Sequence[str] = (),
    ) -> None:
        self._context, self._manifest, self._intents, self._now_us = context, manifest, intents, now_us
        self._freed, self._swept, self._deadline = freed, swept, deadline
        self._published_before, self._kept, self._outside = published_before, kept, outside
        self._noncurrent: Remains | None = None
        self.finished: list[str] = []
        self.errors: dict[str, str] = {}

    def run(self) -> bool:
        """Writes receipts, oldest erasures first. Returns False if it stopped at its deadline."""
        ready = [entry for entry in self._manifest.leaving if self._is_gone(entry)]
        if ready:
            self._noncurrent = noncurrent_remains(self._context.store)
        for entry in ready:
            for id_ in entry.ids:
                if self._deadline():
                    return False
                self._finish(entry, id_)
        return True

    def _is_gone(self, entry: LeavingErasures) -> bool:
        """True once every orphan, and every object that only versions before ``entry.version`` need, is deleted."""
        manifest = self._manifest
        # Released objects and orphans: both up to the first version without the erasure.
        if min(manifest.horizon, self._freed) < entry.version or self._swept < entry.left_at:
            return False
        # A tag may keep an older version, and so may one that was dropped whose objects are still to be deleted.
        if any(tag.version < entry.version for tag in manifest.tags.values()):
            return False
        for released in released_since(manifest, self._context.segments, self._freed):
            for key in released.manifests:
                if (parse_manifest_key(key) or (0, ""))[0] < entry.version:
                    return False
        # A job that began earlier may still upload files with the rows of an older version, if only as orphans.
        if any(not intent.done and intent.first_us <= entry.left_at for intent in self._intents.values()):
            return False
        # Publications last: finding them reads each one's metadata.
        published = self._published_before(entry.version)
        for uuid, is_newest in published.items():
            name = manifest.name_of(uuid)
            if is_newest and name is not None and asks_for_publication(self._context, manifest, manifest.tables[name]):
                self.errors[f"{PREFIX}{uuid}/"] = f"it holds rows of an erasure until table {name!r} is published again"
        return not published

    def _finish(self, entry: LeavingErasures, id_: str) -> None:
        """Writes one receipt, once none of the files that contained rows is left."""
        store = self._context.store
        try:
            receipt = load_receipt(store, id_)
            # The files are looked for before the receipt is written: what it says must be true at that time.
            there: list[ErasedFile] = []
            if receipt is not None and not receipt.gone_at:
                there = [file for file in receipt.files if not self._is_absent(file)]
            if receipt is not None and there and not self._is_none_left(receipt, there):
                return
            paths = frozenset(file.path for file in there)
            add_gone = partial(self._with_gone, entry=entry, id_=id_, there=paths)
            update_receipt(store, self._context.runtime, id_, add_gone)
        except CorruptionError as error:
            self.errors[receipt_key(id_)] = error.reason
            return
        self.finished.append(id_)

    def _is_none_left(self, receipt: Receipt, there: list[ErasedFile]) -> bool:
        """Whether none of the files that are still there holds rows of the erasure; notes whose files they are."""
        shared = self._shared(receipt, there)
        if any(file.shared != shared.get(file.path, ()) for file in there):
            note = partial(_with_shared, receipt=receipt, shared=shared)
            update_receipt(self._context.store, self._context.runtime, receipt.id, note)
        if shared:
            return False
        # If all rows of a file were deleted, they were not counted, and its bounds alone put it on the list. If a
        # restore brought it back, its rows were tested then, and none of them is an erased one.
        held = [file.path for file in there if file.rows is not None or is_adopted(file.path)]
        for path in held:
            if is_adopted(path):
                label = data_object(self._context.store, path).label
                self.errors[label] = f"it was adopted, and may hold rows of erasure {receipt.id}: delete it yourself"
            elif not self._kept().holds([path])[0]:
                self.errors[path] = f"it holds rows of erasure {receipt.id}, and was not deleted"
        return not held

    def _shared(self, receipt: Receipt, there: list[ErasedFile]) -> dict[str, tuple[str, ...]]:
        """By path, uuids of the tables that have a file and that the erasure does not reach."""
        paths = {uuid_of(file.path): file for file in there}
        found: dict[str, tuple[str, ...]] = {}
        named = {table.uuid for table in receipt.tables}
        for entry in self._manifest.tables.values():
            if not named.isdisjoint(entry.lineage):
                continue
            for uuid in LiveFiles.of(entry, self._context.segments).find(paths.keys()):
                file = paths[uuid]
                # A restored table with a subject is reached by the erasure: its subject was forgotten there too.
                if file.rows is not None or SUBJECT not in entry.properties:
                    found[file.path] = tuple(sorted({*found.get(file.path, ()), entry.uuid}))
        return found

    def _is_absent(self, file: ErasedFile) -> bool:
        there = data_object(self._context.store, file.path)
        try:
            there.store.head(there.key)
        except ObjectNotFoundError:
            return True
        except AccessDeniedError:
            if there.adopted is None:
                raise
        return False

    def _with_gone(self, receipt: Receipt | None, entry: LeavingErasures, id_: str, there: frozenset[str]) -> Receipt:
        receipt = receipt or Receipt(format_version=FORMAT_VERSION, id=id_)
        if receipt.gone_at:
            return receipt
        gone = (file for file in receipt.files if file.path not in there)
        files = tuple(msgspec.structs.replace(file, absent_at=self._now_us, shared=()) for file in gone)
        return msgspec.structs.replace(
            receipt,
            files=files,
            forgotten_version=entry.version,
            gone_version=self._manifest.version,
            gone_at=self._now_us,
            noncurrent=self._noncurrent,
            outside=outside_remains(self._outside, entry.left_at, self._context.runtime),
        )


def _with_shared(now: Receipt | None, receipt: Receipt, shared: Mapping[str, tuple[str, ...]]) -> Receipt:
    """A receipt whose files name the tables that still have them."""
    now = now or receipt
    files = tuple(msgspec.structs.replace(file, shared=shared.get(file.path, ())) for file in now.files)
    return now if now.gone_at else msgspec.structs.replace(now, files=files)
