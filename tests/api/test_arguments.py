"""Public arguments of any type and value: dolmen's errors or none, and a database that every process can open."""

from __future__ import annotations

import datetime as dt
import math
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolmen import Database
from dolmen.api.database import open as open_database
from dolmen.base.runtime import Runtime
from dolmen.errors import Error
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from support.people import SCHEMA, people

CASES = 10_000 if os.environ.get("DOLMEN_LONG") else 100
RUNTIME = Runtime()


class OwnError(Exception):
    """What an argument raises by itself."""


class Unspeakable:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __iter__(self) -> Iterator[Any]:
        raise OwnError


class Text(str):
    """A text of another class."""

    __slots__ = ()


class Liar(str):
    """A text of another class that says of itself what it is not."""

    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:
        return b"x"

    def __len__(self) -> int:
        return 1


def no_one() -> Iterator[Any]:
    yield from ()


FAR_DAY = pa.scalar(200_000_000, pa.int32()).cast(pa.date32())
"""A day that Python has no words for."""
ODD: tuple[Any, ...] = (
        None, True, False, 0, 1, -1, 4711, 2**63, -(2**63) - 1, 10**30, 10**5000, 1.5, -0.0, math.nan, math.inf, 1j,
        "", " ", "id", "ID", "Id ", "people", "PEOPLE", "t" * 65, "no such", "\0", "\ud800", "naïve 🗿", "x" * 5_000,
        "id = 1", "TRUE", "id =", "id = '", "(" * 500, "id = " + "9" * 5_000, "s LIKE '%'", "1; DROP TABLE people",
        "18", "2026-01-01", "9999-12-31T23:59:59", "30d", "-1d", "id 90d", "../..", "memory://", "s3://", "ftp://x", "file://",
        Text("id"), Liar("\ud800"), Liar("id"),
        b"", b"id", bytearray(b"x"), memoryview(b"x"), (), (1,), ("id",), ("id", "id"), [], [None], [[]],
        [1, "a"], [{}], [{"id": 1}], [{"id": "x"}], [{"id": None}], [{"id": 1, "no": 2}], [{1: 2}], ["id", "user_id"],
        ["id", None], {}, {"id": 1}, {"id": [1, None]}, {"id": {}}, {"no": 1}, {1: 1}, {"id": "int64"}, {None: None},
        {"id": math.nan}, {"id": 10**1000}, {"id": [1]}, {"id": uuid.UUID(int=7)}, set(), {1, 2}, frozenset({"id"}),
        range(3), range(10**12, 10**12 + 3), object(), int, len, lambda: None, lambda *_: None, ..., NotImplemented,
        uuid.UUID(int=7), Decimal("1e30"), Decimal("NaN"), Decimal(1), Fraction(1, 3), dt.date(2026, 1, 1),
        dt.datetime(2026, 1, 1), dt.datetime.min, dt.datetime.max.replace(tzinfo=dt.UTC), dt.time(1), dt.timedelta(1),
        np.int64(1), np.float32(1), np.array([1, 2]), np.array([[1]]), np.array(1.5), np.str_("id"),
        np.datetime64("NaT"), pd.NaT, pd.NA, pd.Timestamp(0), pd.Series([1]), pd.DataFrame(), pd.DataFrame({"id": [1]}),
        pd.DataFrame({"id": [1.5]}), pd.DataFrame([[1, 2]], columns=["id", "id"]), pa.array([1]), pa.scalar(1),
        pa.chunked_array([[1]]), pa.null(), pa.int64(), pa.field("id", pa.int64()), pa.schema([]), SCHEMA,
        pa.schema([("id", pa.null())]), pa.schema([("", pa.int8())]), pa.schema([("a", pa.float16())]),
        pa.schema([("a", pa.int8()), ("a", pa.int8())]), pa.table({}), pa.table({"id": [1]}), pa.table({"no": [1]}),
        pa.table({"id": [1, None]}), pa.table({"id": ["x"]}), pa.table({"id": [1, 1]}), people(1, 2),
        people(1).to_batches()[0], people(5, 6).slice(1), FAR_DAY, {"id": FAR_DAY}, [FAR_DAY],
        pa.scalar(2**62, pa.timestamp("s")), pa.table({"id": [FAR_DAY]}),
)  # fmt: skip
FRESH: tuple[Callable[[], Any], ...] = (Unspeakable, no_one, lambda: people(1).to_reader(), lambda: iter([1]))

