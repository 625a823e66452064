"""Handles: short ways to say common things, and pickles of them in other processes."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.head import context_of
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import MoveFence
from dolmen.errors import InputError, TableNotFoundError, VersionExpiredError
from dolmen.rows.scan.scan import Scan, plan_of, scan_files

ROWS = pa.table({"id": list(range(10)), "name": [f"n{i}" for i in range(10)]})


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    found = dolmen.open(str(tmp_path))
    found.create_table("t", ROWS.schema).append(ROWS)
    found.create_table("u", ROWS.schema)
    return found


def test_tables_are_reached_as_in_a_mapping(db: dolmen.Database, tmp_path: Path) -> None:
    with dolmen.open(str(tmp_path)) as again:
        assert again["t"].count() == 10
        assert "t" in again
        assert "nope" not in again
        assert 7 not in again
        assert list(again) == ["t", "u"]
        with pytest.raises(TableNotFoundError, match="nope"):
            again["nope"]
        with pytest.raises(LookupError):
            again["nope"]
    old = db.at(version=2)
    db.drop_table("u")
    assert (list(old), "u" in old, "u" in db, list(db)) == (["t"], False, False, ["t"])
    assert old["t"].count() == 10


def test_a_table_becomes_what_it_is_asked_for(db: dolmen.Database) -> None:
    table = db["t"]
    assert table.head(3).num_rows == 3
    assert table.head().num_rows == 5
    assert table.to_arrow().equals(ROWS)
    assert table.to_pandas()["id"].tolist() == list(range(10))
    assert table.to_polars().equals(pl.from_arrow(ROWS))
    assert table.scan_polars().collect().equals(pl.from_arrow(ROWS))
    assert table.to_duckdb().fetchall() == [tuple(row.values()) for row in ROWS.to_pylist()]
    assert db.at(db.version)["t"].head(1).num_rows == 1


def count(handle: object) -> int:
    if isinstance(handle, dolmen.Database):
        return handle["t"].count()
    if isinstance(handle, dolmen.Snapshot):
        return handle["t"].count()
    return handle.count()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.slow
def test_handles_go_to_processes_that_know_nothing(db: dolmen.Database) -> None:
    table = db["t"]
    scan = table.scan(columns=["name"], where="id < 4", order_by="-id")
    part = scan_files(table.scan(), [file.file.path for file in plan_of(table.scan()).files])
    handles = [db, table, db.at(db.version), table.at(db.version), scan, part]
    table.append(ROWS)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(count, handles) == [20, 20, 10, 10, 4, 10]
        assert pool.apply(names_of, (scan,)) == ["n3", "n2", "n1", "n0"]


def names_of(scan: Scan) -> list[str]:
    return scan.to_arrow()["name"].to_pylist()


def test_what_is_pinned_stays_pinned_or_says_that_it_has_expired(db: dolmen.Database) -> None:
    handles = [db["t"].at(db.version), db["t"].scan()]
    pickles = [pickle.dumps(handle) for handle in handles]
    version = db.version
    (file,) = context_of(db).head.refresh().manifest.table("t").files
    db["t"].overwrite(ROWS.slice(0, 1))
    assert [pickle.loads(pickled).count() for pickled in pickles] == [10, 10]
    assert pickle.loads(pickle.dumps(db["t"])).count() == 1
    context_of(db).store.delete([file.path])  # as a collection does
    submit(context_of(db).head, "gc", [MoveFence((0, 0), db.version, 0)])
    for pickled in pickles:
        with pytest.raises(VersionExpiredError, match=f"version {version}"):
            pickle.loads(pickled).to_arrow()


def test_what_is_of_one_process_says_so() -> None:
    db = dolmen.open("memory://handles")
    table = db.create_table("t", ROWS.schema)
    for handle in (db, table, db.at(db.version), table.scan()):
        with pytest.raises(InputError, match="process"):
            pickle.dumps(handle)
    with db.transaction() as tx:
        for mine in (tx, tx.table("t"), tx.table("t").scan()):
            with pytest.raises(InputError, match="process"):
                pickle.dumps(mine)


def test_a_transactions_scan_stays_in_its_process(db: dolmen.Database) -> None:
    with db.transaction() as tx:
        tx.table("t").append(ROWS)
        for mine in (tx, tx.table("t"), tx.table("t").scan()):
            with pytest.raises(InputError, match="process"):
                pickle.dumps(mine)


@pytest.mark.slow
def test_handles_on_s3_are_opened_with_the_configuration_of_the_process_they_come_to(s3_url: str) -> None:
    db = dolmen.open(s3_url)
    table = db.create_table("t", ROWS.schema)
    table.append(ROWS)
    handles = [db, table, db.at(db.version), table.at(db.version), table.scan(where="id < 4")]
    table.append(ROWS)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(count, handles) == [20, 20, 10, 10, 4]
