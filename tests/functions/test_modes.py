"""What a table's properties make of the files dropped for it: rows added, or put in the place of others."""

from __future__ import annotations

import gzip
import json
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from dolmen.ingest.formats.formats import SourceFile
from dolmen.rows.write import row_input
from support.functions import World
from support.ministack import boto3_client
from support.proxy import Proxy

HEAD = "id,user_id,kind\n"


def told(world: World, text: str = "drop ingested") -> dict[str, Any]:
    """The facts of the one log record with this text; forgets all of them."""
    [facts] = world.log_entries(text)
    world.listener.entries.clear()
    return facts


def test_files_of_an_upserting_table_replace_rows_by_key(world: World) -> None:
    world.create()
    world.database.table("events").set(ingest_mode="upsert")
    assert world.ingest(world.drop("events/a.csv", f"{HEAD}1,1,old\n2,2,old\n")) == []
    assert told(world)["rows_upserted"] == 2
    assert world.ingest(world.drop("events/b.csv", f"{HEAD}2,2,first\n3,3,new\n2,2,last\n")) == []
    assert {row["id"]: row["kind"] for row in world.rows()} == {1: "old", 2: "last", 3: "new"}
    assert world.versions("ingest") == 2


def test_files_of_one_batch_win_in_the_order_of_their_events(world: World) -> None:
    world.create()
    world.database.table("events").set(ingest_mode="upsert")
    records = [world.drop(f"events/{n}.csv", f"{HEAD}7,{n},x\n") for n in range(4)]
    assert world.ingest(*records) == []
    assert [row["user_id"] for row in world.rows()] == [3]
    assert world.ingest(*reversed(records)) == []
    assert [row["user_id"] for row in world.rows()] == [3]
    assert world.versions("ingest") == 1


@pytest.mark.parametrize("limits", [{"PART_KEYS": 3, "_FOLD_ROWS": 3}, {"PART_BYTES": 40, "_FOLD_BYTES": 40}])
def test_a_file_too_large_for_one_part_is_several_of_one_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    world.create()
    world.database.table("events").set(ingest_mode="upsert")
    for name, limit in limits.items():
        monkeypatch.setattr(row_input, name, limit)
    body = "".join(f'{{"id": {n % 8}, "user_id": {n}}}\n' for n in range(20))
    monkeypatch.setattr("dolmen.ingest.drops.drop_ingestion.SourceFile", partial(SourceFile, block_bytes=100))
    assert world.ingest(world.drop("events/a.jsonl", body)) == []
    assert {row["id"]: row["user_id"] for row in world.rows()} == {n % 8: n for n in range(12, 20)}
    assert world.versions("ingest") == 1
    assert world.database.history()[0].counts.tombstones_added > 2
    assert world.ingest(world.drop("events/a.jsonl", body)) == []
    assert world.versions("ingest") == 1


def test_a_key_that_is_null_rejects_the_file_with_its_place_also_in_a_later_portion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create()
    world.database.table("events").set(ingest_mode="upsert")
    monkeypatch.setattr(row_input, "_FOLD_ROWS", 1)
    monkeypatch.setattr(row_input, "PART_KEYS", 1)
    assert world.ingest(world.drop("events/a.csv", f"{HEAD}1,1,x\n2,2,x\n3,3,x\n,4,x\n")) == []
    [report] = world.rejects().values()
    assert (report["line"], report["row"], report["column"]) == (5, 4, "id")
    assert "NULL" in report["reason"]
    assert world.rows() == []


def test_a_table_without_a_key_that_is_to_be_upserted_rejects_with_what_to_do(world: World) -> None:
    world.create()
    world.create("keyless", primary_key=None)
    with pytest.raises(ValueError, match="primary key"):
        world.database.table("keyless").set(ingest_mode="upsert")


