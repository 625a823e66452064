"""Every malformed message goes through its function, in batches with good ones: each good one is applied once, each
bad one fails alone with a reason, and nothing is touched that it had no right to name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.event_builders import notification, sqs_event
from support.functions import World
from support.malformed_events import MALFORMED_EVENTS
from support.malformed_requests import MALFORMED_REQUESTS, TYPED

_BATCH = 50


def _batches(bad: Sequence[Any], good: Sequence[Any]) -> list[list[Any]]:
    """Batches of bad cases with a good one before, between and after them."""
    batches = []
    for start in range(0, len(bad), _BATCH):
        part, (first, middle, last) = list(bad[start : start + _BATCH]), good[3 * len(batches) : 3 * len(batches) + 3]
        batches.append([first, *part[: len(part) // 2], middle, *part[len(part) // 2 :], last])
    return batches


def test_every_malformed_event_fails_or_is_ignored_alone_and_good_drops_go_in(world: World, tmp_path: Path) -> None:
    world.create()
    good = [notification(world.drop(f"events/{n}.csv", f"id\n{n}\n")) for n in range(3 * len(MALFORMED_EVENTS))]
    batches = _batches(MALFORMED_EVENTS, good)
    failed, heard = [], []
    for number, batch in enumerate(batches):
        bodies = [case if isinstance(case, dict) else case.text for case in batch]
        names = ["good" if isinstance(case, dict) else case.name for case in batch]
        ids = [f"message-{number}-{n}" for n in range(len(batch))]
        world.listener.entries.clear()
        answer = world.invoke("ingest", sqs_event(bodies, ids))
        failed += [names[ids.index(id_)] for id_ in answer]
        heard += [
            (names[ids.index(facts["message_id"])], facts) for facts in world.listener.entries if "message_id" in facts
        ]

    assert set(failed) ^ {event.name for event in MALFORMED_EVENTS if event.outcome == "failed"} == set()
    assert world.ids() == list(range(3 * len(batches)))
    assert world.versions("ingest") == len(batches)
    told = {name: facts for name, facts in heard if name != "good"}
    for event in MALFORMED_EVENTS:
        if event.outcome == "failed":
            assert told[event.name]["text"] == ("drop failed" if event.read else "message malformed"), event.name
            assert told[event.name]["reason"], event.name
        elif event.name in told:
            assert told[event.name]["text"] == f"drop {event.outcome}", event.name
    reports = [json.loads(world.landing.get(info.key).body) for info in world.landing.list("rejected/")]
    assert sorted((one["file"], one["copy"]) for one in reports) == [
        ("events/a\0.csv", None),
        ("events/a\\b.csv", None),
    ]
    _assert_nothing_else_was_written(tmp_path)


@pytest.mark.slow
def test_every_malformed_request_fails_alone_and_good_ones_are_applied(world: World, tmp_path: Path) -> None:
    world.database.create_table("typed", TYPED, primary_key="id")
    world.database.create_table("keyless", pa.schema([("id", pa.int64())]))
    world.database.table("typed").append(pa.table({"id": range(100)}))
    good = [{"table": "typed", "keys": [n]} for n in range(3 * len(MALFORMED_REQUESTS))]
    batches = _batches(MALFORMED_REQUESTS, good)
    failed = {}
    for number, batch in enumerate(batches):
        bodies = [case if isinstance(case, dict) else case.text for case in batch]
        names = ["good" if isinstance(case, dict) else case.name for case in batch]
        ids = [f"message-{number}-{n}" for n in range(len(batch))]
        world.listener.entries.clear()
        answer = world.invoke("delete", sqs_event(bodies, ids))
        told = {facts["message_id"]: facts for facts in world.log_entries("delete failed")}
        assert set(told) == set(answer)
        failed |= {names[ids.index(id_)]: told[id_] for id_ in answer}

    assert set(failed) ^ {case.name for case in MALFORMED_REQUESTS} == set()
    wrong = {
        case.name: (failed[case.name]["error"], failed[case.name]["reason"])
        for case in MALFORMED_REQUESTS
        if failed[case.name]["error"] != case.error or not failed[case.name]["reason"]
    }
    assert wrong == {}
    assert world.ids("typed") == list(range(3 * len(batches), 100))
    assert world.versions("delete") == len(batches)
    assert set(world.database.tables()) == {"typed", "keyless"}
    _assert_nothing_else_was_written(tmp_path)


def _assert_nothing_else_was_written(directory: Path) -> None:
    """Only objects of a database below its prefix, and drops below landing/."""
    allowed = re.compile(
        r"bucket/landing/events/\d+\.csv|bucket/rejected/events/[0-9a-f]{8}\.csv\.error\.json|database/(_latest_manifest|manifest/v\d{20}-[0-9a-f]{8}\.json"
        r"|(data|tombstone)/(events|typed)/[\d/]+/[0-9a-f-]+\.(parquet|del))"
    )
    found = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    assert [path for path in found if not allowed.fullmatch(path) and "/.dolmen" not in path] == []


def test_numbers_in_a_request_delete_what_their_digits_say(world: World) -> None:
    """None is rounded to a neighbour's value, and a fraction is no whole number's key."""
    paid = ["123456789012345678.91", "123456789012345680.00", "1.25", "1.20"]
    world.database.create_table("typed", TYPED, primary_key="id")
    rows = pa.table(
        {"id": pa.array(range(4), pa.int64()), "paid": pa.array([Decimal(each) for each in paid], pa.decimal128(20, 2))}
    )
    world.database.table("typed").append(rows)
    assert world.delete('{"table": "typed", "keys": [1.5]}', ids=["a"]) == ["a"]
    assert world.delete('{"table": "typed", "where": {"paid": 123456789012345678.91}}', ids=["b"]) == []
    assert world.ids("typed") == [1, 2, 3]
    assert world.delete('{"table": "typed", "keys": [1.25, 1.2], "on": "paid"}', ids=["c"]) == []
    assert world.ids("typed") == [1]
    assert world.delete('{"table": "typed", "keys": [1.0]}', ids=["d"]) == []
    assert world.ids("typed") == []


STRANGE_NAMES = [
    "a b.csv", "a+b.csv", "100%.csv", "%2e%2e.csv", "a%2Fb.csv", "a#b.csv", "a?b=c.csv", "a&b.csv", "a//b.csv",
    "a\\b.csv", "a'b;--.csv", 'a"b.csv', "<a>.csv", "a..b.csv", " a .csv", "a\tb.csv", "caf\u00e9.csv",
    "cafe\u0301.csv", "日本.csv", "😀.csv", "a\u202eb.csv", "~.csv", "$(id).csv", "a:b.csv", "x" * 900 + ".csv",
]  # fmt: skip


@pytest.mark.slow
def test_strange_keys_are_ingested_or_rejected_as_any_other(s3_world: World) -> None:
    """On S3 a key is a name and no path: each is read, and its copy among the rejects holds the same bytes."""
    s3_world.create()
    records = []
    for number, name in enumerate(STRANGE_NAMES):
        records.append(s3_world.drop(f"events/good/{name}", f"id\n{number}\n"))
        records.append(s3_world.drop(f"events/bad/{name}", f"id\nbad {number}\n"))
    assert s3_world.ingest(*records) == []
    assert s3_world.ids() == list(range(len(STRANGE_NAMES)))
    rejects = s3_world.rejects()
    assert {report["file"] for report in rejects.values()} == {f"events/bad/{name}" for name in STRANGE_NAMES}
    for copy, report in rejects.items():
        number = STRANGE_NAMES.index(report["file"].removeprefix("events/bad/"))
        assert s3_world.landing.get(f"rejected/{copy}").body == f"id\nbad {number}\n".encode()
    assert s3_world.ingest(*reversed(records)) == []
    assert s3_world.versions("ingest") == 1
    assert s3_world.rejects() == rejects
