"""The Protocol of an object store, what only some stores can do, their clock, and the schemes of their URLs.

``SCHEMES`` has an entry for each kind of store, from which all other code reads how its URLs and ETags are written, how
Spark reaches it, and whether it may keep older versions of objects. ``dolmen.store.open_store`` opens stores.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable
from urllib.parse import unquote

from msgspec import Struct

from dolmen.base.runtime import Instant, Runtime, attempts
from dolmen.base.units import MIB, SECOND_US
from dolmen.errors import CorruptionError, InputError, ObjectNotFoundError, StoreUnavailableError

Buffer: TypeAlias = bytes | bytearray | memoryview

Identity: TypeAlias = tuple[Hashable, ...]  # see ``ObjectStore.identity``

ByteRange: TypeAlias = tuple[int, int]  # the first byte, and the end, which is exclusive


class Object(Struct, frozen=True):
    """An object's bytes (or a range of them) and the ETag of the whole."""

    body: bytes
    etag: str


class ObjectInfo(Struct, frozen=True):
    """The attributes of an object, from a listing or a HEAD. ``last_modified_us`` is by the server's clock."""

    key: str
    size: int
    etag: str
    last_modified_us: int


class Stored(Struct, frozen=True):
    """The conditional put landed: this body is the object's content now."""

    etag: str


class PreconditionFailed(Struct, frozen=True):
    """The conditional put was refused by its condition: THIS request changed nothing.

    An earlier request for the same key may have landed, and be the reason for the refusal.
    """


class Unknown(Struct, frozen=True):
    """There was no conclusive response: the put may have landed, may land later, or never."""

    reason: str


PutOutcome: TypeAlias = Stored | PreconditionFailed | Unknown


class Deleted(Struct, frozen=True):
    """One key's outcome of a delete; ``error`` is None when the object is deleted (or never existed)."""

    key: str
    error: str | None = None


_LONGEST_SECONDS = 30.0  # the most uncertainty of the server's time that a slow response adds


class DatedResponse(NamedTuple):
    """The server's time according to one response."""

    date_us: int
    arrived: Instant | None  # the time of its arrival; None if unknown
    uncertainty_us: int = 0  # how much later than ``date_us`` the server's clock may have been at the arrival


@dataclass(slots=True)
class ServerClock:
    """The store's own clock, as last seen in a response.

    Every store feeds it with the ``Date`` of each response, errors included. Threads may feed and read it at once.
    """

    runtime: Runtime
    _last: DatedResponse = field(default=DatedResponse(0, None), repr=False)

    @property
    def last(self) -> DatedResponse:
        """The last response."""
        return self._last

    def observe(self, date_us: int, *, uncertainty_us: int = 0, sent: Instant | None = None) -> None:
        """Records the ``Date`` of a response that has just arrived.

        Args:
            uncertainty_us: the resolution of ``date_us``: ``Date`` has whole seconds.
            sent: when the request was sent; None if the response came at once.
        """
        took_seconds = 0.0 if sent is None else self.runtime.elapsed(sent)
        arrived = None
        if took_seconds < float("inf"):  # else the machine was frozen meanwhile, and the response may be old
            arrived = self.runtime.instant()
            uncertainty_us += round(min(took_seconds, _LONGEST_SECONDS) * SECOND_US)
        self._last = DatedResponse(date_us, arrived, uncertainty_us)

    def reading(self) -> tuple[int, float]:
        """The last ``Date`` in microseconds, and its age in seconds; infinite if unknown."""
        last = self.last
        return last.date_us, float("inf") if last.arrived is None else self.runtime.elapsed(last.arrived)

    def estimate(self) -> int | None:
        """This machine's time, moved into the bounds of the last ``Date``; None if the age of ``Date`` is unknown."""
        last = self.last
        least_us = self._least_us(last)
        if least_us is None:
            return None
        return min(max(self.runtime.clock_us(), least_us), least_us + last.uncertainty_us)

    @property
    def least_us(self) -> int | None:
        """A lower bound of the server's time now; None if the age of the last ``Date`` is unknown."""
        return self._least_us(self.last)

    @property
    def now_us(self) -> int:
        """The last ``Date`` as received, in microseconds since the epoch; 0 before the first. It is in the past."""
        return self.last.date_us

    @property
    def current_us(self) -> int:
        """The best estimate of the server's time now without a request."""
        estimate_us = self.estimate()
        return self.now_us if estimate_us is None else estimate_us

    @property
    def age_seconds(self) -> float:
        """Seconds since the last response; infinite if unknown."""
        return self.reading()[1]

    def _least_us(self, last: DatedResponse) -> int | None:
        age_seconds = float("inf") if last.arrived is None else self.runtime.elapsed(last.arrived)
        return None if age_seconds == float("inf") else last.date_us + int(age_seconds * SECOND_US)


