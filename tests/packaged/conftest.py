"""The functions as they are deployed: what `sam build` made, on the template's Python, against a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.api.database import open as open_database
from support.functions import SCHEMA
from support.ministack import endpoint_environment
from support.rie import Emulator, Start


@pytest.fixture
def database(s3_url: str) -> Database:
    """With two empty tables, ``events`` and ``users``."""
    database = open_database(s3_url)
    database.create_table("events", SCHEMA, primary_key="id")
    database.create_table("users", pa.schema([("id", pa.int64()), ("user_id", pa.int64())]), primary_key="id")
    return database


@pytest.fixture
def start(s3_endpoint: str, s3_url: str, tmp_path: Path) -> Iterator[Start]:
    """``start(function, timeout=..., SETTING=...)`` starts a function on this test's database, until the test ends."""
    with ExitStack() as running:

        def start(function: str, *, timeout: int = 60, **settings: str) -> Emulator:
            environment = {**endpoint_environment(s3_endpoint), "DOLMEN_DATABASE": s3_url, **settings}
            return running.enter_context(Emulator.start(function, environment, tmp_path, timeout=timeout))

        yield start
