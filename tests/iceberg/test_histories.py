"""Random histories, published incrementally: real readers of Iceberg see the rows that dolmen sees."""

from __future__ import annotations

import os

import pytest

from support.iceberg_readers import IcebergReaders
from support.published_history import PREDICATES, run_history

SEED = os.environ["DOLMEN_TEST_SEED"]
LONG = bool(os.environ.get("DOLMEN_LONG"))
HISTORIES = 200 if LONG else 6
"""The number of histories in each of ten tests. Each has 20 predicates a version in long runs, and one in others."""


@pytest.mark.parametrize("tenth", range(10))
def test_readers_see_every_published_version_as_it_is(tenth: int, readers: IcebergReaders) -> None:
    for number in range(tenth * HISTORIES, (tenth + 1) * HISTORIES):
        assert run_history(f"{SEED} {number}", readers, PREDICATES if LONG else 1)["histories"] == 1, number
