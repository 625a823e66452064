"""The last step of an erasure, which completes its receipt, and the checks that erasures and receipts are true.

The receipt is completed after the objects were deleted, and before the manifest forgets the erasure, so a crash leaves
no receipt that says "gone" too early. It also counts objects that collection does not reach.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context
from dolmen.entries.segments.erasures_in_force import SUBJECT, tables_of
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import AccessDeniedError, CorruptionError, Error, ObjectNotFoundError
from dolmen.format.layout import is_adopted, parse_manifest_key, uuid_of
from dolmen.format.manifest import ErasedTable, Erasure, LeavingErasures, Manifest, TableEntry
from dolmen.format.receipts import (
    MOST_OUTSIDE,
    RECEIPT_PREFIX,
    ErasedFile,
    Outside,
    Receipt,
    Remains,
    parse_receipt_key,
    receipt_key,
)
from dolmen.iceberg.publication_directory import PREFIX, asks_for_publication
from dolmen.iceberg.publication_upkeep import publications_before
from dolmen.maintenance.erasures.erasure_work import load_receipt, unnamed_receipt, update_receipt
from dolmen.maintenance.gc.mark import KeySet, read_released
from dolmen.maintenance.gc.sweep import ListedIntent
from dolmen.maintenance.unresolved import ErasureMatches, files_behind
from dolmen.maintenance.verify.findings import FindingLog
from dolmen.rows.scan.data_objects import data_object
from dolmen.store import open_store
from dolmen.store.base import ObjectInfo, ObjectStore, VersionedStore, scheme_of

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
        # A file without a count had no live rows: only its bounds put it on the list. If a restore brought it back, the
        # restore tested its rows, and none of them is an erased one.
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


def check_erasures(context: Context, newest: Manifest, log: FindingLog, *, deep: bool) -> None:
    """Checks the erasures of the newest version; with ``deep`` also the receipts of completed erasures."""
    try:
        erasures = erasures_of(newest, context.segments)
        valid = []
        for erasure in erasures:
            log.count("erasures")
            if reason := _entry_problem(erasure, newest):
                log.add("erasure-entry", newest.key, f"erasure {erasure.id}: {reason}")
            else:
                valid.append(erasure)
        _check_deletes(context, newest, valid, log)
    except CorruptionError:
        return  # the checks of segments and deletes name the object
    by_id = {erasure.id: erasure for erasure in erasures}
    ids = {*by_id, *(id_ for entry in newest.leaving for id_ in entry.ids)}
    if deep:
        ids |= {id_ for info in context.store.list(RECEIPT_PREFIX) if (id_ := parse_receipt_key(info.key)) is not None}
    for id_ in sorted(ids):
        try:
            receipt = load_receipt(context.store, id_)
        except CorruptionError as error:
            log.add("receipt-damaged", error.key, error.reason)
            continue
        if receipt is not None and id_ in by_id and (reason := _receipt_problem(receipt, by_id[id_])):
            log.add("receipt-differs", receipt_key(id_), reason)


def _entry_problem(erasure: Erasure, newest: Manifest) -> str:
    if not re.fullmatch(r"[0-9a-f]{32}", erasure.id):
        return "its id is not 32 hexadecimal digits"
    if not 0 < erasure.version <= newest.version or not 0 < erasure.ts <= newest.commit_ts:
        return "its version or timestamp is later than the newest version's"
    if erasure.due_at < erasure.requested_at:
        return "it was due before it was asked for"
    if any(table.tombstone.ts != erasure.ts for table in erasure.tables):
        return "a delete has another timestamp than its erasure"
    return ""


def _check_deletes(context: Context, newest: Manifest, erasures: Sequence[Erasure], log: FindingLog) -> None:
    if not erasures:
        return
    for name, root in newest.tables.items():
        if not any(tables_of(erasure, root) for erasure in erasures):
            continue
        entry = context.segments.whole(root)
        tombstone_ts = {tombstone.ts for tombstone in tombstones_of(entry, context.segments)}
        for erasure in erasures:
            for erased in tables_of(erasure, entry) if erasure.ts not in tombstone_ts else ():
                if (path := _find_undone(context, entry, erased)) is not None:
                    reason = f"rows of erasure {erasure.id} may be seen: its delete is gone"
                    log.add("erasure-undone", path, reason, table=name)


def _find_undone(context: Context, entry: TableEntry, erased: ErasedTable) -> str | None:
    """Finds a file that may show rows of a delete that the table has lost; None if there is none."""
    columns = entry.schema.by_id
    if any(field.id not in columns or columns[field.id].added_ts != field.added_ts for field in erased.columns):
        return None  # the table has no such columns, or has dropped them
    ts = erased.tombstone.ts
    files = [file for file, _ in files_behind(entry, context.segments, ts) if file.applied_through < ts]
    if not files:
        return None
    matches = ErasureMatches(context, entry, [erased.tombstone])
    return next((file.path for file in files if matches.tombstones_for(file)), None)


def _receipt_problem(receipt: Receipt, erasure: Erasure) -> str:
    if receipt.gone_at:
        return "it says that an erasure is gone which the newest version lists"
    claims = (receipt.ts, receipt.version, receipt.requested_at, receipt.due_at)
    if claims != (erasure.ts, erasure.version, erasure.requested_at, erasure.due_at):
        return "its timestamp, version or times are others than the newest version's"
    return ""
