"""What a reader of a version is told whose objects have been collected."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import MoveFence
from dolmen.errors import CorruptionError, VersionExpiredError


@pytest.fixture(params=["memory", "directory"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> dolmen.Database:
    url = f"memory://{tmp_path}" if request.param == "memory" else str(tmp_path / "db")
    db = dolmen.open(url)
    db.create_table("t", pa.schema([("k", pa.int64())]))
    db.table("t").append(pa.table({"k": [1, 2, 3]}))
    return db


def lose_the_file(db: dolmen.Database, version: int) -> None:
    """What a collection does to a file that only this version has."""
    (file,) = db._context.head.refresh().manifest.table("t").files
    db.table("t").overwrite(pa.table({"k": [4]}))
    db._context.store.delete([file.path])


def test_a_reader_of_an_expired_version_is_told_so_and_not_of_damage(db: dolmen.Database) -> None:
    old = db.at(version=2).table("t")
    slow = old.scan(where="k > 1").to_reader()
    lose_the_file(db, 2)
    submit(db._context.head, "gc", [MoveFence((0, 0), db.version, 0)])
    for read in (old.to_arrow, lambda: old.count("k > 1"), lambda: old.scan().explain(), slow.read_all):
        with pytest.raises(VersionExpiredError, match="version 2"):
            read()
    assert db.table("t").count() == 1


def test_a_missing_file_of_a_kept_version_is_damage(db: dolmen.Database) -> None:
    old = db.at(version=2).table("t")
    lose_the_file(db, 2)
    with pytest.raises(CorruptionError, match="missing"):
        old.to_arrow()
