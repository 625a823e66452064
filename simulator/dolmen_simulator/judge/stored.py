"""Reads manifests and segments from the bucket, with declarations independent of the code under test.

It decodes the fields that the checks need, above all the objects that a version names and needs to be readable.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from dolmen.store.memory import MemoryBucket
from dolmen.transactions.unit_of_work import Commit

_HEAD = struct.Struct("<4sQQ")


class StoredPointer(msgspec.Struct):
    """The pointer's body."""

    version: int
    manifest: str
    commit_id: str
    turn: dict[str, Any] | None = None


class StoredAppliedId(msgspec.Struct):
    """An applied id."""

    id: str
    digest: str
    version: int


class StoredDeed(msgspec.Struct, frozen=True):
    """A deed: one change by a commit to a table."""

    table: str
    what: str
    over: tuple[str, ...] = ()
    more: int = 0


class StoredCommit(msgspec.Struct, frozen=True):
    """A commit as recorded in the history."""

    version: int
    commit_id: str
    created_at: int
    operation: str
    did: tuple[StoredDeed, ...] = ()
    did_more: int = 0
    message: str = ""

    @classmethod
    def of(cls, commit: Commit) -> StoredCommit:
        """Converts a commit that production code returned."""
        return cls(
            commit.version,
            commit.commit_id,
            round(commit.created_at.timestamp() * 1e6),
            commit.operation,
            tuple(StoredDeed(deed.table, deed.what, deed.over, deed.more) for deed in commit.did),
            commit.did_more,
            commit.message,
        )


class StoredSegment(msgspec.Struct):
    """A reference to a segment."""

    kind: str
    object: str
    count: int
    created_at: int = 0
    resolved_through: int = 0


class StoredRelease(msgspec.Struct):
    """The objects, trees, and manifests with all their needs, that one commit released."""

    version: int
    objects: tuple[str, ...] = ()
    trees: tuple[StoredSegment, ...] = ()
    manifests: tuple[str, ...] = ()


class StoredTag(msgspec.Struct, frozen=True):
    """A name for a version."""

    version: int
    manifest: str
    created_at: int
    until: int = 0


class StoredCursor(msgspec.Struct, frozen=True):
    """The place of a reader of changes."""

    version: int
    moved_at: int
    age_us: int


class StoredBlob(msgspec.Struct, frozen=True):
    """The location of a tombstone's content."""

    object: str
    offset: int
    length: int


class StoredTombstone(msgspec.Struct, frozen=True):
    """A tombstone, with a predicate or values of columns."""

    kind: str
    columns: tuple[int, ...]
    blob: StoredBlob
    ts: int = 0
    predicate: dict[str, Any] | None = None
    values: tuple[tuple[Any, ...], ...] | None = None


class _ErasedFrom(msgspec.Struct, frozen=True):
    tombstone: StoredTombstone


class StoredErasure(msgspec.Struct, frozen=True):
    """A delete that applies to older versions."""

    id: str
    requested_at: int
    tables: tuple[_ErasedFrom, ...] = ()


class StoredCounts(msgspec.Struct):
    """Counts of the changes by a commit."""

    files_removed: int = 0
    files_resolved: int = 0
    tombstones_removed: int = 0
    groups_dropped: int = 0


class StoredManifest(msgspec.Struct):
    """The fields of a manifest that the checks need. Tables stay raw, so that equal ones are decoded once."""

    version: int
    commit_id: str
    commit_ts: int
    created_at: int
    operation: str
    previous: str | None = None
    data_change: bool = True
    did: tuple[StoredDeed, ...] = ()
    did_more: int = 0
    message: str = ""
    counts: StoredCounts = msgspec.field(default_factory=StoredCounts)
    tables: dict[str, msgspec.Raw] = {}
    applied: tuple[StoredAppliedId, ...] = ()
    history: tuple[StoredCommit, ...] = ()
    released: tuple[StoredRelease, ...] = ()
    segments: tuple[StoredSegment, ...] = ()
    horizon: int = 0
    horizon_at: int = 0
    orphan_cutoff: int = 0
    revoked_intents: dict[str, int] = {}
    freed: int = 0
    swept: int = 0
    properties: dict[str, Any] = {}
    tags: dict[str, StoredTag] = {}
    cursors: dict[str, StoredCursor] = {}
    erasures: tuple[StoredErasure, ...] = ()

    @property
    def as_history(self) -> StoredCommit:
        """The commit as later versions must record it."""
        return StoredCommit(
            self.version, self.commit_id, self.created_at, self.operation, self.did, self.did_more, self.message
        )


