"""Publication as the last step of maintenance, its lag, and its command."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.cli.run import command_line
from dolmen.commit.head import context_of
from dolmen.errors import InputError
from dolmen.maintenance.debt import debts
from dolmen.maintenance.round import measures_of_debt, measures_of_round
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.aging import SCHEMA as AGING_SCHEMA
from support.aging import Place, rows

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryStore())


@pytest.fixture
def db(store: CountingStore) -> Database:
    found = Database(store, Runtime(threads=1))
    for name in ("a", "b"):
        found.create_table(name, SCHEMA, primary_key="id").append([{"id": 1}, {"id": 2}])
    return found


def test_a_round_publishes_the_tables_that_ask_for_it_after_all_else(db: Database, store: CountingStore) -> None:
    db.table("a").set(iceberg="v3")
    db.table("a").delete("id = 1")
    done = db.maintain()
    assert [(one.step, one.table) for one in done.done][-1] == ("publish", "a")
    (published,) = done.results("publish")
    assert (published.format_version, published.deleted_rows, published.files_read) == (3, 1, 0)
    assert measures_of_round(done)["TablesPublished"] == ("Count", 1)
    again = db.maintain()
    assert [one.is_new for one in again.results("publish")] == [False]
    assert measures_of_round(again)["TablesPublished"] == ("Count", 0)
    assert {info.key.split("/")[1] for info in store.list("iceberg/")} == {db.table("a")._entry.uuid}


def test_without_the_setting_a_round_makes_no_request_more(db: Database, store: CountingStore) -> None:
    db.maintain()
    counts = []
    for steps in (["expire", "resolve", "compact", "merge"], None):
        store.reset()
        db.maintain(steps=steps)
        counts.append((store.gets, store.puts, store.lists, store.heads))
    assert counts[0] == counts[1]


def test_publication_alone_is_a_step(db: Database) -> None:
    db.table("b").set(iceberg="v2")
    done = db.maintain(steps=["publish"])
    assert [(one.step, one.table) for one in done.done] == [("publish", "b")]


def test_an_idle_table_is_published_anew_only_when_it_changes(db: Database) -> None:
    db.set(root_bytes="4KB")
    db.table("a").set(iceberg="v2")
    db.maintain()
    for number in range(60):
        db.table("b").append([{"id": number}])
    assert db.stats().tables["a"].publication_lag_us == 0
    assert [one.is_new for one in db.maintain().results("publish")] == [False]
    db.table("a").append([{"id": 3}])
    assert [one.is_new for one in db.maintain().results("publish")] == [True]


def test_the_setting_takes_known_values_only(db: Database) -> None:
    with pytest.raises(InputError, match="v2, v3"):
        db.table("a").set(iceberg="v4")
    with pytest.raises(InputError, match="newest, kept"):
        db.table("a").set(iceberg_snapshots="all")


def test_the_lag_is_the_age_of_the_oldest_change_that_is_not_published() -> None:
    place = Place()
    table = place.db.create_table("t", AGING_SCHEMA)
    assert place.db.stats().tables["t"].published_version is None
    table.set(iceberg="v2")
    table.append(rows(1))
    published = table.publish_iceberg()
    debt = place.db.stats().tables["t"]
    assert (debt.published_version, debt.publication_lag_us) == (published.version, 0)
    place.pass_hours(5)
    table.append(rows(2))
    place.pass_hours(2)
    table.delete("k = 1")
    place.pass_hours(1)
    place.db.tag("x")
    debts = place.db.stats()
    assert debts.tables["t"].publication_lag_us == 3 * 3_600_000_000
    assert measures_of_debt(debts)["PublicationLagSeconds"] == ("Seconds", 3 * 3_600)
    table.publish_iceberg()
    assert place.db.stats().publication_lag_us == 0


def test_the_command_publishes_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "db")
    db = dolmen.open(url)
    schema = pa.schema([("id", pa.int64()), ("big", pa.uint64())])
    for name in ("a", "b"):
        db.create_table(name, schema).append([{"id": 1, "big": 1}])
    db.table("a").set(iceberg="v2")

    def run(*words: str) -> str:
        command_line("publish-iceberg")(["publish-iceberg", "-d", url, *words], standalone_mode=False)
        return capsys.readouterr().out

    (dry,) = json.loads(run("--dry-run", "--json")).values()
    assert (dry["is_new"], dry["metadata_location"]) == (True, "")
    found = json.loads(run("--json"))
    assert found.keys() == {"a"}
    assert found["a"]["left_out"].keys() == {"big"}
    assert Path(found["a"]["metadata_location"].removeprefix("file://")).is_file()
    assert "shows the newest rows" in " ".join(run().split())
    assert json.loads(run("--table", "b", "--json"))["b"]["format_version"] == 2


def test_an_index_is_no_change_that_is_published(db: Database) -> None:
    db.table("a").set(iceberg="v3")
    db.maintain()
    db.table("a").set(index=True)
    again = db.maintain()
    assert [one.commits for one in again.results("index")] == [1]
    assert [one.is_new for one in again.results("publish")] == [False]
    assert debts(context_of(db.table("a"))).publication_lag_us == 0
