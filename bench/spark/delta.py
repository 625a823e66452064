"""Delta Lake, with deletion vectors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame

from bench.spark.engine import Engine


class Delta(Engine):
    """A table by its path; states are its versions."""

    name = "Delta"
    packages = "io.delta:delta-spark_4.1_2.13:4.1.0"
    settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }

    def prepare(self) -> None:
        self._path = str(self.directory / "events")
        self._table = f"delta.`{self._path}`"
        for file in self.source.files:
            rows = self.spark.read.parquet(file).coalesce(1)
            rows.write.format("delta").option("delta.enableDeletionVectors", "true").mode("append").save(self._path)
        self._clean = sorted(self.frame().inputFiles())
        self.keep("clean")
        self.delete_keys()
        self.keep("1 % deleted")
        self.go_back("clean")

    def frame(self) -> DataFrame:
        return self.spark.read.format("delta").load(self._path)

    def keep(self, state: str) -> None:
        shutil.copytree(self._log, self._logs / state)

    def go_back(self, state: str) -> None:
        """Not by RESTORE: that writes a checkpoint, which Delta 4.1.0 cannot read on Spark 4.1.4.

        The snapshot is known again afterwards, as after any commit.
        """
        shutil.rmtree(self._log)
        shutil.copytree(self._logs / state, self._log)
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        self.frame().limit(1).collect()

    @property
    def _log(self) -> Path:
        return Path(self._path) / "_delta_log"

    @property
    def _logs(self) -> Path:
        return self.directory / "logs"

    def delete_user(self, user: int) -> None:
        self.spark.sql(f"DELETE FROM {self._table} WHERE user_id = {user}").collect()

    def delete_keys(self) -> None:
        """By MERGE: Delta's DELETE takes no subquery."""
        self.spark.read.parquet(self.source.keys).createOrReplaceTempView("gone")
        self.spark.sql(f"MERGE INTO {self._table} t USING gone ON t.id = gone.id WHEN MATCHED THEN DELETE").collect()

    def files(self) -> list[str]:
        return self._clean