class StoredVector(msgspec.Struct, frozen=True):
    """The location of a deletion vector."""

    object: str
    offset: int
    length: int
    cardinality: int


class StoredFile(msgspec.Struct, frozen=True):
    """A data file."""

    path: str
    row_ts: int | None = 0
    applied_through: int = 0
    vector: StoredVector | None = None


class _Overlay(msgspec.Struct):
    file: str
    applied_through: int
    vector: StoredVector | None = None


class _Check(msgspec.Struct):
    name: str
    predicate: dict[str, Any]


class _Schema(msgspec.Struct):
    checks: tuple[_Check, ...] = ()


class _Table(msgspec.Struct):
    uuid: str
    epoch: int
    schema: _Schema = msgspec.field(default_factory=_Schema)
    properties: dict[str, Any] = {}
    files: tuple[StoredFile, ...] = ()
    tombstones: tuple[StoredTombstone, ...] = ()
    segments: tuple[StoredSegment, ...] = ()
    overlays: tuple[_Overlay, ...] = ()
    removed: tuple[str, ...] = ()
    section: StoredSegment | None = None
    last_delete_ts: int = 0
    unseen_delete_ts: int = 0


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "overlays": msgspec.json.Decoder(list[_Overlay]),
    "removed": msgspec.json.Decoder(list[str]),
    "tombstones": msgspec.json.Decoder(list[StoredTombstone]),
    "applied": msgspec.json.Decoder(list[StoredAppliedId]),
    "released": msgspec.json.Decoder(list[StoredRelease]),
    "history": msgspec.json.Decoder(list[StoredCommit]),
    "erasures": msgspec.json.Decoder(list[StoredErasure]),
    "table": msgspec.json.Decoder(list[_Table]),
}


class _Said(msgspec.Struct):
    message: str = ""


def messages_in(manifest: bytes) -> list[str]:
    """The messages of the calls of a version, in their order. Calls of several threads each have their own."""
    return msgspec.json.decode(manifest, type=_Said).message.split("; ")


class _StoredDocument(msgspec.Struct):
    entries: msgspec.Raw


class _TableTails(msgspec.Struct):
    files: tuple[msgspec.Raw, ...] = ()
    tombstones: tuple[msgspec.Raw, ...] = ()
    overlays: tuple[msgspec.Raw, ...] = ()
    removed: tuple[msgspec.Raw, ...] = ()


class _Tails(msgspec.Struct):
    history: tuple[msgspec.Raw, ...] = ()
    applied: tuple[msgspec.Raw, ...] = ()
    released: tuple[msgspec.Raw, ...] = ()
    erasures: tuple[msgspec.Raw, ...] = ()
    tables: dict[str, _TableTails] = {}


class StoredTable(NamedTuple):
    """A table of one version.

    Args:
        epoch: version of its creation or last overwrite.
        needs: keys of the objects that it needs: live files, their effective vectors, tombstones and segments.
        segments: keys of its segments.
        files: live files, with their effective pairs.
        tombstones: unresolved tombstones, by time.
        last_delete_ts, unseen_delete_ts: time of the last delete, and of the last one without a tombstone.
        checks: the predicates of its checks.
    """

    uuid: str
    epoch: int
    properties: dict[str, Any]
    needs: frozenset[str]
    segments: frozenset[str]
    files: tuple[StoredFile, ...]
    tombstones: tuple[StoredTombstone, ...]
    last_delete_ts: int
    unseen_delete_ts: int
    checks: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class StoredVersion:
    """A version, with the content of its segments.

    Args:
        key: key of its manifest.
        needs: keys of all objects that this version needs.
        segments: keys of its segments.
        history, applied, released, erasures: all entries, oldest first.
        size: size of its root in bytes.
    """

    key: str
    manifest: StoredManifest
    tables: dict[str, StoredTable]
    needs: frozenset[str]
    segments: frozenset[str]
    history: tuple[StoredCommit, ...]
    applied: tuple[StoredAppliedId, ...]
    released: tuple[StoredRelease, ...]
    erasures: tuple[StoredErasure, ...]
    size: int