class StreamedOutput(Protocol):
    """A streamed upload. Nothing is visible before ``commit``, or without it.

    The key must be a name that no other writer uses (a fresh uuid): after an unclear response, the object is read.
    Use it from one thread at a time, best as ``with store.open_output(key) as output``: leaving the block aborts an
    upload that was not committed.
    """

    def write(self, data: Buffer, /) -> int:
        """Appends ``data``; returns its number of bytes."""

    def commit(self) -> int:
        """Makes the object visible, created with If-None-Match: *; returns its size in bytes.

        Raises:
            StoreUnavailableError: it could not be uploaded; at worst an orphan is left.
            CorruptionError: another object has this key.
        """

    def abort(self) -> None:
        """Gives the upload up. Safe to call at any time, also after ``commit`` (then it does nothing)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()


class ObjectOutput(StreamedOutput, Protocol):
    """A streamed upload to a store, into which parts of other objects can be copied."""

    def copy(self, key: str, byte_range: ByteRange, etag: str) -> int:
        """Appends ``byte_range`` = (first, end) of another object of this store, end exclusive.

        The server copies the bytes if it can; otherwise they are read and written. They are not checked. ``etag``: copy
        only as long as the object has this ETag.

        Returns:
            the number of bytes.

        Raises:
            ObjectNotFoundError: no such object; perhaps only from a later ``write``, ``copy`` or ``commit``.
            ObjectChangedError: the ETag differs; perhaps only from a later call, too.
            InputError: the range is not valid, or goes beyond the object's end.
        """


class ObjectStore(Protocol):
    """A flat space of keys under one root, strongly consistent, with conditional puts.

    Keys are relative to the root and use ``/``. Methods are safe to call from several threads. Reads that fail
    temporarily are retried internally, and then raise ``StoreUnavailableError``; denied access raises
    ``AccessDeniedError``; only ``put`` has an unknown outcome.
    """

    @property
    def url(self) -> str:
        """The URL of this store's root, as ``open_store`` takes it."""

    @property
    def identity(self) -> Identity:
        """Equal for two stores only if both read the same objects, at the same endpoint, with the same account.

        It has no secrets, and consists of texts if other processes have the same.
        """

    @property
    def clock(self) -> ServerClock:
        """The server's clock as of the last response."""

    def get(
        self, key: str, byte_range: ByteRange | None = None, *, etag: str | None = None, version: str | None = None
    ) -> Object:
        """Reads an object, or ``byte_range`` = (first, end) of it, end exclusive.

        A range that reaches past the end comes back shorter, or empty. Raises ObjectNotFoundError: no such object (or
        version); ObjectChangedError: the ETag differs.

        Args:
            etag: read only if the object still has this ETag.
            version: the id of an older version, on stores that keep them.
        """

    def head(self, key: str, *, version: str | None = None) -> ObjectInfo:
        """Size and ETag of an object. Raises ObjectNotFoundError."""

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        """Creates the object if the key is free (If-None-Match: *), or replaces exactly the one with ETag ``if_match``.

        A response that proves that nothing landed (409, refused connection) is retried internally, then raised as
        StoreUnavailableError. A put with an unknown outcome is returned as such, and not repeated: the caller decides.
        ``if_match`` on an absent key is PreconditionFailed.
        """

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with ``prefix`` and is greater than ``start_after``, in key order."""

    def delete(self, keys: Sequence[str]) -> Sequence[Deleted]:
        """Removes objects; each key has an outcome, in the same order. Absent keys count as deleted."""

    def open_input(self, key: str, *, etag: str | None = None, version: str | None = None) -> BinaryIO:
        """A seekable binary file over the object, read in large ranges and pinned to one ETag.

        Raises as ``get`` does, also later, from ``read``: bytes of two objects are never mixed.
        """

    def open_output(self, key: str) -> ObjectOutput:
        """A streamed upload in bounded memory: on S3 one put or, of large objects, parts (``Runtime.few_requests``)."""

    def local_path(self, key: str) -> str | None:
        """The object's path, to map it into memory, if objects are local files. The object may not exist."""

    def sibling(self, root: str) -> ObjectStore:
        """A store of the same kind with another root, over the same connection.

        ``root``: the bucket on S3, or the name of a store in memory; "" for directories: the machine's root.
        """


