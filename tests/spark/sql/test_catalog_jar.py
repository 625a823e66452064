"""The jar of ``spark-catalog/``: catalogs in ``spark-sql`` and in Spark's Thrift server, where no Python driver is."""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest

import dolmen
from dolmen import Database
from dolmen.spark.catalog_jar import NO_JDK, build_jar
from support.spark import SINCE_4_1

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CATALOG = (ROOT / "docs" / "spark-catalog.md").read_text()
STATEMENTS = (ROOT / "docs" / "spark-sql.md").read_text().partition("## Statements of Delta Lake and Iceberg")[2]
DBT = ROOT / ".venv-dbt" / "bin"
SPARK = Path(pyspark.__path__[0])
DAY = datetime.date(2026, 11, 20)
BEYOND = SINCE_4_1 if pyspark.__version__ < "4.1" else ()
NEW_ROWS = "CREATE TEMPORARY VIEW new_rows AS SELECT 100L AS id, 'b' AS s, DATE'2026-11-20' AS day"


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("javac") is None:
        pytest.skip(NO_JDK)
    path = tmp_path_factory.mktemp("jar") / "dolmen-spark-catalog.jar"
    build_jar(path)
    return path


def command_of_page(name: str, jar: Path, db: Database, *more: str, python: str = sys.executable) -> list[str]:
    """A command of the page, for a database and a jar of the test, with more arguments."""
    (text,) = re.findall(rf"```sh\n({name} .*?)\n```", CATALOG, re.DOTALL)
    text = text.replace("dolmen-spark-catalog.jar", str(jar)).replace("s3://bucket/database", db.url)
    name, *options = shlex.split(text.replace("/opt/dolmen/bin/python", python))
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "in-memory",
    }
    plain = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    return ["bash", str(SPARK / "bin" / name), *plain, *options, *more]


