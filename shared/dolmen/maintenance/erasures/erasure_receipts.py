"""The receipts of erasures: each step of an erasure updates its receipt, and the last one completes it.

The receipt is completed after the objects were deleted, and before the erasure is removed from the manifest, so a crash
leaves no receipt that says "gone" too early. It also counts objects that collection does not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from dolmen.base.runtime import RECEIPT, Runtime, attempts
from dolmen.commit.head import Context
from dolmen.entries.segments.erasures_in_force import SUBJECT, first_rewritten_version
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import AccessDeniedError, CorruptionError, Error, ObjectNotFoundError, StoreUnavailableError
from dolmen.format.layout import FORMAT_VERSION, is_adopted, parse_manifest_key, uuid_of
from dolmen.format.manifest import Erasure, LeavingErasures, Manifest
from dolmen.format.receipts import (
    MOST_OUTSIDE,
    ErasedFile,
    ErasedFrom,
    Outside,
    Receipt,
    Remains,
    receipt_key,
)
from dolmen.iceberg.publication_directory import PREFIX, asks_for_publication
from dolmen.iceberg.publication_upkeep import publications_before
from dolmen.maintenance.erasures.erasure_work import ErasureWork
from dolmen.maintenance.gc.mark import KeySet, read_released
from dolmen.maintenance.gc.sweep import ListedIntent
from dolmen.rows.scan.data_objects import data_object
from dolmen.store import open_store
from dolmen.store.base import ObjectInfo, ObjectStore, Stored, VersionedStore, scheme_of

_PREFIXES = ("data/", "iceberg/", "manifest/", "segment/", "tombstone/")
"""Prefixes of all objects that may hold values. There are always manifests."""


def noncurrent_remains(store: ObjectStore) -> Remains | None:
    """Counts the older versions of the database's objects that its store keeps; None if that cannot be found out.

    A server without versions may refuse to list them, or list nothing, not even the newest ones.
    """
    scheme = scheme_of(store.url)
    if scheme is None or not scheme.may_keep_versions:
        return Remains()
    if not isinstance(store, VersionedStore):
        return None
    has_newest = False

    def noncurrent() -> Iterator[ObjectInfo]:
        nonlocal has_newest
        for prefix in _PREFIXES:
            for info, is_newest in store.all_versions(prefix):
                if is_newest:
                    has_newest = True
                else:
                    yield info

    try:
        remains = _sum_up(noncurrent())
    except Error:  # no error stops the receipt, which then says that the number is unknown
        return None
    return remains if has_newest else None


def outside_remains(urls: Sequence[str], before_us: int, runtime: Runtime) -> tuple[Outside, ...]:
    """Counts the objects older than a time at URLs outside the database; without a count if one can't be listed."""

    def at(url: str) -> Outside:
        try:
            infos = open_store(url, runtime).list("")
            remains = _sum_up(islice((info for info in infos if info.last_modified_us < before_us), MOST_OUTSIDE))
        except Error:
            return Outside(url)
        return Outside(url, remains.objects, remains.bytes, remains.oldest_at)

    return tuple(map(at, urls))


def _sum_up(infos: Iterable[ObjectInfo]) -> Remains:
    objects = size = oldest = 0
    for info in infos:
        objects, size = objects + 1, size + info.size
        oldest = min(oldest or info.last_modified_us, info.last_modified_us)
    return Remains(objects, size, oldest)


def receipt_of(erasure: Erasure, manifest: Manifest) -> Receipt:
    """The first receipt of an erasure, which is not stored until a step updates it. ``manifest`` names its tables."""
    tables = tuple(
        ErasedFrom(
            uuid=each.uuid,
            name=manifest.name_of(each.uuid) or "",
            columns=tuple(field.name for field in each.columns),
            keys=getattr(each.tombstone, "count", 0),
        )
        for each in erasure.tables
    )
    return Receipt(
        format_version=FORMAT_VERSION,
        id=erasure.id,
        ts=erasure.ts,
        version=erasure.version,
        requested_at=erasure.requested_at,
        due_at=erasure.due_at,
        tables=tables,
    )


def load_receipt(store: ObjectStore, id_: str) -> Receipt | None:
    """The receipt of an erasure; None if it is not written yet. Raises CorruptionError."""
    return _load(store, receipt_key(id_))[0]


def update_receipt(
    store: ObjectStore, runtime: Runtime, first: Receipt, change: Callable[[Receipt], Receipt]
) -> Receipt:
    """Changes a receipt by compare-and-swap, unless it says "gone"; if there is none yet, changes and writes ``first``.

    ``change`` may be called several times.

    Raises:
        CorruptionError: the receipt is damaged: it is left unchanged.
        StoreUnavailableError: it is unknown whether it was written.
    """
    key = receipt_key(first.id)
    for _ in attempts(runtime, RECEIPT):
        old, etag = _load(store, key)
        new = change(old or first) if old is None or not old.gone_at else old
        if new == old or isinstance(store.put(key, new.encode(), if_match=etag), Stored):
            return new
    raise StoreUnavailableError(f"cannot write {key!r} in {store.url}: others write it, or there is no response")


