"""Refuses a Spark that is too old, and says what to do instead."""

from __future__ import annotations

from dolmen.errors import InputError

_OLDEST = 4


def check_supported(version: str) -> None:
    """Raises InputError, which says what to do instead, for a PySpark without data sources in Python.

    Args:
        version: of PySpark, such as "3.5.7".
    """
    major, _, rest = version.partition(".")
    if not major.isdecimal() or int(major) >= _OLDEST:
        return
    line = f"{major}.{rest.partition('.')[0]}"
    raise InputError(
        f"dolmen.spark needs PySpark 4.1, and this is {version}, which has no data sources in Python. Publish the "
        "table as Iceberg (dolmen publish-iceberg, or table.publish_iceberg(): docs/iceberg.md), and read that with "
        f"Iceberg's runtime for this Spark (iceberg-spark-runtime-{line}_2.12)"
    )
