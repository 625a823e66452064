"""Files that cannot be read: a copy to look at, and beside it what is wrong.

A drop ``landing/<table>/<path>/<name>.csv`` becomes, under the place for rejects::

    <table>/<path>/<name>-<digest8>.csv               the dropped bytes, unchanged
    <table>/<path>/<name>-<digest8>.csv.error.json    file, line, row, column, reason; written last

The digest is of the drop, so that the same event delivered again meets its own reject, and another file of the same
name does not. A reject is final for its event: to try again, drop the file again, as ``dolmen rejected retry`` does.

A file that is too large to be copied in the time that is left stays where it was dropped: there is a report alone, with
``"copy": null``, which names its bucket, key and version.

What is kept of a file whose other rows are ingested is described in ``quarantine``.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from dolmen.base.runtime import Runtime
from dolmen.base.units import MIB, utc
from dolmen.errors import CorruptionError, Error, InputError, ObjectChangedError, RowError, StoreUnavailableError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.formats.compression import ByteStream
from dolmen.ingest.landing import Landing, LandingPath, etag_of_drop, exists
from dolmen.store.backoff import attempts
from dolmen.store.base import ObjectStore, Unknown
from dolmen.store.keys import MAX_KEY_BYTES

ERROR_SUFFIX = ".error.json"
_COPY_BYTES = MIB
_ROOM_BYTES = 200
"""Bytes of a key that are kept free for the prefix of the rejects, and for suffixes."""

_UNFIT = re.compile(r"[\\\0]")
"""Characters that S3 takes in a key, and a directory does not."""
_DIGEST_IN_NAME = re.compile(r"-[0-9a-f]{8}(?=\.|$)(?!.*-[0-9a-f]{8}(?:\.|$))")
_ENDING = re.compile(r"(\.[A-Za-z0-9]{1,10})?(\.(gz|zst|bz2|xz|lz4|zip))?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected drop, or the rejected rows of one. ``key`` is the copy's, in the store for rejects; of a drop that was
    not copied it is the report's, without its ending."""

    key: str
    url: str


def reject_key(drop: Drop, place: LandingPath) -> str:
    """The key of a drop's copy, if it is rejected."""
    return _key_with_digest(place, f"{drop.id}#{drop.sequencer or ''}")


def rows_key(drop: Drop, place: LandingPath, content: str, suffix: str) -> str:
    """The key of some kept rows of a drop; ``content`` is a digest of these rows."""
    return _key_with_digest(place, f"{drop.id}#{content}", suffix)


def split_name(path: str) -> tuple[str, str]:
    """A path without its ending, and the ending: ``.csv.gz``. Names that begin with a dot have none."""
    folder, slash, name = path.rpartition("/")
    ending = _ENDING.search(name)
    suffix = ending[0] if ending and ending.start() else ""
    return f"{folder}{slash}{name.removesuffix(suffix)}", suffix


def _key_with_digest(place: LandingPath, of: str, suffix: str | None = None) -> str:
    digest = hashlib.sha256(of.encode()).hexdigest()[:8]
    stem, ending = split_name(place.path)
    suffix = ending if suffix is None else suffix
    key = f"{stem}-{digest}{suffix}"
    if len(key.encode()) <= MAX_KEY_BYTES - _ROOM_BYTES and not _UNFIT.search(key):
        return key
    return f"{_UNFIT.sub('-', place.path.partition('/')[0][:64])}/{digest}{suffix}"


def dropped_name(key: str) -> str:
    """The path of the dropped file below ``landing/``, by the key of its copy, if that was made of it."""
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}{_DIGEST_IN_NAME.sub('', name, count=1)}"


def find_reject(landing: Landing, drop: Drop, place: LandingPath) -> Reject | None:
    """The reject of this very event, if it is complete: one request."""
    store, key = landing.rejects_store(drop), reject_key(drop, place)
    return Reject(key, f"{store.url}/{key}") if exists(store, key + ERROR_SUFFIX) else None


