"""INSERT in a session of Spark Connect: rows go by ``format("dolmen")``, as this process has no JVM."""

from __future__ import annotations

from pyspark.sql import DataFrame

from dolmen.database import Database
from dolmen.results import Commit
from dolmen.spark.failures import raising_dolmen_errors


def insert_remotely(
    database: Database, table: str, frame: DataFrame, request: str | None, *, overwrites: bool
) -> Commit:
    """Appends or replaces rows in one commit, and returns the newest commit.

    An overwrite is held to the version that the session's views show.
    """
    options = {"table": table}
    if request is not None:
        options["request"] = request
    if overwrites:
        options["since"] = str(database.version)
    with raising_dolmen_errors():
        frame.write.format("dolmen").options(**options).mode("overwrite" if overwrites else "append").save(database.url)
    database.refresh()
    return database.history(1)[0]
