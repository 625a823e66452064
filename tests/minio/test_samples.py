"""Every sample in ``events/`` runs verbatim through its packaged function with ``events/local-env.json``, on MinIO.

As ``sam local invoke --env-vars`` would run them, but for the container: see docs/minio.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from dolmen import Database
from dolmen.api.database import open as open_database
from support.functions import SCHEMA
from support.ministack import AWS_ENVIRONMENT, boto3_client, endpoint_environment
from support.rie import Emulator
from support.samples import EVENT_ROWS, EVENTS, INGESTED, LEFT, SCHEDULED, USER_ROWS, sample, sample_files

pytestmark = pytest.mark.slow

OVERRIDES: dict[str, str] = json.loads((EVENTS / "local-env.json").read_text())["Parameters"]
TEMPLATE = EVENTS.parent / "template.yaml"
BUCKET = OVERRIDES["DOLMEN_DATABASE"].split("/")[2]


@pytest.fixture
def settings(minio: str) -> dict[str, str]:
    """A function's environment; here the server is on another port, and no container stands between."""
    return {**OVERRIDES, **AWS_ENVIRONMENT, "AWS_ENDPOINT_URL_S3": minio}


@pytest.fixture
def database(minio: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The one that ``local-env.json`` names, with empty tables, and the files that the samples speak of."""
    for name, value in endpoint_environment(minio).items():
        monkeypatch.setenv(name, value)
    s3 = boto3_client("s3", minio)
    s3.create_bucket(Bucket=BUCKET)
    with sample_files(minio):
        found = open_database(settings["DOLMEN_DATABASE"])
        found.create_table("events", SCHEMA, primary_key="id")
        found.create_table("users", pa.schema([("id", pa.int64()), ("user_id", pa.int64())]), primary_key="id")
        yield found
    for info in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        s3.delete_object(Bucket=BUCKET, Key=info["Key"])
    s3.delete_bucket(Bucket=BUCKET)


def ids(database: Database, table: str = "events") -> list[int]:
    found: list[int] = sorted(database.table(table).to_arrow()["id"].to_pylist())
    return found


def taken(function: Emulator, name: str) -> None:
    answer = function.invoke(sample(name))
    assert (answer.error, answer.payload) == (None, {"batchItemFailures": []}), name


def test_samples_of_files_become_rows_once_on_minio(
    database: Database, settings: dict[str, str], tmp_path: Path
) -> None:
    with Emulator.start("ingest", settings, tmp_path) as ingest:
        for name, expected in INGESTED.items():
            taken(ingest, name)
            assert set(expected) <= set(ids(database)), name
        rows, version = ids(database), database.refresh()
        assert set(rows) == {id_ for expected in INGESTED.values() for id_ in expected}
        for name in INGESTED:
            taken(ingest, name)
        assert (ids(database), database.refresh()) == (rows, version), "delivered again, they change nothing"


@pytest.mark.parametrize("name", LEFT)
def test_a_sample_of_deletes_is_applied_once_on_minio(
    database: Database, settings: dict[str, str], tmp_path: Path, name: str
) -> None:
    database.table("events").append([{"id": i, "user_id": u, "kind": k} for i, u, k in EVENT_ROWS])
    database.table("users").append([{"id": i, "user_id": u} for i, u in USER_ROWS])
    before = database.version
    with Emulator.start("delete", settings, tmp_path) as delete:
        for _ in range(2):
            taken(delete, name)
            assert (ids(database), ids(database, "users")) == LEFT[name]
    assert database.refresh() == before + 1


@pytest.mark.parametrize("function", ["compact", "gc"])
def test_samples_of_schedules_do_a_round_on_minio(
    database: Database, settings: dict[str, str], tmp_path: Path, function: str
) -> None:
    for n in range(5):
        database.table("events").append([{"id": n, "user_id": n, "kind": "x"}])
    names = [name for name in sorted(SCHEDULED) if name.startswith(function)]
    assert names
    with Emulator.start(function, settings, tmp_path) as running:
        for name in names:
            answer = running.invoke(sample(name))
            assert answer.error is None
            assert answer.payload == {"finished": True, "version": database.refresh()}
    assert database.table("events").describe()["files"] == (1 if function == "compact" else 5)
    assert ids(database) == [0, 1, 2, 3, 4]


class _AnyTag(yaml.SafeLoader):
    """Reads what intrinsic functions are given, and leaves out which they are."""


_AnyTag.add_multi_constructor("!", lambda loader, suffix, node: None)


def test_the_template_declares_each_variable_that_the_file_overrides() -> None:
    """``sam local invoke`` overrides no others."""
    template: dict[str, Any] = yaml.load(TEMPLATE.read_text(), _AnyTag)
    assert OVERRIDES.keys() <= template["Globals"]["Function"]["Environment"]["Variables"].keys()


def test_no_sample_is_left_out() -> None:
    there = {path.stem for path in EVENTS.glob("*.json")} - {"local-env"}
    assert there == INGESTED.keys() | LEFT.keys() | SCHEDULED
