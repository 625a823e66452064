"""The flights of 2013 on Spark: load, query in SQL, forget an aircraft, merge corrections, read an older version.

pip install '.[spark,demo]' in a checkout; it needs Java 17 or newer. Everything is stored in .local/spark/, or in the
directory given, which is emptied first.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = "Spark needs Java 17 or newer{found}: apt install openjdk-17-jre-headless, or set JAVA_HOME to one"
QUERY = """SELECT origin, count(*) AS flights, count(dep_time) AS departed, round(avg(dep_delay), 1) AS delay
FROM flights WHERE carrier = 'OO' OR tailnum = 'N14228' GROUP BY origin ORDER BY origin"""


def require_java() -> None:
    """Raises SystemExit, with what to install, where there is no Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        raise SystemExit(WORDS.format(found=", and there is none"))
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < 17:
        raise SystemExit(WORDS.format(found=f", and {java} is {version[1] if version else 'none'}"))


def main() -> None:
    """Runs the example."""
    require_java()
    if importlib.util.find_spec("pyspark") is None:
        raise SystemExit("PySpark is not installed: pip install '.[spark,demo]'")
    import demo  # examples/demo.py: the same flights
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

    import dolmen
    from dolmen.ingest.drops.announce_files import DropSource
    from dolmen.spark import delete, load, merge, to_spark

    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".local" / "spark"
    shutil.rmtree(place, ignore_errors=True)
    rows = demo.load()
    landing = str(place / "landing")
    demo.drop(rows, place / "landing" / "flights")  # 12 files: CSV, gzipped CSV, Parquet
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of Spark's workers
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    db = dolmen.open(str(place / "database"))
    key = ["time_hour", "carrier", "flight"]
    flights = db.create_table("flights", rows.schema, primary_key=key, sort_key="time_hour")

    # A job's work: many files at once, clustered by the sort key, each file once. jobs/load.py is a call of it.
    done = load(spark, db, DropSource.of(landing, database=db.url))
    print(f"{done.rows:,} flights of {done.files} files, in {done.commits} commit")
    loaded = db.version

    print("\nSkyWest, and the aircraft N14228:")
    to_spark(flights).createOrReplaceTempView("flights")
    spark.sql(QUERY).show()

    print("N14228 is forgotten, in constant time: no data is read for it, none is rewritten:")
    delete(flights, "tailnum = 'N14228'")
    to_spark(flights).createOrReplaceTempView("flights")
    spark.sql(QUERY).show()

    print("The flights that SkyWest cancelled departed late after all, and there was one more:")
    late = to_spark(flights, [*key, "origin"], where="carrier = 'OO' AND dep_time IS NULL")
    late = late.selectExpr("*", "1200L AS dep_time", "45L AS dep_delay")
    more = late.limit(1).withColumn("flight", F.lit(9999))
    merge(flights, late.unionAll(more), on=key)
    to_spark(flights).createOrReplaceTempView("flights")
    spark.sql(QUERY).show()

    print(f"Version {loaded} still shows what was there:")
    to_spark(flights.at(version=loaded)).createOrReplaceTempView("flights")
    spark.sql(QUERY).show()
    spark.stop()


if __name__ == "__main__":
    main()
