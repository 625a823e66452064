"""Makes stores of every kind, and helpers for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dolmen.base.runtime import Runtime
from dolmen.store import LocalStore, MemoryBucket, MemoryStore, ObjectStore, open_store
from dolmen.store.base import Stored

T = TypeVar("T")

RUNTIME = Runtime()  # one for all, so that connections are shared

#: "s3" is ministack; both servers speak HTTP.
KINDS = ("memory", "local", "s3", "minio")

#: Small enough for tests, as large as S3 wants parts to be.
PART_BYTES = 5 << 20


def make_store(kind: str, directory: Path, url: Callable[[str], str], runtime: Runtime | None = None) -> ObjectStore:
    """Makes an empty store of this kind;  ``url("s3")`` and ``url("minio")`` are asked for a place on these servers.

    Uploads to S3 turn into multipart above 6 MB, so that tests need not be large.
    """
    if kind == "memory":
        return MemoryStore(MemoryBucket(), runtime)
    if kind == "local":
        return LocalStore(directory / "a store", runtime)
    from dolmen.store.s3.bucket_store import S3Store

    bucket, _, prefix = url(kind).removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix, runtime=runtime or RUNTIME, threshold_bytes=6 << 20, part_bytes=PART_BYTES)


def reopen(store: ObjectStore, runtime: Runtime | None = None) -> ObjectStore:
    """Opens another client of the same store."""
    if isinstance(store, MemoryStore):
        return MemoryStore(store.bucket, runtime)
    return open_store(store.url, runtime)


def put(store: ObjectStore, key: str, body: bytes = b"x") -> str:
    """Creates an object that must not exist; returns its ETag."""
    outcome = store.put(key, body)
    assert isinstance(outcome, Stored), outcome
    return outcome.etag


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [found.key for found in store.list(prefix, start_after)]


def run_in_threads(function: Callable[[int], T], count: int) -> list[T]:
    """Calls ``function(0)`` to ``function(count - 1)`` in threads of their own; returns or raises what they do."""
    with ThreadPoolExecutor(count) as pool:
        return [call.result() for call in [pool.submit(function, number) for number in range(count)]]


class Naps:
    """A ``sleep`` that records the duration and returns at once."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
