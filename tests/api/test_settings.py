"""Settings: one commit each, kept as given, checked before anything is committed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.errors import InputError, SchemaError, TableNotFoundError

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


@pytest.fixture
def events(db: Database) -> dolmen.Table:
    return db.create_table("events", SCHEMA)


def own(table: dolmen.Table) -> dict[str, Any]:
    """The settings that are not about files dropped for it, its publication, partitions, or how files are written."""
    return {
        name: value
        for name, value in table.settings().items()
        if not name.startswith(("ingest_", "cdc_", "iceberg", "index", "partition", "cluster", "compression"))
    }


def test_a_table_is_set_in_one_commit_and_tells_what_holds(db: Database, events: dolmen.Table) -> None:
    commit = events.set(ttl="at 90d", target_file_bytes="1MB")
    assert (commit.version, commit.operation) == (2, "set")
    assert own(events) == {
        "ttl": "at 90d",
        "target_file_bytes": "1MB",
        "subject": None,
        "comment": None,
        "leave_out_erased": "false",
        "key_filter_bits": 8,
    }
    assert events.describe()["properties"] == {"ttl": "at 90d", "target_file_bytes": "1MB"}


def test_none_unsets_and_the_rest_stays(events: dolmen.Table) -> None:
    events.set(ttl="at 90d", target_file_bytes="1MB")
    events.set(ttl=None)
    assert own(events) == {
        "ttl": None,
        "target_file_bytes": "1MB",
        "subject": None,
        "comment": None,
        "leave_out_erased": "false",
        "key_filter_bits": 8,
    }
    events.set(target_file_bytes=None)
    assert own(events) == {
        "ttl": None,
        "target_file_bytes": "256MB",
        "subject": None,
        "comment": None,
        "leave_out_erased": "false",
        "key_filter_bits": 8,
    }
    assert events.describe()["properties"] == {}


def test_a_database_is_set_in_one_commit_and_tells_what_holds(db: Database) -> None:
    assert db.set(retention="7d").version == 1  # before there is any table
    assert (db.settings()["retention"], db.settings()["keep_versions"]) == ("7d", 1000)
    db.set(retention=None, keep_versions=5)
    assert (db.settings()["retention"], db.settings()["keep_versions"]) == ("30d", 5)


def test_settings_that_others_changed_meanwhile_stay(db: Database, other: Database, events: dolmen.Table) -> None:
    with db.transaction() as tx:
        tx.table("events").set(ttl="at 90d")
        tx.set(retention="7d")
        other.table("events").set(target_file_bytes="1MB")
        other.set(keep_versions=5)
    assert own(events) == {
        "ttl": "at 90d",
        "target_file_bytes": "1MB",
        "subject": None,
        "comment": None,
        "leave_out_erased": "false",
        "key_filter_bits": 8,
    }
    assert (db.settings()["retention"], db.settings()["keep_versions"]) == ("7d", 5)


def test_what_is_not_allowed_commits_nothing(db: Database, events: dolmen.Table) -> None:
    with pytest.raises(InputError, match="ttl, target_file_bytes"):
        events.set(time_to_live="at 90d")
    with pytest.raises(InputError, match="90d"):
        events.set(target_file_bytes="1MB", ttl="at never")
    with pytest.raises(SchemaError, match="int64"):
        events.set(ttl="id 90d")
    for odd in (30, 0, "0s", "-1d", "1.5d", "101y", "999999w"):
        with pytest.raises(InputError, match=r"retention: .*90d"):
            db.set(retention=odd)
    with pytest.raises(InputError, match="ttl, target_file_bytes"):
        db.create_table("other", SCHEMA, properties={"colour": "red"})
    with pytest.raises(SchemaError, match="nope"):
        db.create_table("other", SCHEMA, properties={"ttl": "nope 90d"})
    assert (db.version, db.tables()) == (1, ["events"])


def test_a_table_is_created_with_settings(db: Database) -> None:
    made = db.create_table("other", SCHEMA, properties={"ttl": "at 90d", "target_file_bytes": None})
    assert own(made) == {
        "ttl": "at 90d",
        "target_file_bytes": "256MB",
        "subject": None,
        "comment": None,
        "leave_out_erased": "false",
        "key_filter_bits": 8,
    }


def test_to_set_nothing_is_no_commit(db: Database, events: dolmen.Table) -> None:
    assert events.set().operation == "nothing"
    assert db.set().operation == "nothing"
    assert db.refresh() == 1


def test_settings_go_with_their_table(db: Database, events: dolmen.Table) -> None:
    events.set(ttl="at 90d")
    db.drop_table("events")
    with pytest.raises(TableNotFoundError):
        events.set(ttl=None)
    assert db.create_table("events", SCHEMA).settings()["ttl"] is None


def test_setting_changes_no_rows_and_no_objects_but_the_manifest(db: Database, events: dolmen.Table) -> None:
    events.append([{"id": 1}])
    before = {info.key for info in db._context.store.list("")}
    events.set(ttl="at 90d")
    new = {info.key for info in db._context.store.list("")} - before
    assert [key.partition("/")[0] for key in new] == ["manifest"]
    assert events.count() == 1


def test_users_have_properties_of_their_own(db: Database) -> None:
    table = db.create_table("mine", SCHEMA, properties={"user.owner": "sales"})
    table.set(**{"user.contact-2": "é" * 1000, "user.owner": None})
    db.set(**{"user.stage": "test"})
    kept = {"user.contact-2": "é" * 1000}
    assert {name: value for name, value in table.settings().items() if name.startswith("user.")} == kept
    assert (table.describe()["properties"], db.settings()["user.stage"]) == (kept, "test")
    for name, value in (
        ("user.", "x"), ("user.a b", "x"), ("user.é", "x"), ("user." + "a" * 65, "x"), ("user.a", 3), ("owner", "x"),
        ("user.a", "x" * 1001), ("user.a", "\ud800"), ("User.a", "x"),
    ):  # fmt: skip
        with pytest.raises(InputError):
            table.set(**{name: value})
    table.set(**{f"user.n{number}": "x" for number in range(99)})
    with pytest.raises(InputError, match="at most 100"):
        table.set(**{"user.more": "x"})
    assert db.sql('ALTER TABLE mine SET ("user.owner" = \'ops\', "user.n3" = NULL)').operation == "set"
    assert (table.settings()["user.owner"], "user.n3" in table.settings()) == ("ops", False)