class BucketReader:
    """Reads versions from the bucket. Keeps the decoded content of immutable objects.

    Args:
        bucket: the bucket, read directly and not through a store.
    """

    def __init__(self, bucket: MemoryBucket) -> None:
        self._bucket = bucket
        self._entries: dict[str, tuple[Any, ...]] = {}
        self._tables: dict[bytes, StoredTable] = {}

    def version(self, key: str) -> StoredVersion:
        """Reads the version with this manifest. KeyError names a missing object."""
        body = self._bucket.objects[key].body
        manifest = msgspec.json.decode(body, type=StoredManifest)
        tables = {name: self._table(bytes(raw)) for name, raw in manifest.tables.items()}
        own = frozenset(part.object for part in manifest.segments)
        erasures = (*self._all(manifest.segments, "erasures"), *manifest.erasures)
        records = {erased.tombstone.blob.object for erasure in erasures for erased in erasure.tables}
        return StoredVersion(
            key,
            manifest,
            tables,
            own.union(records, *(table.needs for table in tables.values())),
            own.union(*(table.segments for table in tables.values())),
            (*self._all(manifest.segments, "history"), *manifest.history),
            (*self._all(manifest.segments, "applied"), *manifest.applied),
            (*self._all(manifest.segments, "released"), *manifest.released),
            erasures,
            len(body),
        )

    def messages(self, key: str) -> list[str]:
        """The messages of the calls of a version, by its manifest; none if that is not there."""
        there = self._bucket.objects.get(key)
        return messages_in(there.body) if there else []

    def tails(self, key: str) -> Counter[bytes]:
        """The inline entries of a root that may leave it for a segment: all but the newest history.

        Empty if the version's manifest has been deleted.
        """
        if key not in self._bucket.objects:
            return Counter()
        manifest = msgspec.json.decode(self._bucket.objects[key].body, type=_Tails)
        tails: list[Any] = [manifest.history[:-64], manifest.applied, manifest.released, manifest.erasures]
        for table in manifest.tables.values():
            tails += [table.files, table.tombstones, table.overlays, table.removed]
        return Counter(bytes(entry) for tail in tails for entry in tail)

    def reached(self, let: StoredRelease) -> frozenset[str]:
        """All objects of a release: a tree includes every object that it names, a manifest all that it needs."""
        needs = (self.version(key).needs | {key} for key in let.manifests)
        return frozenset(let.objects).union(*(self._objects_under(part) for part in let.trees), *needs)

    def entries(self, part: StoredSegment) -> tuple[Any, ...]:
        """A segment's entries; those of an index name no object."""
        if part.kind == "index":
            return ()
        if part.object not in self._entries:
            body = self._bucket.objects[part.object].body
            self._entries[part.object] = _files(body) if part.kind == "files" else _others(part.kind, body)
        return self._entries[part.object]

    def _all(self, segments: tuple[StoredSegment, ...], kind: str) -> Iterator[Any]:
        for part in segments:
            if part.kind == kind:
                yield from self.entries(part)

    def _table(self, raw: bytes) -> StoredTable:
        if raw not in self._tables:
            entry = msgspec.json.decode(raw, type=_Table)
            section = entry.section
            if section is None:
                self._tables[raw] = self._view(entry, frozenset())
            else:
                whole = next(each for each in self.entries(section) if each.uuid == entry.uuid)
                view = self._view(whole, frozenset([section.object]))
                self._tables[raw] = view._replace(
                    epoch=entry.epoch,
                    last_delete_ts=entry.last_delete_ts,
                    unseen_delete_ts=entry.unseen_delete_ts,
                )
        return self._tables[raw]

    def _view(self, entry: _Table, section: frozenset[str]) -> StoredTable:
        removed = {*entry.removed, *self._all(entry.segments, "removed")}
        newest: dict[str, _Overlay] = {}
        for overlay in (*self._all(entry.segments, "overlays"), *entry.overlays):
            other = newest.get(overlay.file)
            if other is None or _pair(overlay) > _pair(other):
                newest[overlay.file] = overlay
        needs, files = set(section), list(entry.files)
        for part in entry.segments:
            for file in self.entries(part) if part.kind == "files" else ():
                uuid = file.path.rpartition("/")[2].removesuffix(".parquet")
                if uuid not in removed:
                    files.append(_effective(file, newest.get(uuid), part.resolved_through))
        for file in files:
            needs.update({file.path, file.vector.object} if file.vector else {file.path})
        tombstones = (*self._all(entry.segments, "tombstones"), *entry.tombstones)
        segments = section.union(part.object for part in entry.segments)
        needs.update(segments, (tombstone.blob.object for tombstone in tombstones))
        by_time = tuple(sorted(tombstones, key=lambda tombstone: tombstone.ts))
        return StoredTable(
            entry.uuid,
            entry.epoch,
            entry.properties,
            frozenset(needs),
            segments,
            tuple(files),
            by_time,
            entry.last_delete_ts,
            entry.unseen_delete_ts,
            tuple(check.predicate for check in entry.schema.checks),
        )

    def _objects_under(self, part: StoredSegment) -> set[str]:
        named = {part.object}
        for entry in self.entries(part):
            if isinstance(entry, _Table):
                named |= self._objects_named_by(entry)
            elif isinstance(entry, StoredFile):
                named.add(entry.path)
                named |= _vector_object(entry)
            elif isinstance(entry, _Overlay):
                named |= _vector_object(entry)
            elif isinstance(entry, StoredTombstone):
                named.add(entry.blob.object)
            elif isinstance(entry, StoredErasure):
                named.update(erased.tombstone.blob.object for erased in entry.tables)
        return named

    def _objects_named_by(self, entry: _Table) -> set[str]:
        named = {tombstone.blob.object for tombstone in entry.tombstones}
        for file in entry.files:
            named.add(file.path)
            named |= _vector_object(file)
        for overlay in entry.overlays:
            named |= _vector_object(overlay)
        return named.union(*(self._objects_under(part) for part in entry.segments))


