"""Where rejects go and what they are called."""

from __future__ import annotations

import json
from urllib.parse import quote_plus

import pyarrow as pa
import pytest

from dolmen.ingest.announcements import Drop
from dolmen.ingest.landing import LandingPath
from dolmen.ingest.rejects import reject_key
from support.functions import World
from support.proxy import Proxy

HEAD = "id,user_id,kind\n"


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("events/a.csv", "events/a-", ".csv"),
        ("events/a.csv.gz", "events/a-", ".csv.gz"),
        ("events/2026/11/a.jsonl.zst", "events/2026/11/a-", ".jsonl.zst"),
        ("events/a.b.c.parquet", "events/a.b.c-", ".parquet"),
        ("events/noending", "events/noending-", ""),
        ("events/日本.csv", "events/日本-", ".csv"),
        ("loose.csv", "loose-", ".csv"),
        ("events/a.something-long.x", "events/a.something-long-", ".x"),
    ],
)
def test_a_reject_keeps_its_name_and_ending(path: str, before: str, after: str) -> None:
    key = reject_key(Drop("b", f"landing/{path}", 1, "e"), LandingPath(path))
    assert key.startswith(before)
    assert key.endswith(after)
    assert len(key) == len(before) + 8 + len(after)


def test_different_drops_of_one_name_are_different_rejects() -> None:
    place = LandingPath("events/a.csv")
    drops = [Drop("b", "k", 1, "e"), Drop("b", "k", 1, "f"), Drop("b", "k", 1, "e", "v"), Drop("c", "k", 1, "e")]
    drops += [Drop("b", "k", 1, "e", None, "01"), Drop("b", "k", 1, "e", None, "02")]
    assert len({reject_key(drop, place) for drop in drops}) == len(drops)


def test_a_key_as_long_as_keys_can_be_can_be_rejected(s3_world: World) -> None:
    path = f"events/{'x' * (1024 - len('landing/events/.csv'))}.csv"
    s3_world.create()
    assert s3_world.ingest(s3_world.drop(path, "id,user_id,kind\nx,1,x\n")) == []
    [(copy, report)] = s3_world.rejects().items()
    assert copy.startswith("events/")
    assert report["file"] == path


@pytest.mark.slow
def test_a_large_reject_is_copied_in_bounded_pieces(s3_world: World, proxy: Proxy) -> None:
    body = b"id,user_id,kind\n" + b"1,1,x\n" * 2_000_000 + b"oops\n"
    s3_world.create()
    record = s3_world.drop("events/large.csv", body)
    proxy.forget_requests()
    assert s3_world.ingest(record) == []
    [(copy, report)] = s3_world.rejects().items()
    assert s3_world.landing.get(f"rejected/{copy}").body == body
    assert report["line"] == 2_000_002
    ranges = [request.size for request in proxy.requests() if request.method == "GET" and "large.csv" in request.key]
    assert max(ranges) <= 16 << 20


