"""A reader whose version expires under it is told so; only what nothing explains is called damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dolmen import Database, Snapshot
from dolmen.base.records import replace
from dolmen.errors import CorruptionError, VersionExpiredError
from dolmen.maintenance.gc.collection import collect
from dolmen.store.local_store import LocalStore
from support.aging import EAGER, SCHEMA, Place, busy, rows
from support.stores import RUNTIME

READS: dict[str, Callable[[Snapshot], Any]] = {
    "scan": lambda at: at.table("t").to_arrow(),
    "filter": lambda at: at.table("t").scan(where="k > 4").to_arrow(),
    "sorted": lambda at: at.table("t").scan(order_by="k", limit=3).to_arrow(),
    "stream": lambda at: at.table("t").scan().to_reader().read_all(),
    "count": lambda at: at.table("t").count("v < 3"),
    "explain": lambda at: at.table("t").scan(where="v < 3").explain(),
    "sql": lambda at: at.sql("SELECT sum(k) FROM t").fetchall(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_reader_of_an_expired_version_is_told_that_it_has_expired(read: Callable[[Snapshot], Any]) -> None:
    place = Place()
    busy(place)
    place.pass_hours(30 * 24)
    at = place.open().at(9)
    place.collect_all()
    with pytest.raises(VersionExpiredError, match="oldest"):
        read(at)


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_an_object_that_is_missing_from_a_kept_version_is_damage(read: Callable[[Snapshot], Any]) -> None:
    place = Place()
    busy(place)
    at = place.open().at(9)
    for key in place.there("data/", "tombstone/"):
        del place.bucket.objects[key]
    with pytest.raises(CorruptionError, match="missing"):
        read(at)


def test_a_table_whose_segments_are_gone_has_expired_too() -> None:
    place = Place()
    place.db.set(root_bytes="4KB")
    table = place.db.create_table("t", SCHEMA)
    for key in range(40):
        table.append(rows(key))
    at = place.open().at(place.db.version)
    place.db.drop_table("t")
    for name in ("u", "w"):
        place.db.create_table(name, SCHEMA)
    place.pass_hours(30 * 24)
    place.collect_all()
    with pytest.raises(VersionExpiredError):
        at.table("t").to_arrow()


def test_files_of_a_directory_are_no_exception(tmp_path: Path) -> None:
    db = Database(LocalStore(tmp_path, RUNTIME), RUNTIME)
    table = db.create_table("t", SCHEMA)
    table.append(rows(1, 2))
    at = Database(LocalStore(tmp_path, RUNTIME), RUNTIME).at(2)
    table.overwrite(rows(3))
    for _ in range(3):
        collect(db._context, settings=replace(EAGER, retention_us=0, keep_versions=1, reader_grace_us=0))
    with pytest.raises(VersionExpiredError):
        at.table("t").to_arrow()
