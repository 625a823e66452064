"""What the machine has found, each as the shortest story of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen.errors import ConflictError, TableNotFoundError

WRITES: dict[str, Callable[[dolmen.Table], object]] = {
    "append": lambda table: table.append([{"y": "new"}]),
    "upsert": lambda table: table.upsert([{"y": "new"}]),
    "delete": lambda table: table.delete("y = 'old'"),
    "delete by keys": lambda table: table.delete(keys=["old"]),
    "overwrite": lambda table: table.overwrite([{"y": "new"}]),
    "set": lambda table: table.set(ttl="t 1d"),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_handle_that_knows_an_older_table_of_the_name_says_so_and_can_repeat(write: str, tmp_path: Path) -> None:
    """It used to say that the input did not fit, for ever: by the schema of a table that was there no more."""
    ours, theirs = dolmen.open(str(tmp_path)), dolmen.open(str(tmp_path))
    theirs.create_table("a", pa.schema([("x", pa.int64())]), primary_key="x")
    ours.refresh()
    theirs.drop_table("a")
    theirs.create_table("a", pa.schema([("y", pa.string()), ("t", pa.timestamp("us"))]), primary_key="y")
    with pytest.raises(ConflictError, match="created"):
        WRITES[write](ours.table("a"))
    WRITES[write](ours.table("a"))
    assert ours.version == theirs.version + 1


def test_a_handle_that_knows_a_table_that_is_gone_is_told_so_whatever_it_was_to_write(tmp_path: Path) -> None:
    ours, theirs = dolmen.open(str(tmp_path)), dolmen.open(str(tmp_path))
    theirs.create_table("a", pa.schema([("x", pa.int64())]))
    ours.refresh()
    theirs.drop_table("a")
    with pytest.raises(TableNotFoundError):
        ours.table("a").append([{"y": "unfit"}])
