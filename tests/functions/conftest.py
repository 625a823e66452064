"""Worlds for the functions: one on a real S3 server, one in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dolmen.store import open_store
from dolmen.store.local_store import LocalStore
from support.functions import World


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOLMEN_LANDING_PREFIX", "DOLMEN_LANDING_URL", "DOLMEN_REJECTED_URL", "DOLMEN_AUTO_CREATE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def s3_world(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Landing, database and rejects in one fresh bucket of a real server."""
    monkeypatch.setenv("DOLMEN_DATABASE", s3_url)
    bucket = s3_url.removeprefix("s3://").partition("/")[0]
    world = World(open_store(f"s3://{bucket}"), s3_url, bucket)
    yield world
    world.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The same in a directory: quick."""
    bucket, database = tmp_path / "bucket", tmp_path / "database"
    monkeypatch.setenv("DOLMEN_DATABASE", str(database))
    monkeypatch.setenv("DOLMEN_LANDING_URL", bucket.as_uri())
    world = World(LocalStore(bucket), str(database))
    yield world
    world.close()
