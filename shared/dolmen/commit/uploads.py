"""The objects that a commit uploads, such as tombstones; and intents, which announce larger uploads.

An intent is an object that says which objects a long job is writing before it commits them. It protects nothing: the
fence in the manifest decides which commits may still land. It lets collection find the objects of a dead job at once
instead of days later. A job names its objects ``<txid>-<uuid>``, and writes a new heartbeat ``intent/<txid>/<n>.json``
from time to time. A txid belongs to one attempt of one job, and is never used again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Self, TypeAlias

import msgspec
import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB
from dolmen.entries.segments.segment_reader import SegmentReader, fetch_deletes, read_blob
from dolmen.errors import Error, LimitError
from dolmen.format.del_object import (
    INLINE_BYTES,
    Keys,
    TombstoneObject,
    add_keys,
    check_blob,
    decode_vector,
    keys_from_arrow,
    read_footer,
)
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Tombstone, Vector, WhereTombstone
from dolmen.format.layout import FORMAT_VERSION, build_decoders, decode_sealed, seal, tombstone_key
from dolmen.format.manifest import (
    PREDICATE_EXPRESSIONS,
    PREDICATE_FIELDS,
    PREDICATE_FUNCTIONS,
    PREDICATE_LISTS,
    Segment,
)
from dolmen.format.schema import Schema
from dolmen.format.types import to_array
from dolmen.predicate.ast import Predicate, columns, functions, listed_tuples, to_builtins, to_json, uses_fields
from dolmen.predicate.domains import NEWER_FUNCTIONS
from dolmen.predicate.evaluate import check_evaluates
from dolmen.store.base import Buffer, ObjectStore, StreamedOutput, create

MOST_BUFFERED_BYTES = MIB
"""The most bytes of data files that one commit buffers in memory. A larger file is uploaded while it is written."""


class BufferedFiles:
    """The data files of one commit that are written but not uploaded yet. Readers can't see them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._most_bytes = 0
        self.bodies: dict[str, bytes] = {}
        """The buffered bodies, by key."""

    def buffer_small_files(self) -> None:
        """From now on, buffers small files until the commit. Only for a commit that does not read its own writes."""
        self._most_bytes = MOST_BUFFERED_BYTES

    def __bool__(self) -> bool:
        return bool(self.bodies)

    @property
    def room_bytes(self) -> int:
        return self._most_bytes - sum(map(len, self.bodies.values()))

    def open(self, key: str) -> StreamedOutput:
        """An object to write a data file into. Its ``commit`` uploads the file, or buffers it if there is room."""
        return _BufferedOutput(self, self._store, key) if self.room_bytes > 0 else self._store.open_output(key)

    def release(self) -> None:
        self.bodies.clear()


class _BufferedOutput:
    """A ``StreamedOutput`` that buffers a file for its commit, or streams it like any other when it is too large."""

    def __init__(self, files: BufferedFiles, store: ObjectStore, key: str) -> None:
        self._files, self._store, self._key = files, store, key
        self._body = bytearray()
        self._stream: StreamedOutput | None = None

    def write(self, data: Buffer, /) -> int:
        if self._stream is not None:
            return self._stream.write(data)
        self._body += data
        if len(self._body) > self._files.room_bytes:
            self._stream = self._store.open_output(self._key).__enter__()
            body, self._body = self._body, bytearray()
            self._stream.write(body)
        return memoryview(data).nbytes

    def commit(self) -> int:
        if self._stream is not None:
            return self._stream.commit()
        body, self._body = bytes(self._body), bytearray()
        self._files.bodies[self._key] = body
        return len(body)

    def abort(self) -> None:
        self._body = bytearray()
        if self._stream is not None:
            self._stream.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()


