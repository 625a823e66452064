"""What the bucket holds, declared and decoded apart from the code under test.

As much of manifests and segments as the checks need: what a version names, and so what must be there for it to be read.
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

from dolmen.results import Commit
from dolmen.store.memory import MemoryBucket

_HEAD = struct.Struct("<4sQQ")


class Pointer(msgspec.Struct):
    """The pointer's body."""

    version: int
    manifest: str
    commit_id: str


class Id(msgspec.Struct):
    """An applied id."""

    id: str
    digest: str
    version: int


class Did(msgspec.Struct, frozen=True):
    """A deed: what a commit did to a table."""

    table: str
    what: str
    over: tuple[str, ...] = ()
    more: int = 0


class Told(msgspec.Struct, frozen=True):
    """A commit as history tells of it."""

    version: int
    commit_id: str
    created_at: int
    operation: str
    did: tuple[Did, ...] = ()
    did_more: int = 0
    message: str = ""

    @classmethod
    def of(cls, commit: Commit) -> Told:
        """As production code tells callers of it."""
        return cls(
            commit.version,
            commit.commit_id,
            round(commit.created_at.timestamp() * 1e6),
            commit.operation,
            tuple(Did(deed.table, deed.what, deed.over, deed.more) for deed in commit.did),
            commit.did_more,
            commit.message,
        )


class Part(msgspec.Struct):
    """A segment as the manifest names it."""

    kind: str
    object: str
    count: int
    created_at: int = 0
    resolved_through: int = 0


class Let(msgspec.Struct):
    """What one commit released."""

    version: int
    objects: tuple[str, ...] = ()
    trees: tuple[Part, ...] = ()


class CommitCounts(msgspec.Struct):
    """What a commit did to what is stored, in numbers."""

    files_removed: int = 0
    files_resolved: int = 0
    tombstones_removed: int = 0
    groups_dropped: int = 0


class Manifest(msgspec.Struct):
    """As much of a manifest as the checks need; tables are decoded once for all versions that have them so."""

    version: int
    commit_id: str
    commit_ts: int
    created_at: int
    operation: str
    previous: str | None = None
    data_change: bool = True
    did: tuple[Did, ...] = ()
    did_more: int = 0
    message: str = ""
    counts: CommitCounts = msgspec.field(default_factory=CommitCounts)
    tables: dict[str, msgspec.Raw] = {}
    applied: tuple[Id, ...] = ()
    history: tuple[Told, ...] = ()
    released: tuple[Let, ...] = ()
    segments: tuple[Part, ...] = ()
    horizon: int = 0
    horizon_at: int = 0
    orphan_cutoff: int = 0
    revoked_intents: dict[str, int] = {}
    freed: int = 0
    swept: int = 0
    properties: dict[str, Any] = {}

    @property
    def told(self) -> Told:
        """The commit, as later versions are to tell of it."""
        return Told(
            self.version, self.commit_id, self.created_at, self.operation, self.did, self.did_more, self.message
        )


class Vector(msgspec.Struct, frozen=True):
    """Where deleted positions stand."""

    object: str
    offset: int
    length: int
    cardinality: int


class Blob(msgspec.Struct, frozen=True):
    """Where a delete stands."""

    object: str
    offset: int
    length: int


class File(msgspec.Struct, frozen=True):
    """A data file."""

    path: str
    row_ts: int | None = 0
    applied_through: int = 0
    vector: Vector | None = None


class _Overlay(msgspec.Struct):
    file: str
    applied_through: int
    vector: Vector | None = None


class Tombstone(msgspec.Struct, frozen=True):
    """A delete: a predicate, or values of columns."""

    kind: str
    columns: tuple[int, ...]
    blob: Blob
    ts: int = 0
    predicate: dict[str, Any] | None = None
    values: tuple[tuple[Any, ...], ...] | None = None


class _Table(msgspec.Struct):
    uuid: str
    epoch: int
    properties: dict[str, Any] = {}
    files: tuple[File, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    segments: tuple[Part, ...] = ()
    overlays: tuple[_Overlay, ...] = ()
    removed: tuple[str, ...] = ()
    section: Part | None = None
    last_delete_ts: int = 0
    unseen_delete_ts: int = 0


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "overlays": msgspec.json.Decoder(list[_Overlay]),
    "removed": msgspec.json.Decoder(list[str]),
    "tombstones": msgspec.json.Decoder(list[Tombstone]),
    "applied": msgspec.json.Decoder(list[Id]),
    "released": msgspec.json.Decoder(list[Let]),
    "history": msgspec.json.Decoder(list[Told]),
    "table": msgspec.json.Decoder(list[_Table]),
}


class _Document(msgspec.Struct):
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
    tables: dict[str, _TableTails] = {}


class TableView(NamedTuple):
    """A table of one version.

    Args:
        epoch: which creation or overwriting of its name it is.
        needs: objects without which it can't be read, or compacted, or told of: live files, the vectors that count,
            tombstones and segments.
        segments: those of them that are segments.
        files: live files, with the pair that counts.
        tombstones: those that are not resolved, by time.
        last_delete_ts, unseen_delete_ts: when rows were deleted last: at all, and in a way that no tombstone shows.
    """

    uuid: str
    epoch: int
    properties: dict[str, Any]
    needs: frozenset[str]
    segments: frozenset[str]
    files: tuple[File, ...]
    tombstones: tuple[Tombstone, ...]
    last_delete_ts: int
    unseen_delete_ts: int


