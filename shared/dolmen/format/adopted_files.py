"""Adopted data files: Parquet files of others, which stay where they are, and which dolmen never changes or deletes.

The ``path`` of such a file in an entry is no key of the database. It says how the file's columns are found and where
the file is, and ends with a uuid of its own, by which overlays and removals know the file::

    adopted/<ids|names>/<place>/<key, quoted>/<uuid>.parquet

Places are ``own`` (the key is in the database's own directory or prefix), ``file`` (the key is an absolute path
without its first ``/``), ``s3/<bucket>`` and ``memory/<name>``. Every byte of a key but ``A-Z a-z 0-9 _ . ~ = / -`` is
written as ``%XX``.

Days and times in Parquet files that were counted by the Julian calendar.

Spark before 3.0, and later versions in their LEGACY mode of writing, count days before 1582-10-15 by that calendar, and
times before 1900 by local clocks as well; their footers say so, and Spark counts them back when it reads. All other
readers, dolmen among them, would take them for other days.
https://spark.apache.org/docs/latest/sql-migration-guide.html#upgrading-from-spark-sql-24-to-30
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import quote, unquote

import msgspec
import pyarrow.parquet as pq

from dolmen.format.checksums import prepare

ADOPTED_FILES = "adopted-files"
"""The feature of manifests that name adopted files."""


PREFIX = "adopted/"


OWN = "own"
"""The place of a file in the database's own directory or prefix."""


_SAFE = "=/"  # with what ``quote`` always keeps: letters, digits, and _ . - ~


_NAME = re.compile(r"[0-9a-f]{32}\.parquet")


_QUOTED = re.compile(r"[A-Za-z0-9_.~=/%-]+")


_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}")


_WITH_ROOT = ("s3", "memory")


_LONGEST = 3_500


ColumnsBy = Literal["ids", "names"]


class MappedColumn(msgspec.Struct, frozen=True, omit_defaults=True):
    """The id of a column in adopted files that have no field ids, where its name tells which column it is.

    Args:
        id: the column's id.
        names: the names that it has in such files.
        fields: the same for the fields inside it: of a struct, the element of a list, the key and value of a map.
    """

    id: int
    names: tuple[str, ...]
    fields: tuple[MappedColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class AdoptedPath:
    """The parts of an adopted file's path.

    Args:
        columns_by: whether its columns are found by their field ids or by their names.
        scheme: ``own``, ``file``, ``s3`` or ``memory``.
        root: the bucket, or the name of a store in memory; "" for the others.
        key: the file's key there.
        uuid: the file's own name in the table.
    """

    columns_by: ColumnsBy
    scheme: str
    root: str
    key: str
    uuid: str

    @classmethod
    def parse(cls, path: str) -> AdoptedPath | None:
        """Reads a path. Returns None if it is none of an adopted file, or could be written otherwise."""
        return _parse_path(path)

    def encode(self) -> str:
        """The path."""
        place = f"{self.scheme}/{quote(self.root, safe='')}" if self.scheme in _WITH_ROOT else self.scheme
        return f"{PREFIX}{self.columns_by}/{place}/{quote(self.key, safe=_SAFE)}/{self.uuid}.parquet"

    @property
    def label(self) -> str:
        """The file as messages name it: its URL, or its key in the database."""
        if self.scheme == OWN:
            return self.key
        return f"{self.scheme}://{self.root}/{self.key}"


@lru_cache(maxsize=4096)
def _parse_path(path: str) -> AdoptedPath | None:
    head, _, name = path.rpartition("/")
    parts = head.split("/", 3)
    if len(path) > _LONGEST or len(parts) < 4 or f"{parts[0]}/" != PREFIX or not _NAME.fullmatch(name):
        return None
    _, columns_by, scheme, key = parts
    root, _, key = key.partition("/") if scheme in _WITH_ROOT else ("", "", key)
    if columns_by not in ("ids", "names") or scheme not in (OWN, "file", *_WITH_ROOT) or not _QUOTED.fullmatch(key):
        return None
    if (scheme == "s3" and not _BUCKET.fullmatch(root)) or (scheme == "memory" and not _QUOTED.fullmatch(root)):
        return None
    try:
        root, key = (unquote(each, errors="strict") if "%" in each else each for each in (root, key))
    except UnicodeDecodeError:
        return None
    found = AdoptedPath("ids" if columns_by == "ids" else "names", scheme, root, key, name[:32])
    is_sound = key_fault(key) == "" and ("%" not in path or found.encode() == path)
    return found if is_sound and (scheme != "memory" or found.encode() == path) else None


def is_adopted(path: str) -> bool:
    """Whether a data file's path is that of an adopted one."""
    return path.startswith(PREFIX)


def file_label(path: str) -> str:
    """A data file as messages name it: an adopted one by its URL, or its key in the database, any other by its path."""
    adopted = AdoptedPath.parse(path)
    return adopted.label if adopted else path


def key_fault(key: str) -> str:
    """Why a file of this key cannot be adopted; "" if it can."""
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts:
        return "a part of its name between '/' is empty, '.' or '..'"
    if "\\" in key or "\0" in key:
        return "its name has a backslash or a NUL"
    if len(key.encode("utf-8", "surrogatepass")) > 1024:
        return "its name is longer than 1,024 bytes"
    return ""


prepare(MappedColumn)


JULIAN = "it may hold days that Spark counted by the Julian calendar (its LEGACY mode, or a version before 3.0)"


_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"


_COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"


_FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15, in days since 1970-01-01


_LAST_SWITCH_SECONDS = -2_208_988_800  # 1900-01-01: from then on all of Spark's zones count alike


_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000}


def julian_leaves(metadata: pq.FileMetaData) -> set[int]:
    """The Parquet columns of a file that contain such days or times, or may contain some (without statistics).

    Those of type INT96, of which there are no statistics, are not looked at.
    """
    if not _counts_julian(metadata.metadata or {}):
        return set()
    return {leaf for leaf in range(metadata.num_columns) if _may_be_before(metadata, leaf)}


def _counts_julian(notes: dict[bytes, bytes]) -> bool:
    version = notes.get(_VERSION)
    if version is None:
        return _COLUMNS in notes  # the first versions did not say which they were
    return _LEGACY in notes or version.partition(b".")[0] in (b"0", b"1", b"2")


def _may_be_before(metadata: pq.FileMetaData, leaf: int) -> bool:
    """Whether a column has a value from before its calendar's switch, or may have one."""
    first = _first_alike(metadata, leaf)
    if first is None:
        return False
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        known = chunk.statistics
        if not chunk.num_values or (
            known is not None and known.has_null_count and known.null_count == chunk.num_values
        ):
            continue
        if known is None or not known.has_min_max or known.min_raw < first:
            return True
    return False


def _first_alike(metadata: pq.FileMetaData, leaf: int) -> int | None:
    """The first value of a column that both calendars count alike; None if it has no days or times of Spark's."""
    column = metadata.schema.column(leaf)
    logical = json.loads(column.logical_type.to_json())
    if column.physical_type == "INT32" and logical["Type"] == "Date":
        return _FIRST_GREGORIAN_DAY
    if column.physical_type != "INT64" or logical["Type"] != "Timestamp" or not logical["isAdjustedToUTC"]:
        return None
    per_second = _PER_SECOND.get(logical["timeUnit"])
    return None if per_second is None else _LAST_SWITCH_SECONDS * per_second