class PendingUploads:
    """Buffers a commit's ``.del`` objects, one per table, and small data files, and uploads them with the manifest."""

    def __init__(self, store: ObjectStore, runtime: Runtime, segments: SegmentReader) -> None:
        self._store, self._runtime, self.segments = store, runtime, segments
        self._open: dict[str, TombstoneObject] = {}
        self._uploaded: dict[str, bytes] = {}
        self.files = BufferedFiles(store)
        self.earlier: Sequence[PendingUploads] = ()
        """The uploads of earlier changes of the same version, which may still wait."""

    def tombstone_object(self, table: str, uuid: str) -> TombstoneObject:
        """The ``.del`` object for deletes of a table (uuid "": of several); another one after each upload."""
        if uuid not in self._open:
            key = tombstone_key(table, self._store.clock.now_us, self._runtime.uuid())
            self._open[uuid] = TombstoneObject(key, uuid)
        return self._open[uuid]

    def read_blob(self, blob: Blob) -> bytes:
        """Reads a blob that this commit made, or that is in the store. Raises CorruptionError."""
        body = self.read(blob.object, blob.offset, blob.length)
        return read_blob(self._store, blob) if body is None else check_blob(body, blob)

    def read(self, key: str, offset: int, length: int) -> bytes | None:
        """Reads a range of an object that this commit made, for a transaction that reads its writes; otherwise None."""
        found = (body for uploads in (self, *self.earlier) if (body := uploads._own_body(key)) is not None)
        body = next(found, None)
        return None if body is None else body[offset : offset + length]

    def _own_body(self, key: str) -> bytes | None:
        if (body := self._uploaded.get(key)) is not None:
            return body
        return next((each.encode() for each in self._open.values() if each.key == key), None)

    def read_vector(self, vector: Vector, rows: int) -> BitMap:
        """Reads a deletion vector that this commit made, or that is in the store. Raises CorruptionError."""
        body = self.read(vector.object, vector.offset, vector.length)
        if body is None:
            body = fetch_deletes(self._store, vector.object, vector.offset, vector.offset + vector.length)
        return decode_vector(body, vector, rows)

    def merge_positions(self, file: DataFile, positions: BitMap) -> BitMap:
        """Positions together with those that the file's vector has already. Raises CorruptionError."""
        return positions | self.read_vector(file.vector, file.rows) if file.vector else positions

    @property
    def has_objects(self) -> bool:
        """Whether ``.del`` objects or data files wait to be uploaded."""
        return bool(self._open or self.files)

    def upload(
        self, others: Sequence[PendingUploads], spill: tuple[Segment, bytes] | None, manifest_key: str, manifest: bytes
    ) -> None:
        """Uploads the manifest, a spilled segment and all waiting objects, with those of ``others`` in the version.

        They go up at the same time, and are all stored when this returns.
        """
        together = (self, *others)
        bodies = {key: body for uploads in together for key, body in uploads._take_objects().items()}
        for uploads in together:
            bodies |= uploads.files.bodies
        if spill is not None:
            bodies[spill[0].object] = spill[1]
        self._create([*bodies.items(), (manifest_key, manifest)])
        for uploads in together:
            uploads.files.release()
        if spill is not None:
            self.segments.keep(*spill)

    def upload_files(self) -> None:
        """Uploads the data files that wait, without a manifest. After an error they still wait."""
        self._create(self.files.bodies.items())
        self.files.release()

    def _create(self, items: Iterable[tuple[str, bytes]]) -> None:
        def put(item: tuple[str, bytes]) -> None:
            create(self._store, item[0], item[1], self._runtime)

        for _ in self._runtime.map(put, items):
            pass

    def _take_objects(self) -> dict[str, bytes]:
        bodies = {each.key: each.encode() for each in self._open.values()}
        for key, body in bodies.items():
            read_footer(body, key)
        self._uploaded |= bodies
        self._open.clear()
        return bodies


MAX_KEYS = 1_000_000
MAX_REQUEST_BYTES = 64 * MIB

OpenTombstoneObject: TypeAlias = Callable[[], TombstoneObject]
"""Opens the ``.del`` object to write into; called only if there is something to write."""


def record_predicate(open_object: OpenTombstoneObject, schema: Schema, predicate: Predicate) -> Tombstone | None:
    """Makes a tombstone: by keys if the bound predicate lists keys only; None if none can match. Raises LimitError."""
    keys = keys_in(predicate, schema)
    if keys is not None:
        return record_keys(open_object, keys)
    check_evaluates(predicate)
    body = to_json(predicate)
    if len(body) > MAX_REQUEST_BYTES:
        raise LimitError(f"a predicate of {len(body):,} bytes: at most {MAX_REQUEST_BYTES:,} are allowed")
    ids = tuple(sorted(columns(predicate)))
    blob = open_object().add_where(body, ids)
    inline = to_builtins(predicate) if len(body) <= INLINE_BYTES else None
    return WhereTombstone(ids, blob, inline, needs=needed_features(predicate))


def needed_features(predicate: Predicate) -> tuple[str, ...]:
    """The features of the format that a reader of a stored predicate must know."""
    called = functions(predicate)
    uses = {
        PREDICATE_EXPRESSIONS: bool(called),
        PREDICATE_FIELDS: uses_fields(predicate),
        PREDICATE_FUNCTIONS: bool(called & NEWER_FUNCTIONS),
        PREDICATE_LISTS: "list_contains" in called,
    }
    return tuple(feature for feature, is_used in uses.items() if is_used)


def record_keys(open_object: OpenTombstoneObject, keys: Keys) -> KeysTombstone | None:
    """Makes a tombstone of keys; None without any. Raises LimitError."""
    if keys.num_rows == 0:  # as for ``id = NULL``, which no row matches
        return None
    check_key_count(keys.num_rows)
    return add_keys(open_object(), keys)