@dataclass(frozen=True)
class View:
    """A version, segments looked through.

    Args:
        needs: all objects that must be there for this version.
        segments: those that are segments.
        history, applied, released: whole, oldest first.
        size: bytes of its root.
    """

    key: str
    manifest: Manifest
    tables: dict[str, TableView]
    needs: frozenset[str]
    segments: frozenset[str]
    history: tuple[Told, ...]
    applied: tuple[Id, ...]
    released: tuple[Let, ...]
    size: int


class Stored:
    """Reads the bucket. What it has read of immutable objects it keeps, so that a later look is cheap.

    Args:
        bucket: looked into without going through any store.
    """

    def __init__(self, bucket: MemoryBucket) -> None:
        self._bucket = bucket
        self._entries: dict[str, tuple[Any, ...]] = {}
        self._tables: dict[bytes, TableView] = {}

    def version(self, key: str) -> View:
        """The version with this manifest. KeyError names an object that is missing."""
        body = self._bucket.objects[key].body
        manifest = msgspec.json.decode(body, type=Manifest)
        tables = {name: self._table(bytes(raw)) for name, raw in manifest.tables.items()}
        own = frozenset(part.object for part in manifest.segments)
        return View(
            key,
            manifest,
            tables,
            own.union(*(table.needs for table in tables.values())),
            own.union(*(table.segments for table in tables.values())),
            (*self._all(manifest.segments, "history"), *manifest.history),
            (*self._all(manifest.segments, "applied"), *manifest.applied),
            (*self._all(manifest.segments, "released"), *manifest.released),
            len(body),
        )

    def tails(self, key: str) -> Counter[bytes]:
        """What may leave a root for a segment: the inline entries of all kinds, but for the newest history. Nothing if
        that version has expired, and is gone."""
        if key not in self._bucket.objects:
            return Counter()
        manifest = msgspec.json.decode(self._bucket.objects[key].body, type=_Tails)
        tails: list[Any] = [manifest.history[:-64], manifest.applied, manifest.released]
        for table in manifest.tables.values():
            tails += [table.files, table.tombstones, table.overlays, table.removed]
        return Counter(bytes(entry) for tail in tails for entry in tail)

    def reached(self, let: Let) -> frozenset[str]:
        """Everything that a release lets go of: a tree with all that it names."""
        return frozenset(let.objects).union(*(self._under(part) for part in let.trees))

    def entries(self, part: Part) -> tuple[Any, ...]:
        """A segment's entries."""
        if part.object not in self._entries:
            body = self._bucket.objects[part.object].body
            self._entries[part.object] = _files(body) if part.kind == "files" else _others(part.kind, body)
        return self._entries[part.object]

    def _all(self, segments: tuple[Part, ...], kind: str) -> Iterator[Any]:
        for part in segments:
            if part.kind == kind:
                yield from self.entries(part)

    def _table(self, raw: bytes) -> TableView:
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

    def _view(self, entry: _Table, section: frozenset[str]) -> TableView:
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
        return TableView(
            entry.uuid,
            entry.epoch,
            entry.properties,
            frozenset(needs),
            segments,
            tuple(files),
            by_time,
            entry.last_delete_ts,
            entry.unseen_delete_ts,
        )

    def _under(self, part: Part) -> set[str]:
        named = {part.object}
        for entry in self.entries(part):
            if isinstance(entry, _Table):
                named |= self._named(entry)
            elif isinstance(entry, File):
                named.add(entry.path)
                named |= _of_vector(entry)
            elif isinstance(entry, _Overlay):
                named |= _of_vector(entry)
            elif isinstance(entry, Tombstone):
                named.add(entry.blob.object)
        return named

    def _named(self, entry: _Table) -> set[str]:
        named = {tombstone.blob.object for tombstone in entry.tombstones}
        for file in entry.files:
            named.add(file.path)
            named |= _of_vector(file)
        for overlay in entry.overlays:
            named |= _of_vector(overlay)
        return named.union(*(self._under(part) for part in entry.segments))


def _of_vector(entry: File | _Overlay) -> set[str]:
    return {entry.vector.object} if entry.vector else set()


def _pair(entry: File | _Overlay) -> tuple[int, int]:
    return entry.applied_through, entry.vector.cardinality if entry.vector else 0


def _effective(file: File, overlay: _Overlay | None, resolved_through: int) -> File:
    """A file of a segment with the greater of its pairs, wherever that stands."""
    held = overlay if overlay and _pair(overlay) > _pair(file) else file
    return File(file.path, file.row_ts, max(held.applied_through, resolved_through), held.vector)


_COLUMNS = (
    "path", "row_ts", "applied_through", "vector_object", "vector_offset", "vector_length", "vector_cardinality",
)  # fmt: skip


def _files(body: bytes) -> tuple[File, ...]:
    table = pq.ParquetFile(pa.BufferReader(body)).read(columns=list(_COLUMNS), use_threads=False)
    rows = zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    return tuple(
        File(path, row_ts, through, None if place[0] is None else Vector(*place))
        for path, row_ts, through, *place in rows
    )


def _others(kind: str, body: bytes) -> tuple[Any, ...]:
    _, length, compressed = _HEAD.unpack_from(body)
    frame = body[_HEAD.size : _HEAD.size + compressed]
    document = pa.Codec("zstd").decompress(frame, length, asbytes=True)
    entries = msgspec.json.decode(document, type=_Document).entries
    return tuple(_DECODERS[kind].decode(entries))
