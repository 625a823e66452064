"""Public arguments on Spark, of any type and value: dolmen's errors or none, and a database that can be opened."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import dolmen
import dolmen.spark as public
from dolmen.errors import Error
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.spark import Delete, Insert, Update, raising_dolmen_errors

CASES = 1_000 if os.environ.get("DOLMEN_LONG") else 15
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("s", pa.string())])

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**63, 10**5000, 1.5, math.nan, "", " ", "id", "ID", "t", "no such", "\0", "\ud800",
    "naïve 🗿",
    "x" * 5_000, "id = 1", "TRUE", "id =", "id = '", "id = " + "9" * 5_000, "1; DROP TABLE t", "target.n", "source.n",
    "target.n + 'x'",
    "2026-01-01", "memory://", "s3://", "ftp://x", "../..", b"id", (), ("id",), ["id", "id"],
    ["id", None], [[]], {}, {"id": 1}, {"id": "n"}, {"n": "source.n"}, {"no": "1"}, {1: 2}, {"n": None},
    {"id": [1, None]}, set(),
    range(3), object(), int, len, lambda *_: None, ..., uuid.UUID(int=7), Decimal("1e30"), dt.date(2026, 1, 1),
    np.int64(1),
    np.array([1]), pa.table({"id": [1]}), Update(), Update({"n": "1"}),
    Update(values=7), Update(when=7), Update(values={"n": 7}),
    Delete(), Delete(when="source.n"), Delete(when="no such"), Insert(), Insert({"id": "source.id"}),
    Insert({"n": "source.n"}),
    [Update(when="TRUE"), Delete()], [Delete(), Update()], dolmen, SparkSession,
)  # fmt: skip
"""Values for arguments that want others."""

odd = st.sampled_from(range(len(ODD))).map(ODD.__getitem__)


def or_odd(*right: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(right) | odd


class Frame(str):
    """Stands for a DataFrame that is made of this SQL when a session is there."""

    __slots__ = ()


FRAMES = st.sampled_from((
    "SELECT 1L AS id, 2L AS n, 'x' AS s", "SELECT 1L AS id", "SELECT id, id AS n, 's' AS s FROM range(5)",
    "SELECT 1 AS ID",
    "SELECT 1L AS id, 1L AS id", "SELECT 'x' AS id", "SELECT CAST(NULL AS BIGINT) AS id",
    "SELECT 1L AS id, 2L AS n, array(1) AS s",
    "SELECT 1L AS id, 2L AS n, NULL AS s", "SELECT 1.5D AS id", "SELECT 1L AS id, 5L AS `n.x`",
    "SELECT 1L AS `__key_0`", "SELECT 1L AS ``",
    "SELECT id % 2 AS id, id AS n, '' AS s FROM range(4)", "SELECT id FROM range(0)",
    "SELECT 1L AS id, INTERVAL 1 DAY AS n",
    "SELECT 9999999999999999999 AS id", "SELECT 1L AS id, parse_json('1') AS n",
)).map(Frame) | odd  # fmt: skip
FLAG = or_odd(False, True)
ON, REQUEST, WHERE = or_odd(None, "id", ["n"]), or_odd(None, None, "r"), or_odd(None, "id = 1")
SINCE = or_odd(None, 1, 2)
BY_KEYS = {"on": ON, "since": SINCE, "force": FLAG, "request": REQUEST}
CLAUSE = or_odd("update", "delete", "insert", None, {"n": "source.n"})
WRITES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "append": {"frame": FRAMES, "request": REQUEST},
    "overwrite": {"frame": FRAMES, "since": SINCE, "force": FLAG, "request": REQUEST},
    "upsert": {"frame": FRAMES, **BY_KEYS},
    "delete": {"what": FRAMES, **BY_KEYS},
    "merge": {
        "frame": FRAMES, **BY_KEYS, "on": or_odd("id"), "when_matched": CLAUSE, "when_not_matched": CLAUSE,
        "when_not_matched_by_source": st.none() | CLAUSE,
    },
}  # fmt: skip
JOBS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "compact": {"tables": or_odd(None, "t"), "recluster": FLAG, "options": st.none() | odd, "dry_run": FLAG},
    "gc": {"dry_run": FLAG, "full": FLAG},
    "load": {"drops": odd, "auto_create": FLAG, "max_files": or_odd(1), "max_bytes": or_odd(1000), "dry_run": FLAG},
}
OTHERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "to_spark": {
        "columns": ON, "where": WHERE, "with_commit_ts": FLAG, "with_positions": FLAG, "native": FLAG,
        "spark": st.none() | odd,
    },
    "export": {"to": odd, "format": or_odd("csv", "json"), "columns": ON, "where": WHERE, "overwrite": FLAG},
    "batches_into": {"mode": or_odd("append", "upsert"), "on": ON},
    "register": {},
}  # fmt: skip
FIRST = {**dict.fromkeys(WRITES, "table"), **dict.fromkeys(JOBS, "spark"), "to_spark": "table", "export": "table",
         "batches_into": "table", "register": "spark"}  # fmt: skip
OPTION = or_odd("1", "true", "id", "id,n", "latest", "-1", "1e9", "2026-01-01")
OPTIONS = st.dictionaries(
    st.sampled_from((
        "table", "path", "url", "version", "timestamp", "columns", "where", "with_commit_ts", "push_filters",
        "request", "since", "force",
        "operation", "startingVersion", "no_such",
    )),
    OPTION.filter(lambda value: _takes(value)), max_size=3,
)  # fmt: skip


def _takes(value: Any) -> bool:
    """Whether Spark takes a value as an option, and can send it to Java as text."""
    try:
        return isinstance(value, (str, int, float, bool)) and bool(str(value).encode() or True)
    except ValueError:  # half of a surrogate pair, or more digits than Python writes
        return False


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """What is called, and with which arguments."""
    name = draw(st.sampled_from((*FIRST, "read", "write")))
    if name == "read":
        return name, {"options": draw(OPTIONS)}
    if name == "write":
        return name, {
            "frame": draw(FRAMES),
            "mode": draw(st.sampled_from(("append", "overwrite"))),
            "options": draw(OPTIONS),
        }
    arguments = {key: draw(values) for key, values in {**WRITES, **JOBS, **OTHERS}[name].items()}
    wrong = draw(st.sampled_from((*[None] * 9, FIRST[name], "database")))
    if wrong == FIRST[name] or (wrong is not None and name in JOBS):
        arguments[wrong] = draw(odd)
    return name, arguments


@pytest.fixture(scope="module")
def check_call(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], None]:
    """Makes a call on a copy of a small database, takes what comes of it, and looks at the database."""
    folder, numbers = tmp_path_factory.mktemp("arguments"), itertools.count()
    made = dolmen.open(str(folder / "template")).create_table("t", SCHEMA, primary_key="id", sort_key="n")
    made.append([{"id": 1, "n": 1, "s": "a"}, {"id": 3, "n": 3, "s": None}], request="r")
    made.delete("id = 3")

    def call(name: str, arguments: dict[str, Any]) -> None:
        place = folder / str(next(numbers))
        shutil.copytree(folder / "template", place)
        db = dolmen.open(str(place))
        with suppress(Error), raising_dolmen_errors():
            _call(spark, db, place, name, dict(arguments))
        _check(str(place))

    return call


def _call(spark: SparkSession, db: dolmen.Database, place: Path, name: str, arguments: dict[str, Any]) -> None:
    for key, value in arguments.items():
        if isinstance(value, Frame):
            arguments[key] = spark.sql(value)
    if name == "read":
        frame = spark.read.format("dolmen").options(**{"table": "t", "path": db.url, **arguments["options"]}).load()
        frame.collect()
    elif name == "write":
        frame = arguments["frame"]
        if hasattr(frame, "write"):
            options = {"table": "t", "path": db.url, **arguments["options"]}
            frame.write.format("dolmen").mode(arguments["mode"]).options(**options).save()
    else:
        if name in JOBS:
            arguments.setdefault("database", db)
        if name == "export" and isinstance(arguments["to"], str) and "://" not in arguments["to"]:
            arguments["to"] = f"{place}-exported/{uuid.uuid5(uuid.NAMESPACE_OID, ascii(arguments['to']))}"
        if name == "load" and arguments["drops"] is None:
            arguments["drops"] = DropSource.of(str(place), database=db.url)
        first = arguments.pop(FIRST[name], spark if FIRST[name] == "spark" else db.table("t"))
        found = getattr(public, name)(first, **arguments)
        if name == "to_spark":
            found.collect()


def _check(url: str) -> None:
    db = dolmen.open(url)
    assert db.tables() == ["t"]
    assert db["t"].count() == db["t"].to_arrow().num_rows
    assert db.verify(deep=True).ok
    db["t"].append([{"id": 77, "n": None, "s": "still written to"}])


@pytest.mark.slow
def test_no_argument_on_spark_makes_a_database_that_nobody_can_open(
    check_call: Callable[[str, dict[str, Any]], None],
) -> None:
    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(calls())
    def run(call: tuple[str, dict[str, Any]]) -> None:
        check_call(*call)

    run()


@pytest.mark.parametrize("name", sorted(FIRST))
def test_what_is_no_table_and_no_session_is_told_so(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """Swapped arguments among them."""
    wrong: tuple[Any, ...] = (None, 7, "t", object(), spark.range(1))
    for each in wrong:
        with pytest.raises(dolmen.errors.InputError, match="give a"):
            getattr(public, name)(each, *REST.get(name, ()))


REST: dict[str, tuple[Any, ...]] = {
    "append": (7,), "overwrite": (7,), "upsert": (7,), "delete": ("id = 1",), "merge": (7, "id"),
    "compact": (7,), "gc": (7,),
    "load": (7, []), "export": ("x",),
}  # fmt: skip
