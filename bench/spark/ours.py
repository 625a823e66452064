"""dolmen on Spark."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

import dolmen
from bench.spark.cpu import Spent, spend
from bench.spark.engine import QUERIES, Engine
from bench.spark.source import SCHEMA
from dolmen.base.records import replace
from dolmen.rows.scan.scan import plan_of
from dolmen.spark import delete, to_spark

#: Two predicates that no statistics exclude: each is tested on every row of every file.
PREDICATES = ("user_id = 5", "amount < 0.0001 AND kind = 'view'")


class Dolmen(Engine):
    """A database in a directory; states are what its pointer says."""

    name = "dolmen"

    def prepare(self) -> None:
        table = dolmen.open(self._url).create_table("events", SCHEMA, primary_key="id")
        for rows in self.source.tables():
            table.append(rows)
        self._states: dict[str, bytes] = {}
        self.keep("clean")
        self.delete_keys()
        self.keep("1 % of keys, unresolved")
        dolmen.open(self._url).resolve()
        self.keep("1 % deleted")
        self.go_back("clean")
        for predicate in PREDICATES:
            self.table().delete(predicate)
        self.keep("two predicates")
        self.go_back("clean")

    @property
    def _url(self) -> str:
        return str(self.directory / "database")

    def table(self) -> dolmen.Table:
        """Opened again, without caches of the previous call."""
        return dolmen.open(self._url).table("events")

    def frame(self) -> DataFrame:
        return to_spark(self.table(), spark=self.spark)

    def keep(self, state: str) -> None:
        self._states[state] = self._pointer.read_bytes()

    def go_back(self, state: str) -> None:
        self._pointer.write_bytes(self._states[state])

    @property
    def _pointer(self) -> Path:
        return Path(self._url) / "_latest_manifest"

    def delete_user(self, user: int) -> None:
        delete(self.table(), f"user_id = {user}")

    def delete_keys(self) -> None:
        delete(self.table(), self.spark.read.parquet(self.source.keys))

    def delete_keys_and_resolve(self) -> None:
        """With what background work does later."""
        self.delete_keys()
        dolmen.open(self._url).resolve()

    def files(self) -> list[str]:
        return [f"file://{self._url}/{file.file.path}" for file in plan_of(self.table().scan()).files]

    def split(self, name: str) -> dict[str, Spent]:
        """One query step by step: the frame, Spark's plan of it, and running it."""
        made = spend(lambda: QUERIES[name](self.frame()))
        frame: DataFrame = made.result
        planned = spend(lambda: frame._jdf.queryExecution().executedPlan())
        return {"frame": replace(made, result=None), "plan": replace(planned, result=None), "run": spend(frame.collect)}
