"""Real readers of Iceberg, in an environment of their own (locks/iceberg.in), as a process that answers questions.

This file is both: what tests import, and the program of that process, which imports nothing of dolmen or of tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-iceberg" / "bin" / "python"
READERS = ("pyiceberg", "duckdb", "polars")

Condition = list[Any]
"""``["and" | "or", condition, condition]``, ``[column, op, literal]``, or ``[column, "null" | "present"]``.

A literal is a number, a text, or ``{"date": "2024-01-31"}``; so are ``timestamp``, ``timestamptz`` and ``decimal``."""


class IcebergReaders:
    """The process. Ask it from one thread.

    Args:
        folder: for answers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [str(PYTHON), "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "POLARS_ICEBERG_PLANNER": "pyiceberg"},
        )

    def read(
        self,
        reader: str,
        location: str,
        where: Condition | list[Condition | None] | None = None,
        snapshot: int | None = None,
        properties: dict[str, str] | None = None,
    ) -> pa.Table:
        """The rows that a reader sees. Raises AssertionError with its error if it fails.

        Args:
            reader: one of ``READERS``, or ``glue``: pyiceberg through a Glue catalog, where ``location`` is a name.
            properties: of the files or the catalog, as pyiceberg takes them.
        """
        question = {"reader": reader, "location": location, "where": where, "snapshot": snapshot}
        with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".arrow") as answer:
            error = self._ask({**question, "properties": properties or {}, "to": answer.name})
            assert error is None, f"{reader}: {error}"
            with pa.ipc.open_file(answer.name) as file:
                return file.read_all()

    def read_each(self, reader: str, location: str, conditions: Sequence[Condition | None]) -> pa.Table:
        """The rows that a reader sees for each of several conditions, in one table.

        Metadata is read once for all of them. DuckDB reads them in one query, each in a branch with a scan of its own.

        Returns:
            the rows of all conditions, with the number of each row's condition in ``_condition``.
        """
        return self.read(f"{reader} each", location, list(conditions))

    def pushed(self, location: str, conditions: Sequence[Condition | None]) -> list[str]:
        """The filters of each scan of DuckDB's ``read_each``."""
        found: list[str] = self.read("duckdb pushed each", location, list(conditions))["filters"].to_pylist()
        return found

    def count_files(self, reader: str, location: str, where: Condition | None = None) -> int:
        """The number of data files that pyiceberg or DuckDB opens for a condition."""
        return int(self.read(f"{reader} files", location, where)["files"][0].as_py())

    def write(self, what: str, name: str, properties: dict[str, str]) -> str | None:
        """Lets pyiceberg ``append`` a row to a table of a Glue catalog, ``delete`` all rows, or ``alter`` it.

        Returns:
            its error; None if there was none.
        """
        return self._ask({"reader": "write", "what": what, "location": name, "properties": properties})

    def _ask(self, question: dict[str, Any]) -> str | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        error: str | None = json.loads(self._process.stdout.readline())
        return error

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def on_s3(endpoint: str) -> dict[str, str]:
    """The properties with which readers find a test's S3 server."""
    return {
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "test",
        "s3.secret-access-key": "testtest",
        "s3.path-style-access": "true",
    }


def sql(condition: Condition) -> str:
    """A condition as SQL, which DuckDB and dolmen understand, and pyiceberg but for the word before a time."""
    if condition[0] in ("and", "or"):
        return f"({sql(condition[1])}) {condition[0].upper()} ({sql(condition[2])})"
    column, op, *literal = condition
    if op in ("null", "present"):
        return f"{column} IS {'NOT ' if op == 'present' else ''}NULL"
    if isinstance(literal[0], dict):
        ((kind, text),) = literal[0].items()
        return f"{column} {op} {text if kind == 'decimal' else f'{kind.upper()} {text!r}'}"
    return f"{column} {op} {literal[0]!r}"


def _pyiceberg(question: dict[str, Any]) -> pa.Table:
    return _scan(_static_table(question["location"], question["properties"]), question)


def _write(question: dict[str, Any]) -> None:
    from pyiceberg.catalog.glue import GlueCatalog

    table = GlueCatalog("glue", **question["properties"]).load_table(question["location"])
    if question["what"] == "append":
        table.append(table.scan().to_arrow().slice(0, 1))
    elif question["what"] == "delete":
        table.delete("id >= 0")
    else:
        with table.update_schema() as update:
            update.rename_column("name", "other")


