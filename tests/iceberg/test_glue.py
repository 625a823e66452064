"""Registration in Glue: real requests to an emulated Glue, whose ``VersionId`` is a compare-and-swap."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen import Database
from dolmen.commit.head import context_of
from dolmen.errors import (
    InputError,
    InvalidNameError,
    NotFoundError,
    StoreUnavailableError,
    TableExistsError,
)
from dolmen.iceberg.glue import VARIABLE, GlueCatalog, hive_type
from dolmen.iceberg.publication import IcebergPublication, publish
from support.iceberg_readers import IcebergReaders, on_s3
from support.ministack import boto3_client, endpoint_environment
from support.stores import run_in_threads

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
_places = itertools.count()


@dataclass
class Lake:
    """A database in S3 with a table, and a Glue database beside it."""

    endpoint: str
    url: str
    name: str
    client: Any

    def open(self) -> Database:
        return dolmen.open(self.url)

    def entry(self, table: str = "t") -> dict[str, Any]:
        """The table as Glue has it."""
        found: dict[str, Any] = self.client.get_table(DatabaseName=self.name, Name=table)["Table"]
        return found

    def update(self, parameters: dict[str, str], table: str = "t") -> None:
        """Changes parameters of a table behind dolmen's back."""
        known = self.entry(table)
        names = ("Name", "TableType", "StorageDescriptor", "Parameters", "Description")
        kept = {name: known[name] for name in names if known.get(name) is not None}
        kept["Parameters"] = {**kept["Parameters"], **parameters}
        self.client.update_table(DatabaseName=self.name, TableInput=kept)

    def ids(self, readers: IcebergReaders, table: str = "t") -> list[int]:
        """The rows that pyiceberg reads through Glue."""
        return sorted(readers.read("glue", f"{self.name}.{table}", properties=self.properties)["id"].to_pylist())

    @property
    def properties(self) -> dict[str, str]:
        """pyiceberg's, for the catalog and the files."""
        s3 = on_s3(self.endpoint)
        return {**s3, **{name.replace("s3.", "glue."): value for name, value in s3.items()}}


@pytest.fixture
def lake(ministack: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    for name, value in endpoint_environment(ministack).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(VARIABLE, raising=False)
    place = next(_places)
    boto3_client("s3", ministack).create_bucket(Bucket=f"lake-{place}")
    client = boto3_client("glue", ministack)
    client.create_database(DatabaseInput={"Name": f"lake_{place}"})
    found = Lake(ministack, f"s3://lake-{place}/db", f"lake_{place}", client)
    found.open().create_table("t", SCHEMA, primary_key="id").append(rows(1, 2, 3))
    return found


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"name {id_}" for id_ in ids]}, SCHEMA)


@pytest.mark.slow
def test_a_publication_is_registered_and_follows_the_table(lake: Lake, readers: IcebergReaders) -> None:
    table = lake.open().table("t")
    first = table.publish_iceberg(glue=lake.name)
    assert first.glue == f"{lake.name}.t"
    assert lake.ids(readers) == [1, 2, 3]
    entry = lake.entry()
    assert entry["TableType"] == "EXTERNAL_TABLE"
    assert entry["Parameters"]["table_type"] == "ICEBERG"
    assert entry["Parameters"]["metadata_location"] == first.metadata_location
    assert [(each["Name"], each["Type"]) for each in entry["StorageDescriptor"]["Columns"]] == [
        ("id", "bigint"),
        ("name", "string"),
    ]
    table.append(rows(4))
    table.delete("id = 1")
    second = table.publish_iceberg(glue=lake.name)
    assert lake.ids(readers) == [2, 3, 4]
    parameters = lake.entry()["Parameters"]
    assert parameters["previous_metadata_location"] == first.metadata_location
    assert parameters["dolmen.version"] == str(second.version)
    version_id = lake.entry()["VersionId"]
    assert table.publish_iceberg(glue=lake.name).glue
    assert lake.entry()["VersionId"] == version_id, "nothing to say, nothing is said"