def note_erased_files(
    store: ObjectStore,
    runtime: Runtime,
    manifest: Manifest,
    rows_by_erasure: Sequence[tuple[Erasure, Mapping[str, int | None]]],
) -> None:
    """Records the erased rows of each file in the receipts (None: not counted), before the files may be replaced."""

    def write(item: tuple[Erasure, Mapping[str, int | None]]) -> None:
        erasure, rows_of = item

        def add_files(receipt: Receipt) -> Receipt:
            noted_paths = {file.path for file in receipt.files}
            files = [ErasedFile(path, rows) for path, rows in sorted(rows_of.items()) if path not in noted_paths]
            return msgspec.structs.replace(receipt, files=(*receipt.files, *files)) if files else receipt

        with suppress(CorruptionError):  # the last step of the erasure reports it, and deletes continue
            update_receipt(store, runtime, receipt_of(erasure, manifest), add_files)

    for _ in runtime.map(write, rows_by_erasure):
        pass


def write_receipts(context: Context, manifest: Manifest, work: ErasureWork) -> None:
    """Writes the receipts of erasures that the next commit takes off the list, or whose tagged versions it removes."""
    delisted_ids = {erasure.id for erasure in work.to_delist}

    def write(erasure: Erasure) -> None:
        first = first_rewritten_version(manifest.rewritten, erasure.ts)
        tags = tuple(name for name in work.tags if manifest.tags[name].version < first)

        def note_rewritten(receipt: Receipt) -> Receipt:
            receipt = _add_tags(tags, receipt)
            if erasure.id not in delisted_ids:
                return receipt
            rewritten_at = receipt.rewritten_at if receipt.rewritten_version == first else work.now_us
            return msgspec.structs.replace(receipt, rewritten_version=first, rewritten_at=rewritten_at)

        with suppress(CorruptionError):
            update_receipt(context.store, context.runtime, receipt_of(erasure, manifest), note_rewritten)

    for _ in context.runtime.map(write, work.listed if work.tags else work.to_delist):
        pass
    for entry in manifest.leaving if work.tags else ():
        for id_ in entry.ids:
            tags = tuple(name for name in work.tags if manifest.tags[name].version < entry.version)
            with suppress(CorruptionError):
                update_receipt(context.store, context.runtime, unnamed_receipt(id_), partial(_add_tags, tags))


def receipt_problem(receipt: Receipt, erasure: Erasure) -> str:
    """The difference between the receipt of a listed erasure and the manifest; "" if there is none."""
    if receipt.gone_at:
        return "it says that an erasure is gone which the newest version lists"
    claims = (receipt.ts, receipt.version, receipt.requested_at, receipt.due_at)
    if claims != (erasure.ts, erasure.version, erasure.requested_at, erasure.due_at):
        return "its timestamp, version, request or deadline is not that of the manifest"
    return ""


def unnamed_receipt(id_: str) -> Receipt:
    """A receipt with nothing but the id, for an erasure that has left the list without a receipt."""
    return Receipt(format_version=FORMAT_VERSION, id=id_)


def _add_tags(tags: Sequence[str], receipt: Receipt) -> Receipt:
    return msgspec.structs.replace(receipt, tags=(*receipt.tags, *(name for name in tags if name not in receipt.tags)))


def _load(store: ObjectStore, key: str) -> tuple[Receipt | None, str | None]:
    try:
        stored = store.get(key)
    except ObjectNotFoundError:
        return None, None
    return Receipt.decode(stored.body, key), stored.etag