def test_ingested_files_are_tagged_and_that_costs_no_other_table_a_request(
    ministack: str, s3_world: World, proxy: Proxy
) -> None:
    world, s3 = s3_world, boto3_client("s3", ministack)
    world.create()
    world.create("tagged")
    world.database.table("tagged").set(ingest_landing="tag")
    records = [world.drop(f"{table}/a.csv", f"{HEAD}1,1,x\n") for table in ("events", "tagged")]
    bad = world.drop("tagged/bad.csv", f"{HEAD}x,1,x\n")

    def tags(path: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = s3.get_object_tagging(Bucket=world.bucket, Key=f"landing/{path}")["TagSet"]
        return found

    assert world.ingest(*records, bad) == []
    assert tags("tagged/a.csv") == [{"Key": "dolmen-landing", "Value": "ingested"}]
    assert tags("events/a.csv") == tags("tagged/bad.csv") == []
    # A delivery that comes again does what the first one may not have come to; a tag that is there is not set again.
    s3.delete_object_tagging(Bucket=world.bucket, Key="landing/tagged/a.csv")
    assert world.ingest(*records) == []
    assert tags("tagged/a.csv") == [{"Key": "dolmen-landing", "Value": "ingested"}]
    proxy.forget_requests()
    assert world.ingest(*records) == []
    assert [request.key for request in proxy.requests() if request.method == "PUT"] == []
    others = [request.key for request in proxy.requests() if "events/" in request.key]
    # A table is this young: whether another delivery has rejected the file is looked for.
    assert [key for key in others if not key.startswith("rejected/")] == []


def test_a_tag_that_cannot_be_set_fails_nobody(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    s3_world.database.table("events").set(ingest_landing="expire")
    record = s3_world.drop("events/a.csv", f"{HEAD}1,1,x\n")
    proxy.rule("forbid", method="PUT", query="tagging", times=None)
    assert s3_world.ingest(record) == []
    assert s3_world.ids() == [1]
    assert [facts["error"] for facts in s3_world.log_entries("landing not tagged")] == ["AccessDeniedError"]


def test_nothing_is_tagged_before_the_commit_is_known(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    s3_world.database.table("events").set(ingest_landing="tag")
    record = s3_world.drop("events/a.csv", f"{HEAD}1,1,x\n")
    proxy.rule("forbid", method="PUT", key="_latest_manifest", times=None)
    assert s3_world.ingest(record) == ["message-0"]
    assert not [request for request in proxy.requests() if "tagging" in request.query]


def test_in_a_directory_an_ingested_file_goes_and_a_rejected_one_stays(world: World) -> None:
    world.create()
    world.database.table("events").set(ingest_landing="expire")
    good, bad = world.drop("events/good.csv", f"{HEAD}1,1,x\n"), world.drop("events/bad.csv", f"{HEAD}x,1,x\n")
    for _ in range(2):
        assert world.ingest(good, bad) == []
        assert [info.key for info in world.landing.list("landing/")] == ["landing/events/bad.csv"]
    assert world.ids() == [1]


def test_files_of_changes_are_applied_in_the_order_of_their_sequence(world: World) -> None:
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("seq", pa.int64())])
    world.create(schema=schema)
    world.database.table("events").set(
        ingest_mode="cdc", cdc_envelope="flat", cdc_sequence="seq", ingest_on_bad_row="quarantine"
    )
    head = "Op,id,kind,seq\n"
    newer = world.drop("events/b.csv", f"{head}U,1,new,3\nD,2,,4\nX,3,what,5\n")
    older = world.drop("events/a.csv", f"{head}I,1,old,1\nI,2,gone,2\n")
    assert world.ingest(newer) == []
    facts = told(world)
    assert (facts["rows_upserted"], facts["rows_deleted"], facts["rows_quarantined"]) == (1, 1, 1)
    for record in (older, newer, older):
        assert world.ingest(record) == []
    assert [(row["id"], row["kind"]) for row in world.rows()] == [(1, "new")]
    assert world.versions("ingest") == 2
    keys = [info.key for info in world.landing.list("rejected/")]
    [report] = [json.loads(world.landing.get(key).body) for key in keys if key.endswith(".error.json")]
    assert report["row"] == 3
    assert f"rejected/{report['copy_of_file']}" in keys


def test_a_file_of_changes_holds_no_more_than_any_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", "8000")
    world.create(schema=pa.schema([("id", pa.int64()), ("seq", pa.int64())]))
    world.database.table("events").set(ingest_mode="cdc", cdc_envelope="flat", cdc_sequence="seq")
    body = "Op,id,seq\n" + "".join(f"I,{n},{n}\n" for n in range(1000))
    assert world.ingest(world.drop("events/a.csv.gz", gzip.compress(body.encode()))) == []
    [report] = world.rejects().values()
    assert "8,000 bytes" in report["reason"]
    assert world.ids() == []
