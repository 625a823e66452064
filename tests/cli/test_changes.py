"""``dolmen changes``: once, and for as long as it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen

Cli = Callable[..., Any]
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "db")


@pytest.fixture
def table(database: str) -> dolmen.Table:
    table = dolmen.open(database).create_table("t", COLUMNS, primary_key="id")
    table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    return table


def test_changes_are_shown_in_every_format(cli: Cli, table: dolmen.Table, tmp_path: Path) -> None:
    table.upsert([{"id": 2, "name": "c"}])
    told = cli("changes", "t", "--since", 2, "--json").lines()
    assert [(row["_change"], row["_version"], row["name"]) for row in told] == [
        ("update_before", 3, "b"),
        ("update_after", 3, "c"),
    ]
    found = cli("changes", "t", "--since", 0, "--columns", "id", "--where", "name = 'b'", "--format", "csv").out
    assert [line.split(",")[:3] for line in found.splitlines()] == [
        ["id", "_change", "_version"],
        ["2", '"insert"', "2"],
        ["2", '"delete"', "3"],
    ]
    cli("changes", "t", "--since", 0, "--net", "-o", tmp_path / "net.parquet")
    net = pq.read_table(tmp_path / "net.parquet").to_pylist()
    assert sorted((row["id"], row["name"], row["_version"]) for row in net) == [(1, "a", 3), (2, "c", 3)]
    assert "update_after" in cli("changes", "t", "--since", 2, "--format", "table").out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--since", "9"), 3, "no version 9"),
        (("--since", "never"), 2, "not ISO 8601"),
        (("--since", "2", "--until", "1"), 2, "after until"),
        (("--since", "1", "--follow", "--net"), 2, "leave out"),
        (("--since", "1", "--follow", "--interval", "0"), 2, "give seconds"),
        (("--since", "1", "--follow", "-o", "x.parquet"), 2, "jsonl, csv or arrow"),
        (("--since", "1", "--follow", "-o", "/nonexist/x.csv"), 2, "'/nonexist'"),
        (("--since", "1", "-o", "/nonexist/x.csv"), 2, "'/nonexist'"),
    ],
)
def test_what_makes_no_feed_is_refused(
    cli: Cli, table: dolmen.Table, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = cli("changes", "t", *arguments, "--json")
    assert done.code == code
    assert words in done.lines()[0]["error"]["message"]


@pytest.fixture
def following(request: pytest.FixtureRequest, database: str, table: dolmen.Table) -> subprocess.Popen[str]:
    more = getattr(request, "param", [])
    command = ["changes", "t", "--since", "1", "--follow", "--interval", "0.05", "-d", database, *more]
    source = f"import sys; from dolmen.cli import main; sys.argv[1:] = {command!r}; main()"
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_follow_shows_commits_as_they_come_and_ends_at_ctrl_c(
    following: subprocess.Popen[str], table: dolmen.Table
) -> None:
    assert following.stdout
    assert [json.loads(following.stdout.readline())["id"] for _ in range(2)] == [1, 2]
    table.append([{"id": id_, "name": "later"} for id_ in range(10, 20)])
    assert [json.loads(following.stdout.readline())["_version"] for _ in range(10)] == [3] * 10
    table.delete("id = 1")
    assert json.loads(following.stdout.readline())["_change"] == "delete"
    following.send_signal(signal.SIGINT)
    rest, said = following.communicate(timeout=60)
    assert (rest, said, following.returncode) == ("", "", 0)


@pytest.mark.slow
def test_follow_ends_when_the_columns_change(following: subprocess.Popen[str], table: dolmen.Table) -> None:
    assert following.stdout
    assert [json.loads(following.stdout.readline())["id"] for _ in range(2)] == [1, 2]
    table.add_column("n", pa.int64())
    rest, said = following.communicate(timeout=60)
    assert rest == ""
    assert "--since 2" in " ".join(said.split())
    assert following.returncode == 2


def create_anew(db: dolmen.Database) -> None:
    with db.transaction() as tx:
        tx.drop_table("t")
        tx.create_table("t", COLUMNS, primary_key="id").append([{"id": 9, "name": "z"}])


def swap(db: dolmen.Database) -> None:
    with db.transaction() as tx:
        tx.clone("t", "new").delete("id = 1")
        tx.rename_table("t", "old")
        tx.rename_table("new", "t")


def replace_column(db: dolmen.Database) -> None:
    with db.transaction() as tx:
        tx.table("t").drop_column("name")
        tx.table("t").add_column("name", pa.string())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "code", "words", "following"),
    [
        (create_anew, 3, "table", []),
        (swap, 3, "table", []),
        (replace_column, 2, "columns have changed", []),
        (replace_column, 2, "columns have changed", ["--columns", "id,name"]),
        (replace_column, 2, "columns have changed", ["--columns", "id", "--where", "name < 'c'"]),
    ],
    indirect=["following"],
)
def test_follow_never_passes_to_another_table_or_column_of_the_same_name(
    following: subprocess.Popen[str],
    database: str,
    table: dolmen.Table,
    act: Callable[[dolmen.Database], None],
    code: int,
    words: str,
) -> None:
    assert following.stdout
    assert [json.loads(following.stdout.readline())["id"] for _ in range(2)] == [1, 2]
    act(dolmen.open(database))
    try:
        rest, said = following.communicate(timeout=120)
    finally:
        following.kill()
    told = " ".join(said.split())
    assert (rest, following.returncode) == ("", code), told
    assert words in told
    assert "--since 2" in told


@pytest.mark.slow
@pytest.mark.parametrize("following", [["--columns", "id"]], indirect=True)
def test_follow_goes_on_where_its_columns_are_the_same(following: subprocess.Popen[str], table: dolmen.Table) -> None:
    """A column that is not shown may go, and an erasure changes no column."""
    assert following.stdout
    table.drop_column("name")
    table.append([{"id": 3}])
    assert [json.loads(following.stdout.readline())["id"] for _ in range(3)] == [1, 2, 3]
    table.erase("id = 3")
    assert json.loads(following.stdout.readline())["_change"] == "delete"
    following.send_signal(signal.SIGINT)
    rest, said = following.communicate(timeout=60)
    assert (rest, said, following.returncode) == ("", "", 0)
