"""``dolmen stats --watch``: one request a look, what has changed, and an end at Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import dolmen
from dolmen.base.records import replace
from dolmen.cli.stats import DebtsWatcher, line_of, screen_of
from support.tables import World

Cli = Callable[..., Any]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def world() -> World:
    world = World()
    world.create(pa.table({"k": list(range(30)), "v": ["x"] * 30}), files=3, key=["k"])
    return world


@pytest.mark.parametrize("exact", [False, True])
def test_a_look_is_one_request_while_nothing_is_committed(world: World, exact: bool) -> None:
    watcher = DebtsWatcher(dolmen.Database(world.store, replace(world.runtime)), exact=exact)  # with an empty cache
    store: Any = world.store
    for expected in (2, 1, 1, 1):  # the first reads the manifest, too
        store.reset()
        state = watcher.look()
        assert (store.gets, store.lists, store.heads, store.puts) == (expected, 0, 0, 0)
        assert (state.commits, state.changes) == (0, {})
    world.append(pa.table({"k": [99], "v": ["y"]}))
    for expected, commits in ((2, 1), (1, 0)):
        store.reset()
        state = watcher.look()
        assert ((store.gets, store.lists, store.heads), state.commits) == ((expected, 0, 0), commits)


def test_changes_since_the_last_look_have_their_sign(world: World) -> None:
    watcher = DebtsWatcher(world.db, exact=False)
    first = watcher.look()
    assert (first.before, first.changes, first.commits_per_second) == (None, {}, 0.0)
    world.db.table("t").delete("k = 1")
    world.db.table("t").delete("k = 2")
    world.append(pa.table({"k": [50, 51], "v": ["y", "y"]}))
    state = watcher.look()
    assert state.commits == 3
    assert state.commits_per_second > 0
    changes = {name: state.changes[name] for name in ("rows", "files", "tombstones")}
    assert changes == {"rows": 2, "files": 1, "tombstones": 2}
    assert "3 commits" in line_of(state)
    assert "2 unresolved deletes +2" in line_of(state)
    world.db.resolve()
    state = watcher.look()
    assert (state.changes["tombstones"], state.changes["dead_rows"]) == (-2, 2)
    assert "0 unresolved deletes -2" in line_of(state)
    assert watcher.look().changes == {}


def test_a_table_that_comes_or_goes_is_a_change(world: World) -> None:
    watcher = DebtsWatcher(world.db, exact=False)
    watcher.look()
    world.db.create_table("u", SCHEMA)
    for state in (watcher.look(),):
        shown(state, 100)
    world.db.drop_table("t")
    state = watcher.look()
    assert (state.changes["files"], state.changes["rows"]) == (-3, -30)
    assert "-30" in shown(state, 100)


def test_a_low_terminal_shows_the_tables_that_have_changed_or_owe_most(world: World) -> None:
    for number in range(30):
        world.db.create_table(f"u{number:02}", SCHEMA)
    watcher = DebtsWatcher(world.db, exact=False)
    watcher.look()
    world.db.table("u17").append([{"id": 1, "name": "a"}])
    told = shown(watcher.look(), 100, 22)
    assert len(told.splitlines()) <= 22
    assert [line.split()[1] for line in told.splitlines() if line.startswith("│")] == ["u17", "t", "u00"]
    assert "28 more tables" in told


def shown(state: Any, width: int, height: int = 60) -> str:
    console = Console(width=width, force_terminal=False, file=io.StringIO(), record=True)
    console.print(screen_of(state, width, height))
    return console.export_text()


@pytest.mark.parametrize("width", [20, 40, 71, 72, 200])
def test_it_fits_a_terminal_of_any_width(world: World, width: int) -> None:
    watcher = DebtsWatcher(world.db, exact=False)
    watcher.look()
    world.db.table("t").delete("k = 1")
    told = shown(watcher.look(), width)
    assert all(len(line) <= width for line in told.splitlines())
    assert "unresolved" in told
    assert ("files to save" in told.partition("Ctrl-C")[0]) or width < 72


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = str(tmp_path / "db")
    table = dolmen.open(url).create_table("t", SCHEMA, primary_key="id")
    table.append([{"id": 1, "name": "a"}])
    return url


def start(database: str, *options: str, **streams: Any) -> subprocess.Popen[str]:
    command = ["stats", "--watch", "--interval", "0.05", "-d", database, *options]
    source = f"import sys; from dolmen.cli import main; sys.argv[1:] = {command!r}; main()"
    return subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True, **streams)


@pytest.mark.slow
def test_json_is_a_line_a_look_until_ctrl_c(database: str) -> None:
    watching = start(database, "--json", stdout=subprocess.PIPE)
    assert watching.stdout
    first = json.loads(watching.stdout.readline())
    assert (first["version"], first["since"]["commits"], first["tables"]["t"]["rows"]) == (2, 0, 1)
    dolmen.open(database).table("t").append([{"id": 2, "name": "b"}])
    seen = next(look for look in lines(watching) if look["version"] == 3)
    assert (seen["since"]["commits"], seen["since"]["changes"]["rows"]) == (1, 1)
    assert next(lines(watching))["since"]["changes"] == {}
    watching.send_signal(signal.SIGINT)
    rest, said = watching.communicate(timeout=60)
    assert (said, watching.returncode) == ("", 0)
    assert all(json.loads(line) for line in rest.splitlines())


def lines(process: subprocess.Popen[str]) -> Iterator[Any]:
    assert process.stdout
    for line in process.stdout:
        yield json.loads(line)


@pytest.mark.slow
def test_without_a_terminal_each_look_is_a_line(database: str) -> None:
    watching = start(database, stdout=subprocess.PIPE)
    assert watching.stdout
    for _ in range(3):
        line = watching.stdout.readline()
        assert "version 2" in line
        assert "1 row," in line or line.endswith("1 row")
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=60)
    assert (said, watching.returncode) == ("", 0)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it(database: str) -> None:
    watching = start(database, "--json", stdout=subprocess.PIPE)
    assert watching.stdout
    watching.stdout.readline()
    watching.stdout.close()
    assert watching.wait(timeout=60) == 141


@pytest.mark.slow
def test_on_a_terminal_it_draws_in_place_and_ends_at_ctrl_c(database: str) -> None:
    here, there = pty.openpty()
    watching = start(database, stdout=there, env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"})
    os.close(there)
    told = read_until(here, b"since the last look")
    assert b"unresolved deletes" in told
    assert b"\x1b[" in told
    watching.send_signal(signal.SIGINT)
    read_until(here, None)
    assert watching.wait(timeout=60) == 0
    os.close(here)


def read_until(terminal: int, wanted: bytes | None) -> bytes:
    """Reads from a terminal until it shows something, or its program has ended."""
    told, until = b"", time.monotonic() + 60
    while (wanted is None or wanted not in told) and time.monotonic() < until:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        told += part
    return told


@pytest.mark.parametrize("interval", ["0", "-1", "86400", "nan"])
def test_an_interval_is_more_than_nothing_and_less_than_a_day(cli: Cli, interval: str) -> None:
    done = cli("stats", "--watch", f"--interval={interval}")
    assert (done.code, "give seconds" in done.err) == (2, True)


@pytest.mark.slow
def test_a_database_that_does_not_exist_yet_is_watched(tmp_path: Path) -> None:
    watching = start(str(tmp_path / "new"), "--json", stdout=subprocess.PIPE)
    assert watching.stdout
    assert json.loads(watching.stdout.readline())["version"] == 0
    dolmen.open(str(tmp_path / "new")).create_table("t", SCHEMA)
    assert next(look for look in lines(watching) if look["version"])["since"]["commits"] == 1
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 0
