"""Checks the form of keys."""

from __future__ import annotations

from dolmen.errors import InputError

#: Directory of unfinished files under a LocalStore's root; no key has such a part, no listing shows one.
TEMPORARY = ".dolmen-tmp"

#: S3 takes keys up to this many bytes of UTF-8 (docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html).
MAX_KEY_BYTES = 1024


def check_key(key: str) -> str:
    """Returns ``key`` if every store can hold it, else raises InputError.

    A landing bucket may hold stranger keys (``a//b``): stores that can name them read, list and delete them all the
    same. A directory cannot, and so LocalStore asks this of every key.
    """
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts:
        raise InputError(
            f"key {key!r}: parts between '/' may not be empty, '.' or '..', and it may not start or end with '/'"
        )
    if "\\" in key or "\0" in key:
        raise InputError(f"key {key!r}: no backslash and no NUL, please")
    if TEMPORARY in parts:
        raise InputError(f"key {key!r}: {TEMPORARY!r} is reserved for unfinished files")
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise InputError(f"key {key[:40]!r}... is longer than {MAX_KEY_BYTES} bytes")
    return key
