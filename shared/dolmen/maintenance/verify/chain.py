"""Checks the pointer, the manifests, and the chain of versions, and objects that only older kept versions need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from dolmen.commit.head import Context
from dolmen.commit.uploads import INTENT_PREFIX, Heartbeat, parse_intent_key
from dolmen.errors import (
    AccessDeniedError,
    CorruptionError,
    Error,
    ObjectNotFoundError,
    RetryableError,
    UnsupportedFormatError,
)
from dolmen.format.entries import DataFile, Vector
from dolmen.format.layout import POINTER, Pointer, manifest_key, parse_manifest_key
from dolmen.format.manifest import HistoryEntry, Manifest, TableEntry
from dolmen.maintenance.verify.contents import DataCheck, DeleteObjects, check_deletes, is_first
from dolmen.maintenance.verify.entries import TableContents, read_segment
from dolmen.maintenance.verify.findings import FindingLog
from dolmen.maintenance.verify.objects import References

SAMPLED_VERSIONS = 64
"""The most manifests of older versions that are read, evenly spread and including the oldest, unless all are read."""


def newest_manifest(context: Context, log: FindingLog) -> Manifest | None:
    """Reads the manifest that the pointer names; None, with a finding, if it cannot be read."""
    last_pointer: Pointer | None = None
    while True:
        pointer = _pointer(context, log)
        if pointer is None:
            return None
        own_log = FindingLog()
        manifest = read_manifest(context, pointer.manifest, pointer.version, own_log, is_newest=True)
        if manifest is not None or pointer == last_pointer:
            break
        # Try again only if the pointer has moved: its version may have expired between the two requests.
        last_pointer = pointer
    log.count("manifests")
    log.merge(own_log)
    if manifest and (manifest.version, manifest.commit_id) != (pointer.version, pointer.commit_id):
        log.add(
            "pointer-differs",
            POINTER,
            f"commit {pointer.commit_id!r}, and in {manifest.key} version {manifest.version}, {manifest.commit_id!r}",
        )
    _check_forward(context, pointer, log)
    return manifest


def _pointer(context: Context, log: FindingLog) -> Pointer | None:
    try:
        return Pointer.decode(context.store.get(POINTER).body, POINTER)
    except UnsupportedFormatError as error:
        log.add("newer-format", POINTER, str(error))
    except CorruptionError as error:
        log.add("pointer-damaged", POINTER, f"{error.reason}; {last_manifest(context)}")
    return None


def _check_forward(context: Context, pointer: Pointer, log: FindingLog) -> None:
    """Finds a pointer that moved back. An attempt at version n proves that the pointer once named version n-1."""
    start = manifest_key(pointer.version + 2, "").removesuffix("-.json")
    last_key = max((info.key for info in context.store.list("manifest/", start_after=start)), default=None)
    parsed = parse_manifest_key(last_key) if last_key else None
    if parsed and Pointer.decode(context.store.get(POINTER).body, POINTER).version < parsed[0] - 1:
        reason = f"it names version {pointer.version}, though {last_key} was begun: an older copy was put back"
        log.add("pointer-back", POINTER, reason)


def read_manifest(
    context: Context, key: str, version: int, log: FindingLog, *, is_newest: bool = False
) -> Manifest | None:
    """Reads a manifest; None, with a finding, if it cannot be read."""
    try:
        return context.head.read_manifest(key)
    except ObjectNotFoundError:
        reason, kind = "it is missing", "manifest-missing"
    except UnsupportedFormatError as error:
        reason, kind = str(error), "newer-format"
    except CorruptionError as error:
        reason, kind = error.reason, "manifest-damaged"
    except (RetryableError, AccessDeniedError):  # says nothing about the manifest
        raise
    except Error as error:  # an invalid table name or schema, for instance
        reason, kind = str(error), "manifest-damaged"
    if is_newest:
        reason = f"{reason}, and {POINTER} names it; {last_manifest(context)}"
    log.add(kind, key, reason, versions=(version, version))
    return None


def last_manifest(context: Context) -> str:
    last_key = max((info.key for info in context.store.list("manifest/")), default=None)
    return f"the last manifest listed is {last_key}" if last_key else "there is no manifest"


def check_chain(
    context: Context, newest: Manifest, log: FindingLog, references: References, each: Callable[[Manifest], None] | None
) -> dict[int, HistoryEntry]:
    """Checks the versions from the newest back to the horizon. Returns their history entries.

    ``each`` is called with every manifest but the newest; if it is None, only a sample of the manifests is read.
    """
    _check_fences(newest, newest, log)
    oldest = max(newest.horizon, 1)
    kept: dict[int, HistoryEntry] = {}
    later: HistoryEntry | None = None
    for entry in _kept_history(context, newest, oldest):
        if later is not None:
            _check_order(entry, later, log)
        kept[entry.version] = later = entry
        references.add(entry.manifest, (entry.version, entry.version))
    if min(kept) > oldest:
        log.add("history-short", newest.key, f"it ends with version {min(kept)}, and {oldest} is the oldest kept")
    versions = sorted(set(kept) - {newest.version})
    sample = versions if each is not None else _spread(versions, SAMPLED_VERSIONS)

    def read(version: int) -> tuple[HistoryEntry, Manifest | None, FindingLog]:
        own_log = FindingLog()  # findings are added in the order of versions
        return kept[version], read_manifest(context, kept[version].manifest, version, own_log), own_log

    for entry, manifest, own_log in context.runtime.map(read, sample):
        log.count("manifests", total=len(sample) + 1)
        for finding in own_log.findings:
            if finding.kind != "manifest-missing":  # the listing finds missing manifests
                log.add(finding.kind, finding.object, finding.reason, versions=finding.versions)
        if manifest is not None:
            _check_manifest(manifest, entry, kept, newest, log)
            if each is not None:
                each(manifest)
    return kept


def _kept_history(context: Context, newest: Manifest, oldest: int) -> Iterator[HistoryEntry]:
    """History entries of the kept versions, from the newest version's history; newest first."""
    yield newest.as_history()
    yield from (entry for entry in reversed(newest.history) if entry.version >= oldest)
    for segment in reversed(newest.segments_of("history")):
        if segment.greatest >= oldest:
            # The check of segments reports damage.
            entries = read_segment(context, segment, FindingLog()) or ()
            yield from (entry for entry in reversed(entries) if entry.version >= oldest)


