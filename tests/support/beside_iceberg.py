"""The same random statements on a table of dolmen and on one of Iceberg, in one Spark session.

    PYTHONPATH=tests python tests/support/beside_iceberg.py --statements 2000 --seed 1

runs many. A statement that both accept must give the same rows. If they differ, plain Spark decides, by the same
statement over the rows in memory. If only one refuses a statement, it is taken back, and counted with the reason.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import dolmen
from dolmen.spark import attach
from dolmen.spark.frame_types import to_frame
from support.spark import start_session
from support.spark_conditions import Conditions, random_rows
from support.spark_jars import find_jars
from support.spark_jvm import SHORT_LIVED_JVM

ZONES = ["UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]
STATEMENTS_OF_A_HISTORY = 40
TYPES = {
    "id": "BIGINT", "i": "INT", "d": "DECIMAL(10, 2)", "f": "FLOAT", "x": "DOUBLE", "s": "STRING", "t": "BOOLEAN",
    "day": "DATE", "at": "TIMESTAMP", "loc": "TIMESTAMP_NTZ",
}  # fmt: skip
"""Those of ``SCHEMA`` that Iceberg has too."""
NESTED = {"n": "STRUCT<a: INT, s: STRING>", "l": "ARRAY<INT>", "bin": "BINARY"}
PARTITIONS = ["", "", "day", "days(at)", "bucket(3, id)", "truncate(1, s)", "bucket(2, s), day", "months(at), i"]
EXPRESSIONS = {
    "i": ["id + 1", "x", "'7'", "i * 2", "d", "NULL", "cast(f AS INT)"],
    "d": ["x / 3", "d * 2", "i", "1.005BD", "NULL", "'2.5'"],
    "f": ["d", "x", "-0.0F", "f * 2", "double('NaN')"],
    "x": ["i / 0.5", "f", "double('NaN')", "-x", "NULL", "d"],
    "s": ["i", "d * 2", "upper(s)", "concat(s, '\\\\')", "day", "at", "x", "NULL"],
    "t": ["x > 1", "NOT t", "NULL"],
    "day": ["at", "day + 1", "loc", "NULL", "DATE'1582-10-04'"],
    "at": ["day", "loc", "at + INTERVAL 1 HOUR", "TIMESTAMP'2026-03-08 02:30:00'", "NULL"],
    "loc": ["at", "day", "loc + INTERVAL 1 DAY", "TIMESTAMP_NTZ'0001-01-01 00:00:00'"],
    "n": ["named_struct('a', i, 's', s)", "NULL", "named_struct('a', NULL, 's', 'x')"],
    "l": ["array(i, 1)", "NULL", "array()"],
    "bin": ["X'00FF'", "encode(s, 'UTF-8')", "NULL"],
}  # fmt: skip
SETTINGS = {
    "spark__sql__extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark__sql__shuffle__partitions": "1",
    # Statements over few rows: compiling them would take most of the time.
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
}
WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(10, 2)": "DECIMAL(14, 2)"}


@dataclass
class Outcomes:
    """What became of the statements."""

    same: Counter[str] = field(default_factory=Counter)  # by kind
    refused_by_both: Counter[str] = field(default_factory=Counter)
    refused_here: Counter[str] = field(default_factory=Counter)  # by kind and reason
    refused_there: Counter[str] = field(default_factory=Counter)
    wrong_there: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        counters = self.same, self.refused_by_both, self.refused_here, self.refused_there
        return sum(counter.total() for counter in counters) + len(self.wrong) + len(self.wrong_there)

    def __str__(self) -> str:
        lines = [
            f"{self.total} statements: {self.same.total()} the same, {len(self.wrong)} wrong, {len(self.wrong_there)} "
            "where Iceberg differs from plain Spark"
        ]
        for name in "same", "refused_by_both", "refused_here", "refused_there":
            counter: Counter[str] = getattr(self, name)
            lines += [f"{name}: {counter.total()}", *(f"  {n:5} {what}" for what, n in counter.most_common())]
        return "\n".join([*lines, *self.wrong_there, *self.wrong])


def start_iceberg(spark: SparkSession) -> None:
    """Makes ``ice`` a catalog of Iceberg, in the memory of the JVM: files are slow to make there."""
    spark.conf.set("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.ice.catalog-impl", "org.apache.iceberg.inmemory.InMemoryCatalog")
    spark.conf.set("spark.sql.catalog.ice.warehouse", "/memory")
    spark.conf.set("spark.sql.catalog.ice.cache-enabled", "false")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ice.db")


def _key(value: Any) -> str:
    """A value as text: NaN equals itself, and -0.0 is not 0.0."""
    return repr(value)


def _sorted(table: pa.Table) -> tuple[list[str], list[str]]:
    """The columns of a result, and its rows in order."""
    columns = [f"{each.name} {each.type}" for each in table.schema]
    return columns, sorted(_key(tuple(row.values())) for row in table.to_pylist())


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}"


class TwinTables:
    """A table of each format, with the same rows, and the statements that both have run."""

    def __init__(self, spark: SparkSession, seed: int, folder: Path, outcomes: Outcomes) -> None:
        self.spark, self.rng, self.outcomes = spark, random.Random(seed), outcomes
        self.db = dolmen.open(str(folder / f"db{seed}"))
        self.here, self.there = "lake.t", f"ice.db.t{seed}"
        self.columns = {name: name for name in (*TYPES, *NESTED)}
        self.types = {**TYPES, **NESTED}
        self.versions: list[tuple[int, int]] = []
        self.log = [f"seed {seed}"]
        self.next_id = 0
        self.chosen = 0, 0
        self.rows: pa.Table | None = None  # those of both, before a statement
        self.is_over = False
        self.expected = ""  # a query of what a change leaves

    def run(self, statements: int) -> None:
        rng, spark = self.rng, self.spark
        ansi, zone = rng.choice(["true", "false"]), rng.choice(ZONES)
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        spark.conf.set("spark.sql.session.timeZone", zone)
        self.log.append(f"ansi {ansi}, zone {zone}")
        attached = attach(spark, self.db, catalog="lake")
        try:
            columns = ", ".join(f"{name} {kind}" for name, kind in self.types.items())
            parts = rng.choice(PARTITIONS)
            by = f" PARTITIONED BY ({parts})" if parts else ""
            self.log.append(f"CREATE{by}")
            spark.sql(f"CREATE TABLE {self.here} ({columns}){by}")
            how = rng.choice(["", " TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"])
            spark.sql(f"CREATE TABLE {self.there} ({columns}) USING iceberg{by}{how}")
            for _ in range(2):
                self.step(self.insert)
            kinds: Sequence[Callable[[], tuple[str, str]]] = [
                self.insert, self.insert, self.insert_columns, self.delete, self.delete, self.delete_by_query,
                self.update, self.update, self.update, self.merge, self.merge, self.merge, self.overwrite, self.alter,
                *[self.select] * 10, *[self.aggregate] * 3, self.join, self.select_version,
            ]  # fmt: skip
            for _ in range(statements - 2):
                self.step(rng.choice(kinds))
                if self.is_over:
                    break
            report = self.db.verify(deep=True)
            if not report.ok:
                self.outcomes.wrong.append(f"{self.log}: {report}")
        finally:
            attached.detach()
            spark.sql(f"DROP TABLE IF EXISTS {self.there} PURGE")
            spark.conf.unset("spark.sql.ansi.enabled")
            spark.conf.unset("spark.sql.session.timeZone")
            spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    def step(self, make: Callable[[], tuple[str, str]]) -> None:
        self.expected = ""
        kind, statement = make()
        changes = kind not in ("select", "aggregate", "join", "version")
        expected = self.expected if changes else statement
        before = self.state() if changes else (0, 0)
        texts = [self.text(statement, here=True), self.text(statement, here=False)]
        found, errors = list[Any](), list[str]()
        for text in texts:
            try:
                frame = self.spark.sql(text)
                found.append(None if changes else _sorted(frame.toArrow()))
                errors.append("")
            except Exception as error:  # noqa: BLE001 - of any class of Spark's
                found.append(None)
                errors.append(_reason(error))
        self.log.append(f"{texts[0]}  -- {errors}" if any(errors) else texts[0])
        if all(errors):
            self.outcomes.refused_by_both[kind] += 1
        elif any(errors):
            here = self.outcomes.refused_here if errors[0] else self.outcomes.refused_there
            here[f"{kind}: {errors[0] or errors[1]}  [{texts[0]}]"] += 1
            self.is_over = kind == "alter"  # not taken back
            self.take_back(before, here=bool(errors[1]), changes=changes)
        else:
            if changes:
                theirs = self.spark.sql(f"SELECT * FROM {self.there}").toArrow()
                ours = self.db.table("t").to_arrow()
                if ours.column_names == theirs.column_names:
                    ours = ours.cast(theirs.schema)
                after = ours
                found = [_sorted(ours), _sorted(theirs)]
            if found[0] == found[1]:
                self.outcomes.same[kind] += 1
                if changes and kind != "alter":  # no version of Iceberg's
                    self.versions.append(self.state())
                if kind == "alter":
                    self.altered()
            else:
                self.report(texts[0], expected, *found)
            if changes:
                self.rows = after

    def plain(self, expected: str) -> list[str]:
        """The rows that plain Spark makes of the rows before the statement."""
        if not expected or self.rows is None:
            return []
        to_frame(self.spark, self.rows).createOrReplaceTempView("mirror")
        try:
            return _sorted(self.spark.sql(expected.replace("{t}", "mirror")).toArrow())[1]
        except Exception as error:  # noqa: BLE001 - then nothing is decided
            return [_reason(error)]

    def report(self, text: str, expected: str, here: Any, there: Any) -> None:
        ours, theirs = Counter(here[1]), Counter(there[1])
        only = [list((one - other).items())[:3] for one, other in ((ours, theirs), (theirs, ours))]
        columns = "" if here[0] == there[0] else f"columns {here[0]} and {there[0]}"
        is_right = self.plain(expected) == here[1]
        wrong = [
            f"{'ICEBERG' if is_right else 'WRONG'} {text}",
            columns,
            f"  only here {only[0]}",
            f"  only there {only[1]}",
            *self.log,
        ]
        (self.outcomes.wrong_there if is_right else self.outcomes.wrong).append("\n".join(wrong))
        _print("\n".join(wrong))
        self.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
        self.spark.sql(f"INSERT OVERWRITE {self.there} SELECT * FROM {self.here}")  # go on with the same rows

    def text(self, statement: str, *, here: bool) -> str:
        version = self.rng.choice(self.versions) if here and self.versions else self.chosen
        self.chosen = version
        named = statement.replace("{t}", self.here if here else self.there)
        return named.replace("{v}", str(version[0 if here else 1]))

    def state(self) -> tuple[int, int]:
        jvm = self.spark._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.there)
        snapshot = table.currentSnapshot()
        return self.db.refresh(), snapshot.snapshotId() if snapshot is not None else 0

    def take_back(self, state: tuple[int, int], *, here: bool, changes: bool) -> None:
        """Takes back a statement that one of both has refused."""
        if not changes:
            return
        if here:
            self.db.table("t").restore(state[0])
        elif state[1]:
            name = self.there.removeprefix("ice.")
            self.spark.sql(f"CALL ice.system.rollback_to_snapshot('{name}', {state[1]})")

    # Statements

    def conditions(self) -> Conditions:
        plain = {name: of for name, of in self.columns.items() if of in TYPES}
        return Conditions(self.rng, gaps=False, columns=plain)

    def condition(self, depth: int = 2) -> str:
        if "n" in self.columns.values() and self.rng.random() < 0.1:
            [name] = [name for name, of in self.columns.items() if of == "n"]
            return self.rng.choice([f"{name}.a > 0", f"{name} IS NULL", f"{name}.s = 'a'", f"{name}.a IS NULL"])
        return self.conditions().any(depth)

    def source(self, count: int) -> str:
        """A view of new rows, with the columns of the table by their present names."""
        rows = random_rows(self.rng, self.next_id, count)
        self.next_id += self.rng.choice([count, count - 2])  # some ids come again
        to_frame(self.spark, rows).createOrReplaceTempView("fresh")
        made = {
            **{name: name for name in TYPES},
            "n": "IF(id % 3 = 0, NULL, named_struct('a', i, 's', s))",
            "l": "IF(id % 4 = 0, NULL, array(i, NULL))", "bin": "encode(s, 'UTF-8')",
        }  # fmt: skip
        shown = [
            f"CAST({made[of]} AS {self.types[name]}) AS {name}" if of in made else f"CAST(NULL AS INT) AS {name}"
            for name, of in self.columns.items()
        ]
        self.spark.sql(f"SELECT {', '.join(shown)} FROM fresh").createOrReplaceTempView("news")
        return "news"

    def insert(self) -> tuple[str, str]:
        return "insert", f"INSERT INTO {{t}} SELECT * FROM {self.source(self.rng.randint(3, 12))}"

    def insert_columns(self) -> tuple[str, str]:
        self.source(3)
        names = self.rng.sample(list(self.columns), self.rng.randint(1, len(self.columns)))
        listed = ", ".join(names)
        by_name = self.rng.random() < 0.5
        into = "BY NAME" if by_name else f"({listed})"
        return "insert", f"INSERT INTO {{t}} {into} SELECT {listed} FROM news"

    def delete(self) -> tuple[str, str]:
        condition = self.condition()
        self.expected = f"SELECT * FROM {{t}} WHERE ({condition}) IS NOT TRUE"
        return "delete", f"DELETE FROM {{t}} WHERE {condition}"

    def delete_by_query(self) -> tuple[str, str]:
        name = self.rng.choice([name for name, of in self.columns.items() if of in ("id", "i", "s", "day")])
        return "delete", self.rng.choice(
            [
                f"DELETE FROM {{t}} WHERE {name} IN (SELECT {name} FROM {{t}} WHERE {self.condition(1)})",
                f"DELETE FROM {{t}} WHERE {name} = (SELECT max({name}) FROM {{t}})",
                f"DELETE FROM {{t}} AS a WHERE EXISTS (SELECT 1 FROM news b WHERE b.id = a.id AND a.{name} IS NULL)",
                f"DELETE FROM {{t}} WHERE {name} NOT IN (SELECT {name} FROM {{t}} WHERE {self.condition(1)})",
            ]
        )

    def new_value(self) -> tuple[str, str]:
        name = self.rng.choice([name for name, of in self.columns.items() if of in EXPRESSIONS])
        expression = self.rng.choice(EXPRESSIONS[self.columns[name]])
        return name, expression

    def update(self) -> tuple[str, str]:
        values = dict(self.new_value() for _ in range(self.rng.randint(1, 3)))
        text = ", ".join(f"{name} = {value}" for name, value in values.items())
        condition = self.condition(1)
        shown = [
            f"IF(({condition}) IS TRUE, CAST({values[name]} AS {self.types[name]}), {name}) AS {name}"
            if name in values
            else name
            for name in self.columns
        ]
        self.expected = f"SELECT {', '.join(shown)} FROM {{t}}"
        return "update", f"UPDATE {{t}} SET {text} WHERE {condition}"

    def merge(self) -> tuple[str, str]:
        rng = self.rng
        first, step = rng.randrange(max(1, self.next_id)), rng.choice([1, 1, 2])
        source = rng.choice(
            [
                f"(SELECT id + {first} AS k, id % 7 AS v FROM range(12))",
                f"(SELECT id DIV {step} + {first} AS k, id % 7 AS v FROM range(8))",
                "(SELECT id AS k, i AS v FROM {t} WHERE id % 2 = 0)",
            ]
        )
        on = rng.choice(["t.id = n.k", "n.k = t.id AND t.i > 0", "t.id = n.k AND t.s <=> 'a'"])
        target = rng.choice([name for name, of in self.columns.items() if of in ("x", "d", "s", "i")] or ["id"])
        matched = [
            "",
            f"WHEN MATCHED AND n.v > 4 THEN DELETE WHEN MATCHED AND t.id % 2 = 0 THEN UPDATE SET {target} = n.v",
            f"WHEN MATCHED THEN UPDATE SET t.{target} = n.v",
            "WHEN MATCHED THEN DELETE",
            f"WHEN MATCHED AND t.{target} IS NOT NULL THEN UPDATE SET {target} = NULL",
        ]
        new = ["", f"WHEN NOT MATCHED THEN INSERT (id, {target}) VALUES (n.k + 1000, n.v)" if target != "id" else "",
               "WHEN NOT MATCHED AND n.v < 3 THEN INSERT (id) VALUES (n.k)"]  # fmt: skip
        rest = ["", "", "WHEN NOT MATCHED BY SOURCE AND t.id % 5 = 0 THEN DELETE",
                f"WHEN NOT MATCHED BY SOURCE AND t.id < 3 THEN UPDATE SET {target} = 7"]  # fmt: skip
        chosen = [rng.choice(matched), rng.choice(new), rng.choice(rest)]
        if not chosen[0]:  # Spark repeats a row that several source rows match, if no clause is about it
            source = f"(SELECT k, max(v) AS v FROM {source} GROUP BY k)"
        clauses = " ".join(text for text in chosen if text)
        if not clauses or rng.random() < 0.2:
            source, on = self.source(6), "t.id = n.id"
            clauses = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        return "merge", f"MERGE INTO {{t}} t USING {source} n ON {on} {clauses}"

    def overwrite(self) -> tuple[str, str]:
        mode = self.rng.choice(["static", "dynamic"])
        self.spark.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
        if mode == "dynamic" or self.rng.random() < 0.5:
            return "overwrite", f"INSERT OVERWRITE {{t}} SELECT * FROM {self.source(6)} -- {mode}"
        self.expected = f"SELECT * FROM {{t}} WHERE id % 3 > 0 OR {self.condition(0)}"
        return "overwrite", f"INSERT OVERWRITE {{t}} {self.expected}"

    def alter(self) -> tuple[str, str]:
        rng, new = self.rng, f"c{len(self.log)}"
        name = rng.choice([name for name in self.columns if name != "id"])
        wider = WIDER.get(self.types[name])
        texts = [f"ADD COLUMN {new} INT", f"RENAME COLUMN {name} TO {new}", f"DROP COLUMN {name}"]
        if wider:
            texts += [f"ALTER COLUMN {name} TYPE {wider}"] * 2
        return "alter", f"ALTER TABLE {{t}} {rng.choice(texts)}"

    def altered(self) -> None:
        """Learns the table's columns."""
        words, before = self.log[-1].split()[3:], dict(self.columns)
        match words:
            case ["ADD", "COLUMN", new, _]:
                self.columns[new], self.types[new] = "i", "INT"
            case ["RENAME", "COLUMN", old, "TO", new]:
                self.columns = {new if name == old else name: of for name, of in before.items()}
                self.types[new] = self.types.pop(old)
            case ["DROP", "COLUMN", name]:
                del self.columns[name], self.types[name]
            case ["ALTER", "COLUMN", name, "TYPE", *kind]:
                self.types[name] = " ".join(kind)

    def select(self) -> tuple[str, str]:
        shown = self.rng.choice(["*", "id", ", ".join(self.rng.sample(list(self.columns), 2))])
        return "select", f"SELECT {shown} FROM {{t}} WHERE {self.condition()}"

    def aggregate(self) -> tuple[str, str]:
        name = self.rng.choice([name for name, of in self.columns.items() if of in TYPES])
        where = self.rng.choice(["", f" WHERE {self.condition()}"])
        if self.columns[name] in ("f", "x"):
            name = f"({name} + 0.0D)"  # the least of 0.0 and -0.0 is any of them
        return "aggregate", self.rng.choice(
            [
                f"SELECT count(*) FROM {{t}}{where}",
                f"SELECT min({name}), max({name}), count({name}), count(DISTINCT {name}) FROM {{t}}{where}",
                f"SELECT {name}, count(*) FROM {{t}}{where} GROUP BY {name}",
            ]
        )

    def join(self) -> tuple[str, str]:
        name = self.rng.choice([name for name, of in self.columns.items() if of in TYPES])
        kind = self.rng.choice(["", "LEFT ", "LEFT ANTI ", "LEFT SEMI ", "FULL "])
        shown = "a.id" if "ANTI" in kind or "SEMI" in kind else "a.id, b.id AS other"
        return "join", f"SELECT {shown} FROM {{t}} a {kind}JOIN {{t}} b ON a.{name} = b.{name} AND b.id % 2 = 0"

    def select_version(self) -> tuple[str, str]:
        return "version", "SELECT * FROM {t} VERSION AS OF {v}"


def run(seed: int, statements: int, folder: str, *, tell: Callable[[str], None] = lambda _: None) -> Outcomes:
    """Runs statements in the active session, on new tables after each forty of them."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    spark.sparkContext.setLogLevel("OFF")  # errors of statements are counted
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    start_iceberg(spark)
    outcomes = Outcomes()
    while outcomes.total < statements:
        TwinTables(spark, seed, Path(folder), outcomes).run(min(STATEMENTS_OF_A_HISTORY, statements - outcomes.total))
        seed += 1
        tell(str(outcomes).partition("\n")[0])
    return outcomes


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statements", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    class_path, missing = find_jars("iceberg")
    if class_path is None:
        sys.exit(missing)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED_JVM)
    with tempfile.TemporaryDirectory() as folder:
        spark = start_session(Path(folder), "local[1]", **SETTINGS, spark__jars=class_path)
        outcomes = run(
            options.seed, options.statements, folder, tell=lambda text: print(text, file=sys.stderr, flush=True)
        )
        spark.stop()
    print(outcomes)
    sys.exit(bool(outcomes.wrong))


if __name__ == "__main__":
    main()