def reject_drop(
    landing: Landing,
    drop: Drop,
    place: LandingPath,
    error: Error,
    database: dict[str, Any],
    *,
    copy: bool = True,
) -> Reject:
    """Copies a drop to where rejects go, then writes the reason beside it. Repeated, it changes nothing.

    Args:
        database: facts about the database at that time, for the report.
        copy: False leaves the drop where it is, and the report says so.

    Raises:
        ObjectNotFoundError, ObjectChangedError: the drop is gone, or was overwritten.
        StoreUnavailableError, ...: not both objects are there.
    """
    store, key = landing.rejects_store(drop), reject_key(drop, place)
    try:
        if copy:
            copy_drop(landing, drop, store, key)
        else:
            _check_unchanged(landing, drop)
    except InputError:  # a file in a directory whose name no key can be: the report alone can say so
        copy = False
    what = {
        "file": place.path,
        "line": getattr(error, "line", None),
        "row": getattr(error, "row", None),
        "column": getattr(error, "column", None),
        "reason": error.reason if isinstance(error, RowError) else str(error),
        "error": type(error).__name__,
    }
    about = drop_facts(landing, drop, key if copy else None)
    then = "nothing of this file was ingested; correct it, and drop it again"
    if not copy:
        then += "; it could not be copied here, and is still where it was dropped"
    return write_report(landing, drop, key, {**what, **about, "database": database, "then": then})


def drop_facts(landing: Landing, drop: Drop, key: str | None) -> dict[str, Any]:
    """The facts about the drop, and about its copy if there is one, that are in every report."""
    return {
        "source": drop.source,
        "bytes": drop.size,
        "version": drop.version,
        "etag": drop.etag,
        "landing": landing.root(drop),
        "copy": key,
        "dropped_us": drop.dropped_us,
        "rejected_at": utc(landing.rejects_store(drop).clock.now_us).isoformat(),
    }


def write_report(landing: Landing, drop: Drop, key: str, report: dict[str, Any]) -> Reject:
    """Creates the report beside a copy, unless an earlier delivery has written it. Raises StoreUnavailableError."""
    store = landing.rejects_store(drop)
    create_once(store, key + ERROR_SUFFIX, json.dumps(report, indent=2, ensure_ascii=False), landing.runtime)
    return Reject(key, f"{store.url}/{key}")


def create_once(store: ObjectStore, key: str, text: str, runtime: Runtime) -> None:
    """Creates a small object unless there is one of this name. Raises StoreUnavailableError."""
    outcome = None
    for _ in attempts(runtime):
        outcome = store.put(key, text.encode("utf-8", "surrogatepass") + b"\n")
        if not isinstance(outcome, Unknown):
            return
    raise StoreUnavailableError(f"cannot write {store.url}/{key}: {outcome}")


def _check_unchanged(landing: Landing, drop: Drop) -> None:
    """Raises ObjectNotFoundError, ObjectChangedError: the drop is gone, or was overwritten."""
    store = landing.store(drop)
    found = store.head(drop.key, version=drop.version)
    if drop.version is None and found.etag != etag_of_drop(store, drop):
        raise ObjectChangedError(drop.key)


def copy_drop(landing: Landing, drop: Drop, store: ObjectStore, key: str) -> None:
    """Copies a dropped file, unless an object of this name exists, which is then its copy."""
    if not exists(store, key):  # else by an earlier delivery: objects appear whole or not at all
        with landing.open(drop) as source:
            copy_once(source, store, key)


def copy_once(source: ByteStream, store: ObjectStore, key: str) -> None:
    """Copies a file in bounded memory, unless another process has made the same copy meanwhile."""
    with store.open_output(key) as target:
        while chunk := source.read(_COPY_BYTES):
            target.write(chunk)
        try:
            target.commit()
        except CorruptionError:
            if not exists(store, key):
                raise
