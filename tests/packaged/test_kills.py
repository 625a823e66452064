"""kill -9 of real handler processes at every request they make; then the event comes again, and is applied once.

A proxy counts the requests of a process and never answers the k-th: it is applied or not, and the process is killed
while it waits. That for every k, until the handler comes to its end; with the packaged code on the functions' Python.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dolmen import Database
from support.event_builders import notification, s3_record, sqs_event
from support.handlers import Handlers
from support.history import ids, operations
from support.ministack import boto3_client, endpoint_environment
from support.proxy import Proxy

pytestmark = pytest.mark.slow

HEAD = "id,user_id,kind\n"
DONE = {"batchItemFailures": []}


@pytest.fixture
def settings(s3_url: str, proxy: Proxy) -> dict[str, str]:
    return {**endpoint_environment(proxy.url), "DOLMEN_DATABASE": s3_url}


def kill_at_every_request(
    handlers: Handlers, proxy: Proxy, event_of: Callable[[int], Any], check: Callable[[int, bool], None]
) -> tuple[int, int]:
    """Kills before and after every request; returns how many requests there were, and how many writes.

    Args:
        event_of: makes the event of a round, from 0.
        check: is called with the round after the kill, with False, and after the next delivery, with True.
    """
    deaths = []
    round_ = 0
    for moment, method in (("timeout", None), ("timeout-after", "PUT")):
        nth = 0
        killed = True
        while killed:
            nth += 1
            event = event_of(round_)
            proxy.reset()
            proxy.rule(moment, method=method, nth=nth)
            killed = handlers.invoke_and_kill(event, proxy).killed
            proxy.reset()
            check(round_, not killed)
            again = handlers.invoke(event)
            assert (again.status, again.answer) == (0, DONE)
            check(round_, True)
            round_ += 1
        deaths.append(nth - 1)
    print(f"killed before {deaths[0]} requests and after {deaths[1]} writes")
    return deaths[0], deaths[1]


def test_ingest_survives_a_kill_at_every_request(
    database: Database, ministack: str, s3_url: str, settings: dict[str, str], proxy: Proxy, tmp_path: Path
) -> None:
    bucket = s3_url.removeprefix("s3://").partition("/")[0]
    s3 = boto3_client("s3", ministack)
    events: list[Any] = []

    def event_of(round_: int) -> Any:
        """Two files of rows, and between them one that is rejected."""
        records = []
        first = 3 * round_
        for name, rows in (
            ("a", f"{first},1,x\n{first + 1},2,x\n"),
            ("bad", "4,4,x\n5,5\n"),
            ("b", f"{first + 2},3,x\n"),
        ):
            key = f"landing/events/{round_}-{name}.csv"
            etag = s3.put_object(Bucket=bucket, Key=key, Body=(HEAD + rows).encode())["ETag"]
            records.append(s3_record(key, etag, bucket=bucket, sequencer=f"{round_:08d}"))
        events.append(sqs_event([notification(record) for record in records]))
        return events[-1]

    def check(round_: int, done: bool) -> None:
        rows = database.table("events").count()
        assert rows == 3 * (round_ + 1) if done else rows in (3 * round_, 3 * (round_ + 1))
        if done:
            assert operations(database) == ["ingest"] * (round_ + 1)
            copies = s3.list_objects_v2(Bucket=bucket, Prefix="rejected/").get("Contents", ())
            assert len(copies) == 2 * (round_ + 1)  # the file and its report

    with Handlers.start("ingest", settings, tmp_path) as handlers:
        requests, writes = kill_at_every_request(handlers, proxy, event_of, check)
        assert requests >= 12
        assert writes >= 6  # two files, manifest, pointer, reject and report
        everything = [record for event in events for record in event["Records"]]
        renamed = [{**record, "messageId": f"again-{n}"} for n, record in enumerate(everything)]
        before = database.history()
        assert handlers.invoke({"Records": renamed}).answer == DONE
        assert list(database.history()) == list(before)
    assert ids(database) == list(range(3 * len(events)))
    assert database.verify().errors == ()


def test_deletes_survive_a_kill_at_every_request(
    database: Database, settings: dict[str, str], proxy: Proxy, tmp_path: Path
) -> None:
    table = database.table("events")
    count = 400
    table.append([{"id": n, "user_id": n, "kind": "x"} for n in range(count)])
    events: list[Any] = []

    def event_of(round_: int) -> Any:
        first = 3 * round_
        bodies = [
            {"table": "events", "where": f"user_id = {first}", "request_id": f"{round_}-where"},
            {"table": "events", "keys": [first + 1], "request_id": f"{round_}-keys"},
            {"table": "events", "where": {"id": first + 2}, "mode": "positions", "request_id": f"{round_}-positions"},
        ]
        events.append(sqs_event(bodies))
        return events[-1]

    def check(round_: int, done: bool) -> None:
        rows = count - database.table("events").count()
        assert rows == 3 * (round_ + 1) if done else rows in (3 * round_, 3 * (round_ + 1))
        if done:
            assert operations(database) == ["append", *["delete"] * (round_ + 1)]

    with Handlers.start("delete", settings, tmp_path) as handlers:
        requests, writes = kill_at_every_request(handlers, proxy, event_of, check)
        assert requests >= 6
        assert writes >= 3  # tombstones, manifest, pointer
        everything = [record for event in events for record in event["Records"]]
        renamed = [{**record, "messageId": f"again-{n}"} for n, record in enumerate(everything)]
        before = database.history()
        assert handlers.invoke({"Records": renamed}).answer == DONE
        assert list(database.history()) == list(before)
    assert ids(database) == list(range(3 * len(events), count))
    assert database.verify().errors == ()
