"""events/README.md: its table is about every sample, names what the sample names, and its commands are run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dolmen
from dolmen.ingest.announcements import read_drops
from dolmen.ingest.batch import read_messages
from support.quick_command import quick_command
from support.samples import EVENTS, INGESTED, LEFT, README, SCHEDULED, sample

ROWS = {
    cells[0].strip("`"): cells
    for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if "|" in line)
    if cells[0].startswith("`")
}
"""The cells of the table, by sample."""


def quoted(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def requests(name: str) -> list[dict[str, Any]]:
    """The delete requests of a sample."""
    event = sample(name)
    return [json.loads(record["body"]) for record in event["Records"]] if "Records" in event else [event]


def test_the_table_is_about_every_sample() -> None:
    assert ROWS.keys() == {path.stem for path in EVENTS.glob("*.json")} - {"local-env"}
    assert all(cells[1] == name.partition("-")[0] for name, cells in ROWS.items())


@pytest.mark.parametrize("name", INGESTED)
def test_the_table_names_the_objects_and_tables_of_a_drop(name: str) -> None:
    keys = {drop.key for message in read_messages(sample(name)) for drop in read_drops(message.body)[0]}
    assert (quoted(ROWS[name][3]), quoted(ROWS[name][2])) == (keys, {key.split("/")[1] for key in keys})
    assert all((EVENTS / key).is_file() for key in keys)
    rows = len(INGESTED[name])
    assert ROWS[name][4].startswith(f"{rows} row" if rows else "nothing")


@pytest.mark.parametrize("name", LEFT)
def test_the_table_names_the_tables_of_a_delete(name: str) -> None:
    named = [request.get("tables", [request.get("table")]) for request in requests(name)]
    tables = {table if isinstance(table, str) else table["table"] for some in named for table in some}
    assert (quoted(ROWS[name][2]), quoted(ROWS[name][3])) == (tables, set())


@pytest.mark.parametrize("name", sorted(SCHEDULED))
def test_the_table_names_the_tables_of_a_round(name: str) -> None:
    assert (quoted(ROWS[name][2]), quoted(ROWS[name][3])) == (set(sample(name).get("tables", ())), set())


@pytest.mark.slow
def test_the_commands_create_the_tables(tmp_path: Path) -> None:
    """What uploads the files is run before each test of a sample."""
    [commands] = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    with quick_command() as programs:
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "DOLMEN_DATABASE": str(tmp_path / "db")}
        subprocess.run(["bash", "-euc", commands], env=environment, check=True, capture_output=True)
    assert set(dolmen.open(str(tmp_path / "db")).tables()) == set.union(*(quoted(cells[2]) for cells in ROWS.values()))