@runtime_checkable
class TaggingStore(Protocol):
    """A store whose objects have tags."""

    def tags(self, key: str, *, version: str | None = None) -> dict[str, str]:
        """An object's tags. Raises ObjectNotFoundError."""

    def set_tags(self, key: str, tags: Mapping[str, str], *, version: str | None = None) -> None:
        """Replaces ALL tags of an object, unconditionally."""


@runtime_checkable
class VersionedStore(Protocol):
    """A store that lists the versions of objects, where the server keeps them."""

    def newest_versions(self, prefix: str, start_after: str = "") -> Iterator[tuple[ObjectInfo, str | None]]:
        """Objects in key order, each with the id of its newest version, which notifications contain.

        Deleted objects are left out, as ``list`` does. The id is None for an object without one. Raises
        AccessDeniedError: the permission to list versions is missing.
        """

    def all_versions(self, prefix: str) -> Iterator[tuple[ObjectInfo, bool]]:
        """All versions that the server keeps; True for the newest version of an object that is not deleted.

        Raises AccessDeniedError: permission to list versions is missing; InputError: the server does not list versions.
        """


@runtime_checkable
class MultipartStore(Protocol):
    """A store that uploads large objects in parts."""

    def with_parts(self, threshold_bytes: int, part_bytes: int) -> ObjectStore:
        """The same store, with parts of this size for objects above the threshold."""

    def begin_and_abort(self, key: str) -> None:
        """Begins an upload and gives it up, to try whether that is allowed."""

    def abort_uploads(self) -> None:
        """Gives up all unfinished uploads below the store's root."""


@runtime_checkable
class MatchingDeleteStore(Protocol):
    """A store that deletes an object only if it has not been replaced."""

    def delete_if_match(self, key: str, etag: str) -> None:
        """Deletes an object if it still has this ETag. A repeated call finishes what a crash has interrupted."""


TEMPORARY = ".dolmen-tmp"  # directory of unfinished files under a LocalStore's root; keys and listings never contain it
MAX_KEY_BYTES = 1024
"""S3 takes keys up to this many bytes of UTF-8 (docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html)."""


def check_key(key: str) -> str:
    """Returns ``key`` if every store can hold it, else raises InputError.

    A landing bucket may have other keys (``a//b``), which S3Store reads, lists and deletes. A directory cannot, so
    LocalStore checks every key.
    """
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts:
        raise InputError(
            f"key {key!r}: parts between '/' may not be empty, '.' or '..', and it may not start or end with '/'"
        )
    if "\\" in key or "\0" in key:
        raise InputError(f"key {key!r}: a key may not contain a backslash or a NUL")
    if TEMPORARY in parts:
        raise InputError(f"key {key!r}: {TEMPORARY!r} is reserved for unfinished files")
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise InputError(f"key {key[:40]!r}... is longer than {MAX_KEY_BYTES} bytes")
    return key


def create(store: ObjectStore, key: str, body: Buffer, runtime: Runtime) -> None:
    """Creates an object under a name that no other writer uses (a fresh uuid), even if responses are lost.

    For such a name an unknown outcome is harmless: it sends the same bytes again. A refusal means that an earlier
    attempt landed, which it confirms by reading the object. A failure leaves at most an orphan. Raises
    StoreUnavailableError: no attempt is known to have landed; CorruptionError: another object has this key.
    """
    reason = ""
    for _ in attempts(runtime):
        match store.put(key, body):
            case Stored():
                return
            case Unknown(reason):
                continue
            case PreconditionFailed():
                try:
                    content = store.get(key).body
                except ObjectNotFoundError:
                    reason = "it is refused as existing, and then cannot be found"
                    continue
                if content == body:
                    return
                raise CorruptionError(key, "another object has this name, which should be this writer's own")
    raise StoreUnavailableError(f"cannot create {key!r} in {store.url}: {reason}")


READ_BYTES = 8 * MIB  # how much one request reads


