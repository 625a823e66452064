"""Erasures in published tables: publication follows in the same call, and older snapshots go."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database, Table
from dolmen.base.runtime import Runtime
from dolmen.cli.run import command_line
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, LimitError
from dolmen.iceberg.publication import IcebergPublication, publish
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.iceberg_readers import READERS, IcebergReaders

MARKER = "marker-anna"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string())])


def people(*names: str, first: int = 0) -> pa.Table:
    return pa.table({"id": list(range(first, first + len(names))), "who": list(names)}, SCHEMA)


def published_place(folder: Path, snapshots: str) -> tuple[Database, Table, IcebergPublication]:
    db = dolmen.open(folder)
    table = db.create_table("t", SCHEMA, primary_key="id", properties={"subject": "who"})
    table.set(iceberg="v2", iceberg_snapshots=snapshots)
    table.append(people(MARKER, "bert"))
    first = table.publish_iceberg()
    table.append(people("carl", first=2))
    table.publish_iceberg()
    return db, table, first


def folder_of(publication: IcebergPublication) -> str:
    return publication.metadata_location.rpartition("/metadata/")[0]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("form", ["erase", "forget"])
def test_an_erasure_is_published_at_once_and_no_older_snapshot_shows_its_rows(
    form: str, reader: str, readers: IcebergReaders, tmp_path: Path
) -> None:
    db, table, first = published_place(tmp_path / "db", "kept")
    assert MARKER in readers.read(reader, first.metadata_location)["who"].to_pylist()
    done = table.erase(f"who = '{MARKER}'") if form == "erase" else db.forget(MARKER)
    (published,) = done.publications.published
    assert (published.table, published.version, published.snapshots) == ("t", done.commit.version, 1)
    location = published.metadata_location
    assert sorted(readers.read(reader, location)["who"].to_pylist()) == ["bert", "carl"]
    if reader == "duckdb":
        assert sorted(readers.read(reader, folder_of(published))["who"].to_pylist()) == ["bert", "carl"]
    with pytest.raises(AssertionError, match=reader):  # whatever it says: there is no such snapshot
        readers.read(reader, location, snapshot=first.version)
    table.append(people("dora", first=4))
    later = table.publish_iceberg()
    assert later.snapshots == 2, "versions after the erasure are kept"
    assert sorted(readers.read(reader, later.metadata_location, snapshot=published.version)["who"].to_pylist()) == [
        "bert",
        "carl",
    ]


def test_clones_that_are_published_follow_and_tables_without_the_setting_cost_nothing(tmp_path: Path) -> None:
    db, table, _ = published_place(tmp_path / "db", "newest")
    db.clone("t", "u")
    db.create_table("other", SCHEMA).append(people("zoe"))
    found = table.erase(f"who = '{MARKER}'").publications
    assert sorted(one.table for one in found.published) == ["t", "u"]
    store = CountingStore(MemoryStore())
    plain = Database(store, Runtime(threads=1)).create_table("t", SCHEMA)
    plain.append(people(MARKER))
    store.reset()
    assert plain.erase(f"who = '{MARKER}'").publications.published == ()
    assert store.puts == 3


def test_a_publication_that_fails_does_not_fail_the_erasure_and_is_made_up_for(tmp_path: Path) -> None:
    _, table, _ = published_place(tmp_path / "db", "kept")
    data = list((tmp_path / "db" / "data").rglob("*.parquet"))  # a publication has to look into them
    for each in data:
        each.rename(each.with_suffix(".gone"))
    done = table.erase(f"who = '{MARKER}'", request="r")
    assert done.publications.published == ()
    assert isinstance(done.publications.failures["t"], CorruptionError)
    for each in data:
        each.with_suffix(".gone").rename(each)
    assert table.count() == 2
    again = table.erase(f"who = '{MARKER}'", request="r")
    assert again.due_at is None
    assert [one.version >= again.commit.version for one in again.publications.published] == [True]


def test_what_would_take_too_long_to_look_through_is_left_to_maintenance(tmp_path: Path) -> None:
    db, table, _ = published_place(tmp_path / "db", "newest")
    table.delete(f"who = '{MARKER}'")
    with pytest.raises(LimitError, match="maintenance"):
        publish(context_of(db), "t", lookup_bytes=10)
    (published,) = db.maintain().results("publish")
    assert published.files_read == 0


def test_the_commands_say_what_was_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published_place(tmp_path / "db", "newest")
    url = str(tmp_path / "db")
    command_line("erase")(["erase", "t", "-d", url, "--where", "id = 0", "--yes", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["published"] == {"t": found["version"]}
    command_line("forget")(["forget", "carl", "-d", url, "--yes"], standalone_mode=False)
    assert "t: published as Iceberg, version" in capsys.readouterr().out
