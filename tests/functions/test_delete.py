"""The delete function, and many requests in one commit."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from support.functions import World


@pytest.fixture
def filled(world: World) -> World:
    world.create()
    world.create("users", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    kinds = ["view", "buy"]
    world.database.table("events").append([{"id": n, "user_id": n % 10, "kind": kinds[n % 2]} for n in range(100)])
    world.database.table("users").append([{"id": n, "name": f"user {n}"} for n in range(10)])
    return world


@pytest.mark.parametrize(
    ("request_", "left"),
    [
        ({"where": "id >= 3"}, [0, 1, 2]),
        ({"where": {"user_id": [1, 2, 3, 4, 5, 6, 7, 8]}}, [n for n in range(100) if n % 10 in (0, 9)]),
        ({"where": {"kind": "view", "user_id": 0}}, [n for n in range(100) if n % 10]),
        ({"keys": list(range(98))}, [98, 99]),
        ({"keys": list(range(9)), "on": ["user_id"]}, [n for n in range(100) if n % 10 == 9]),
        ({"keys": [[n, "view"] for n in range(10)], "on": ["user_id", "kind"]}, list(range(1, 100, 2))),
        ({"where": "id < 97", "mode": "positions"}, [97, 98, 99]),
        ({"where": "id > 1000"}, list(range(100))),
        ({"where": "id > 1000", "mode": "positions"}, list(range(100))),
        ({"where": "TRUE"}, []),
    ],
)
def test_a_request_deletes_what_it_says(filled: World, request_: dict[str, Any], left: list[int]) -> None:
    assert filled.delete({"table": "events", **request_}) == []
    assert filled.ids() == left
    assert filled.ids("users") == list(range(10))


def test_one_request_over_several_tables_is_one_commit(filled: World) -> None:
    same = {"tables": ["events", "users"], "where": "id < 5"}
    each = {"tables": [{"table": "events", "where": {"user_id": 7}}, {"table": "users", "keys": [7]}]}
    assert filled.delete(same, ids=["m1"]) == []
    assert filled.delete(each, ids=["m2"]) == []
    assert filled.ids() == [n for n in range(5, 100) if n % 10 != 7]
    assert filled.ids("users") == [5, 6, 8, 9]
    assert filled.versions("delete") == 2


def test_a_request_that_fails_for_one_of_its_tables_deletes_from_none(filled: World) -> None:
    half = {"tables": [{"table": "events", "where": "TRUE"}, {"table": "users", "where": "no_such_column = 1"}]}
    nowhere = {"tables": ["users", "events", "nowhere"], "where": "TRUE"}
    assert filled.delete(half, {"table": "events", "keys": [1]}, nowhere) == ["message-0", "message-2"]
    assert len(filled.ids()) == 99
    assert filled.ids("users") == list(range(10))
    assert filled.delete(half, nowhere) == ["message-0", "message-1"]
    assert filled.versions("delete") == 1


@pytest.mark.slow
def test_five_hundred_requests_are_one_commit(filled: World) -> None:
    bodies = [{"table": "events", "where": {"id": n // 6}, "request_id": f"r-{n}"} for n in range(400)]
    bodies += [{"table": "events", "where": f"id BETWEEN {n} AND {n}", "request_id": f"s-{n}"} for n in range(70, 170)]
    assert filled.delete(*bodies) == []
    assert filled.ids() == [67, 68, 69]
    assert filled.versions("delete") == 1
    assert filled.delete(*reversed(bodies)) == []
    assert filled.versions("delete") == 1


POISON: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "MessageError"),
    "unknown table": ({"table": "nowhere", "where": "id = 1"}, "TableNotFoundError"),
    "unknown column": ({"table": "events", "where": "idd = 1"}, "PredicateError"),
    "unknown column of a mapping": ({"table": "events", "where": {"idd": 1}}, "PredicateError"),
    "not SQL": ({"table": "events", "where": "id = = 1"}, "PredicateError"),
    "an unbalanced parenthesis": ({"table": "events", "where": "(id = 1"}, "PredicateError"),
    "two statements": ({"table": "events", "where": "id = 1; DROP TABLE events"}, "PredicateError"),
    "a subquery": ({"table": "events", "where": "id IN (SELECT id FROM users)"}, "PredicateError"),
    "no predicate": ({"table": "events", "where": "id + 1"}, "PredicateError"),
    "text for a number": ({"table": "events", "where": {"id": "one"}}, "PredicateError"),
    "keys of another type": ({"table": "events", "keys": ["one"]}, "InputError"),
    "keys too large": ({"table": "events", "keys": [2**63]}, "InputError"),
    "keys of an unknown column": ({"table": "events", "keys": [1], "on": ["idd"]}, "SchemaError"),
    "keys without a primary key": ({"table": "users", "keys": [1, "x"]}, "InputError"),
    "keys of too few columns": ({"table": "events", "keys": [[1]], "on": ["id", "kind"]}, "InputError"),
    "keys not lists": ({"table": "events", "keys": [1], "on": ["id", "kind"]}, "InputError"),
    "a NULL key": ({"table": "events", "keys": [None]}, "RowError"),
    "nested where": ({"table": "events", "where": {"id": {"gt": 1}}}, "PredicateError"),
}


def test_poison_of_every_kind_fails_alone_with_its_reason(filled: World) -> None:
    bodies = [body for body, _ in POISON.values()]
    good = [{"table": "events", "keys": [n]} for n in range(3)]
    mixed = [good[0], *bodies[:9], good[1], *bodies[9:], good[2]]
    failed = filled.delete(*mixed)
    assert failed == [f"message-{n}" for n, body in enumerate(mixed) if body not in good]
    assert filled.ids() == list(range(3, 100))
    assert filled.versions("delete") == 1
    heard = {facts["message_id"]: facts for facts in filled.log_entries("delete failed")}
    wrong = {}
    for message_id, (name, (_, error)) in zip(failed, POISON.items(), strict=True):
        assert heard[message_id]["reason"]
        if heard[message_id]["error"] != error:
            wrong[name] = (heard[message_id]["error"], heard[message_id]["reason"])
    assert not wrong


def test_a_refused_request_says_what_is_wrong_and_quotes_no_value(filled: World) -> None:
    said = {
        "at character 0: no column 'idd'; did you mean 'id'?": {"where": "idd = 4711"},
        "at character 7: no column … (write texts in single quotes); there are: id, user_id, kind": {
            "where": 'kind = "Ann Lee"'
        },
        "at character 0: … is not a value of type int64": {"where": "id = 'Ann'"},
        "no column 'idd'; there are: id, user_id, kind": {"keys": [1], "on": ["idd"]},
        "NULL in a key: it equals nothing": {"keys": [None]},
        "no table 'nowhere' in version 4; tables: events, users": {"table": "nowhere", "keys": [1]},
    }
    filled.delete(*({"table": "events"} | body for body in said.values()))
    assert [facts["reason"] for facts in filled.log_entries("delete failed")] == list(said)
    assert all(facts["final"] for facts in filled.log_entries("delete failed"))


def test_a_request_without_a_queue_raises_when_it_fails(filled: World) -> None:
    assert filled.invoke("delete", {"table": "events", "where": "id > 0"}) == []
    assert filled.ids() == [0]
    filled.context.aws_request_id = "invocation-2"
    with pytest.raises(RuntimeError, match="table 'nowhere'"):
        filled.invoke("delete", {"table": "nowhere", "where": "id > 0"})


def test_a_repeated_invocation_without_a_queue_is_applied_once(filled: World) -> None:
    """Lambda repeats an asynchronous invocation under the same request id."""
    for _ in range(2):
        assert filled.invoke("delete", {"table": "events", "where": "id > 0"}) == []
    assert filled.versions("delete") == 1


def test_a_delete_racing_with_a_dropped_and_created_table_fails_or_is_planned_anew(filled: World) -> None:
    """The table is another one when the commit lands: the request finds out on the newest version."""
    original = type(filled.database).transaction
    done = []

    def transaction(database: Any, *args: str) -> Any:
        made = original(database, *args)
        if not done:
            done.append(True)
            filled.database.drop_table("events")
            filled.create()
            filled.database.table("events").append([{"id": 1, "user_id": 1, "kind": "x"}])
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dolmen.api.database.Database.transaction", transaction)
        assert filled.delete({"table": "events", "where": {"id": 1}}, {"table": "users", "keys": [1], "on": "id"}) == []
    assert filled.ids() == []
    assert filled.ids("users") == [0, *range(2, 10)]
    assert filled.versions("delete") == 1


def test_metrics_count_what_was_done(filled: World, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"table": "events", "keys": [1]}
    filled.delete(body, body, "{", ids=["a", "a", "c"])
    [metrics] = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "Messages" in line]
    assert metrics["Messages"] == [3.0]
    assert metrics["DeletesApplied"] == [1.0]
    assert metrics["DeletesDuplicate"] == [1.0]
    assert metrics["DeletesFailed"] == [1.0]
    assert metrics["CommitAttempts"] == [1.0]
