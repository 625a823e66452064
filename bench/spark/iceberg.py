"""Apache Iceberg, format 3, merge-on-read: its deletes are deletion vectors."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame

from bench.spark.engine import Engine

PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}


class Iceberg(Engine):
    """A table of a catalog in a directory; states are its snapshots."""

    name = "Iceberg"
    packages = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
    settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
    }
    table = "ice.bench.events"

    def settings_in(self, directory: Path) -> dict[str, str]:
        return self.settings | {"spark.sql.catalog.ice.warehouse": str(directory / "iceberg")}

    def prepare(self) -> None:
        self._states: dict[str, int] = {}
        create = self.spark.read.parquet(self.source.files[0]).limit(0).writeTo(self.table).using("iceberg")
        for name, value in PROPERTIES.items():
            create = create.tableProperty(name, value)
        create.create()
        for file in self.source.files:
            self.spark.read.parquet(file).coalesce(1).writeTo(self.table).append()
        paths = self.spark.sql(f"SELECT file_path FROM {self.table}.files").collect()
        self._clean = sorted(path for (path,) in paths)
        self.keep("clean")
        self.delete_keys()
        self.keep("1 % deleted")
        self.go_back("clean")

    def frame(self) -> DataFrame:
        return self.spark.table(self.table)

    def keep(self, state: str) -> None:
        query = f"SELECT snapshot_id FROM {self.table}.snapshots ORDER BY committed_at DESC LIMIT 1"
        [[snapshot]] = self.spark.sql(query).collect()
        self._states[state] = snapshot

    def go_back(self, state: str) -> None:
        self.spark.sql(f"CALL ice.system.set_current_snapshot('bench.events', {self._states[state]})").collect()

    def delete_user(self, user: int) -> None:
        self.spark.sql(f"DELETE FROM {self.table} WHERE user_id = {user}").collect()

    def delete_keys(self) -> None:
        self.spark.read.parquet(self.source.keys).createOrReplaceTempView("gone")
        self.spark.sql(f"DELETE FROM {self.table} WHERE id IN (SELECT id FROM gone)").collect()

    def files(self) -> list[str]:
        return self._clean