def _check_order(entry: HistoryEntry, later: HistoryEntry, log: FindingLog) -> None:
    wrong: dict[str, str] = {}
    if entry.version != later.version - 1:
        wrong["chain-broken"] = f"the version before {later.version} is {entry.version} in its history"
    if entry.commit_ts >= later.commit_ts:
        wrong["commit-ts-order"] = f"commit_ts {later.commit_ts}, and {entry.commit_ts} of the version before"
    if entry.created_at > later.created_at:
        wrong["created-at-order"] = f"created_at {later.created_at}, and {entry.created_at} of the version before"
    for kind, reason in wrong.items():
        log.add(kind, later.manifest, reason, versions=(entry.version, later.version))


def _check_manifest(
    manifest: Manifest, entry: HistoryEntry, kept: dict[int, HistoryEntry], newest: Manifest, log: FindingLog
) -> None:
    """Compares a kept version with the histories of the newest and of earlier versions."""
    versions = (manifest.version, manifest.version)
    if not manifest.as_history().is_same_commit(entry):
        log.add("history-differs", manifest.key, "later versions differ about this one", versions=versions)
    if manifest.previous is not None:
        previous = kept.get(manifest.version - 1)
        if previous is not None and previous.manifest != manifest.previous:
            reason = f"its previous is {manifest.previous}, and in the history it is {previous.manifest}"
            log.add("chain-broken", manifest.key, reason, versions=versions)
        elif (parsed := parse_manifest_key(manifest.previous)) and parsed[0] != manifest.version - 1:
            log.add("chain-broken", manifest.key, f"its previous is {manifest.previous}", versions=versions)
    different = [each.version for each in manifest.history if not kept.get(each.version, each).is_same_commit(each)]
    if different:
        reason = f"its history of version {different[-1]} is not that of version {newest.version}"
        log.add("history-differs", manifest.key, reason, versions=versions)
    if any(b.version != a.version + 1 for a, b in pairwise(manifest.history)):
        log.add("chain-broken", manifest.key, "its history has a gap", versions=versions)
    _check_fences(manifest, newest, log)