odd = st.sampled_from(range(len(ODD))).map(ODD.__getitem__) | st.sampled_from(FRESH).map(lambda make: make())
anything = odd | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def or_odd(*right: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(right) | anything


ROWS = or_odd(people(1, 2), people(3), [{"id": 1, "name": "x"}], people(4).to_pandas())
WHERE = or_odd("id = 1", {"id": 2}, "TRUE", "user_id > 1 AND name = 'x'")
KEYS = or_odd([1, 2], None)
COLUMNS = or_odd(None, "id", ["id"], ["user_id", "name"])
REQUEST = or_odd(None, None, "r", "s")
FLAG = or_odd(False, True)
NAME = or_odd("people", "other")
SETTINGS = st.dictionaries(
    st.sampled_from(
        ("ttl", "target_file_bytes", "retention", "keep_versions", "root_bytes", "orphan_age", "write_mode", "no_such")
    )
    | st.text(min_size=1, max_size=5),
    or_odd("7d", 4096, None, "id 90d"),
    max_size=2,
)
FUNCTION = or_odd(lambda tx: None).map(lambda given: (lambda tx: None) if callable(given) else given)
MESSAGE = or_odd(None, None, "for the audit")
ABOUT_SET = st.dictionaries(st.just("request"), REQUEST) | st.dictionaries(st.just("message"), MESSAGE)
MODE = or_odd("tombstone", "positions")
WRITES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "append": {"data": ROWS, "cast": FLAG, "request": REQUEST},
    "upsert": {"data": ROWS, "cast": FLAG, "on": COLUMNS, "request": REQUEST},
    "overwrite": {"data": ROWS, "cast": FLAG, "force": FLAG, "request": REQUEST},
    "delete": {"where": st.none() | WHERE, "keys": KEYS, "on": COLUMNS, "mode": MODE, "request": REQUEST},
}
READS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "scan": {
        "columns": COLUMNS, "where": st.none() | WHERE, "limit": or_odd(None, 1), "order_by": COLUMNS,
        "with_commit_ts": FLAG,
    },
    "count": {"where": WHERE}, "head": {"rows": or_odd(2)},
}  # fmt: skip
AT = {"version": or_odd(1, None), "timestamp": or_odd(None, "2026-01-01"), "settled": FLAG}
CREATE = {
    "name": or_odd("fresh"), "schema": or_odd(SCHEMA), "primary_key": COLUMNS, "sort_key": COLUMNS,
    "properties": st.none() | SETTINGS | anything,
}  # fmt: skip
SQL = {"query": or_odd("SELECT * FROM people", "SELECT * FROM people WHERE id = ?"), "parameters": or_odd(None, [1])}
OF_DATABASE: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "table": {"name": NAME}, "create_table": {**CREATE, "request": REQUEST, "message": MESSAGE},
    "drop_table": {"name": NAME, "request": REQUEST, "message": MESSAGE}, "at": AT,
    "rename_table": {"old": NAME, "new": or_odd("fresh", "other"), "request": REQUEST, "message": MESSAGE},
    "__contains__": {"name": anything},
    "history": {"limit": or_odd(None, 3)}, "transaction": {"operation": or_odd("word"), "message": MESSAGE},
    "run": {"function": FUNCTION, "message": MESSAGE},
    "sql": SQL, "resolve": {"table": NAME},
    "compact": {"table": NAME, "dry_run": FLAG}, "expire": {}, "merge": {},
    "maintain": {
        "tables": or_odd(None, ["people"]), "steps": or_odd(None, ["resolve"]), "compacted_elsewhere": anything,
    },
    "gc": {"dry_run": FLAG, "full": FLAG},
    "verify": {"version": or_odd(None, 1), "deep": FLAG, "all_versions": FLAG}, "stats": {"exact": FLAG},
}  # fmt: skip
OF_TRANSACTION: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "table": {"name": NAME}, "create_table": {**CREATE, "request": REQUEST},
    "drop_table": {"name": NAME, "request": REQUEST},
    "rename_table": {"old": NAME, "new": or_odd("fresh", "other"), "request": REQUEST},
    "sql": SQL, "bind": {"request": REQUEST, "digest": or_odd("d")},
    "savepoint": {},
}  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """What is called, and with which arguments."""
    what = draw(st.sampled_from(("database", "table", "transaction", "table of a transaction", "snapshot", "open")))
    methods = {
        "database": OF_DATABASE,
        "table": {**{name: {**given, "message": MESSAGE} for name, given in WRITES.items()}, **READS, "at": AT},
        "transaction": OF_TRANSACTION,
        "table of a transaction": {**WRITES, **READS, "replace": {"data": ROWS, "keys": KEYS, "request": REQUEST}},
        "snapshot": {"table": {"name": NAME}, "sql": SQL, **READS},
        "open": {"open": {"url": anything, "trust_clock": FLAG}},
    }[what]
    name = draw(st.sampled_from((*methods, "set") if what not in ("snapshot", "open") else tuple(methods)))
    if name == "set":
        return f"{what}.set", {**draw(SETTINGS), **draw(ABOUT_SET)}
    return f"{what}.{name}", {argument: draw(values) for argument, values in methods[name].items()}


def perform(db: Database, called: str, arguments: dict[str, Any]) -> None:
    """Makes the call, and takes what comes of it."""
    what, _, name = called.partition(".")
    if what == "open":
        open_database(**arguments)
    elif what in ("database", "table"):
        target: Any = db if what == "database" else db.table("people")
        _take(getattr(target, name)(**arguments))
    elif what == "snapshot":
        snapshot = db.at(version=db.version)
        _take(getattr(snapshot if name in ("table", "sql") else snapshot.table("people"), name)(**arguments))
    else:
        with db.transaction() as tx:
            _take(getattr(tx if what == "transaction" else tx.table("people"), name)(**arguments))


