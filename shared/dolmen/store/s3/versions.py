"""Lists a bucket with the version of each object, by which its notifications name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from dolmen.base.units import SECOND_US
from dolmen.errors import AccessDeniedError, InputError
from dolmen.store.base import ObjectInfo
from dolmen.store.s3.errors import status_and_code
from dolmen.store.s3.store import LIST_PAGE, S3Store

_NONE = "null"
"""Version id of what was written while the bucket kept no versions."""


def all_versions(store: S3Store, prefix: str) -> Iterator[tuple[ObjectInfo, bool]]:
    """All versions that the bucket keeps, with whether each is the newest of its object, which is not deleted.

    Takes the right s3:ListBucketVersions.

    Args:
        prefix: what keys begin with, relative to the store's root.

    Raises:
        AccessDeniedError: the right is missing.
        InputError: the server does not list versions.
    """
    for page in _pages(store, prefix):
        for found in page.get("Versions", ()):
            if "IsLatest" not in found or "LastModified" not in found:
                raise InputError(f"{store.url}: the server does not say which versions are the newest")
            changed_us = int(found["LastModified"].timestamp() * SECOND_US)
            yield ObjectInfo(found["Key"], found.get("Size", 0), found.get("ETag", ""), changed_us), found["IsLatest"]


def newest_versions(store: S3Store, prefix: str, start_after: str = "") -> Iterator[tuple[ObjectInfo, str | None]]:
    """Objects in key order, each with the id of its newest version, or None where the bucket gave it none.

    Deleted ones are left out, as ``list`` does. Takes the right s3:ListBucketVersions, also for a bucket that keeps no
    versions: whether it does decides what its events are known by, so it is not guessed. A server that knows of no
    versions at all is listed as it is.

    Args:
        store: a whole bucket.
        prefix: what keys begin with.
        start_after: only keys after this one.
    """
    assert not store.prefix, "keys are the bucket's own"
    try:
        for page in _pages(store, prefix, start_after):
            for found in page.get("Versions", ()):
                key = found["Key"]
                if not found["IsLatest"] or key <= start_after:
                    continue
                changed_us = int(found["LastModified"].timestamp() * SECOND_US)
                version = found.get("VersionId") or _NONE
                info = ObjectInfo(key, found["Size"], found["ETag"], changed_us)
                yield info, None if version == _NONE else version
    except InputError as error:
        cause = error.__cause__
        if not isinstance(cause, ClientError) or status_and_code(cause)[0] != 501:
            raise
        yield from ((info, None) for info in store.list(prefix, start_after))


def _pages(store: S3Store, prefix: str, start_after: str = "") -> Iterator[dict[str, Any]]:
    """The answers to ListObjectVersions.

    Args:
        prefix: what keys begin with, relative to the store's root.
        start_after: only keys after this one, likewise.
    """
    root = f"{store.prefix}/" if store.prefix else ""
    request: dict[str, Any] = {"Bucket": store.bucket, "Prefix": root + prefix, "MaxKeys": LIST_PAGE}
    if start_after:
        request["KeyMarker"] = root + start_after
    while True:
        try:
            page = store.ask("list_object_versions", prefix, **request)  # botocore decodes the keys
        except AccessDeniedError as error:
            raise AccessDeniedError(f"{error} (s3:ListBucketVersions on the bucket is needed here)") from error
        yield page
        if not page.get("IsTruncated"):
            return
        request["KeyMarker"] = page["NextKeyMarker"]
        request.pop("VersionIdMarker", None)
        if page.get("NextVersionIdMarker"):
            request["VersionIdMarker"] = page["NextVersionIdMarker"]
