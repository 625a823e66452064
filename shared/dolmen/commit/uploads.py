"""The small objects that one commit uploads together with its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyroaring import BitMap

from dolmen.base.runtime import Runtime
from dolmen.commit.held_files import HeldFiles
from dolmen.commit.root_budget import RootBudget
from dolmen.entries.segments.reader import SegmentReader
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.format import vectors
from dolmen.format.entries import Blob, Vector
from dolmen.format.layout import tombstone_key
from dolmen.format.tombstone_object import TombstoneObject, check_blob, read_footer
from dolmen.store.base import ObjectStore
from dolmen.store.create import create


class PendingUploads:
    """Holds a commit's ``.del`` objects, one per table, and small data files, until they go up with the manifest.

    Args:
        segments: reads entries that have left the manifest.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, segments: SegmentReader) -> None:
        self._store, self._runtime, self.segments = store, runtime, segments
        self._open: dict[str, TombstoneObject] = {}
        self._uploaded: dict[str, bytes] = {}
        self.root_budget = RootBudget(runtime, segments)
        self.files = HeldFiles(store)
        self.beside: Sequence[PendingUploads] = ()
        """The uploads of earlier changes of the same version, which may wait here yet."""

    def tombstone_object(self, table: str, uuid: str) -> TombstoneObject:
        """The ``.del`` object that records this commit's deletes of a table; a new one after the last was uploaded."""
        if uuid not in self._open:
            key = tombstone_key(table, self._store.clock.now_us, self._runtime.uuid())
            self._open[uuid] = TombstoneObject(key, uuid)
        return self._open[uuid]

    def shared_object(self, table: str) -> TombstoneObject:
        """The ``.del`` object that records this commit's deletes of several tables; its name has one of them.

        Args:
            table: name of a table.
        """
        return self.tombstone_object(table, "")

    def read_blob(self, blob: Blob) -> bytes:
        """A blob that this commit made, or that is in the store. Raises CorruptionError."""
        body = self.read(blob.object, blob.offset, blob.length)
        if body is None:
            try:
                body = self._store.get(blob.object, (blob.offset, blob.offset + blob.length)).body
            except ObjectNotFoundError as error:
                raise CorruptionError(blob.object, "the object is missing; it records deletes") from error
        return check_blob(body, blob)

    def read(self, key: str, offset: int, length: int) -> bytes | None:
        """A range of an object that this commit made, so that a transaction sees its own deletes; None for others."""
        found = (body for uploads in (self, *self.beside) if (body := uploads._own(key)) is not None)
        body = next(found, None)
        return None if body is None else body[offset : offset + length]

    def _own(self, key: str) -> bytes | None:
        if (body := self._uploaded.get(key)) is not None:
            return body
        return next((target.encode() for target in self._open.values() if target.key == key), None)

    def read_vector(self, vector: Vector, rows: int) -> BitMap:
        """The bitmap of a deletion vector, whether it is in the store or still here.

        Args:
            rows: physical rows of the vector's data file.
        """
        body = self.read(vector.object, vector.offset, vector.length)
        if body is None:
            try:
                body = self._store.get(vector.object, (vector.offset, vector.offset + vector.length)).body
            except ObjectNotFoundError as error:
                raise CorruptionError(
                    vector.object, "the object is missing; it holds a deletion vector that the table needs"
                ) from error
        return vectors.decode(body, vector, rows)

    @property
    def has_objects(self) -> bool:
        """Whether ``.del`` objects or data files wait to be uploaded."""
        return bool(self._open or self.files)

    def upload(self, manifest_key: str, manifest: bytes, others: Sequence[PendingUploads] = ()) -> None:
        """Uploads the objects that wait, and the manifest, all at the same time. When it returns, all are stored.

        Args:
            others: of changes that are committed together with this one.
        """
        together = (self, *others)
        bodies = {key: body for uploads in together for key, body in uploads._take_objects().items()}
        for uploads in together:
            bodies |= uploads.files.bodies
        spill = self.root_budget.waiting
        if spill is not None:
            bodies[spill.segment.object] = spill.body
            self.root_budget.mark_uploaded(self._store.clock.now_us)

        self._create([*bodies.items(), (manifest_key, manifest)])
        for uploads in together:
            uploads.files.release()
        if spill is not None:
            self.segments.keep(spill.segment, spill.body)

    def upload_files(self) -> None:
        """Uploads the data files that wait, without a manifest: somebody is about to read them, or the commit waits.

        On an error they wait on; to upload again what has landed does no harm.
        """
        self._create(self.files.bodies.items())
        self.files.release()

    def _create(self, items: Iterable[tuple[str, bytes]]) -> None:
        """Creates objects, all at the same time. Raises the first error."""

        def put(item: tuple[str, bytes]) -> None:
            create(self._store, item[0], item[1], self._runtime)

        for _ in self._runtime.map(put, items):
            pass

    def _take_objects(self) -> dict[str, bytes]:
        bodies = {target.key: target.encode() for target in self._open.values()}
        for key, body in bodies.items():
            read_footer(body, key)
        self._uploaded |= bodies
        self._open.clear()
        return bodies