@dataclass
class ReceiptFinisher:
    """Writes the receipts that may say "gone" now."""

    context: Context
    manifest: Manifest
    intents: dict[str, ListedIntent]
    now_us: int
    freed: int  # all objects released up to this version are deleted
    swept: int  # orphans last modified before this time are deleted
    deadline: Callable[[], bool]
    kept: Callable[[], KeySet]  # finds the objects that readable versions need
    outside: Sequence[str] = ()  # URLs outside the database; the receipts count their objects

    def __post_init__(self) -> None:
        self._noncurrent: Remains | None = None
        self.finished: list[str] = []
        self.errors: dict[str, str] = {}

    def run(self) -> bool:
        """Writes receipts, oldest erasures first. Returns False if it stopped at its deadline."""
        ready = [entry for entry in self.manifest.leaving if self._is_gone(entry)]
        if ready:
            self._noncurrent = noncurrent_remains(self.context.store)
        for entry in ready:
            for id_ in entry.ids:
                if self.deadline():
                    return False
                self._finish(entry, id_)
        return True

    def _is_gone(self, entry: LeavingErasures) -> bool:
        """True once every orphan, and every object that only versions before ``entry.version`` need, is deleted."""
        manifest = self.manifest
        # Released objects and orphans must be deleted up to the first version without the erasure.
        if min(manifest.horizon, self.freed) < entry.version or self.swept < entry.left_at:
            return False
        # A tag may keep an older version; so may a dropped tag until the objects of its version are deleted.
        if any(tag.version < entry.version for tag in manifest.tags.values()):
            return False
        for released in read_released(manifest, self.context.segments, self.freed):
            for key in released.manifests:
                if (parse_manifest_key(key) or (0, ""))[0] < entry.version:
                    return False
        # A job that began earlier may still upload files with rows of an older version, even if only as orphans.
        if any(not intent.is_done and intent.first_us <= entry.left_at for intent in self.intents.values()):
            return False
        # Publications last: finding them reads each one's metadata.
        published = publications_before(self.context, entry.version)
        for uuid, is_newest in published.items():
            name = manifest.name_of(uuid)
            if is_newest and name and asks_for_publication(self.context, manifest, manifest.tables[name]):
                key = f"{PREFIX}{uuid}/"
                self.errors[key] = f"it holds rows of an erasure until table {name!r} is published again"
        return not published

    def _finish(self, entry: LeavingErasures, id_: str) -> None:
        """Writes one receipt, once all files that contained rows are gone."""
        store = self.context.store
        try:
            receipt = load_receipt(store, id_)
            # The files are looked for before the receipt is written, because it must be true at that time.
            remaining: list[ErasedFile] = []
            if receipt is not None and not receipt.gone_at:
                remaining = [file for file in receipt.files if not self._is_absent(file)]
            if receipt is not None and remaining and not self._are_all_gone(receipt, remaining):
                return
            paths = frozenset(file.path for file in remaining)
            complete = partial(self._complete, entry=entry, paths=paths)
            update_receipt(store, self.context.runtime, unnamed_receipt(id_), complete)
        except CorruptionError as error:
            self.errors[receipt_key(id_)] = error.reason
            return
        self.finished.append(id_)

    def _are_all_gone(self, receipt: Receipt, remaining: list[ErasedFile]) -> bool:
        """Whether no remaining file holds rows of the erasure; notes in the receipt which tables share the files."""
        shared = self._find_shared(receipt, remaining)
        if any(file.shared != shared.get(file.path, ()) for file in remaining):
            note = partial(_note_shared, shared=shared)
            update_receipt(self.context.store, self.context.runtime, receipt, note)
        if shared:
            return False
        # A file without a count had no live rows, so nobody looked whether erased ones were among them. If a restore
        # brought it back, the restore tested its rows, and none of them is an erased one.
        paths = [file.path for file in remaining if file.rows is not None or is_adopted(file.path)]
        for path in paths:
            if is_adopted(path):
                label = data_object(self.context.store, path).label
                self.errors[label] = f"it was adopted, and may hold rows of erasure {receipt.id}: delete it yourself"
            elif path not in self.kept():
                self.errors[path] = f"it holds rows of erasure {receipt.id}, and was not deleted"
        return not paths

    def _find_shared(self, receipt: Receipt, remaining: list[ErasedFile]) -> dict[str, tuple[str, ...]]:
        """By path of a file, the uuids of tables that have it and that the erasure does not reach."""
        files_by_uuid = {uuid_of(file.path): file for file in remaining}
        uuids_by_path: dict[str, tuple[str, ...]] = {}
        erased_uuids = {table.uuid for table in receipt.tables}
        for entry in self.manifest.tables.values():
            if not erased_uuids.isdisjoint(entry.lineage):
                continue
            for uuid in LiveFiles.of(entry, self.context.segments).find(files_by_uuid.keys()):
                file = files_by_uuid[uuid]
                # A restored table with a subject is reached by the erasure: its subject was forgotten there too.
                if file.rows is not None or SUBJECT not in entry.properties:
                    uuids_by_path[file.path] = tuple(sorted({*uuids_by_path.get(file.path, ()), entry.uuid}))
        return uuids_by_path

    def _is_absent(self, file: ErasedFile) -> bool:
        location = data_object(self.context.store, file.path)
        try:
            location.store.head(location.key)
        except ObjectNotFoundError:
            return True
        except AccessDeniedError:
            if location.adopted is None:
                raise
        return False

    def _complete(self, receipt: Receipt, entry: LeavingErasures, paths: frozenset[str]) -> Receipt:
        absent = (file for file in receipt.files if file.path not in paths)
        files = tuple(msgspec.structs.replace(file, absent_at=self.now_us, shared=()) for file in absent)
        return msgspec.structs.replace(
            receipt,
            files=files,
            forgotten_version=entry.version,
            gone_version=self.manifest.version,
            gone_at=self.now_us,
            noncurrent=self._noncurrent,
            outside=outside_remains(self.outside, entry.left_at, self.context.runtime),
        )


def _note_shared(receipt: Receipt, shared: Mapping[str, tuple[str, ...]]) -> Receipt:
    files = tuple(msgspec.structs.replace(file, shared=shared.get(file.path, ())) for file in receipt.files)
    return msgspec.structs.replace(receipt, files=files)
