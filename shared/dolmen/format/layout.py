"""Names of objects in a database. Keys are relative to its root; none is ever reused.

Dates in names are UTC and help people, lifecycle rules, and collection, which looks for orphans by them. Nothing else
is ever found by listing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from dolmen.base import arguments
from dolmen.base.units import SECOND_US
from dolmen.errors import CorruptionError, InvalidNameError
from dolmen.format.adopted_files import AdoptedPath, is_adopted

POINTER = "_latest_manifest"

SEGMENTS = "segment/"
"""The beginning of all keys of segments."""

_TABLE_NAME = re.compile(r"[a-z0-9_]{1,64}")
_MANIFEST = re.compile(r"manifest/v(\d{20})-([0-9a-f]{8})\.json")
_OBJECT = re.compile(r"(data|tombstone|segment|index|intent)/[A-Za-z0-9_./-]{1,200}")


def check_table_name(name: str) -> str:
    """Returns ``name`` if a table may be called so. Raises InvalidNameError."""
    if not isinstance(name, str) or not _TABLE_NAME.fullmatch(name):
        raise InvalidNameError(f"table name {arguments.short_repr(name)} is not 1 to 64 of a-z, 0-9 and _")
    return name


def memory_name(table: str) -> str:
    """The name of the table that remembers which keys changes (CDC) have deleted from ``table``."""
    return f"{table}__deleted"


def check_reference(path: str, holder: str) -> str:
    """Returns ``path`` if it can be an object of a database; guards against a forged or damaged manifest.

    Args:
        holder: the object that names it, for the error.
    """
    if is_adopted(path):
        sound = AdoptedPath.parse(path) is not None
    else:
        sound = _OBJECT.fullmatch(path) is not None and ".." not in path
    if not sound:
        raise CorruptionError(holder, f"it refers to {path!r}, which is no object of a database")
    return path


def manifest_key(version: int, attempt: str) -> str:
    """``manifest/v<20 digits>-<attempt8>.json``: one per commit attempt."""
    return f"manifest/v{version:020d}-{attempt}.json"


def parse_manifest_key(key: str) -> tuple[int, str] | None:
    """(version, attempt) of a manifest's key, or None if it isn't one."""
    match = _MANIFEST.fullmatch(key)
    return (int(match[1]), match[2]) if match else None


def check_manifest_key(key: str, version: int, holder: str) -> str:
    """Returns ``key`` if it is of a manifest of this version; guards as ``check_reference`` does."""
    parsed = parse_manifest_key(key)
    if parsed is None or parsed[0] != version:
        raise CorruptionError(holder, f"it refers to {key!r}, which is no manifest of version {version}")
    return key


def data_key(table: str, now_us: int, uuid: str) -> str:
    """``data/<table>/YYYY/MM/DD/HH/<uuid>.parquet``."""
    return f"data/{table}/{_hour(now_us)}/{uuid}.parquet"


def tombstone_key(table: str, now_us: int, uuid: str) -> str:
    """``tombstone/<table>/YYYY/MM/DD/HH/<uuid>.del``."""
    return f"tombstone/{table}/{_hour(now_us)}/{uuid}.del"


def segment_key(kind: str, uuid: str) -> str:
    """``segment/<kind>/<uuid>``."""
    return f"{SEGMENTS}{kind}/{uuid}"


def uuid_of(path: str) -> str:
    """A data file's own name, unique in the world: what overlays and Spark know it by."""
    return path.rpartition("/")[2].removesuffix(".parquet")


def _hour(now_us: int) -> str:
    return datetime.fromtimestamp(now_us // SECOND_US, UTC).strftime("%Y/%m/%d/%H")
