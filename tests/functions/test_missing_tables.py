"""Files for a table that does not exist wait, then are rejected. Deliveries of one event agree what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database, Transaction
from dolmen.errors import StoreUnavailableError, VersionExpiredError
from dolmen.ingest.batch import MAX_TABLE_TRIES
from dolmen.ingest.drops import drop_ingestion
from dolmen.transactions import unit_of_work
from support.event_builders import notification, sqs_event
from support.functions import World, load

BODY = "id,user_id,kind\n1,1,x\n"
EXTRA = "id,user_id,kind,n\n1,1,x,1\n"
"""With a column that the table does not have."""


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


def deliver(world: World, record: dict[str, Any], tries: int = MAX_TABLE_TRIES) -> list[str]:
    """The event, handled by another container; returns what is to come again."""
    other = load("ingest")
    other.logger.addHandler(world.listener)
    answer = other.lambda_handler(sqs_event([notification(record)], tries=tries), world.context)
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def test_a_file_waits_until_the_last_try_and_then_is_rejected_for_good(world: World) -> None:
    world.create("other")
    record = world.drop("events/a.csv", BODY)
    for tries in range(1, MAX_TABLE_TRIES):
        assert world.ingest(record, tries=tries) == ["message-0"]
    assert world.rejects() == {}
    assert world.ingest(record, tries=MAX_TABLE_TRIES) == []
    [report] = world.rejects().values()
    assert "no table 'events'" in report["reason"]
    world.create()
    assert world.ingest(record) == []
    assert world.ids() == []
    assert len(world.log_entries("drop rejected")) == 2


def test_an_event_without_a_queue_does_not_wait(world: World) -> None:
    """Nobody counts its deliveries."""
    world.create("other")
    assert world.invoke("ingest", notification(world.drop("events/a.csv", BODY))) == []
    assert len(world.rejects()) == 1


def test_a_file_that_waits_holds_nobody_up_and_is_no_failure(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.create()
    batch = [world.drop("nowhere/a.csv", BODY), world.drop("events/a.csv", BODY)]
    assert world.ingest(*batch) == ["message-0"]
    assert world.ids() == [1]
    assert '"FilesWaiting":[1.0]' in capsys.readouterr().out
    [facts] = world.log_entries("drop waiting")
    assert (facts["error"], facts["tries_left"], facts["source"][-13:]) == ("TableNotFoundError", 3, "nowhere/a.csv")


def test_who_is_about_to_reject_follows_who_has_ingested_it_meanwhile(world: World) -> None:
    world.create("other")
    record = world.drop("events/a.csv", BODY)

    def created_and_ingested() -> None:
        world.create()
        assert deliver(world, record) == []

    with before(unit_of_work, "commit_change", created_and_ingested):
        assert world.ingest(record, tries=MAX_TABLE_TRIES) == []
    assert world.ids() == [1]
    assert world.rejects() == {}
    assert [facts["version"] for facts in world.log_entries("drop duplicate")] == [3]


def test_who_is_about_to_ingest_follows_who_has_rejected_it_meanwhile(world: World) -> None:
    """Its table was there when it looked, was called otherwise for a moment, and is back before its commit."""
    world.create()
    record = world.drop("events/a.csv", BODY)

    def away_rejected_and_back() -> None:
        world.database.rename_table("events", "attic")
        assert deliver(world, record) == []
        world.database.rename_table("attic", "events")

    with before(unit_of_work, "commit_change", away_rejected_and_back):
        assert world.ingest(record) == []
    assert world.ids() == []
    assert len(world.rejects()) == 1
    assert len(world.log_entries("drop rejected")) == 2


def test_a_rejection_whose_report_was_not_written_is_reported_when_its_event_comes_again(world: World) -> None:
    world.create("other")
    record = world.drop("events/a.csv", BODY)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop_ingestion, "reject_drop", dies)
        with pytest.raises(KeyboardInterrupt):
            world.ingest(record, tries=MAX_TABLE_TRIES)
    assert world.rejects() == {}
    world.create()
    world.restart()
    assert world.ingest(record) == []
    assert world.ids() == []
    [report] = world.rejects().values()
    assert "no table 'events'" in report["reason"]


def test_a_report_that_cannot_be_written_fails_the_event_which_comes_again(world: World) -> None:
    world.create("other")
    record = world.drop("events/a.csv", BODY)

    def unreachable(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("not now")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop_ingestion, "reject_drop", unreachable)
        assert world.ingest(record, tries=MAX_TABLE_TRIES) == ["message-0"]
    assert world.ingest(record) == []
    assert len(world.rejects()) == 1


def test_a_file_whose_event_stands_in_a_batch_twice_is_rejected_once(world: World) -> None:
    world.create("other")
    record = world.drop("events/a.csv", BODY)
    event = sqs_event([notification(record, record)], tries=MAX_TABLE_TRIES)
    assert world.invoke("ingest", event) == []
    assert len(world.rejects()) == 1
    world.create()
    assert world.ingest(record, record) == []
    assert (len(world.rejects()), world.ids()) == (1, [])


def test_a_file_that_waits_is_not_disposed_of_though_its_event_stands_in_the_batch_twice(world: World) -> None:
    world.create()
    world.database.table("events").set(ingest_landing="expire")
    bad = world.drop("events/a.csv", BODY + "two,1,x\n")
    assert world.ingest(bad, bad) == []
    assert world.landing.get("landing/events/a.csv").body


def test_what_was_read_by_settings_that_have_changed_since_is_read_anew(world: World) -> None:
    """History 20280658: between reading and commit another delivery read the file by new settings, and rejected it."""
    world.create()
    world.database.table("events").set(ingest_on_bad_row="quarantine")
    record = world.drop("events/a.csv", BODY + "two,1,x\n")

    def changed_and_rejected() -> None:
        world.database.table("events").set(ingest_on_bad_row="reject_file")
        assert deliver(world, record) == []
        assert len(world.log_entries("drop rejected")) == 1

    with before(Transaction, "commit", changed_and_rejected):
        assert world.ingest(record) == []
    assert world.ids() == []
    assert len(world.log_entries("drop rejected")) == 2


@pytest.mark.parametrize("and_ingested", [True, False])
def test_what_was_found_bad_by_settings_that_have_changed_since_is_read_anew(world: World, and_ingested: bool) -> None:
    """Another delivery may read it by the new ones, and ingest it."""
    world.create()
    record = world.drop("events/a.csv", BODY + "two,1,x\n")

    def changed() -> None:
        world.database.table("events").set(ingest_on_bad_row="quarantine")
        if and_ingested:
            assert deliver(world, record) == []

    with before(Transaction, "commit", changed):
        assert world.ingest(record) == []
    assert world.ids() == [1]
    reports = [info.key for info in world.landing.list("rejected/") if info.key.endswith(".error.json")]
    assert [key for key in reports if ".rows.jsonl" not in key] == []
    assert len(world.log_entries("drop rejected")) == 0


def test_what_was_read_by_columns_that_have_changed_since_is_read_anew(world: World) -> None:
    """History 41200010: between reading and commit another delivery read the file by new columns, and rejected it."""
    world.create()
    record = world.drop("events/a.csv", BODY)

    def changed_and_rejected() -> None:
        world.database.table("events").rename_column("kind", "sort")
        assert deliver(world, record) == []
        assert len(world.log_entries("drop rejected")) == 1

    with before(Transaction, "commit", changed_and_rejected):
        assert world.ingest(record) == []
    assert world.ids() == []
    assert len(world.log_entries("drop rejected")) == 2


def test_rows_read_by_older_columns_come_by_the_new_ones_if_they_fit(world: World) -> None:
    world.create()
    record = world.drop("events/a.csv", BODY)
    with before(Transaction, "commit", lambda: world.database.table("events").add_column("note", pa.string(), "none")):
        assert world.ingest(record) == []
    assert world.ids() == [1]
    assert world.database.table("events").scan(columns=["note"]).to_arrow()["note"].to_pylist() == ["none"]


@pytest.mark.parametrize("and_ingested", [True, False])
def test_what_was_found_bad_by_columns_that_have_changed_since_is_read_anew(world: World, and_ingested: bool) -> None:
    """Another delivery may read it by the new ones, and ingest it."""
    world.create()
    record = world.drop("events/a.csv", BODY.replace("kind", "sort"))

    def changed() -> None:
        world.database.table("events").rename_column("kind", "sort")
        if and_ingested:
            assert deliver(world, record) == []

    with before(Transaction, "commit", changed):
        assert world.ingest(record) == []
    assert world.ids() == [1]
    assert len(world.log_entries("drop rejected")) == 0


def test_who_comes_while_a_report_is_on_its_way_follows_the_rejection(world: World) -> None:
    """History 96004042: the settings changed after a fault was found by them, and another delivery read the file."""
    world.create()
    record = world.drop("events/a.csv", EXTRA)

    def changed_and_delivered() -> None:
        world.database.table("events").set(ingest_new_columns="add")
        assert deliver(world, record) == []

    with before(drop_ingestion, "reject_drop", changed_and_delivered):
        assert world.ingest(record) == []
    assert world.ids() == []
    [report] = world.rejects().values()
    assert "'n'" in report["reason"]
    assert len(world.log_entries("drop rejected")) == 2


def dies(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def reject_and_die(world: World) -> dict[str, Any]:
    """A file whose rejection is committed, without a report; then the settings change so that it would be ingested."""
    world.create()
    record = world.drop("events/a.csv", EXTRA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop_ingestion, "reject_drop", dies)
        with pytest.raises(KeyboardInterrupt):
            world.ingest(record)
    world.database.table("events").set(ingest_new_columns="add")
    world.restart()
    return record


def test_the_reason_is_found_again_in_the_version_that_rejected_the_file(world: World) -> None:
    record = reject_and_die(world)
    assert world.ingest(record) == []
    assert world.ids() == []
    [report] = world.rejects().values()
    assert "'n'" in report["reason"]
    assert report["database"]["version"] == 3


def test_a_rejection_whose_version_has_expired_is_reported_without_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = reject_and_die(world)

    def expired(*_: Any) -> None:
        raise VersionExpiredError("version 2 has expired")

    monkeypatch.setattr(Database, "at", expired)
    assert world.ingest(record) == []
    assert world.ids() == []
    [report] = world.rejects().values()
    assert "version 2" in report["reason"]
    assert "again" in report["reason"]
