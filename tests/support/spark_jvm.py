"""How JVMs of tests differ from those of users: in nothing but how soon they are fast.

``python spark_jvm.py`` makes the archive of classes that they share, in this environment; make test does it once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""Classes that a JVM need not load and check anew. One that does not fit a JVM, or its class path, is ignored."""

_COMPILER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SHORT_LIVED_JVM = f"{_COMPILER} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else _COMPILER
"""No optimizing compiler, a collector of one thread, and shared classes: far less processor time for tests of Spark."""


def main() -> None:
    """Lets Spark do what many tests do, and keeps the classes that it loads."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        print("Spark: no archive of classes, as there is no Java")
        return
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / ARCHIVE.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{_COMPILER} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        _work(Path(scratch))
        if made.exists():
            shutil.move(made, ARCHIVE)
            print(f"Spark: {ARCHIVE.stat().st_size / 1e6:,.0f} MB of classes are shared")
        else:
            print("Spark: this JVM has made no archive of classes")


def _work(scratch: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

    from support.spark import start_session

    spark = start_session(scratch)
    java = spark.sparkContext._gateway.proc
    frame = spark.range(100).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS s", "timestamp_micros(id) AS t")
    frame.write.parquet(str(scratch / "rows"))
    rows = spark.read.parquet(str(scratch / "rows"))
    keys = F.broadcast(spark.createDataFrame([(1,), (2,)], "k long"))
    rows.where("s <> '5'").join(keys, "k", "left_anti").groupBy("k").agg(F.count("*"), F.max("t")).sort("k").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema).repartition("k").sortWithinPartitions("id").toArrow()
    rows.createOrReplaceTempView("rows")
    spark.sql("SELECT k, row_number() OVER (PARTITION BY k ORDER BY id) AS n FROM rows").collect()
    stream = spark.readStream.schema(rows.schema).parquet(str(scratch / "rows")).writeStream
    stream = stream.format("noop").option("checkpointLocation", str(scratch / "stream")).trigger(availableNow=True)
    stream.start().awaitTermination()
    spark.stop()
    if java is not None:
        java.stdin.close()  # it ends, and writes the archive
        java.wait(timeout=600)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        main()
    except subprocess.TimeoutExpired:
        print("Spark: no archive of classes, as the JVM did not end")
