"""One event delivered twice at the same moment, while its table is being created: it is not both in and rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dolmen import unit_of_work
from dolmen.commit.versions import SETTLED_AFTER_US
from dolmen.database import Database
from dolmen.errors import InputError, StoreUnavailableError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops import ingest as drops
from dolmen.ingest.drops import ingestion
from dolmen.ingest.rejects import refuted
from dolmen.ingest.rejects.refuted import table_was_there
from dolmen.ingest.rejects.retry import retry
from dolmen.runtime import Runtime
from dolmen.store.base import Object
from dolmen.store.local.store import LocalStore
from dolmen.store.url import open_store
from dolmen.transaction import Transaction
from support.event_builders import notification, sqs_event
from support.functions import SCHEMA, World, load

BODY = "id,user_id,kind\n1,1,x\n"


@contextmanager
def before(module: Any, name: str, event: Callable[[], Any]) -> Iterator[None]:
    """Something happens once, before a function is called."""
    original, pending = getattr(module, name), [event]

    def called(*args: Any, **options: Any) -> Any:
        while pending:
            pending.pop()()
        return original(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, called)
        yield


def deliver(world: World, record: dict[str, Any]) -> dict[str, Any]:
    """The event, handled by another container."""
    other = load("ingest")
    other.logger.addHandler(world.listener)
    answer: dict[str, Any] = other.lambda_handler(sqs_event([notification(record)]), world.context)
    return answer


def the_other_rejects(world: World, record: dict[str, Any]) -> None:
    """Another delivery, which has looked when there was no table."""
    with before(ingestion, "reject_drop", world.create):
        deliver(world, record)


def test_who_rejects_sees_that_another_has_ingested_it_meanwhile(world: World) -> None:
    """The report is written after the other's commit."""
    record = world.drop("events/a.csv", BODY)

    def created_and_ingested() -> None:
        world.create()
        assert deliver(world, record) == {"batchItemFailures": []}

    with before(ingestion, "reject_drop", created_and_ingested):
        assert world.ingest(record) == []
    assert world.ids() == [1]
    [report] = world.rejects().values()
    assert report["withdrawn"]["version"] == 2
    assert "nothing: another delivery" in report["then"]
    assert world.log_entries("drop rejected") == []
    assert [facts["version"] for facts in world.log_entries("drop duplicate")] == [2]


def test_who_ingests_sees_that_another_has_rejected_it_meanwhile(world: World) -> None:
    """The report is written, and looked at, after this one's look for it and before its commit."""
    world.create("other")
    record = world.drop("events/a.csv", BODY)

    def created_and_rejected() -> None:
        with before(ingestion, "reject_drop", world.create):
            deliver(world, record)

    with before(ingestion.Ingestion, "_ingest", created_and_rejected):
        assert world.ingest(record) == []
    assert world.ids() == [1]
    [report] = world.rejects().values()
    assert report["withdrawn"]["version"] == 3
    assert len(world.log_entries("drop rejected")) == 1


def test_an_event_that_comes_again_withdraws_what_whoever_ingested_it_did_not_live_to(world: World) -> None:
    world.create("other")
    record = world.drop("events/a.csv", BODY)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:

        def rejected_and_soon_dead() -> None:
            the_other_rejects(world, record)
            patch.setattr(drops, "look_for_reports", dies)

        with before(ingestion.Ingestion, "_ingest", rejected_and_soon_dead), pytest.raises(KeyboardInterrupt):
            world.ingest(record)
    assert ["withdrawn" in report for report in world.rejects().values()] == [False]
    world.restart()
    assert world.ingest(record) == []
    assert ["withdrawn" in report for report in world.rejects().values()] == [True]
    assert world.ids() == [1]


def test_a_report_that_cannot_be_withdrawn_fails_the_event_which_comes_again(world: World) -> None:
    world.create("other")
    record = world.drop("events/a.csv", BODY)
    original = LocalStore.get

    def unreachable(store: LocalStore, key: str, *args: Any, **options: Any) -> Object:
        if key.endswith(".error.json"):
            raise StoreUnavailableError("not now")
        return original(store, key, *args, **options)

    def rejected_and_unreachable() -> None:
        the_other_rejects(world, record)
        patch.setattr(LocalStore, "get", unreachable)

    with (
        pytest.MonkeyPatch.context() as patch,
        before(ingestion.Ingestion, "_ingest", rejected_and_unreachable),
    ):
        assert world.ingest(record) == ["message-0"]
    assert world.ids() == [1]
    assert world.ingest(record) == []
    assert ["withdrawn" in report for report in world.rejects().values()] == [True]


def test_a_reject_whose_file_is_in_no_table_stands(world: World) -> None:
    """Also that of an event which stands in a batch twice."""
    record = world.drop("events/a.csv", BODY)
    assert world.ingest(record, record) == []
    world.create()
    assert world.ingest(record, record) == []
    assert ["withdrawn" in report for report in world.rejects().values()] == [False]


