"""What tests of Spark share.

What older versions of Spark than the pinned one don't have is not tested on them (``make test-spark-versions``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import datasource

import dolmen
from dolmen import Database
from dolmen.spark.sql.attachment import attachments_of

collect_ignore = [] if hasattr(datasource, "Filter") else ["source/test_filters.py"]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """A database on a directory, still empty."""
    return dolmen.open(str(tmp_path / "db"))


@pytest.fixture(autouse=True)
def _detached(request: pytest.FixtureRequest) -> Iterator[None]:
    """Detaches what a test attached to the session that all tests share, so that no view stays for the next one."""
    if "spark" not in request.fixturenames:
        yield
        return
    attachments = attachments_of(request.getfixturevalue("spark"))
    before = list(attachments.all)
    yield
    for attachment in [each for each in attachments.all if each not in before]:
        attachment.detach()
