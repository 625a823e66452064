"""Opening a store by its URL."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from dolmen import arguments
from dolmen.errors import InputError
from dolmen.runtime import Runtime, shared_runtime
from dolmen.store.base import ObjectStore
from dolmen.store.local.store import LocalStore
from dolmen.store.memory import MemoryStore, shared_bucket

_FORMS = "use s3://bucket/prefix, file:///directory, a plain path, or memory://name"


def open_store(url: str | os.PathLike[str], runtime: Runtime | None = None) -> ObjectStore:
    """Opens the store that ``url`` names. Creates nothing and asks nothing of the network.

    Args:
        url: ``s3://bucket/prefix``, ``file:///directory``, a plain path (relative or with ``~`` too), or
            ``memory://name``, which is the same bucket for the whole process.
        runtime: shared by stores opened without one.

    Raises:
        InputError: the URL is none of these.
    """
    runtime = runtime or shared_runtime()
    text = arguments.text("url", os.fspath(url) if isinstance(url, os.PathLike) else url)
    if "\0" in text:
        raise InputError(f"url={arguments.shown(text)} has a NUL in it: {_FORMS}")
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text:
            raise InputError(f"an empty URL: {_FORMS}")
        if re.match(r"(s3|file|memory):", text):
            raise InputError(f"{re.sub('[^:]+@', '***@', text)!r} lacks the '//': {_FORMS}")
        return LocalStore(os.path.expanduser(text), runtime)
    match scheme:
        case "s3":
            return _open_s3(text, rest, runtime)
        case "file":
            host, slash, path = rest.partition("/")
            if host not in ("", "localhost") or not path.strip("/"):
                raise InputError(f"{text!r} is not of the form file:///directory")
            return LocalStore(unquote(slash + path), runtime)
        case "memory":
            return MemoryStore(shared_bucket(rest.strip("/")), runtime)
        case "s3a" | "s3n":
            raise InputError(f"{text!r}: write it as 's3://{rest}'")
    raise InputError(f"{text!r}: dolmen knows no {scheme}:// stores; {_FORMS}")


def portable_url(store: ObjectStore) -> str:
    """The URL by which other processes open the same store: what a handle becomes when it is pickled.

    Raises:
        InputError: the store is in this process's memory.
    """
    if store.url.startswith("memory://"):
        raise InputError(f"{store.url} is in the memory of this process: others need a directory or s3://bucket/prefix")
    return store.url


def _open_s3(text: str, rest: str, runtime: Runtime) -> ObjectStore:
    bucket, _, prefix = rest.partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}", bucket):
        raise InputError(f"{text!r} names no bucket that could exist: the form is s3://bucket/prefix")
    prefix = prefix.strip("/")
    if prefix and {"", ".", ".."} & set(prefix.split("/")):
        raise InputError(f"{text!r}: parts of the prefix may not be empty, '.' or '..'")
    try:
        from dolmen.store.s3.store import S3Store  # boto3 is an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise InputError("s3:// needs boto3: pip install 'dolmen[aws]'") from error
    return S3Store(bucket, prefix, runtime=runtime)