def _glue(question: dict[str, Any]) -> pa.Table:
    from pyiceberg.catalog.glue import GlueCatalog

    return _scan(GlueCatalog("glue", **question["properties"]).load_table(question["location"]), question)


def _scan(table: Any, question: dict[str, Any]) -> pa.Table:
    return _plan(table, question).to_arrow()


def _plan(table: Any, question: dict[str, Any]) -> Any:
    where = question["where"]
    if where is None:
        return table.scan(snapshot_id=question["snapshot"])
    text = re.sub(" (DATE|TIMESTAMP|TIMESTAMPTZ) '", " '", sql(where))
    return table.scan(row_filter=text, snapshot_id=question["snapshot"])


def _pyiceberg_files(question: dict[str, Any]) -> pa.Table:
    table = _static_table(question["location"], question["properties"])
    return pa.table({"files": [len(list(_plan(table, question).plan_files()))]})


def _static_table(location: str, properties: dict[str, str]) -> Any:
    """The table of a metadata file, which is read once for all questions about it."""
    from pyiceberg.table import StaticTable

    global _table
    if _table is None or _table[0] != location:
        _table = location, StaticTable.from_metadata(location, properties)
    return _table[1]


@contextmanager
def _manifests_read_once() -> Iterator[None]:
    """Until the block ends, pyiceberg reads each manifest once, rather than for each condition."""
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.snapshots import Snapshot

    with ExitStack() as stack:
        for owner, name in ((Snapshot, "manifests"), (ManifestFile, "fetch_manifest_entry")):
            stack.enter_context(patch.object(owner, name, _read_once(getattr(owner, name))))
        yield


def _read_once(method: Callable[..., Any]) -> Callable[..., Any]:
    found: dict[Any, Any] = {}

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = getattr(self, "manifest_path", None) or self.manifest_list
        key = (path, *args[1:], *kwargs.items())
        if key not in found:
            found[key] = method(self, *args, **kwargs)
        return found[key]

    return read


def _numbered(tables: Iterator[pa.Table]) -> pa.Table:
    """Tables in one, with their numbers as ``_condition``."""
    numbered = [
        table.append_column("_condition", pa.array([number] * table.num_rows, pa.int32()))
        for number, table in enumerate(tables)
    ]
    return pa.concat_tables(numbered, promote_options="permissive")  # pyiceberg has small or large texts


def _pyiceberg_each(question: dict[str, Any]) -> pa.Table:
    table = _static_table(question["location"], question["properties"])
    with _manifests_read_once():
        filters = (_row_filter(each) for each in question["where"])
        return _numbered(table.scan(row_filter=each).to_arrow() for each in filters)


def _row_filter(condition: Condition | None) -> Any:
    """What pyiceberg's parser makes of a condition's text."""
    from pyiceberg import expressions as e

    if condition is None:
        return e.AlwaysTrue()
    if condition[0] in ("and", "or"):
        return (e.And if condition[0] == "and" else e.Or)(*map(_row_filter, condition[1:]))
    column, op, *literal = condition
    if op in ("null", "present"):
        return (e.IsNull if op == "null" else e.NotNull)(column)
    operators = {
        "=": e.EqualTo, "<>": e.NotEqualTo, "<": e.LessThan, "<=": e.LessThanOrEqual, ">": e.GreaterThan,
        ">=": e.GreaterThanOrEqual,
    }  # fmt: skip
    value = next(iter(literal[0].values())) if isinstance(literal[0], dict) else literal[0]
    return operators[op](column, value)


def _polars_each(question: dict[str, Any]) -> pa.Table:
    import polars as pl

    frame = pl.scan_iceberg(_static_table(question["location"], question["properties"]))
    wheres = question["where"]
    with _manifests_read_once():
        found = pl.collect_all([frame if each is None else frame.filter(_expression(each)) for each in wheres])
    return _numbered(each.to_arrow() for each in found)


def _polars(question: dict[str, Any]) -> pa.Table:
    import polars as pl

    frame = pl.scan_iceberg(
        _static_table(question["location"], question["properties"]), snapshot_id=question["snapshot"]
    )
    if question["where"] is not None:
        frame = frame.filter(_expression(question["where"]))
    return frame.collect().to_arrow()


