"""Every malformed file goes through the ingest function: exact rows in, and a reject with its place and reason."""

from __future__ import annotations

import re
from collections import Counter

import pyarrow as pa
import pytest

from support.functions import World
from support.malformed_files import DROPPED_FILES, USERS, MalformedFile

_SCHEMAS: list[pa.Schema] = []
for _file in DROPPED_FILES:
    if _file.schema is not None and _file.schema not in _SCHEMAS:
        _SCHEMAS.append(_file.schema)


def table_of(file: MalformedFile) -> str:
    """Tables by the schema the file was meant for; one that is to be created where it is to be inferred."""
    if file.schema is None:
        return f"new_{DROPPED_FILES.index(file)}"
    return f"table_{_SCHEMAS.index(file.schema)}"


@pytest.mark.slow
def test_each_is_rejected_with_its_place_and_reason_and_the_good_ones_go_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    for place, schema in enumerate(_SCHEMAS):
        world.create(f"table_{place}", schema, primary_key=None)
    assert USERS in _SCHEMAS
    users = f"table_{_SCHEMAS.index(USERS)}"
    records = [world.drop(f"{users}/first.csv", "id\n1\n")]
    records += [world.drop(f"{table_of(file)}/bad/{file.name}", file.data) for file in DROPPED_FILES]
    records += [world.drop(f"{users}/last.jsonl", '{"id": 2}\n{"id": 3}\n')]
    assert world.ingest(*records) == []

    assert world.versions("ingest") == 1
    rows = {table: world.database.table(table).count() for table in world.database.tables()}
    assert {table: count for table, count in rows.items() if count} == {users: 3}
    assert not [table for table in rows if table.startswith("new_")]

    reports = {report["file"]: (copy, report) for copy, report in world.rejects().items()}
    assert len(reports) == len(DROPPED_FILES) >= 300
    for file in DROPPED_FILES:
        path = f"{table_of(file)}/bad/{file.name}"
        copy, report = reports[path]
        name, digests = re.subn(r"-[0-9a-f]{8}(?=(\.|$))", "", copy)
        assert (name, digests) == (path, 1)
        assert world.landing.get(f"rejected/{copy}").body == file.data
        assert file.reason in report["reason"], file.name
        assert file.is_at(report), (file.name, report)


def test_there_are_many_causes() -> None:
    assert len(Counter(file.cause for file in DROPPED_FILES)) >= 30


@pytest.mark.slow
def test_all_of_them_delivered_again_change_nothing(world: World) -> None:
    world.create("table_0", _SCHEMAS[0], primary_key=None)
    records = [world.drop(f"table_0/{file.name}", file.data) for file in DROPPED_FILES[:10]]
    assert world.ingest(*records) == []
    before = world.rejects()
    assert world.ingest(*reversed(records)) == []
    world.restart()
    assert world.ingest(*records) == []
    assert world.rejects() == before
    assert world.versions("ingest") == 1
