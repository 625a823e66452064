"""A process that speaks to Spark by Spark Connect alone, as users have it: it has no JVM, and finds no Java.

``dolmen.spark`` is imported here and in that process only. The server is in the JVM of the tests' own session.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import dolmen
import dolmen.spark as engine
from dolmen import Commit, Database
from dolmen.errors import Error

NO_JAVA = "/nowhere"


def serve(spark: SparkSession) -> str:
    """Starts Spark Connect in a session's JVM, at a free port of this machine; returns its address."""
    context = spark._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", "0")
    services = spark._jvm.org.apache.spark.sql.connect.service
    services.SparkConnectService.start(context)
    port = getattr(getattr(services, "SparkConnectService$"), "MODULE$").localPort()
    return f"sc://127.0.0.1:{port}"


def stop_serving(spark: SparkSession) -> None:
    """Ends what ``serve`` has started."""
    nothing = spark._jvm.scala.Option.empty()
    spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService.stop(nothing, nothing)


def begin(url: str) -> None:
    """What the process does first."""
    os.environ |= {"SPARK_REMOTE": url, "JAVA_HOME": NO_JAVA, "PATH": NO_JAVA, "SPARK_HOME": NO_JAVA}
    session()


def session() -> SparkSession:
    """The process's session."""
    return SparkSession.builder.getOrCreate()


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """The rows of a frame, in the order of their values."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def query(url: str, text: str, args: Any = None) -> list[tuple[Any, ...]]:
    """The rows of a query over the tables of a database."""
    db = dolmen.open(url)
    engine.attach(session(), db)
    try:
        return rows(engine.sql(text, args))
    finally:
        engine.detach(session(), db)


def change(url: str, *statements: str, request: str | None = None) -> list[Commit | str]:
    """Runs statements one after the other: their commits, or the error of each that is refused."""
    db = dolmen.open(url)
    engine.attach(session(), db)
    found: list[Commit | str] = []
    try:
        for statement in statements:
            try:
                found.append(engine.sql(statement, request=request))
            except Error as error:
                found.append(f"{type(error).__name__}: {error}")
        return found
    finally:
        engine.detach(session(), db)


def views(url: str) -> tuple[list[tuple[Any, ...]], ...]:
    """What ``spark.sql`` sees: before a commit, after it, after ``refresh``, and when the views were dropped."""
    db, spark = dolmen.open(url), session()
    attached = engine.attach(spark, db, "of_", tables="t")
    counting = "SELECT count(*), max(id) FROM of_t"
    found = [rows(spark.sql(counting))]
    db.table("t").append({"id": [1_000]})
    found.append(rows(spark.sql(counting)))
    attached.refresh()
    found.append(rows(spark.sql(counting)))
    attached.detach()
    return (*found, rows(spark.sql("SHOW VIEWS LIKE 'of_*'")))


def read(url: str, version: int, columns: list[str], where: str) -> list[list[tuple[Any, ...]]]:
    """The rows of a version as each way to read gives them."""
    spark, db = session(), dolmen.open(url)
    options = {"table": "t", "version": version, "columns": ",".join(columns), "where": where}
    return [
        rows(spark.read.format("dolmen").options(**options).load(url)),
        rows(db.at(version).table("t").to_spark(columns, where)),
        rows(engine.to_spark(db.at(version).table("t"), columns, where, spark=spark)),
        rows(db.at(version).table("t").to_spark([*columns, "a, b"], where).drop("a, b")),
    ]


def commit_times(url: str) -> list[tuple[Any, ...]]:
    """The ids and commit timestamps of all rows."""
    return rows(dolmen.open(url).table("t").to_spark(["id"], with_commit_ts=True))


def write(url: str) -> list[Commit | str]:
    """Appends and overwrites by frames."""
    spark, db = session(), dolmen.open(url)
    table = db.table("t")
    more = spark.sql("SELECT CAST(7 AS BIGINT) AS id, 'new' AS extra")
    found: list[Commit | str] = [
        engine.append(table, spark.sql("SELECT CAST(5 AS BIGINT) AS id")),
        engine.append(table, more, merge_schema=True),
        engine.append(table, more, request="once"),
        engine.append(table, more, request="once"),
        engine.overwrite(table, table.to_spark().where("extra = 'new'").limit(1)),
    ]
    old = table.to_spark()
    table.append({"id": [8]})
    for overwrite in (lambda: engine.overwrite(table, old), lambda: engine.overwrite(table, old, force=True)):
        try:
            found.append(overwrite())
        except Error as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def register_again() -> str:
    """Registers the format, and reads an option that it sets."""
    engine.register(session())
    engine.register(session())
    return str(session().conf.get("spark.sql.python.filterPushdown.enabled"))


def stream(url: str, copy: str, checkpoint: str) -> int:
    """Copies a table by a stream; returns the number of rows there."""
    dolmen.open(copy).create_table("t", dolmen.open(url).table("t").schema)
    frame = session().readStream.format("dolmen").option("table", "t").load(url)
    query = frame.writeStream.format("dolmen").option("table", "t").option("path", copy)
    query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return dolmen.open(copy).table("t").count()


def _frame() -> Any:
    return session().sql("SELECT CAST(1 AS BIGINT) AS id")


REFUSED: dict[str, Callable[[Database, Path], object]] = {
    "DELETE": lambda db, _: engine.sql("DELETE FROM t WHERE id = 1"),
    "UPDATE": lambda db, _: engine.sql("UPDATE t SET s = 'x' WHERE id = 1"),
    "MERGE": lambda db, _: engine.sql("MERGE INTO t USING t AS s ON t.id = s.id WHEN MATCHED THEN DELETE"),
    "CREATE": lambda db, _: engine.sql("CREATE TABLE v (id BIGINT) USING dolmen"),
    "positions": lambda db, _: engine.to_spark(db.table("t"), with_positions=True),
    "upsert": lambda db, _: engine.upsert(db.table("t"), _frame()),
    "delete": lambda db, _: engine.delete(db.table("t"), _frame()),
    "merge": lambda db, _: engine.merge(db.table("t"), _frame(), on="id"),
    "batches_into": lambda db, _: engine.batches_into(db.table("t")),
    "compact": lambda db, _: engine.compact(session(), db),
    "gc": lambda db, _: engine.gc(session(), db),
    "load": lambda db, folder: engine.load(session(), db, []),
    "export": lambda db, folder: engine.export(db.table("t"), str(folder / "out")),
}
"""What needs a JVM in this process, and is refused."""


def refusal(what: str, url: str, folder: Path) -> tuple[str, str]:
    """The type and text of the error of something in ``REFUSED``."""
    db = dolmen.open(url)
    engine.attach(session(), db)
    try:
        REFUSED[what](db, folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return type(error).__name__, str(error)
    finally:
        engine.detach(session(), db)
    return "", ""


def delete_without_spark(url: str) -> int:
    """Deletes by a predicate, which takes no Spark; returns how many rows are left."""
    table = dolmen.open(url).table("t")
    engine.delete(table, "id = 1")
    return table.count()