def _expression(condition: Condition) -> Any:
    import operator

    import polars as pl

    if condition[0] in ("and", "or"):
        left, right = _expression(condition[1]), _expression(condition[2])
        return left & right if condition[0] == "and" else left | right
    column, op, *literal = condition
    if op in ("null", "present"):
        return pl.col(column).is_null() if op == "null" else pl.col(column).is_not_null()
    operators = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    value = literal[0]
    if isinstance(value, dict):
        ((kind, text),) = value.items()
        value = {"date": date.fromisoformat, "decimal": Decimal}.get(kind, datetime.fromisoformat)(text)
    return getattr(operator, operators[op])(pl.col(column), value)


def _duckdb(question: dict[str, Any]) -> pa.Table:
    return _query_duckdb(question, "").to_arrow_table()


def _duckdb_files(question: dict[str, Any]) -> pa.Table:
    ((_, plan),) = _query_duckdb(question, "EXPLAIN ANALYZE ").fetchall()
    return pa.table({"files": [int(re.search(r"Total Files Read:?\s*(\d+)", plan)[1])]})  # type: ignore[index]


def _duckdb_pushed(question: dict[str, Any]) -> pa.Table:
    """The filters of each scan in DuckDB's plan, in the order of the branches."""
    ((_, plan),) = _query_duckdb(question, "EXPLAIN (FORMAT json) ").fetchall()
    nodes, filters = json.loads(plan), []
    while nodes:
        node = nodes.pop(0)
        nodes[:0] = node["children"]
        if not node["children"]:
            filters.append(str(node["extra_info"].get("Filters", "")))
    return pa.table({"filters": pa.array(filters, pa.string())})


def _query_duckdb(question: dict[str, Any], prefix: str) -> Any:
    connection = connect_duckdb()
    _use_s3(connection, question["properties"])
    version = "" if question["snapshot"] is None else f", snapshot_from_id = {question['snapshot']}"
    location = question["location"].replace("'", "''")
    rows = f"FROM iceberg_scan('{location}'{version})"
    if not question["reader"].endswith(" each"):
        return connection.execute(f"{prefix}SELECT * {rows} WHERE {_sql_or_true(question['where'])}")
    branches = (
        f"SELECT *, {number}::INTEGER AS _condition {rows} WHERE {_sql_or_true(each)}"
        for number, each in enumerate(question["where"])
    )
    return connection.execute(prefix + " UNION ALL ".join(branches))


def _sql_or_true(condition: Condition | None) -> str:
    return "TRUE" if condition is None else sql(condition)


def connect_duckdb() -> Any:
    import duckdb
    import duckdb_extension_avro
    import duckdb_extension_httpfs
    import duckdb_extension_iceberg

    global _opened
    if _opened is None:
        _opened = duckdb.connect(config={"threads": 1, "allow_unsigned_extensions": True})
        _opened.execute("SET TimeZone = 'UTC'")
        for package in (duckdb_extension_avro, duckdb_extension_httpfs, duckdb_extension_iceberg):
            (extension,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
            _opened.execute(f"LOAD '{extension}'")
    return _opened


def _use_s3(connection: Any, properties: dict[str, str]) -> None:
    if not properties:
        return
    options = {
        "KEY_ID": properties["s3.access-key-id"],
        "SECRET": properties["s3.secret-access-key"],
        "REGION": properties["s3.region"],
        "ENDPOINT": properties["s3.endpoint"].removeprefix("http://"),
        "URL_STYLE": "path",
    }
    told = ", ".join(f"{name} '{value}'" for name, value in options.items())
    connection.execute(f"CREATE OR REPLACE SECRET here (TYPE s3, USE_SSL false, {told})")


_opened: Any = None
_table: tuple[str, Any] | None = None


def _answer(question: dict[str, Any]) -> None:
    if question["reader"] == "write":
        _write(question)
        return
    read = {
        "pyiceberg": _pyiceberg, "glue": _glue, "polars": _polars, "duckdb": _duckdb,
        "pyiceberg files": _pyiceberg_files, "duckdb files": _duckdb_files, "duckdb pushed each": _duckdb_pushed,
        "pyiceberg each": _pyiceberg_each, "polars each": _polars_each, "duckdb each": _duckdb,
    }[question["reader"]]  # fmt: skip
    found = read(question)
    with pa.ipc.new_file(question["to"], found.schema) as out:
        out.write_table(found)


def _serve() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what readers print is no answer
    for line in sys.stdin:
        error = None
        try:
            _answer(json.loads(line))
        except Exception as found:  # noqa: BLE001 - whatever it is, the test is told
            error = f"{type(found).__name__}: {found}"
        out.write(json.dumps(error) + "\n")
        out.flush()


if __name__ == "__main__":
    _serve()
