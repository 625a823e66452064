"""The small objects that one commit uploads together with its manifest.

Small data files that wait for their commit, which uploads them beside its manifest.

Records what a delete names: in a ``.del`` object, and in the tombstone that refers to it. Reads no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self, TypeAlias

import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.commit.root_budget import RootBudget
from dolmen.entries.segments.segment_reader import SegmentReader, read_blob
from dolmen.errors import CorruptionError, LimitError, ObjectNotFoundError
from dolmen.format.delete_object import (
    Keys,
    TombstoneObject,
    add_keys,
    check_blob,
    decode_vector,
    keys_from_arrow,
    read_footer,
)
from dolmen.format.entries import Blob, KeysTombstone, Tombstone, Vector, WhereTombstone
from dolmen.format.layout import tombstone_key
from dolmen.format.manifest import PREDICATE_EXPRESSIONS
from dolmen.format.schema import Schema
from dolmen.format.types import to_array
from dolmen.predicate import Predicate, as_keys, check_evaluates, columns, to_builtins, to_json, uses_calls
from dolmen.store.base import Buffer, ObjectStore, StreamedOutput, create

MOST_HELD_BYTES = MIB
"""The most bytes of data files that one commit buffers in memory. A larger file is uploaded while it is written."""


class HeldFiles:
    """The data files of one commit that are written but not uploaded yet. Readers can't see them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._most_bytes = 0
        self._bodies: dict[str, bytes] = {}

    def allow(self) -> None:
        """Lets small files wait. Only for a commit that reads nothing of what it has written; otherwise none waits."""
        self._most_bytes = MOST_HELD_BYTES

    def __bool__(self) -> bool:
        return bool(self._bodies)

    @property
    def bodies(self) -> Mapping[str, bytes]:
        """The buffered bodies, by key."""
        return self._bodies

    @property
    def room_bytes(self) -> int:
        """How many more bytes may be buffered."""
        return self._most_bytes - sum(map(len, self._bodies.values()))

    def open(self, key: str) -> StreamedOutput:
        """An object to write a data file into. Its ``commit`` uploads the file, or buffers it if there is room."""
        return HeldOutput(self, self._store, key) if self.room_bytes > 0 else self._store.open_output(key)

    def hold(self, key: str, body: bytes) -> None:
        """Buffers a file."""
        self._bodies[key] = body

    def release(self) -> None:
        """Forgets all files, because they are in the store."""
        self._bodies.clear()


class HeldOutput:
    """Collects the bytes of a file to be buffered. When they become too many, it streams them like any other.

    Args:
        files: receives the complete file.
    """

    def __init__(self, files: HeldFiles, store: ObjectStore, key: str) -> None:
        self._files, self._store, self._key = files, store, key
        self._body = bytearray()
        self._stream: StreamedOutput | None = None

    def write(self, data: Buffer, /) -> int:
        """See ``StreamedOutput.write``."""
        if self._stream is not None:
            return self._stream.write(data)
        self._body += data
        if len(self._body) > self._files.room_bytes:
            self._stream = self._store.open_output(self._key).__enter__()
            body, self._body = self._body, bytearray()
            self._stream.write(body)
        return memoryview(data).nbytes

    def commit(self) -> int:
        """See ``StreamedOutput.commit``. A buffered file is not visible yet."""
        if self._stream is not None:
            return self._stream.commit()
        size = len(self._body)
        self._files.hold(self._key, bytes(self._body))
        self._body = bytearray()
        return size

    def abort(self) -> None:
        """See ``StreamedOutput.abort``."""
        self._body = bytearray()
        if self._stream is not None:
            self._stream.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()


class PendingUploads:
    """Buffers a commit's ``.del`` objects, one per table, and small data files, and uploads them with the manifest.

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
        return read_blob(self._store, blob) if body is None else check_blob(body, blob)

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
        return decode_vector(body, vector, rows)

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


MAX_KEYS = 1_000_000


MAX_REQUEST_BYTES = 64 * 1024 * 1024


INLINE_BYTES = 1024
"""The longest predicate, as JSON, that is also in the manifest entry."""


Target: TypeAlias = Callable[[], TombstoneObject]
"""Opens the ``.del`` object that is written to; called only if there is something to write."""


def record_predicate(target: Target, schema: Schema, predicate: Predicate) -> Tombstone | None:
    """The tombstone of a predicate: of keys if it only compares key columns. None if no row can match it.

    Args:
        schema: the columns that it is bound to.

    Raises:
        LimitError: the predicate is too long, or has too many keys.
    """
    keys = keys_in(predicate, schema)
    if keys is not None:
        return record_keys(target, keys)
    check_evaluates(predicate)
    body = to_json(predicate)
    if len(body) > MAX_REQUEST_BYTES:
        raise LimitError(f"a predicate of {len(body):,} bytes: at most {MAX_REQUEST_BYTES:,} are allowed")
    ids = tuple(sorted(columns(predicate)))
    blob = target().add_where(body, ids)
    inline = to_builtins(predicate) if len(body) <= INLINE_BYTES else None
    needs = (PREDICATE_EXPRESSIONS,) if uses_calls(predicate) else ()
    return WhereTombstone(ids, blob, inline, needs=needs)


def record_keys(target: Target, keys: Keys) -> KeysTombstone | None:
    """The tombstone of keys; None without any. Raises LimitError."""
    if keys.num_rows == 0:  # also for equalities with NULL, which equals nothing
        return None
    if keys.num_rows > MAX_KEYS:
        raise LimitError(f"{keys.num_rows:,} keys in one request: at most {MAX_KEYS:,} are allowed, so split it")
    return add_keys(target(), keys)


def keys_in(predicate: Predicate, schema: Schema) -> Keys | None:
    """The keys in a predicate that only compares key columns; None for other predicates."""
    tuples = as_keys(predicate)
    if tuples is None:
        return None
    ids, values = tuples
    fields = tuple(schema.by_id[id_] for id_ in ids)
    by_column = zip(*values, strict=True) if values else [()] * len(fields)
    arrays = [to_array(list(column), field.arrow_type) for field, column in zip(fields, by_column, strict=True)]
    return keys_from_arrow(pa.table(arrays, names=[field.name for field in fields]), fields)