def environment(folder: Path) -> dict[str, str]:
    """Without what a PySpark of this process has set."""
    own = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "_PYSPARK", "SPARK_HOME"))
    }
    java = f"{own.get('SPARK_SUBMIT_OPTS', '')} -Dderby.system.home={folder}"
    return {**own, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": java}


def steps_of_page() -> list[str]:
    """The statements that run, and those that take the place of others."""
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", STATEMENTS, re.MULTILINE)
    return [
        here.strip("`") if here.startswith("`") else statement
        for statement, here in rows
        if not here.startswith("refused") and statement not in BEYOND
    ]


def database(folder: Path) -> Database:
    db = dolmen.open(str(folder))
    events = db.create_table("events", "id BIGINT NOT NULL, s VARCHAR, day DATE", primary_key="id")
    events.append([{"id": n, "s": "a", "day": DAY} for n in range(10)])
    db.create_table("days", "id BIGINT, day DATE", partition_by="day")
    return db


def errors_of(done: subprocess.CompletedProcess[str]) -> str:
    return "\n".join(line for line in done.stderr.splitlines() if "at " not in line[:5])[-3000:]


def test_spark_sql_runs_the_statements_of_the_page(jar: Path, tmp_path: Path) -> None:
    db = database(tmp_path / "db")
    steps = [NEW_ROWS, *steps_of_page(), "SELECT '-- rows'", "SELECT id, s FROM lake.events ORDER BY id"]
    script = tmp_path / "script.sql"
    script.write_text("".join(f"{step};\n" for step in [*steps, "CALL lake.system.nothing()"]))
    command = command_of_page("spark-sql", jar, db)
    command[command.index("-e") :] = ["-S", "-f", str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=900
    )
    db.refresh()
    printed = done.stdout.partition("-- rows\n")[2].splitlines()
    rows = db.table("events").scan(order_by="id").to_arrow().to_pylist()
    assert (printed, len(rows) > 0) == ([f"{row['id']}\t{row['s']}" for row in rows], True), errors_of(done)
    assert "IllegalArgumentException: there is no procedure 'nothing'; there are: compact(table)" in done.stderr
    assert "raised by dolmen" not in done.stderr  # what Python reads, and people need not
    assert sorted(db.tables()) == ["d", "days", "events", "f", "g", "h"]
    done_by = {each.operation for each in db.history()}
    assert {"merge", "update", "delete", "overwrite", "compact", "restore", "tag", "alter"} <= done_by


def test_spark_sql_says_what_its_python_lacks_and_goes_on_when_it_is_there(jar: Path, tmp_path: Path) -> None:
    db, python = database(tmp_path / "db"), tmp_path / "python"
    for name, options in ("without", "-S -E -s"), ("with", ""):  # the first has no packages
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        (tmp_path / name).chmod(0o755)
    command = command_of_page("spark-sql", jar, db, python=str(python))
    ask = "SHOW TABLES IN lake"
    command[command.index("-e") :] = [
        "--conf", "spark.hadoop.hive.cli.errors.ignore=true",
        "-e", f"{ask}; !cp {tmp_path}/without {python}; {ask}; !cp {tmp_path}/with {python}; {ask}",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=900
    )
    sentence = rf"dolmen's Python process \({python}\) %s.*\. Set spark\.pyspark\.python or PYSPARK_PYTHON to a Python"
    assert re.search(sentence % "can't be started: .*No such file or directory", done.stderr), errors_of(done)
    assert re.search(sentence % "ended: ModuleNotFoundError: No module named 'dolmen'", done.stderr), done.stderr[
        -3000:
    ]
    assert {"days", "events"} <= set(done.stdout.split()), errors_of(done)


DRIVER = """
import sys
import dolmen
from dolmen.spark import attach
from pyspark.sql import SparkSession

url, jar = sys.argv[1:]
settings = {
    "spark.driver.extraClassPath": jar, "spark.sql.catalog.lake": "dolmen.spark.DolmenCatalog",
    "spark.sql.catalog.lake.url": url, "spark.ui.enabled": "false",
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
try:
    spark.sql("SHOW TABLES IN lake").show()
except Exception as error:
    print(error)
attach(spark, dolmen.open(url), catalog="lake")
spark.sql("USE lake")
spark.sql("UPDATE days SET id = 2 WHERE days.id = 1")
print(spark.sql("SELECT id FROM days").collect())
"""


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_driver_in_python_is_told_to_attach(jar: Path, tmp_path: Path, is_submitted: bool) -> None:
    db, script = database(tmp_path / "db"), tmp_path / "driver.py"
    db.table("days").append([{"id": 1, "day": DAY}])
    script.write_text(DRIVER)
    command = [sys.executable] if not is_submitted else [
        "bash", str(SPARK / "bin" / "spark-submit"), "--driver-class-path", str(jar)
    ]  # fmt: skip
    command += [str(script), db.url, str(jar)]
    variables = {**environment(tmp_path), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=900
    )
    assert "catalog lake: this driver is a Python program" in done.stdout, errors_of(done)
    assert "[Row(id=2)]" in done.stdout, errors_of(done)


CLIENT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pyhive import hive
from pyhive.exc import OperationalError

def run(port, statements):
    found = []
    with hive.connect("127.0.0.1", port) as connection:
        for statement in statements:
            cursor = connection.cursor()
            try:
                cursor.execute(statement)
                found.append(cursor.fetchall() if cursor.description else [])
            except OperationalError as error:
                found.append(error.args[0].status.errorMessage)
    return found

port, *connections = json.load(sys.stdin)
with ThreadPoolExecutor() as pool:
    print(json.dumps(list(pool.map(lambda each: run(port, each), connections))))
"""


class ThriftServer:
    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process, self.log, self.port = process, log, port

    def run(self, *connections: list[str]) -> list[list[object]]:
        """What statements give, of several connections at once: rows, or the sentence of an error."""
        text = json.dumps([self.port, *connections])
        command = [DBT / "python", "-c", CLIENT]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
        found: list[list[object]] = json.loads(done.stdout)
        return found


@pytest.fixture
def server(jar: Path, tmp_path: Path) -> Iterator[ThriftServer]:
    if not (DBT / "dbt").exists() and not os.environ.get("CI"):
        pytest.skip("make setup installs dbt into .venv-dbt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = command_of_page("spark-submit", jar, database(tmp_path / "db"))
    command[command.index("--hiveconf") :] = [
        "--hiveconf", f"hive.server2.thrift.port={port}", "--hiveconf", "hive.server2.thrift.bind.host=127.0.0.1"
    ]  # fmt: skip
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stdout=output, stderr=output)
    try:
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(1)
        yield ThriftServer(process, log, port)
    finally:
        process.kill()
        process.wait()


def test_connections_to_a_thrift_server_write_at_once_dbt_builds_and_no_python_outlives_it(
    server: ThriftServer, tmp_path: Path
) -> None:
    one, two = (
        [
            f"INSERT INTO lake.events VALUES ({n}, 'new', NULL)",
            f"UPDATE lake.events SET s = 'set {n}' WHERE id = {n}",
            f"DELETE FROM lake.events WHERE id IN (SELECT max(id) FROM lake.events WHERE id < {n - 90})",
            f"SELECT id, s FROM lake.events WHERE id = {n}",
            "CALL lake.system.nothing()",
        ]
        for n in (100, 98)
    )
    found = server.run(one, two)
    assert [rows[:4] for rows in found] == [[[], [], [], [[n, f"set {n}"]]] for n in (100, 98)], server.log.read_text()
    assert all("there is no procedure 'nothing'; there are: compact(table)" in str(rows[4]) for rows in found)
    db = dolmen.open(str(tmp_path / "db"))
    assert (db.table("events").count("id < 10"), db.table("events").count("s LIKE 'set %'")) == (8, 2)

    for name, text in re.findall(r"<!-- file: (\S+) -->\n\n```\w+\n(.*?)```", CATALOG, re.DOTALL):
        (tmp_path / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "shop" / name).write_text(text.replace("10000", str(server.port)))
    for more in [], [{"id": 100, "s": "again", "day": DAY}, {"id": 101, "s": "added", "day": DAY}]:
        if more:
            db.table("events").delete("id = 100")
            db.table("events").append(more)
        done = subprocess.run(
            [DBT / "dbt", "build", "--profiles-dir", "."], cwd=tmp_path / "shop", capture_output=True, text=True,
            env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}, check=False, timeout=600,
        )  # fmt: skip
        assert "Completed successfully" in done.stdout, done.stdout
    db.refresh()
    assert db.history(1)[0].operation == "merge"
    latest = db.table("latest").scan(order_by="-id", limit=3).to_arrow().to_pylist()
    assert [(row["id"], row["s"]) for row in latest] == [(101, "added"), (100, "again"), (98, "set 98")]

    children = list[psutil.Process]()
    for child in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # another child, which has ended
            children += [child] * ("catalog_jar" in str(child.cmdline()))
    assert len(children) == 1
    server.process.kill()
    psutil.wait_procs(children, timeout=60)
    assert not children[0].is_running()