def folders(store: ObjectStore, prefix: str) -> Iterator[str]:
    """Yields the names of the folders below a prefix (``.../``) that have objects: a request for each."""
    last = ""
    while (first := next(iter(store.list(prefix, last)), None)) is not None:
        name, slash, _ = first.key[len(prefix) :].partition("/")
        if slash:
            yield name
        last = f"{prefix}{name}0" if slash else first.key  # 0 is the character after the slash


def check_range(key: str, byte_range: ByteRange) -> tuple[int, int]:
    """Returns a valid range. Raises InputError."""
    first, end = byte_range
    if not 0 <= first <= end:
        raise InputError(f"range [{first}, {end}) of {key!r}")
    return first, end


def beyond_end(key: str, end: int) -> InputError:
    """The error for a range that goes beyond its object's end."""
    return InputError(f"{key!r} ends before byte {end}: it cannot be copied up to there")


def read_range(store: ObjectStore, key: str, byte_range: ByteRange, etag: str) -> Iterator[bytes]:
    """The bytes of a range, piece by piece. Raises as ``ObjectOutput.copy`` does."""
    first, end = byte_range
    for start in range(first, end, READ_BYTES):
        stop = min(end, start + READ_BYTES)
        body = store.get(key, (start, stop), etag=etag).body
        if len(body) != stop - start:
            raise beyond_end(key, end)
        yield body


class Scheme(Struct, frozen=True):
    """One kind of store."""

    name: str  # the part of a URL before ``://``
    form: str  # the URL, as messages show it
    is_shared: bool = True  # whether other processes open the same store by its URL
    is_remote: bool = False  # whether requests cross a network, so that a cache on disk helps
    is_quoted: bool = False  # whether the path in a URL is percent-encoded
    has_buckets: bool = False  # whether a URL is ``name://bucket/key``
    # whether it writes ETags in quotes, as HTTP does. Notifications leave the quotes out.
    has_quoted_etags: bool = True
    may_keep_versions: bool = False  # whether its server may keep older versions of objects
    # the scheme by which Hadoop, and so Spark's own readers, know such stores; None if they do not
    hadoop: str | None = None
    hadoop_class: str | None = None  # the class that Hadoop needs for it, if that is not part of Spark
    hadoop_package: str | None = None  # the package that has this class
    instead_of: tuple[str, ...] = ()  # schemes of other programs for the same stores, which errors translate

    def bucket_url(self, bucket: str) -> str:
        return f"{self.name}://{bucket}"

    def is_bucket(self, name: str) -> bool:
        """Whether a bucket can have this name. Only schemes with buckets restrict it."""
        return not self.has_buckets or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}", name) is not None


S3 = Scheme(
    "s3",
    "s3://bucket/prefix",
    is_remote=True,
    has_buckets=True,
    may_keep_versions=True,
    hadoop="s3a",
    hadoop_class="org.apache.hadoop.fs.s3a.S3AFileSystem",
    hadoop_package="hadoop-aws",
    instead_of=("s3a", "s3n"),
)

FILE = Scheme("file", "file:///directory", hadoop="file", is_quoted=True, has_quoted_etags=False)
MEMORY = Scheme("memory", "memory://name", is_shared=False)
SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (S3, FILE, MEMORY)}


def scheme_of(url: str) -> Scheme | None:
    """The scheme of a URL; None for a plain path, or an unknown scheme."""
    name, separator, _ = url.partition("://")
    return SCHEMES.get(name) if separator else None


@lru_cache(maxsize=64)
def unquoted_url(url: str) -> str:
    """The URL of a store without percent-encoding, as Hadoop and readers of Iceberg take it."""
    scheme = scheme_of(url)
    return unquote(url) if scheme is not None and scheme.is_quoted else url


def own_name(scheme: str) -> str:
    """The name of a scheme in dolmen, if this is another program's name for it: ``s3`` for ``s3a``."""
    return next((own.name for own in SCHEMES.values() if scheme in own.instead_of), scheme)


def split_object_url(url: str) -> tuple[str, str] | None:
    """The URL of the bucket and the key of an object ``scheme://bucket/key``; None for a URL without a bucket.

    Raises InputError: it names a bucket, but no object in it.
    """
    scheme = scheme_of(url)
    if scheme is None or not scheme.has_buckets:
        return None
    bucket, _, key = url.partition("://")[2].partition("/")
    if not key or key.endswith("/"):
        raise InputError(f"{url!r} names no object: write {scheme.name}://bucket/key")
    return scheme.bucket_url(bucket), key
