"""The interface of each table format: the same queries and deletes, with the same session settings."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from bench.spark.cpu import Spent, spend
from bench.spark.source import Source

SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
}
"""The settings of all engines; others are Spark's defaults (AQE is on)."""


def two_columns(frame: DataFrame) -> DataFrame:
    """The sums of two columns."""
    return frame.agg(F.sum("user_id"), F.sum("items"))


def all_columns(frame: DataFrame) -> DataFrame:
    """Something of each column, that needs all of its values."""
    sums = [F.sum(name) for name in ("id", "user_id", "amount", "score", "items")]
    rest = [F.max("code"), F.max("kind"), F.unix_micros(F.max("event_time"))]
    return frame.agg(*sums, *rest, F.count("*"))


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {"two columns": two_columns, "all columns": all_columns}


class Engine(ABC):
    """One table format. Its table is in one of several states, by name.

    Args:
        directory: for all that it writes.
        spark: the session; by default one of its own, with what it needs, which takes a process of its own.
    """

    name: ClassVar[str]
    packages: ClassVar[str] = ""
    settings: ClassVar[dict[str, str]] = {}

    def __init__(self, directory: Path, source: Source, spark: SparkSession | None = None) -> None:
        self.directory, self.source = directory / type(self).__name__.lower(), source
        self.directory.mkdir(parents=True)
        self.spark = spark or self._session()

    def _session(self) -> SparkSession:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # of the workers
        builder = SparkSession.builder.master("local[2]").appName(f"bench {self.name}")
        options = SETTINGS | self.settings_in(self.directory)
        options["spark.sql.warehouse.dir"] = str(self.directory / "warehouse")
        options["spark.local.dir"] = str(self.directory / "local")
        options["spark.driver.extraJavaOptions"] = f"-Dderby.system.home={self.directory}"
        if self.packages:
            options["spark.jars.packages"] = self.packages
        for name, value in options.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session

    def settings_in(self, directory: Path) -> dict[str, str]:
        """The format's session settings, in addition to the common ones."""
        return self.settings

    @abstractmethod
    def prepare(self) -> None:
        """Makes the table of the source's rows, in as many files; and remembers it as the state ``clean``."""

    @abstractmethod
    def frame(self) -> DataFrame:
        """The table as it is now."""

    @abstractmethod
    def keep(self, state: str) -> None:
        """Remembers the table as it is."""

    @abstractmethod
    def go_back(self, state: str) -> None:
        """Makes the table what it was. This is never timed."""

    @abstractmethod
    def delete_user(self, user: int) -> None:
        """Deletes one user's rows, which are in all files."""

    @abstractmethod
    def delete_keys(self) -> None:
        """Deletes the rows whose keys the source lists: 1 % of all."""

    @abstractmethod
    def files(self) -> list[str]:
        """URLs of the clean table's data files."""

    def query(self, name: str) -> Spent:
        """Asks the table."""
        return spend(lambda: tuple(QUERIES[name](self.frame()).collect()[0]))

    def plain(self, name: str) -> Spent:
        """Asks the same of the data files, which Spark reads by itself: nothing is deleted from them."""
        files = self.files()
        return spend(lambda: tuple(QUERIES[name](self.spark.read.parquet(*files)).collect()[0]))

    def spend_on(self, name: str, *arguments: Any) -> Spent:
        """Calls one of these methods."""
        return spend(lambda: getattr(self, name)(*arguments))

    def stop(self) -> None:
        """Ends the session and its JVM."""
        self.spark.stop()
