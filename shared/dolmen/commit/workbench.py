"""The workbench of one commit: the small objects that go up beside its manifest."""

from __future__ import annotations

from pyroaring import BitMap

from dolmen.commit.spill import Spill, spill
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format import vectors
from dolmen.format.entries import Vector
from dolmen.format.layout import tombstone_key
from dolmen.format.manifest import Manifest
from dolmen.format.properties import root_bytes
from dolmen.format.tombstone_object import TombstoneObject, read_footer
from dolmen.runtime import Runtime
from dolmen.segments.reader import SegmentReader
from dolmen.store.base import ObjectStore
from dolmen.store.create import create


class Workbench:
    """Holds a commit's ``.del`` objects, one per table, until they are uploaded together with the manifest.

    Args:
        segments: reads what has left the manifest.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, segments: SegmentReader) -> None:
        self._store, self._runtime, self.segments = store, runtime, segments
        self._open: dict[str, TombstoneObject] = {}
        self._uploaded: dict[str, bytes] = {}
        self._spill: Spill | None = None
        self._spilled_us: int | None = None
        self._spill_waits = False

    def tombstone_object(self, table: str, uuid: str) -> TombstoneObject:
        """The ``.del`` object in which this commit records deletes of a table; a new one once that is uploaded."""
        if uuid not in self._open:
            key = tombstone_key(table, self._store.clock.now_us, self._runtime.uuid())
            self._open[uuid] = TombstoneObject(key, uuid)
        return self._open[uuid]

    def read(self, key: str, offset: int, length: int) -> bytes | None:
        """A range of an object that is still here, so that a transaction sees its own deletes; None for others."""
        body = self._uploaded.get(key)
        if body is None:
            body = next((target.encode() for target in self._open.values() if target.key == key), None)
        return None if body is None else body[offset : offset + length]

    def read_vector(self, vector: Vector, rows: int) -> BitMap:
        """The bitmap of a vector of a file with that many rows, uploaded or still here."""
        body = self.read(vector.object, vector.offset, vector.length)
        if body is None:
            try:
                body = self._store.get(vector.object, (vector.offset, vector.offset + vector.length)).body
            except ObjectNotFoundError as error:
                raise CorruptionError(vector.object, "it is missing, and holds a deletion vector") from error
        return vectors.decode(body, vector, rows)

    @property
    def has_objects(self) -> bool:
        """Whether ``.del`` objects wait to be uploaded."""
        return bool(self._open)

    def fit(self, manifest: Manifest, base: Manifest) -> Manifest:
        """``manifest`` within the root's budget, as far as one segment can bring it there.

        A segment that was uploaded for an attempt that lost is used again if it may be; else it is left as an orphan.
        """
        budget = root_bytes(manifest)
        if len(manifest.encode()) <= budget:
            return manifest
        if self._spill and not self._spill_waits and (self._spilled_us or 0) <= base.orphan_cutoff:
            self._spill = None  # it may have been collected
        fitted = self._spill.apply(manifest) if self._spill else None
        if fitted is None:
            self._spill, self._spill_waits = spill(base, manifest, budget, self._runtime.uuid), True
            fitted = self._spill.apply(manifest) if self._spill else None
        return fitted or manifest

    def upload(self, manifest_key: str, manifest: bytes) -> None:
        """Creates what is not uploaded yet, and the manifest, at the same time."""
        bodies = {target.key: target.encode() for target in self._open.values()}
        for key, body in bodies.items():
            read_footer(body, key)
        self._uploaded |= bodies
        if self._spill and self._spill_waits:
            bodies[self._spill.segment.object] = self._spill.body
            self._spill_waits, self._spilled_us = False, self._store.clock.now_us
        self._open.clear()

        def put(item: tuple[str, bytes]) -> None:
            create(self._store, item[0], item[1], self._runtime)

        for _ in self._runtime.map(put, [*bodies.items(), (manifest_key, manifest)]):
            pass
