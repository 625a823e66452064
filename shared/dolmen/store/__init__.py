"""Object stores: one small Protocol, with S3, directories and memory behind it. It knows nothing of tables.

A conditional put has three outcomes: stored, refused, or unknown.
It imports only ``dolmen.errors`` and ``dolmen.base``. Only ``dolmen.store.s3`` may import botocore.
Begin with ``dolmen.store.base``; ``dolmen.store.memory`` is the shortest implementation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import BinaryIO
from urllib.parse import unquote

from dolmen.base import arguments
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import InputError, ObjectNotFoundError, short_repr
from dolmen.store.base import FILE, MEMORY, S3, SCHEMES, ObjectStore, own_name, scheme_of, split_object_url
from dolmen.store.local_store import LocalStore
from dolmen.store.memory import MemoryBucket, MemoryStore, shared_bucket
from dolmen.store.s3 import needing_boto3

__all__ = ["LocalStore", "MemoryBucket", "MemoryStore", "ObjectStore", "open_store"]

_FORMS = f"use {S3.form}, {FILE.form}, a plain path, or {MEMORY.form}"


def open_store(
    url: str | os.PathLike[str], runtime: Runtime | None = None, storage_options: Mapping[str, str] | None = None
) -> ObjectStore:
    """Opens the store that ``url`` names. Creates nothing and sends no request.

    Args:
        url: ``s3://bucket/prefix``, ``file:///directory``, a plain path (relative or with ``~`` too), or
            ``memory://name``, which is the same bucket for the whole process.
        runtime: shared by stores opened without one.
        storage_options: for S3, settings instead of the process's AWS configuration.

    Raises:
        InputError: the URL is not one of these, or an option is wrong.
    """
    runtime = runtime or shared_runtime()
    text = arguments.text("url", os.fspath(url) if isinstance(url, os.PathLike) else url)
    if "\0" in text:
        raise InputError(f"url={short_repr(text)} has a NUL in it: {_FORMS}")
    scheme, separator, location = text.partition("://")
    if storage_options is not None:
        if scheme != S3.name or not separator:
            raise InputError(f"storage_options are for {S3.form}")
        return _open_s3(text, location, runtime, storage_options)
    if not separator:
        if not text:
            raise InputError(f"an empty URL: {_FORMS}")
        if text.partition(":")[0] in SCHEMES and ":" in text:
            raise InputError(f"{re.sub('[^:]+@', '***@', text)!r} lacks the '//': {_FORMS}")
        return LocalStore(os.path.expanduser(text), runtime)
    if scheme in OPENERS:
        return OPENERS[scheme](text, location, runtime)
    if own_name(scheme) != scheme:
        raise InputError(f"{text!r}: write it as '{own_name(scheme)}://{location}'")
    raise InputError(f"{text!r}: dolmen has no store for {scheme}://; {_FORMS}")


def store_of_object(
    url: str, storage_options: Mapping[str, str] | None, near: ObjectStore | None
) -> tuple[ObjectStore, str] | None:
    """The store of the object at ``scheme://bucket/key``, and its key there; None for a URL without a bucket.

    ``near``: a store; one of the same scheme is reached over its connection, unless there are options.

    Raises InputError: the URL names a bucket, but no object in it; or an option is wrong.
    """
    if (parts := split_object_url(url)) is None:
        return None
    bucket, key = parts
    if near is not None and storage_options is None and scheme_of(near.url) is scheme_of(url):
        return near.sibling(bucket.partition("://")[2]), key
    return open_store(bucket, storage_options=storage_options), key


def object_opener(
    url: str, storage_options: Mapping[str, str] | None = None, near: ObjectStore | None = None
) -> Callable[[], BinaryIO] | None:
    """A function that opens an object; None for a URL without a bucket. See ``store_of_object``."""
    if (found := store_of_object(url, storage_options, near)) is None:
        return None
    store, key = found

    def open_object() -> BinaryIO:
        try:
            return store.open_input(key)
        except ObjectNotFoundError:
            raise ObjectNotFoundError(url) from None

    return open_object


def portable_url(store: ObjectStore) -> str:
    """The URL by which other processes open the same store. Raises InputError for one in this process's memory."""
    scheme = scheme_of(store.url)
    if scheme is not None and not scheme.is_shared:
        raise InputError(f"{store.url} is in the memory of this process: others need a directory or {S3.form}")
    if getattr(store, "options", None) is not None:
        raise InputError(
            f"{store.url} was opened with storage_options, which stay in this process: for other processes, set the "
            "AWS configuration there, and open the URL without them"
        )
    return store.url


def _open_file(text: str, location: str, runtime: Runtime) -> ObjectStore:
    host, slash, path = location.partition("/")
    if host not in ("", "localhost") or not path.strip("/"):
        raise InputError(f"{text!r} is not of the form {FILE.form}")
    return LocalStore(unquote(slash + path), runtime)


def _open_memory(text: str, location: str, runtime: Runtime) -> ObjectStore:
    return MemoryStore(shared_bucket(location.strip("/")), runtime)


def _open_s3(
    text: str, location: str, runtime: Runtime, storage_options: Mapping[str, str] | None = None
) -> ObjectStore:
    bucket, _, prefix = location.partition("/")
    if not S3.is_bucket(bucket):
        raise InputError(f"{text!r} does not name a valid bucket: the form is {S3.form}")
    prefix = prefix.strip("/")
    if prefix and {"", ".", ".."} & set(prefix.split("/")):
        raise InputError(f"{text!r}: parts of the prefix may not be empty, '.' or '..'")
    with needing_boto3("s3://"):
        from dolmen.store.s3.bucket_store import S3Store
        from dolmen.store.s3.connection import StorageOptions
    options = None if storage_options is None else StorageOptions.of(storage_options)
    return S3Store(bucket, prefix, runtime=runtime, options=options)


OPENERS: dict[str, Callable[[str, str, Runtime], ObjectStore]] = {
    S3.name: _open_s3,
    FILE.name: _open_file,
    MEMORY.name: _open_memory,
}
"""The function that opens a store of each scheme, given the URL, its part after ``://``, and the runtime."""
