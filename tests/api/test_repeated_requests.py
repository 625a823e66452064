"""A request that comes again after columns have changed is compared by the columns that it was applied to."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen import Commit, Table
from dolmen.errors import AppliedIdError, SchemaError

REPEATED: dict[str, Callable[[Table, str], Commit]] = {
    "append": lambda table, id: table.append([{"id": 9, "f": 0.5, "day": date(2026, 1, 1)}], request=id),
    "upsert": lambda table, id: table.upsert([{"id": 1, "f": 0.5, "day": date(2026, 1, 1)}], request=id),
    "insert": lambda table, id: table.insert([{"id": 9, "f": 0.5, "day": date(2026, 1, 1)}], request=id),
    "overwrite": lambda table, id: table.overwrite([{"id": 9, "f": 0.5, "day": date(2026, 1, 1)}], request=id),
    "delete": lambda table, id: table.delete("f > 0.1", request=id),
    "delete on a day": lambda table, id: table.delete({"day": date(2026, 1, 2)}, request=id),
    "delete positions": lambda table, id: table.delete("f > 0.1", mode="positions", request=id),
    "delete keys": lambda table, id: table.delete(keys=[date(2026, 1, 2)], on=["day"], request=id),
    "erase": lambda table, id: table.erase("f > 0.1", request=id).commit,
    "update": lambda table, id: table.update({"f": 2.0}, "f > 0.1", request=id),
    "merge": lambda table, id: table.merge([{"id": 1, "f": 4.0}], "id", {"f": "source.f"}, None, request=id),
    "set default": lambda table, id: table.set_default("f", 1.0, request=id),
}
CHANGES: dict[str, Callable[[Table], object]] = {
    "renamed": lambda table: (table.rename_column("f", "g"), table.rename_column("day", "days")),
    "wider": lambda table: (table.widen_column("f", pa.float64()), table.widen_column("day", pa.timestamp("us"))),
    "dropped": lambda table: (table.drop_column("f"), table.drop_column("day")),
    "another": lambda table: (table.rename_column("f", "g"), table.add_column("f", pa.float64(), 1.5)),
}


@pytest.fixture
def with_days(tmp_path: Path) -> Table:
    schema = pa.schema([("id", pa.int64()), ("f", pa.float32()), ("day", pa.date32())])
    table = dolmen.open(tmp_path).create_table("days", schema, primary_key="id")
    table.append([{"id": 1, "f": 0.25, "day": date(2026, 1, 2)}, {"id": 2, "f": 0.0, "day": None}])
    return table


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", REPEATED)
@pytest.mark.parametrize("is_stale", [False, True])
def test_a_request_is_found_applied_when_it_comes_again_after_columns_have_changed(
    with_days: Table, call: str, change: str, is_stale: bool
) -> None:
    first = REPEATED[call](with_days, "r")
    other = dolmen.open(with_days._context.store.url).table("days")
    CHANGES[change](other)
    before, rows = other._snapshot().version, other.to_arrow()
    again = REPEATED[call](with_days if is_stale else other, "r")
    assert (again.operation, again.already) == ("nothing", {"r": first.version})
    assert (other._snapshot().version, other.to_arrow()) == (before, rows)


@pytest.mark.parametrize("change", CHANGES)
def test_another_request_under_an_id_is_refused_after_columns_have_changed(with_days: Table, change: str) -> None:
    with_days.append([{"id": 3, "f": 0.5}], request="r")
    CHANGES[change](with_days)
    version = with_days._snapshot().version
    for rows in ([{"id": 4, "f": 0.5}], [{"id": 3, "f": 0.75}]):
        with pytest.raises(AppliedIdError):
            with_days.append(rows, request="r")
    assert with_days._snapshot().version == version


def test_without_the_version_that_applied_it_a_request_is_refused(with_days: Table) -> None:
    with_days.append([{"id": 3, "f": 0.5}], request="r")
    with_days.rename_column("f", "g")
    database = dolmen.open(with_days._context.store.url)
    database.set(retention="1s", keep_versions=1)
    time.sleep(1.5)
    database.gc()
    with pytest.raises(SchemaError, match="column 'f'"):
        with_days.append([{"id": 3, "f": 0.5}], request="r")
    assert with_days.count() == 3


def test_rows_that_can_be_read_only_once_are_not_compared_again(with_days: Table) -> None:
    rows = pa.table({"id": [3], "f": pa.array([0.5], pa.float32())})
    with_days.append(rows.to_reader(), request="r")
    with_days.rename_column("f", "g")
    with pytest.raises(SchemaError, match="column 'f'"):
        with_days.append(rows.to_reader(), request="r")
    assert with_days.count() == 3
