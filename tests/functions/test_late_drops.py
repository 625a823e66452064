"""Files that were dropped before an erasure, and that are ingested after it, bring no erased row back."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Transaction
from dolmen.ingest.drops import drop_ingestion
from dolmen.ingest.late import ErasedRows
from support.functions import SCHEMA, World
from support.local_once import local_once

HEAD = "id,user_id,kind\n"
BODY = f"{HEAD}1,42,hush\n2,7,x\n3,42,x\n"


def at(record: dict[str, Any], minutes: float) -> dict[str, Any]:
    """The record of a drop so many minutes from now."""
    return {**record, "eventTime": (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_were_erased_since_are_left_out_and_counted(world: World, mode: str) -> None:
    world.create()
    world.database.table("events").set(ingest_mode=mode, subject="user_id")
    early, late = world.drop("events/a.csv", BODY), world.drop("events/b.csv", f"{HEAD}4,42,new\n5,7,x\n")
    world.database.forget(42, request="gdpr-1")
    assert world.ingest(at(early, -5)) == []
    assert world.ids() == [2]
    (told,) = world.log_entries("drop ingested")
    assert (told["rows"], told["rows_erased"]) == (1, 2)
    assert not any("hush" in str(entry) for entry in world.listener.entries)
    assert world.ingest(at(late, 5)) == []
    assert world.ids() == [2, 4, 5]
    third = world.drop("events/c.csv", f"{HEAD}6,42,x\n7,7,x\n")  # nobody knows when
    assert world.ingest(third) == []
    assert world.ids() == [2, 4, 5, 7]


def test_keys_predicates_clones_and_other_tables(world: World) -> None:
    world.create()
    db = world.database
    db.create_table("other", SCHEMA)
    db.clone("events", "c")
    db.table("events").erase(keys=[1])
    db.table("events").erase("kind = 'x' AND user_id > 40")
    records = [at(world.drop(f"{name}/a.csv", BODY), -1) for name in ("events", "c", "other")]
    assert world.ingest(*records) == []
    assert (world.ids(), world.ids("c"), world.ids("other")) == ([2], [2], [1, 2, 3])


def test_a_file_of_erased_rows_alone_is_ingested_once(world: World) -> None:
    world.create()
    record = at(world.drop("events/a.csv", BODY), -1)
    world.database.table("events").erase("TRUE")
    assert world.ingest(record) == []
    assert world.ingest(record) == []
    assert world.ids() == []
    assert [len(world.log_entries(f"drop {what}")) for what in ("ingested", "duplicate")] == [1, 1]


def test_an_erasure_that_lands_between_reading_and_commit_is_heeded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create()
    record = at(world.drop("events/a.csv", BODY), -1)
    done: list[object] = []

    class Slow(ErasedRows):
        @classmethod
        def of(
            cls, transaction: Transaction, name: str, dropped_us: int | None, *, all_erasures: bool = False
        ) -> ErasedRows | None:
            found = ErasedRows.of(transaction, name, dropped_us, all_erasures=all_erasures)
            if not done:
                done.append(world.database.table("events").erase("user_id = 42"))
            return found

    monkeypatch.setattr(drop_ingestion, "ErasedRows", Slow)
    assert world.ingest(record) == []
    assert world.ids() == [2]
    assert len(done) == 1


def test_changes_to_erased_rows_are_left_out_and_deletes_pass(world: World) -> None:
    schema = pa.schema([*SCHEMA, ("seq", pa.int64())])
    told = {"ingest_mode": "cdc", "cdc_envelope": "flat", "cdc_sequence": "seq", "subject": "id"}
    world.database.create_table("events", schema, primary_key="id", properties=told)

    def changes(name: str, minutes: float, *lines: dict[str, Any]) -> None:
        body = "".join(json.dumps(line) + "\n" for line in lines)
        assert world.ingest(at(world.drop(f"events/{name}.jsonl", body), minutes)) == []

    def put(id_: int, seq: int) -> dict[str, Any]:
        return {"Op": "U", "id": id_, "user_id": id_, "kind": "x", "seq": seq}

    changes("a", -9, put(1, 1), put(2, 2), put(3, 3), {"Op": "D", "id": 4, "seq": 4})
    changes("b", -8, {"Op": "D", "id": 3, "seq": 5}, {"Op": "D", "id": 2, "seq": 6})
    db = world.database
    before = db.version
    assert set(db.table("events__deleted").to_arrow()["id"].to_pylist()) == {2, 3, 4}
    db.forget([1, 3])
    db.table("events").erase(keys=[4])
    assert set(db.table("events__deleted").to_arrow()["id"].to_pylist()) == {2}
    assert set(db.at(before).table("events__deleted").to_arrow()["id"].to_pylist()) == {2}
    changes("c", -7, put(1, 7), put(3, 2), put(5, 8), {"Op": "D", "id": 5, "seq": 9}, put(6, 10))
    assert world.ids() == [6]
    told_last = world.log_entries("drop ingested")[-1]
    assert (told_last["rows_erased"], told_last["rows_deleted"]) == (2, 1)
    changes("d", 5, put(1, 11))
    assert world.ids() == [1, 6]
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_the_local_pipeline_goes_by_the_time_of_the_file(tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "db"))
    db.create_table("events", SCHEMA, primary_key="id", properties={"subject": "user_id"})
    for name, ids in (("old", (1, 2)), ("new", (3, 4))):
        path = tmp_path / "landing" / "events" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + "".join(f"{id_},{40 + id_ % 2 * 2},x\n" for id_ in ids))
        minutes = -60 if name == "old" else 60
        moment = (datetime.now() + timedelta(minutes=minutes)).timestamp()
        os.utime(path, (moment, moment))
    db.forget(42)
    local_once(tmp_path, tmp_path / "db")
    assert sorted(dolmen.open(str(tmp_path / "db")).table("events").to_arrow()["id"].to_pylist()) == [2, 3, 4]


def test_rows_that_were_erased_by_fields_of_a_struct(world: World) -> None:
    place = pa.struct([("zip", pa.string()), ("n", pa.int8())])
    table = world.database.create_table("events", pa.schema([("id", pa.int64()), ("place", place)]))

    def drop(name: str, *zips: str) -> dict[str, Any]:
        rows = [{"id": number, "place": {"zip": each, "n": 1}} for number, each in enumerate(zips)]
        return at(world.drop(f"events/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows)), -5)

    first, second = drop("a", "x", "y"), drop("b", "y", "x")
    table.erase("place.zip = 'x'")
    assert world.ingest(first) == []
    assert world.ids() == [1]
    table.rename_column("place.zip", "post")
    world.ingest(second)
    assert world.ids() == [1], "the file may have an erased row under another name"
    (report,) = world.rejects().values()
    assert "what these fields were called then is no longer known" in str(report)