def test_the_environment_names_the_glue_database(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    db = lake.open()
    db.table("t").set(iceberg="v2")
    monkeypatch.setenv(VARIABLE, lake.name)
    (published,) = db.maintain().results("publish")
    assert published.glue == f"{lake.name}.t"
    assert lake.entry()["Parameters"]["metadata_location"] == published.metadata_location
    assert db.table("t").publish_iceberg(glue="").glue == ""
    assert GlueCatalog.of("file:///there", None) is None, "the variable is for databases in S3"


@pytest.mark.slow
def test_what_others_wrote_into_the_entry_stays(lake: Lake) -> None:
    table = lake.open().table("t")
    table.publish_iceberg(glue=lake.name)
    lake.update({"classification": "secret"})
    table.append(rows(4))
    table.publish_iceberg(glue=lake.name)
    assert lake.entry()["Parameters"]["classification"] == "secret"


def test_names_are_checked(lake: Lake) -> None:
    table = lake.open().table("t")
    for name in ("Lake", "a-b", "a.b", "a/b", "x" * 256, "é"):
        with pytest.raises(InvalidNameError, match="Glue database"):
            table.publish_iceberg(glue=name)
    with pytest.raises(NotFoundError, match="create"):
        table.publish_iceberg(glue="absent")
    with pytest.raises(InputError, match="in S3 alone"):
        GlueCatalog.of("file:///there", "lake")


def test_a_foreign_table_of_the_name_is_refused(lake: Lake) -> None:
    for parameters in (
        {},
        {"table_type": "ICEBERG", "metadata_location": "s3://elsewhere/t/metadata/v1.metadata.json"},
    ):
        lake.client.create_table(
            DatabaseName=lake.name, TableInput={"Name": "t", "TableType": "EXTERNAL_TABLE", "Parameters": parameters}
        )
        with pytest.raises(TableExistsError, match="publication"):
            lake.open().table("t").publish_iceberg(glue=lake.name)
        assert lake.entry()["Parameters"] == parameters
        lake.client.delete_table(DatabaseName=lake.name, Name="t")


@pytest.mark.slow
def test_when_glue_fails_the_publication_is_there_its_lag_is_seen_and_the_next_one_registers_it(
    lake: Lake, readers: IcebergReaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = lake.open()
    table = db.table("t")
    table.set(iceberg="v2")
    first = table.publish_iceberg(glue=lake.name)
    table.append(rows(4))
    appended = db.refresh()
    with monkeypatch.context() as broken:
        broken.setenv("AWS_ENDPOINT_URL_GLUE", "http://127.0.0.1:9")
        broken.setenv(VARIABLE, lake.name)
        with pytest.raises(StoreUnavailableError, match="Glue database"):
            table.publish_iceberg()
        (failure,) = db.maintain(steps=["publish"]).failures
        assert isinstance(failure.error, StoreUnavailableError)
    debt = db.stats().tables["t"]
    assert debt.published_version == first.version
    assert lake.ids(readers) == [1, 2, 3], "what Glue names is whole"
    found = table.publish_iceberg(glue="")
    assert (found.version, found.is_new) == (appended, False)
    found = table.publish_iceberg(glue=lake.name)
    assert not found.is_new
    assert lake.ids(readers) == [1, 2, 3, 4]
    assert db.stats().tables["t"].published_version == appended


@pytest.mark.slow
def test_an_entry_that_another_writer_changed_is_made_right(lake: Lake, readers: IcebergReaders) -> None:
    table = lake.open().table("t")
    found = table.publish_iceberg(glue=lake.name)
    folder = found.metadata_location.rpartition("/")[0]
    for path in (f"{folder}/00001-0b5c.metadata.json", f"{folder}/v77.metadata.json"):
        lake.update({"metadata_location": path})
        table.publish_iceberg(glue=lake.name)
        assert lake.entry()["Parameters"]["metadata_location"] == found.metadata_location
    lake.client.delete_table(DatabaseName=lake.name, Name="t")
    table.publish_iceberg(glue=lake.name)
    assert lake.ids(readers) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["append", "delete", "alter"])
def test_pyiceberg_finds_no_place_for_new_files_not_even_for_metadata(
    what: str, lake: Lake, readers: IcebergReaders
) -> None:
    table = lake.open().table("t")
    table.publish_iceberg(glue=lake.name)
    before = lake.entry()
    refused = readers.write(what, f"{lake.name}.t", lake.properties)
    assert refused is not None
    assert "ThisTableIsReadOnly" in refused
    assert lake.entry() == before
    assert lake.ids(readers) == [1, 2, 3]


def test_an_older_publication_never_replaces_a_newer_one(lake: Lake) -> None:
    db = lake.open()
    table = db.table("t")
    older = table.publish_iceberg(glue="")
    directory, old = publication_of(db, older)
    table.append(rows(4))
    newer = table.publish_iceberg(glue=lake.name)
    assert GlueCatalog(lake.name).register("t", directory, 1, old, context_of(db).runtime) == f"{lake.name}.t"
    assert lake.entry()["Parameters"]["metadata_location"] == newer.metadata_location


def publication_of(db: Database, found: IcebergPublication) -> tuple[Any, Any]:
    """The directory and the metadata of a publication."""
    from dolmen.iceberg.publication_directory import PublicationDirectory

    directory = PublicationDirectory(context_of(db).store, context_of(db).runtime, db.table(found.table)._entry.uuid)
    return directory, directory.newest().metadata


@pytest.mark.slow
def test_a_new_table_of_the_name_takes_it_over_and_a_late_publisher_of_the_old_one_does_not(
    lake: Lake, readers: IcebergReaders
) -> None:
    db = lake.open()
    directory, old = publication_of(db, db.table("t").publish_iceberg(glue=lake.name))
    db.drop_table("t")
    db.create_table("t", SCHEMA).append(rows(7))
    found = db.table("t").publish_iceberg(glue=lake.name)
    assert lake.ids(readers) == [7]
    GlueCatalog(lake.name).register("t", directory, 1, old, context_of(db).runtime)
    assert lake.entry()["Parameters"]["metadata_location"] == found.metadata_location


@pytest.mark.slow
def test_a_renamed_table_is_registered_under_its_new_name(lake: Lake, readers: IcebergReaders) -> None:
    db = lake.open()
    db.table("t").publish_iceberg(glue=lake.name)
    db.rename_table("t", "u")
    db.table("u").append(rows(4))
    assert db.table("u").publish_iceberg(glue=lake.name).glue == f"{lake.name}.u"
    assert lake.ids(readers, "u") == [1, 2, 3, 4]
    assert lake.ids(readers, "t") == [1, 2, 3], "the old entry stays until somebody drops it, or a table has its name"


@pytest.mark.slow
def test_of_racing_publishers_none_is_lost_and_none_goes_back(lake: Lake, readers: IcebergReaders) -> None:
    numbers: list[int] = []

    def publish_often(number: int) -> None:
        own = lake.open()
        for round_ in range(5):
            own.table("t").append(rows(100 + 10 * number + round_))
            publish(context_of(own), "t", glue=lake.name)
            shown = lake.entry()["Parameters"]["dolmen.version"]
            numbers.append(int(shown))

    run_in_threads(publish_often, 3)
    assert lake.ids(readers) == [1, 2, 3, *sorted(100 + 10 * n + r for n in range(3) for r in range(5))]
    assert int(lake.entry()["VersionId"]) <= 15


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("decimal(10, 2)", "decimal(10,2)"),
        ("timestamptz", "timestamp"),
        ("fixed[16]", "binary"),
        ({"type": "list", "element": "long"}, "array<bigint>"),
        ({"type": "map", "key": "string", "value": {"type": "list", "element": "int"}}, "map<string,array<int>>"),
        (
            {"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "date"}]},
            "struct<a:bigint,b:date>",
        ),
    ],
)
def test_columns_have_the_types_that_glue_knows(found: Any, expected: str) -> None:
    assert hive_type(found) == expected