def test_what_was_read_by_settings_that_have_changed_since_is_read_anew(world: World) -> None:
    """History 20280658: between reading and commit another delivery read the file by new settings, and rejected it."""
    world.create()
    world.database.table("events").set(ingest_on_bad_row="quarantine")
    record = world.drop("events/a.csv", BODY + "two,1,x\n")

    def changed_and_rejected() -> None:
        world.database.table("events").set(ingest_on_bad_row="reject_file")
        assert deliver(world, record) == {"batchItemFailures": []}
        assert len(world.log_entries("drop rejected")) == 1

    with before(Transaction, "commit", changed_and_rejected):
        assert world.ingest(record) == []
    assert world.ids() == []
    assert len(world.log_entries("drop rejected")) == 2
    assert [report for report in world.rejects().values() if "withdrawn" in report] == []


def test_a_file_that_is_ingested_is_not_put_back(world: World) -> None:
    test_who_rejects_sees_that_another_has_ingested_it_meanwhile(world)
    [key] = world.rejects()
    store = open_store(f"{world.landing.url}/rejected")
    with pytest.raises(InputError, match="was ingested"):
        retry(store, key, Runtime())
    assert retry(store, key, Runtime(), force=True).key == key


def test_files_that_were_dropped_long_after_their_table_was_created_are_not_looked_up() -> None:
    """By what versions tell of their times: also when the table's own has left the root for a segment."""
    database = Database(open_store("memory://looked_up"), Runtime())
    database.create_table("events", SCHEMA)
    first = database.transaction().base.created_at
    for number in range(150):
        database.set(root_bytes=4096 + number)
    seen = database.transaction().base
    assert seen.segments_of("history")
    newest = seen.created_at

    def was_there(created_us: int | None, table: str = "events") -> bool:
        return table_was_there(seen, table, Drop("drops", "landing/events/a.csv", 1, "e", created_us=created_us))

    assert not was_there(None)
    assert not was_there(first + SETTLED_AFTER_US - 1)
    assert was_there(newest + SETTLED_AFTER_US + 1)
    assert not was_there(newest + SETTLED_AFTER_US + 1, "events_2")


def test_a_table_that_got_its_name_by_a_rename_was_not_there_before() -> None:
    """Its epoch tells of the time when it was created under another name."""
    database = Database(open_store("memory://renamed"), Runtime())
    database.create_table("old", SCHEMA)
    database.rename_table("old", "events")
    at = database.transaction().base.created_at

    def was_there(created_us: int, table: str = "events") -> bool:
        seen = database.transaction().base
        return table_was_there(seen, table, Drop("drops", "landing/events/a.csv", 1, "e", created_us=created_us))

    assert not was_there(at + SETTLED_AFTER_US)
    assert was_there(at + SETTLED_AFTER_US + 1)
    with database.transaction() as transaction:  # more than the history tells of one commit
        for number in range(4):
            transaction.create_table(f"t{number}", SCHEMA)
        transaction.rename_table("events", "newest")
    at = database.transaction().base.created_at
    assert not was_there(at + SETTLED_AFTER_US, "newest")
    assert was_there(at + SETTLED_AFTER_US + 1, "newest")


def test_who_ingests_sees_a_report_of_when_its_table_was_called_otherwise_for_a_moment(world: World) -> None:
    """The table was there when the file was dropped, away while another delivery looked, and back before the commit."""
    world.create()
    record = world.drop("events/a.csv", BODY)
    record["eventTime"] = datetime.now(UTC).isoformat()

    def away_rejected_and_back() -> None:
        world.database.rename_table("events", "attic")
        deliver(world, record)
        world.database.rename_table("attic", "events")

    with pytest.MonkeyPatch.context() as patch, before(unit_of_work, "commit_change", away_rejected_and_back):
        patch.setattr(refuted, "SETTLED_AFTER_US", 0)  # so it was there for long
        assert world.ingest(record) == []
    assert world.ids() == [1]
    assert ["withdrawn" in report for report in world.rejects().values()] == [True]


def test_the_look_costs_nothing_where_the_table_was_there(world: World) -> None:
    world.create()
    asked: list[str] = []
    original = LocalStore.get

    def noted(store: LocalStore, key: str, *args: Any, **options: Any) -> Object:
        asked.append(key)
        return original(store, key, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "get", noted)
        for name, later in (("young", timedelta(0)), ("old", timedelta(hours=1))):
            at = datetime.now(UTC) + later
            record = world.drop(f"events/{name}.csv", f"id,user_id,kind\n{later.seconds},1,x\n")
            assert world.ingest({**record, "eventTime": at.isoformat()}) == []
    reports = [key for key in asked if key.endswith(".error.json")]
    assert len(reports) == 1
    assert "young" in reports[0]
