"""Cold, warm, cut off by the time-out, in a wrong place: packaged functions under the Runtime Interface Emulator.

What a time-out interrupts is told by a proxy, which never answers one request: before it is applied, or after.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dolmen import Database
from support.event_builders import s3_record, sqs_event
from support.history import ids, operations
from support.landing import drop
from support.proxy import Proxy
from support.rie import Emulator, Start

HEAD = "id,user_id,kind\n"
TIMEOUT_SECONDS = 10  # enough for a cold start on a busy machine: the process is started anew after it


@pytest.mark.slow
@pytest.mark.parametrize(("function", "moment"), [("ingest", "timeout"), ("delete", "timeout-after")])
def test_what_the_timeout_cut_off_in_its_commit_is_applied_once_by_its_next_delivery(
    database: Database, start: Start, ministack: str, s3_url: str, proxy: Proxy, function: str, moment: str
) -> None:
    """The answer to the commit never comes; the emulator kills the function and starts it anew."""
    table = database.table("events")
    table.append([{"id": 1, "user_id": 1, "kind": "x"}])
    if function == "ingest":
        event, warm = (drop(ministack, s3_url, f"{n}.csv", f"{HEAD}{n},1,x\n") for n in (2, 3))
        before, after = [1, 3], [1, 2, 3]
    else:
        event, warm = (sqs_event([{"table": "events", "keys": [n], "request_id": f"r{n}"}]) for n in (1, 9))
        before, after = [1], []
    running = start(function, timeout=TIMEOUT_SECONDS, **via(proxy))
    deliver(running, warm)
    proxy.rule(moment, method="PUT", key="_latest_manifest")
    answer = running.invoke(event)
    assert answer.error is not None
    assert f"timed out after {TIMEOUT_SECONDS}" in answer.error
    proxy.reset()
    assert ids(database) == (after if moment == "timeout-after" else before)
    for _ in range(2):
        deliver(running, event)
        assert ids(database) == after
    assert operations(database) == ["append", function, function]


def deliver(running: Emulator, event: Any) -> None:
    """As a queue does: again, if a busy machine could not start the function, or end the one before it, in time."""
    for _ in range(5):
        answer = running.invoke(event)
        if answer.error is None or not ("timed out" in answer.error or "Sandbox.Failure" in answer.error):
            break
    assert answer.payload == {"batchItemFailures": []}


def via(proxy: Proxy) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": proxy.url, "AWS_ENDPOINT_URL_S3": proxy.url}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "database_url", "told"),
    [
        ("ingest", "", "DOLMEN_DATABASE"),
        ("compact", "s4://bucket/prefix", "s4://bucket/prefix"),
        ("delete", "s3://no-such-bucket-anywhere/prefix", "no-such-bucket-anywhere"),
        ("gc", "s3://no-such-bucket-anywhere/prefix", "no-such-bucket-anywhere"),
    ],
)
def test_a_wrong_database_is_an_error_that_names_it(start: Start, function: str, database_url: str, told: str) -> None:
    running = start(function, DOLMEN_DATABASE=database_url)
    event = {"table": "events", "keys": [1]} if function == "delete" else {}
    if function == "ingest":
        event = {"Records": [s3_record("landing/events/a.csv", "e")]}
    for _ in range(2):  # the process goes on, and says it again
        answer = running.invoke(event)
        assert answer.error is not None
        assert told in answer.error


@pytest.mark.slow
def test_a_bucket_that_denies_is_an_error_that_names_the_object_and_the_event_is_applied_later(
    database: Database, start: Start, ministack: str, s3_url: str, proxy: Proxy
) -> None:
    proxy.rule("forbid", key="_latest_manifest", times=None)
    ingest = start("ingest", **via(proxy))
    event = drop(ministack, s3_url, "1.csv", f"{HEAD}1,1,x\n")
    answer = ingest.invoke(event)
    assert answer.error is not None
    assert answer.error.startswith("AccessDeniedError: ")
    assert "'_latest_manifest': 403 AccessDenied" in answer.error
    proxy.reset()
    assert ingest.invoke(event).payload == {"batchItemFailures": []}
    assert operations(database) == ["ingest"]


@pytest.mark.slow
def test_the_second_invocation_knows_the_database_and_asks_only_for_the_pointer(
    database: Database, start: Start, ministack: str, s3_url: str, proxy: Proxy
) -> None:
    first, second = (drop(ministack, s3_url, f"{n}.csv", f"{HEAD}{n},1,x\n") for n in (1, 2))
    running = start("ingest", **via(proxy))
    seen = []
    for event in (first, second):
        proxy.forget_requests()
        assert running.invoke(event).payload == {"batchItemFailures": []}
        below = (request.key.removeprefix("some/prefix/").partition("/")[0] for request in proxy.requests())
        seen.append(Counter(f"{request.method} {part}" for request, part in zip(proxy.requests(), below, strict=True)))
    cold, warm = seen
    assert cold["GET manifest"] == 1
    assert warm["GET manifest"] == 0
    assert warm["GET _latest_manifest"] == 1
    assert warm["PUT _latest_manifest"] == 1
    assert sum(warm.values()) < sum(cold.values())
    starts = [entry["cold_start"] for entry in running.logged() if entry.get("message") == "committed"]
    assert starts == [True, False]
    assert ids(database) == [1, 2]
