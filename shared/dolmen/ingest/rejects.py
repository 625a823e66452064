"""Files that cannot be read: a copy to look at, and beside it what is wrong.

A drop ``landing/<table>/<path>/<name>.csv`` becomes, under the place for rejects::

    <table>/<path>/<name>-<digest8>.csv               the dropped bytes, unchanged
    <table>/<path>/<name>-<digest8>.csv.error.json    file, line, row, column, reason; written last

The digest is of the drop, so that the same event delivered again meets its own reject, and another file of the same
name does not. A reject is final for its event: to try again, drop the file again.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dolmen.errors import CorruptionError, Error, RowError, StoreUnavailableError
from dolmen.ingest.events import Drop
from dolmen.ingest.landing import Landing, Place, exists
from dolmen.store.backoff import attempts
from dolmen.store.base import ObjectStore, Unknown
from dolmen.store.keys import MAX_KEY_BYTES

ERROR_SUFFIX = ".error.json"
_COPY_BYTES = 1 << 20
_ROOM_BYTES = 200
"""Left for the prefix that rejects go under."""

_ENDING = re.compile(r"(\.[A-Za-z0-9]{1,10})?(\.(gz|zst|bz2|xz|lz4|zip))?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reject:
    """A rejected drop. ``key`` is the copy's, in the store for rejects."""

    key: str
    url: str


def reject_key(drop: Drop, place: Place) -> str:
    """The key of a drop's copy, if it is rejected."""
    digest = hashlib.sha256(f"{drop.id}#{drop.sequencer or ''}".encode()).hexdigest()[:8]
    folder, slash, name = place.path.rpartition("/")
    ending = _ENDING.search(name)
    suffix = ending[0] if ending and ending.start() else ""
    key = f"{folder}{slash}{name.removesuffix(suffix)}-{digest}{suffix}"
    if len(key.encode()) <= MAX_KEY_BYTES - _ROOM_BYTES:
        return key
    return f"{place.path.partition('/')[0][:64]}/{digest}{suffix}"


def was_rejected(landing: Landing, drop: Drop, place: Place) -> Reject | None:
    """The reject of this very event, if it is complete: one request."""
    store, key = landing.rejected(drop), reject_key(drop, place)
    return Reject(key, f"{store.url}/{key}") if exists(store, key + ERROR_SUFFIX) else None


def reject(landing: Landing, drop: Drop, place: Place, error: Error, database: dict[str, Any]) -> Reject:
    """Copies a drop to where rejects go, then writes the reason beside it. Repeated, it changes nothing.

    Args:
        database: facts about the database at that time, for the report.

    Raises:
        ObjectNotFoundError, ObjectChangedError: the drop is gone, or was overwritten.
        StoreUnavailableError, ...: not both objects are there.
    """
    store, key = landing.rejected(drop), reject_key(drop, place)
    _copy(landing, drop, store, key)
    report = {
        "file": place.path,
        "line": getattr(error, "line", None),
        "row": getattr(error, "row", None),
        "column": getattr(error, "column", None),
        "reason": error.reason if isinstance(error, RowError) else str(error),
        "error": type(error).__name__,
        "source": drop.source,
        "version": drop.version,
        "etag": drop.etag,
        "copy": key,
        "rejected_at": datetime.fromtimestamp(store.clock.now_us / 1e6, UTC).isoformat(),
        "database": database,
        "then": "nothing of this file was ingested; correct it, and drop it again",
    }
    _create(store, key + ERROR_SUFFIX, json.dumps(report, indent=2, ensure_ascii=False).encode() + b"\n", landing)
    return Reject(key, f"{store.url}/{key}")


def _copy(landing: Landing, drop: Drop, store: ObjectStore, key: str) -> None:
    if exists(store, key):
        return  # by an earlier delivery: objects appear whole or not at all
    with landing.open(drop) as source, store.open_output(key) as target:
        while chunk := source.read(_COPY_BYTES):
            target.write(chunk)
        try:
            target.commit()
        except CorruptionError:
            if not exists(store, key):  # else another delivery of the same event was faster
                raise


def _create(store: ObjectStore, key: str, body: bytes, landing: Landing) -> None:
    """Creates a report, unless one is there: that of an earlier delivery says the same, but for its time."""
    outcome = None
    for _ in attempts(landing.runtime):
        outcome = store.put(key, body)
        if not isinstance(outcome, Unknown):
            return
    raise StoreUnavailableError(f"cannot write {store.url}/{key}: {outcome}")
