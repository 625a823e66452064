"""Days and times in Parquet files that were counted by the Julian calendar.

Spark before 3.0, and later versions in their LEGACY mode of writing, count days before 1582-10-15 by that calendar, and
times before 1900 by local clocks as well; their footers say so, and Spark counts them back when it reads. All other
readers, dolmen among them, would take them for other days.
https://spark.apache.org/docs/latest/sql-migration-guide.html#upgrading-from-spark-sql-24-to-30
"""

from __future__ import annotations

import json

import pyarrow.parquet as pq

JULIAN = "it may hold days that Spark counted by the Julian calendar (its LEGACY mode, or a version before 3.0)"

_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"
_COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"
_FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15, in days since 1970-01-01
_LAST_SWITCH_SECONDS = -2_208_988_800  # 1900-01-01: from then on all of Spark's zones count alike
_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000}


def julian_leaves(metadata: pq.FileMetaData) -> set[int]:
    """The Parquet columns of a file that hold such days or times, or may, as no statistics say that they do not.

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