def check_key_count(count: int) -> None:
    """Raises LimitError for more keys than one request may have."""
    if count > MAX_KEYS:
        raise LimitError(f"{count:,} keys in one request: at most {MAX_KEYS:,} are allowed, so split it")


def keys_in(predicate: Predicate, schema: Schema) -> Keys | None:
    """The keys in a predicate that only lists keys; None for other predicates."""
    tuples = listed_tuples(predicate)
    if tuples is None:
        return None
    ids, values = tuples
    fields = tuple(schema.by_id[id_] for id_ in ids)
    by_column = zip(*values, strict=True) if values else [()] * len(fields)
    arrays = [to_array(list(column), field.arrow_type) for field, column in zip(fields, by_column, strict=True)]
    return keys_from_arrow(pa.table(arrays, names=[field.name for field in fields]), fields)


INTENT_PREFIX = "intent/"
BEAT_SECONDS = 600.0  # seconds after which the next heartbeat is due. Collection waits for several times as long.

_INTENT_KEY = re.compile(r"intent/([0-9a-f]{32})/(\d+\.json|done)")


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of an intent's object."""

    format_version: int
    txid: str  # 32 hexadecimal digits; the names of the job's objects begin with them
    n: int  # 0 for the first heartbeat
    what: str  # a description of the job, for people
    tables: tuple[str, ...] = ()  # the names of the tables under whose prefixes the job writes; empty for any
    # started_us, now_us: the server's clock before the job's first object (0 if unknown), and before this heartbeat
    started_us: int = 0
    now_us: int = 0

    def encode(self) -> bytes:
        return seal(msgspec.json.encode(self))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Heartbeat:
        """Reads a heartbeat. Raises CorruptionError, or UnsupportedFormatError when a newer dolmen wrote it."""
        return decode_sealed(body, key, cls, "not a heartbeat")


def parse_intent_key(key: str) -> tuple[str, bool] | None:
    """(txid, whether it is the ``done`` object) from the key of an intent's object; None for other keys."""
    match = _INTENT_KEY.fullmatch(key)
    return (match[1], match[2] == "done") if match else None


class Intent:
    """The intent of one attempt of one job, which protects nothing: see the module. ``begin`` makes it."""

    def __init__(self, store: ObjectStore, runtime: Runtime, what: str, tables: Iterable[str] = ()) -> None:
        self._store, self._runtime, self._what = store, runtime, what
        self._tables = tuple(sorted(set(tables)))
        self.txid = runtime.uuid()
        self._started_us = store.clock.now_us
        self._beats, self._last_beat = 0, 0.0

    @classmethod
    def begin(cls, store: ObjectStore, runtime: Runtime, what: str, tables: Iterable[str] = ()) -> Intent:
        """Announces an intent with its first heartbeat, before any object is named after it. See ``Heartbeat``."""
        intent = cls(store, runtime, what, tables)
        intent._put_heartbeat()
        return intent

    def name(self) -> str:
        """A fresh name ``<txid>-<uuid>`` for one of the job's objects, without directory and suffix."""
        return f"{self.txid}-{self._runtime.uuid()}"

    def beat(self) -> None:
        """Writes another heartbeat if the last one is 10 minutes old. Call it between files and runs."""
        if self._runtime.monotonic() - self._last_beat >= BEAT_SECONDS:
            self._put_heartbeat()

    def finish(self) -> None:
        """Records that the job's commit has landed, so that collection does not take the job for dead.

        Call it only after a commit that is known to have landed; otherwise collection needs the intent to find the
        job's objects. Errors of the store are ignored: in time the txid is revoked, which does no harm.
        """
        with suppress(Error):
            self._put("done")

    def _put_heartbeat(self) -> None:
        self._put(f"{self._beats}.json")
        self._beats += 1
        self._last_beat = self._runtime.monotonic()

    def _put(self, name: str) -> None:
        create(self._store, f"{INTENT_PREFIX}{self.txid}/{name}", self._heartbeat().encode(), self._runtime)

    def _heartbeat(self) -> Heartbeat:
        now_us = self._store.clock.now_us
        return Heartbeat(FORMAT_VERSION, self.txid, self._beats, self._what, self._tables, self._started_us, now_us)


class LateIntent:
    """Names for a stream of files that is mostly one file: the intent begins with the second, to save two requests."""

    def __init__(self, runtime: Runtime, begin: Callable[[], Intent]) -> None:
        self._runtime, self._begin = runtime, begin
        self._has_first = False
        self._intent: Intent | None = None

    def name(self) -> str:
        """A uuid for the first file, then names under the intent."""
        if not self._has_first:
            self._has_first = True
            return self._runtime.uuid()
        self._intent = self._intent or self._begin()
        return self._intent.name()

    def beat(self) -> None:
        if self._intent:
            self._intent.beat()


build_decoders(Heartbeat)