def test_rejects_go_where_they_are_told_to(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = world.landing.url.replace("/bucket", "/elsewhere")  # type: ignore[attr-defined]
    monkeypatch.setenv("DOLMEN_REJECTED_URL", elsewhere)
    world.create()
    assert world.ingest(world.drop("events/a.csv", "id\nx\n")) == []
    assert world.rejects() == {}
    [facts] = world.log_entries("drop rejected")
    assert facts["rejected_to"].startswith(f"{elsewhere}/events/a-")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large.csv", "large.jsonl", "large.csv.gz", "large.parquet"])
def test_a_file_of_more_bytes_than_one_may_hold_is_rejected_unread_and_stays_where_it_is(
    s3_world: World, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", "1000")
    s3_world.create()
    large, small = s3_world.drop(f"events/{name}", b"x" * 1001), s3_world.drop("events/b.csv", f"{HEAD}1,1,x\n")
    proxy.forget_requests()
    assert s3_world.ingest(large, small) == []
    assert s3_world.ids() == [1]
    [outcome] = s3_world.log_entries("drop rejected")
    assert outcome["reason"].startswith(f"file 'events/{name}' has 1,001 bytes, and one file may hold 1,000")
    assert not [one for one in proxy.requests() if one.method == "GET" and one.key.endswith(f"landing/events/{name}")]
    [key] = [info.key for info in s3_world.landing.list("rejected/")]
    report = json.loads(s3_world.landing.get(key).body)
    assert (report["copy"], report["bytes"], report["source"]) == (
        None,
        1001,
        f"s3://{s3_world.bucket}/landing/events/{name}",
    )
    assert s3_world.ingest(large) == []  # and once more: it is final
    assert [info.key for info in s3_world.landing.list("rejected/")] == [key]


def test_a_table_is_not_created_by_a_file_that_is_too_large(s3_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", "20")
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    assert (
        s3_world.ingest(s3_world.drop("fresh/a.csv", "id,v\n" + "1,x\n" * 10), s3_world.drop("fresh/b.csv", "id\n1\n"))
        == []
    )
    assert s3_world.rows("fresh") == [{"id": 1}]


def test_a_reject_that_cannot_be_copied_in_the_time_that_is_left_stays_where_it_is(world: World) -> None:
    world.create()
    record = world.drop("events/late.csv", f"{HEAD}oops\n")
    record["s3"]["object"]["size"] = 3_000_000_000
    world.context.remaining_ms = [129_000]  # 100 seconds for the copy, 30 for the commit
    assert world.ingest(record) == []
    assert [info.key.endswith(".csv.error.json") for info in world.landing.list("rejected/")] == [True]
    record = world.drop("events/early.csv", f"{HEAD}oops\n")
    record["s3"]["object"]["size"] = 3_000_000_000
    world.context.remaining_ms = [131_000]
    assert world.ingest(record) == []
    assert len(list(world.landing.list("rejected/events/early"))) == 2


def test_a_file_that_is_too_large_and_gone_is_superseded(s3_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", "20")
    s3_world.create()
    record = s3_world.drop("events/a.csv", "x" * 30)
    s3_world.drop("events/a.csv", f"{HEAD}1,1,x\n"[:20])
    assert s3_world.ingest(record) == []
    assert len(s3_world.log_entries("drop superseded")) == 1
    assert list(s3_world.landing.list("rejected/")) == []


@pytest.mark.parametrize("name", ["a\\b.csv", "a\0b.csv"])
def test_a_file_whose_name_no_key_can_be_is_rejected_with_a_report_alone(world: World, name: str) -> None:
    world.create()
    record = world.drop("events/a.csv", f"{HEAD}1,1,x\n")
    record["s3"]["object"]["key"] = quote_plus(f"landing/events/{name}", safe="/")
    for _ in range(2):
        assert world.ingest(record) == []
    [key] = [info.key for info in world.landing.list("rejected/")]
    report = json.loads(world.landing.get(key).body)
    assert (report["file"], report["copy"]) == (f"events/{name}", None)


@pytest.mark.parametrize(
    ("name", "body", "column"),
    [
        ("a.csv", "user_id,kind\n1,x\n", "id"),
        ("a.csv", "id,other,kind\n1,2,x\n", "other"),
        ("a.csv", "id,id,user_id,kind\n1,1,1,x\n", "id"),
        ("a.csv", f"{HEAD}x,1,x\n", "id"),
        ("a.csv", f"{HEAD},1,x\n", "id"),
        ("a.jsonl", '{"id": 1, "other": 2}\n', "other"),
        ("a.jsonl", '{"id": "x"}\n', "id"),
        ("a.jsonl", '{"user_id": 1}\n', "id"),
    ],
)
def test_a_report_names_the_column_at_fault(world: World, name: str, body: str, column: str) -> None:
    world.create(
        "events", pa.schema([pa.field("id", pa.int64(), False), ("user_id", pa.int64()), ("kind", pa.string())])
    )
    assert world.ingest(world.drop(f"events/{name}", body)) == []
    [report] = world.rejects().values()
    assert report["column"] == column, report
