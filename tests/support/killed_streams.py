"""A process with two streaming queries from a directory of files, one for each way into a table, that is killed.

``python -m support.killed_streams URL INPUT SCRATCH FIRST`` runs both on all that is there, the query ``FIRST`` first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Way = Literal["by_format", "by_batches"]
WAYS: tuple[Way, ...] = ("by_format", "by_batches")
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Kill:
    """The moment at which a process is killed.

    Args:
        key: prefix of the object's key.
        when: before or after it was put.
        roles: by whom: the driver's own process, or Spark's workers (where ``format("dolmen")`` commits).
        nth: number of the put.
    """

    key: str
    when: Literal["before", "after"]
    roles: tuple[str, ...]
    nth: int = 1


def stages(way: Way) -> dict[str, Kill]:
    """Moments in a batch's life, by name, for one of the ways into a table."""
    committer = ("worker",) if way == "by_format" else ("driver",)
    return {
        "before its tasks": Kill("intent/", "before", committer),
        "while its tasks write": Kill(f"data/{way}/", "before", ("worker",), 2),
        "after its data files": Kill("manifest/", "before", committer),
        "after its commit": Kill("_latest_manifest", "after", committer),
    }


def run(url: str, files: Path, scratch: Path, first: Way, kill: Kill | None) -> int:
    """Runs the process to its end; returns its exit code."""
    return run_module("support.killed_streams", [url, str(files), str(scratch), first], scratch, kill)


def run_module(module: str, arguments: list[str], scratch: Path, kill: Kill | None) -> int:
    """Runs a module as a process, which is killed at a moment; returns its exit code."""
    (scratch / "count").unlink(missing_ok=True)
    own = os.environ.get("PYTHONPATH")
    paths = [str(TESTS / "support" / "killing"), str(TESTS), *([own] if own else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("DOLMEN_TEST_KILL", None)
    if kill:
        environment["DOLMEN_TEST_KILL"] = json.dumps({**asdict(kill), "count": str(scratch / "count")})
    command = [sys.executable, "-m", module, *arguments]
    with (scratch / "log").open("a") as log:
        # In a group of its own: that is what is killed. The shell's pid becomes Python's.
        shell = ["sh", "-c", 'DOLMEN_TEST_DRIVER=$$ exec "$@"', "sh", *command]
        process = subprocess.Popen(shell, env=environment, stdout=log, stderr=log, start_new_session=True)
        return process.wait(900)


def copy(spark: SparkSession, url: str, files: str, scratch: str, first: str) -> None:
    """Runs both queries on all that is there, the query ``first`` first."""
    import dolmen
    from dolmen.spark.source.table_writers import batches_into

    rows = spark.readStream.schema("id long, s string").option("maxFilesPerTrigger", 1).json(files).repartition(2)
    into = dolmen.open(url).table("by_batches")
    writers = {
        "by_format": rows.writeStream.format("dolmen").option("path", url).option("table", "by_format"),
        "by_batches": rows.writeStream.foreachBatch(batches_into(into)),
    }
    for way in sorted(writers, key=lambda way: way != first):
        writer = writers[way].option("checkpointLocation", f"{scratch}/{way}").trigger(availableNow=True)
        writer.start().awaitTermination()


def main(url: str, files: str, scratch: str, first: str) -> None:
    from support.spark import start_session

    spark = start_session(Path(scratch) / "spark", "local[2]")
    copy(spark, url, files, scratch, first)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
