"""Messages that ask for an erasure: applied once, refused if they can't be, and never quoted in a log."""

from __future__ import annotations

from typing import Any

import pytest

from dolmen.commit.head import context_of
from dolmen.errors import InputError
from dolmen.format.receipts import erasure_id
from dolmen.ingest.delete_requests import parse_request
from dolmen.store.base import Stored
from support.functions import World


def filled(world: World) -> int:
    """Two tables, one of them with a subject; returns the version that shows all rows."""
    world.create()
    world.create("other")
    for name in ("events", "other"):
        rows = [{"id": id_, "user_id": 40 + id_, "kind": "hush"} for id_ in range(4)]
        world.database.table(name).append(rows)
    world.database.table("events").set(subject="user_id")
    return world.database.version


def test_an_erasure_of_a_table_and_of_a_person_are_applied_once(world: World) -> None:
    before = filled(world)
    messages = (
        {"erase": {"table": "other", "where": {"user_id": 41}}, "request_id": "e1"},
        {"erase": {"table": "other", "keys": [3]}, "request_id": "e2"},
        {"forget": {"subject": 42}, "request_id": "f1"},
        {"forget": {"subject": [40, 43]}},
        {"table": "other", "where": {"user_id": 40}, "request_id": "d"},
    )
    assert world.delete(*messages, ids=[f"m{place}" for place in range(5)]) == []
    assert world.delete(*messages, ids=[f"m{place}" for place in range(5)]) == []
    db = world.database
    assert (world.ids("other"), world.ids()) == ([2], [1])
    assert [sorted(db.at(before).table(name).to_arrow()["id"].to_pylist()) for name in ("other", "events")] == [
        [0, 2],
        [1],
    ]
    assert [each.id for each in db.erasures()] == [erasure_id(request) for request in ("e1", "e2", "f1", "m3")]
    assert world.versions("delete") == 1
    applied = world.log_entries("delete applied")
    assert [entry.get("erasure") for entry in applied] == [*(each.id for each in db.erasures()), None]
    assert [entry["tables"] for entry in applied] == [["other"], ["other"], ["events"], ["events"], ["other"]]
    assert not any("hush" in str(entry) or "43" in str(entry.get("reason")) for entry in world.listener.entries)


def test_published_tables_are_published_at_once_and_what_fails_there_fails_no_request(world: World) -> None:
    filled(world)
    for name in ("events", "other"):
        world.database.table(name).set(iceberg="v2")
        world.database.table(name).publish_iceberg()
    erase = {"erase": {"table": "other", "keys": [3]}, "request_id": "e1"}
    assert world.delete(erase) == []
    (published,) = world.log_entries("published")
    assert published["table"] == "other"
    assert world.database.stats().publication_lag_us == 0
    assert world.delete(erase) == []
    assert len(world.log_entries("published")) == 1, "a repeated delivery publishes nothing"
    objects = context_of(world.database).store
    data = {info.key: objects.get(info.key).body for info in objects.list("data/events/")}
    objects.delete(list(data))  # a publication has to look into them
    assert world.delete({"forget": {"subject": 42}, "request_id": "f1"}) == []
    (failed,) = world.log_entries("publication failed")
    assert failed["table"] == "events"
    for key, body in data.items():
        assert isinstance(objects.put(key, body), Stored)
    assert sorted(world.ids()) == [0, 1, 3]


def test_without_time_the_publication_is_left_to_the_next_round(world: World) -> None:
    filled(world)
    world.database.table("other").set(iceberg="v2")
    world.context.remaining_ms = [60_000, 20_000]
    assert world.delete({"erase": {"table": "other", "keys": [3]}, "request_id": "e1"}) == []
    assert [entry["table"] for entry in world.log_entries("publication postponed")] == ["other"]
    assert sorted(world.ids("other")) == [0, 1, 2]


def test_who_stands_in_dropped_tables_alone_is_forgotten_if_the_message_says_so(world: World) -> None:
    filled(world)
    world.database.tag("before")
    world.database.drop_table("events")
    assert world.delete({"forget": {"subject": 42}, "request_id": "a"}, tries=1) == ["message-0"]
    assert world.delete({"forget": {"subject": 42, "dropped": True}, "request_id": "b"}) == []
    assert world.database.at(tag="before").table("events").count("user_id = 42") == 0


def test_what_cannot_be_applied_is_refused_alone(world: World) -> None:
    filled(world)
    world.database.table("events").set(subject=None)
    bad: tuple[Any, ...] = (
        {"erase": {"table": "nothing", "where": {"user_id": 41}}, "request_id": "a"},
        {"forget": {"subject": 42}, "request_id": "b"},
        {"erase": {"table": "other", "where": {"nobody": "secret"}}, "request_id": "c"},
    )
    good = {"erase": {"table": "other", "keys": [1]}, "request_id": "d"}
    ids = ["m0", "m1", "m2", "m3"]
    assert sorted(world.delete(*bad, good, ids=ids, tries=1)) == ["m0", "m1", "m2"]
    assert world.ids("other") == [0, 2, 3]
    failed = world.log_entries("delete failed")
    assert {entry["request_id"] for entry in failed} == {"a", "b", "c"}
    assert not any("secret" in str(entry) for entry in world.listener.entries)


def test_a_refusal_to_forget_names_the_table_and_its_subject(world: World) -> None:
    filled(world)
    assert world.delete({"forget": {"subject": "somebody's name"}, "request_id": "a"}, tries=1) == ["message-0"]
    (failed,) = world.log_entries("delete failed")
    assert failed["reason"].startswith("table 'events': the type of its subject, column 'user_id'")
    assert "somebody" not in str(failed)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"erase": {"tables": ["a"], "where": "TRUE"}}, "unknown member"),
        ({"erase": {"where": "TRUE"}}, "name a table"),
        ({"erase": {"table": "a"}}, "'where' or 'keys'"),
        ({"erase": {"table": "a", "where": "TRUE", "mode": "positions"}}, "unknown member"),
        ({"erase": {"table": "a", "where": "TRUE"}, "table": "a"}, "only a request_id"),
        ({"erase": "a"}, "an object"),
        ({"forget": 42}, "an object"),
        ({"forget": {}}, "member 'subject'"),
        ({"forget": {"subject": 42, "table": "a"}}, "other"),
        ({"forget": {"subject": []}}, "forgets nobody"),
        ({"forget": {"subject": 42, "dropped": 1}}, "true or false"),
        ({"forget": {"subject": True}}, "whole number"),
        ({"forget": {"subject": [1.5]}}, "whole number"),
        ({"forget": {"subject": [None]}}, "whole number"),
        ({"forget": {"subject": list(range(1001))}}, "1,001 subjects"),
        ({"forget": {"subject": 1}, "erase": {}}, "only a request_id"),
    ],
)
def test_malformed_messages_say_what_to_correct(message: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_request(message, "m")