def _check_fences(manifest: Manifest, newest: Manifest, log: FindingLog) -> None:
    reasons = []
    for name in ("horizon", "orphan_cutoff", "freed", "swept"):
        value, limit = getattr(manifest, name), getattr(newest, name)
        if value > limit:
            reasons.append(f"{name} {value} in version {manifest.version} is {limit} in version {newest.version}")
    if manifest.horizon > manifest.version or manifest.freed > manifest.horizon:
        reasons.append(f"version {manifest.version}, horizon {manifest.horizon}, freed through {manifest.freed}")
    if manifest.orphan_cutoff > manifest.created_at or manifest.swept > manifest.orphan_cutoff:
        fences = f"orphan_cutoff {manifest.orphan_cutoff}, swept {manifest.swept}"
        reasons.append(f"created at {manifest.created_at}, {fences}")
    for reason in reasons:
        log.add("fence-order", manifest.key, reason)


def _spread(versions: list[int], most: int) -> list[int]:
    """At most ``most`` of the versions, evenly spread, including the first."""
    step = -(-len(versions) // most) if versions else 1
    return versions[::step]


@dataclass
class KeptContents:
    """Collects data files, deletes and segments of older versions, and checks them, each object once."""

    seen: set[tuple[str, int]] = field(default_factory=set)
    _files: list[tuple[str, TableEntry, list[DataFile]]] = field(default_factory=list)
    _deletes: DeleteObjects = field(default_factory=DeleteObjects)

    def exclude(self, view: TableContents) -> None:
        """Excludes the objects that a table of the checked version needs, which are checked elsewhere."""
        for file in view.files():
            self.seen.add((file.path, 0))
            if file.vector:
                self.seen.add((file.vector.object, file.vector.offset))
        self.seen.update((tombstone.blob.object, tombstone.blob.offset) for tombstone in view.tombstones)

    def add(self, view: TableContents, new: Collection[str]) -> None:
        """Adds the objects that one table of one version needs; ``new`` are segments that no earlier version had."""
        entry = view.entry
        if entry is None:
            return
        files = []
        for file in view.files(new):
            if is_first(self.seen, (file.path, 0)):
                files.append(file)
            if file.vector:
                self._add_vector(file.vector, file.uuid, file.rows, view, entry)
        if files:
            self._files.append((view.name, entry, files))
        for uuid, vector in view.overlay_vectors():
            self._add_vector(vector, uuid, sys.maxsize, view, entry)
        for tombstone in view.tombstones:
            if is_first(self.seen, (tombstone.blob.object, tombstone.blob.offset)):
                self._deletes.add_tombstone(tombstone, view.name, entry)

    def read_segments(self, context: Context, manifest: Manifest, log: FindingLog) -> None:
        """Reads the database's own segments of one version, unless they were read before."""
        for segment in manifest.segments:
            if is_first(self.seen, (segment.object, 0)):
                read_segment(context, segment, log)

    def check(self, context: Context, log: FindingLog, skip: set[str]) -> None:
        objects = [one for key, one in self._deletes.by_key.items() if key not in skip]
        check_deletes(context, objects, len(objects), log)
        for name, entry, files in self._files:
            DataCheck(context, name, entry, log, skip).check_data(iter(files), len(files))

    def _add_vector(self, vector: Vector, file: str, rows: int, view: TableContents, entry: TableEntry) -> None:
        if is_first(self.seen, (vector.object, vector.offset)):
            self._deletes.add_vector_of(vector, file, rows, view.name, entry)


def check_intents(context: Context, log: FindingLog) -> None:
    store = context.store
    for info in store.list(INTENT_PREFIX):
        parsed = parse_intent_key(info.key)
        if parsed is None:
            continue
        log.count("intents")
        try:
            heartbeat = Heartbeat.decode(store.get(info.key).body, info.key)
        except ObjectNotFoundError:  # the job has ended in the meantime
            continue
        except UnsupportedFormatError as error:
            log.add("newer-format", info.key, str(error))
        except CorruptionError as error:
            log.add("intent-damaged", info.key, error.reason)
        else:
            if heartbeat.txid != parsed[0]:
                log.add("intent-damaged", info.key, f"it is of job {heartbeat.txid}")