def _vector_object(entry: StoredFile | _Overlay) -> set[str]:
    return {entry.vector.object} if entry.vector else set()


def _pair(entry: StoredFile | _Overlay) -> tuple[int, int]:
    return entry.applied_through, entry.vector.cardinality if entry.vector else 0


def _effective(file: StoredFile, overlay: _Overlay | None, resolved_through: int) -> StoredFile:
    """A file of a segment with the greater of its pairs, from the segment or the overlay."""
    held = overlay if overlay and _pair(overlay) > _pair(file) else file
    return StoredFile(file.path, file.row_ts, max(held.applied_through, resolved_through), held.vector)


_COLUMNS = (
    "path", "row_ts", "applied_through", "vector_object", "vector_offset", "vector_length", "vector_cardinality",
)  # fmt: skip


def _files(body: bytes) -> tuple[StoredFile, ...]:
    table = pq.ParquetFile(pa.BufferReader(body)).read(columns=list(_COLUMNS), use_threads=False)
    rows = zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    return tuple(
        StoredFile(path, row_ts, through, None if place[0] is None else StoredVector(*place))
        for path, row_ts, through, *place in rows
    )


def _others(kind: str, body: bytes) -> tuple[Any, ...]:
    _, length, compressed = _HEAD.unpack_from(body)
    frame = body[_HEAD.size : _HEAD.size + compressed]
    document = pa.Codec("zstd").decompress(frame, length, asbytes=True)
    entries = msgspec.json.decode(document, type=_StoredDocument).entries
    return tuple(_DECODERS[kind].decode(entries))