def _take(result: Any) -> None:
    repr(result)
    for take in ("to_arrow", "commit"):
        if callable(method := getattr(result, take, None)):
            method()


def template() -> MemoryBucket:
    bucket = MemoryBucket()
    db = Database(MemoryStore(bucket, RUNTIME), RUNTIME)
    db.create_table("people", SCHEMA, primary_key="id").append(people(1, 2, 3), request="r")
    db.create_table("other", SCHEMA)
    db.table("people").delete({"id": 3})
    return bucket


TEMPLATE = template()


def check(bucket: MemoryBucket) -> None:
    """Opens the database as another process does, and looks at all of it."""
    db = Database(MemoryStore(bucket, RUNTIME), RUNTIME)
    for name in db.tables():
        table = db.table(name)
        assert table.count() == table.to_arrow().num_rows
        assert repr(table)
        assert table.settings()
    for commit in db.history():
        assert repr(commit)
        assert db.at(version=commit.version).version == commit.version
    assert repr(db.stats())
    assert db.settings()
    assert db.verify(deep=True).findings == ()
    db.set(keep_versions=1000)


@pytest.mark.slow
def test_no_argument_makes_a_database_that_nobody_can_open() -> None:
    outcomes = Counter[str]()

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(calls())
    def run(call: tuple[str, dict[str, Any]]) -> None:
        bucket = MemoryBucket()
        for key, there in TEMPLATE.objects.items():
            bucket.objects[key] = MemoryObject(there.body, there.etag, there.last_modified_us)
        try:
            perform(Database(MemoryStore(bucket, RUNTIME), RUNTIME), *call)
            outcomes["accepted"] += 1
        except (Error, OwnError):
            outcomes["refused"] += 1
        check(bucket)

    run()
    print(dict(outcomes))
    assert min(outcomes["accepted"], outcomes["refused"]) > CASES / 50


_FRAMES = (pd.Series([1, 2]), pd.DataFrame({"k": [1, 2]}), np.array([1, 2]), pd.NA, pd.NaT)
"""Values whose ``==`` is no truth value."""


@pytest.mark.parametrize("value", _FRAMES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "ask",
    [
        lambda db, value: db.at(version=value),
        lambda db, value: db.at(timestamp=value),
        lambda db, value: db.at(version=value, tag=value),
        lambda db, value: db.tag("v", version=value),
        lambda db, value: db.restore(value),
        lambda db, value: db.table("t").delete(value),
        lambda db, value: db.table("t").erase(value),
        lambda db, value: db.table("t").scan(where=value),
        lambda db, value: db.table("t").scan(where="k = ?", parameters=value),
        lambda db, value: db.table("t").delete("k = 9", mode=value),
    ],
)
def test_an_array_in_place_of_a_value_is_refused(ask: Callable[[Database, Any], Any], value: Any) -> None:
    """DOLMEN_TEST_SEED=452608342: a series in place of a version."""
    bucket = MemoryBucket()
    db = Database(MemoryStore(bucket, RUNTIME), RUNTIME)
    db.create_table("t", pa.schema([("k", pa.int64())])).append([{"k": 1}])
    with pytest.raises(Error):
        ask(db, value)
    assert db.table("t").count() == 1


@pytest.mark.parametrize("value", ["1e999999", "-1e99999999", "1e-99999999", "NaN", "Infinity"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.date32(), pa.decimal128(10, 2), pa.list_(pa.int64())])
def test_decimals_that_no_column_holds_are_refused_at_once(value: str, kind: pa.DataType) -> None:
    """pyarrow would write out their digits, for minutes or until the process dies."""
    table = Database(MemoryStore(MemoryBucket(), RUNTIME), RUNTIME).create_table("t", pa.schema([("x", kind)]))
    given = [Decimal(value)] if pa.types.is_list(kind) else Decimal(value)
    for cast in (False, True):
        with pytest.raises(Error):
            table.append([{"x": given}], cast=cast)
    with pytest.raises(Error):
        table.delete(keys=[Decimal(value)], on=["x"])
    assert table.count() == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct([("x", pa.int64())]), [("k", 1)]),
        (pa.struct([("x", pa.uint64())]), {"x": 2**64 - 1, "y": 2**70}),
        (pa.map_(pa.string(), pa.int64()), [("k", Decimal("1.5"))]),
        (pa.map_(pa.string(), pa.date32()), [("k", dt.datetime(2026, 1, 1, 5))]),
        (pa.map_(pa.string(), pa.list_(pa.int64())), [("k", [Decimal("1.5")])]),
    ],
)
def test_nothing_of_a_nested_value_is_left_out(kind: pa.DataType, value: Any) -> None:
    table = Database(MemoryStore(MemoryBucket(), RUNTIME), RUNTIME).create_table("t", pa.schema([("x", kind)]))
    with pytest.raises(Error):
        table.append([{"x": value}])
    assert table.count() == 0
