"""Processes that change one table by plain ``spark.sql``, each in a session of its own, and are killed at random.

    PYTHONPATH=tests python tests/support/killed_sql_writers.py --kills 30 --seed 1

runs many. A life is one process from its start to its end. Its statements are about ids of its own, and it logs each
before it runs, and when it is acknowledged; so the rows that must be there follow from the logs alone. The statement
that a kill interrupts may have been applied once, or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import dolmen
from support.spark_jvm import SHORT_LIVED_JVM

IDS_OF_A_LIFE = 10_000
WRITERS = 3
TABLE = "lake.t"
Rows = dict[int, int]  # the values of ``n`` by id
Statement = dict[str, Any]


def statements(life: int, rng: random.Random) -> Iterator[Statement]:
    """Statements about the ids of a life, without an end."""
    first, used = life * IDS_OF_A_LIFE, 0
    while True:
        kind = rng.choice(["insert", "insert", "update", "update", "delete", "delete_by_query", "merge", "replace"])
        if used < 5 or kind == "insert":
            ids = list(range(first + used, first + used + 5))
            used += 5
            yield {"kind": "insert", "ids": ids}
            continue
        at = first + rng.randrange(used - 3)
        if kind == "merge":
            ids = [*range(at, at + 3), first + used, first + used + 1]
            used += 2
            yield {"kind": "merge", "ids": ids}
        elif kind == "replace":
            yield {"kind": "replace", "ids": [at]}
        else:
            yield {"kind": kind, "ids": list(range(at, at + 3))}


def sql_of(statement: Statement) -> str:
    ids = statement["ids"]
    listed, values = ", ".join(map(str, ids)), ", ".join(f"({each})" for each in ids)
    match statement["kind"]:
        case "insert":
            return f"INSERT INTO {TABLE} SELECT CAST(col1 AS BIGINT), 0 FROM VALUES {values}"
        case "update":
            return f"UPDATE {TABLE} SET n = n + 1 WHERE id IN ({listed})"
        case "delete":
            return f"DELETE FROM {TABLE} WHERE id = {ids[0]}"
        case "delete_by_query":
            return f"DELETE FROM {TABLE} WHERE id IN (SELECT max(id) FROM {TABLE} WHERE id IN ({listed}))"
        case "replace":
            return f"INSERT INTO {TABLE} REPLACE WHERE id = {ids[0]} SELECT {ids[0]}L, 100"
    return (
        f"MERGE INTO {TABLE} t USING (SELECT CAST(col1 AS BIGINT) AS id FROM VALUES {values}) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET n = t.n + 10 WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 1)"
    )


def applied(rows: Rows, statement: Statement) -> Rows:
    """The rows after a statement."""
    made, ids = dict(rows), statement["ids"]
    match statement["kind"]:
        case "insert":
            made.update(dict.fromkeys(ids, 0))
        case "update":
            made.update({each: rows[each] + 1 for each in ids if each in rows})
        case "delete":
            made.pop(ids[0], None)
        case "delete_by_query":
            made.pop(max((each for each in ids if each in rows), default=-1), None)
        case "merge":
            made.update({each: rows[each] + 10 if each in rows else 1 for each in ids})
        case "replace":
            made[ids[0]] = 100
    return made


@dataclass
class Life:
    """What a process has logged."""

    number: int
    rows: Rows = field(default_factory=dict)  # after its acknowledged statements
    begun: Statement | None = None
    acknowledged: int = 0
    refused: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, number: int, log: Path) -> Life:
        life = cls(number)
        for line in log.read_text().splitlines() if log.exists() else []:
            record = json.loads(line)
            if "begin" in record:
                life.begun = record["begin"]
                continue
            assert life.begun is not None
            if "refused" in record:
                life.refused.append(record["refused"])
            else:
                life.rows = applied(life.rows, life.begun)
                life.acknowledged += 1
            life.begun = None
        return life

    def allowed(self) -> list[list[tuple[int, int]]]:
        """The rows of its ids that may be there."""
        states = [self.rows] if self.begun is None else [self.rows, applied(self.rows, self.begun)]
        return [sorted(state.items()) for state in states]


def write_until_killed(url: str, log: TextIO, life: int, seed: int, scratch: Path) -> None:
    from dolmen.spark import attach
    from support.spark import start_session

    spark = start_session(scratch, "local[1]")
    spark.sparkContext.setLogLevel("OFF")
    attach(spark, dolmen.open(url), catalog="lake")

    def tell(**record: object) -> None:
        log.write(json.dumps(record) + "\n")
        log.flush()

    for statement in statements(life, random.Random(seed)):
        tell(begin=statement)
        try:
            spark.sql(sql_of(statement)).collect()
        except Exception as error:  # noqa: BLE001 - of any class of Spark's
            tell(refused=str(error)[:300])
        else:
            tell(done=True)


def run(folder: Path, kills: int, seed: int) -> list[Life]:
    """Kills processes until there were so many kills, and returns the lives. Raises AssertionError: a row is wrong."""
    rng, db = random.Random(seed), dolmen.open(str(folder / "db"))
    db.create_table("t", "id BIGINT, n INTEGER")
    alive: dict[int, tuple[subprocess.Popen[bytes], float | None]] = {}
    lives = 0

    def log_of(life: int) -> Path:
        return folder / f"{life}.log"

    try:
        while lives < kills or alive:
            while len(alive) < WRITERS and lives < kills:
                command = [sys.executable, __file__, "--write", db.url, "--life", str(lives), "--seed", str(seed)]
                output = (folder / "output").open("ab")
                environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
                environment.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED_JVM)
                process = subprocess.Popen(
                    [*command, "--folder", str(folder)], env=environment, stdout=output, stderr=output,
                    start_new_session=True,
                )  # fmt: skip
                output.close()
                alive[lives] = process, None
                lives += 1
            time.sleep(0.05)
            for life, (process, end) in list(alive.items()):
                assert process.poll() is None, (folder / "output").read_text()[-3000:]
                if end is None and '"done"' in (log_of(life).read_text() if log_of(life).exists() else ""):
                    alive[life] = process, time.monotonic() + rng.uniform(0, 8)
                elif end is not None and time.monotonic() > end:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    del alive[life]
    finally:
        for process, _ in alive.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    found = [Life.read(life, log_of(life)) for life in range(lives)]
    check_rows(folder, found)
    return found


def check_rows(folder: Path, lives: list[Life]) -> None:
    db = dolmen.open(str(folder / "db"))
    there = [(row["id"], row["n"]) for row in db.table("t").to_arrow().to_pylist()]
    for life in lives:
        rows = sorted(row for row in there if row[0] // IDS_OF_A_LIFE == life.number)
        assert rows in life.allowed(), f"life {life.number}, begun {life.begun}: {rows}, not {life.allowed()}"
    assert sum(len(life.allowed()[0]) for life in lives) > 0
    assert db.verify(deep=True).ok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--life", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        scratch = options.folder / f"scratch{options.life}"
        with (options.folder / f"{options.life}.log").open("a") as log:
            write_until_killed(options.write, log, options.life, options.seed + options.life, scratch)
        return
    with tempfile.TemporaryDirectory() as folder:
        lives = run(Path(folder), options.kills, options.seed)
    acknowledged, refused = sum(life.acknowledged for life in lives), [text for life in lives for text in life.refused]
    interrupted = sum(life.begun is not None for life in lives)
    print(f"{len(lives)} kills, {interrupted} of them within a statement; {acknowledged} statements acknowledged, "
          f"{len(refused)} refused; no row is lost or doubled")  # fmt: skip
    for text in sorted(set(refused)):
        print(text)


if __name__ == "__main__":
    main()
