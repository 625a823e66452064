"""What tests of Spark share.

What older versions of Spark than the pinned one don't have is not tested on them (``make test-spark-versions``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import datasource

import dolmen
from dolmen import Database

collect_ignore = [] if hasattr(datasource, "Filter") else ["source/test_filters.py"]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """A database on a directory, still empty."""
    return dolmen.open(str(tmp_path / "db"))
