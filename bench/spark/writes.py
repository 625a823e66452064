"""Writing on Spark, compared with Spark writing the same rows as Parquet with the same codec."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

import dolmen
from bench.spark.cpu import Spent, spend
from bench.spark.ours import Dolmen
from bench.spark.source import FILES, SCHEMA
from dolmen.ingest.drops.announce_files import DropSource as Landed
from dolmen.rows.scan.scan import plan_of
from dolmen.spark import append
from dolmen.spark.compaction_jobs import compact
from dolmen.spark.load.load import load

PIECES = 4
"""Files that a compaction finds, of each of the source's."""


class Writing(Dolmen):
    """dolmen and Spark's own writer in the same session. Each call writes to a new directory."""

    name = "dolmen writing"

    def prepare(self) -> None:
        self._number = 0
        self._many = str(self.directory / "many")
        table = self._create(self._many, None)
        for rows in self.source.tables():
            step = -(-rows.num_rows // PIECES)
            for start in range(0, rows.num_rows, step):
                table.append(rows.slice(start, step))
        self.pieces = [f"file://{self._many}/{file.file.path}" for file in plan_of(table.scan()).files]
        self._uncompacted = self._pointer_of(self._many).read_bytes()

    def _fresh(self) -> str:
        shutil.rmtree(self.directory / f"new-{self._number}", ignore_errors=True)
        self._number += 1
        return str(self.directory / f"new-{self._number}")

    def _create(self, url: str, sort_key: str | None) -> dolmen.Table:
        return dolmen.open(url).create_table("events", SCHEMA, primary_key="id", sort_key=sort_key)

    def _pointer_of(self, url: str) -> Path:
        return Path(url) / "_latest_manifest"

    def _source(self) -> DataFrame:
        return self.spark.read.parquet(*self.source.files)

    def append(self) -> Spent:
        """One commit of the source's rows."""
        table = self._create(self._fresh(), None)
        return self._checked(spend(lambda: append(table, self._source())), table)

    def load(self, sort_key: str | None) -> Spent:
        """A job's work: files from the landing directory to a table."""
        url, landing = self._fresh(), self.directory / "landing"
        table = self._create(url, sort_key)
        shutil.rmtree(landing, ignore_errors=True)
        shutil.copytree(Path(self.source.files[0].removeprefix("file://")).parent, landing / "events")
        database = dolmen.open(url)
        landed = Landed.of(str(landing), database=url)
        return self._checked(spend(lambda: load(self.spark, database, landed)), table)

    def _checked(self, spent: Spent, table: dolmen.Table) -> Spent:
        count = table.count()
        if count != self.source.rows:
            raise AssertionError(f"{self.source.rows} rows were written, {count} are there")
        return Spent(spent.driver, spent.others, spent.wall)

    def compact(self) -> Spent:
        """The files of a table that was written in small pieces become few."""
        self._pointer_of(self._many).write_bytes(self._uncompacted)
        database = dolmen.open(self._many)
        spent = self._checked(spend(lambda: compact(self.spark, database)), database.table("events"))
        if (left := len(plan_of(database.table("events").scan()).files)) >= len(self.pieces):
            raise AssertionError(f"{left} files are left of {len(self.pieces)}")
        return spent

    def write(self, sort_key: str | None) -> Spent:
        """The source's rows by Spark's own writer; clustered by range, if there is a sort key."""
        frame = self._source()
        if sort_key is not None:
            frame = frame.repartitionByRange(FILES, sort_key).sortWithinPartitions(sort_key)
        return self._written(lambda: frame)

    def rewrite(self) -> Spent:
        """The files that a compaction finds, read and written by Spark itself, by as many tasks as run at once."""
        cores = self.spark.sparkContext.defaultParallelism
        return self._written(lambda: self.spark.read.parquet(*self.pieces).coalesce(cores))

    def _written(self, frame: Callable[[], DataFrame]) -> Spent:
        self.newest = path = self._fresh()
        return spend(lambda: frame().write.option("compression", "zstd").parquet(path))


#: What is compared: title, ours, what is beside it, and the most that the ratio of processor time is to be.
WRITES = (
    ("append / df.write.parquet", ("append",), ("write", None), None),
    ("load of 4 Parquet files / df.write.parquet", ("load", None), ("write", None), 1 / 0.8),
    ("load, clustered by user_id / the same by range and sort", ("load", "user_id"), ("write", "user_id"), None),
    ("compaction of 16 files / reading and writing them", ("compact",), ("rewrite",), 0.8),
)
