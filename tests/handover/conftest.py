"""The functions beside an EMR Serverless: each test has an application of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dolmen.base.runtime import Runtime
from dolmen.service.handover.handover_records import HandoverRecords
from dolmen.store import open_store
from dolmen.store.local_store import LocalStore
from support.emr_serverless import ROLE, EmrServerlessServer, StartedRun
from support.functions import World
from support.ministack import AWS_ENVIRONMENT

LARGE_BYTES = 100


@pytest.fixture(scope="session")
def emr_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmrServerlessServer]:
    server = EmrServerlessServer.start(tmp_path_factory.mktemp("emr-serverless"))
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Handing:
    """A world whose functions hand over what is larger than ``LARGE_BYTES``.

    Args:
        handover_url: where the records are.
    """

    world: World
    server: EmrServerlessServer
    application: str
    handover_url: str

    @property
    def records(self) -> HandoverRecords:
        return HandoverRecords(open_store(self.handover_url, Runtime()))

    def runs(self, name: str = "dolmen-load-") -> list[StartedRun]:
        """The runs whose names begin so, oldest first."""
        return [run for run in self.server.runs(self.application) if run.request["name"].startswith(name)]

    def handed(self) -> list[str]:
        """The names of the files that are noted, sorted; each as often as it is."""
        return sorted(drop.key.rpartition("/")[2] for one in self.records.read_all() for drop in one.drops)


@pytest.fixture
def application(emr_server: EmrServerlessServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment leads to an application without runs."""
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_EMR_SERVERLESS", emr_server.endpoint)
    emr_server.hide()
    application = emr_server.application("test")
    monkeypatch.setenv("DOLMEN_SPARK_APPLICATION", application)
    monkeypatch.setenv("DOLMEN_SPARK_ROLE", ROLE)
    monkeypatch.setenv("DOLMEN_SPARK_JOBS", "s3://jobs-bucket/dolmen/0123456789abcdef")
    monkeypatch.setenv("DOLMEN_HANDOVER_BYTES", str(LARGE_BYTES))
    return application


@pytest.fixture
def handing(
    emr_server: EmrServerlessServer, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Handing]:
    """In a directory: quick."""
    bucket, database = tmp_path / "bucket", tmp_path / "database"
    monkeypatch.setenv("DOLMEN_DATABASE", str(database))
    monkeypatch.setenv("DOLMEN_LANDING_URL", bucket.as_uri())
    monkeypatch.setenv("DOLMEN_HANDED_URL", (bucket / "handed").as_uri())
    world = World(LocalStore(bucket), str(database))
    world.create()
    yield Handing(world, emr_server, application, (bucket / "handed").as_uri())
    world.close()


@pytest.fixture
def s3_handing(
    s3_url: str, emr_server: EmrServerlessServer, application: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Handing]:
    """Landing, database and records in one bucket of a real server."""
    bucket = s3_url.removeprefix("s3://").partition("/")[0]
    monkeypatch.setenv("DOLMEN_DATABASE", s3_url)
    monkeypatch.setenv("DOLMEN_HANDED_URL", f"s3://{bucket}/handed")
    world = World(open_store(f"s3://{bucket}"), s3_url, bucket)
    world.create()
    yield Handing(world, emr_server, application, f"s3://{bucket}/handed")
    world.close()
