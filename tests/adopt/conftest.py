"""The readers of Iceberg, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.iceberg_readers import PYTHON, IcebergReaders


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergReaders]:
    if not PYTHON.exists():
        pytest.skip("make setup installs the readers of Iceberg")
    found = IcebergReaders(tmp_path_factory.mktemp("answers"))
    yield found
    found.close()
