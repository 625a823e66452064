"""A URL at which there is no database ends each command that needs one: exit code 3, and the message names the URL."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cli.conftest import Cli

COMMANDS = [
    "alter t --drop x",
    "append t {file}",
    "changes t --since 1",
    "clone t u",
    "compact",
    "delete t --where id=1",
    "drop t --yes",
    "erase t --where id=1 --yes",
    "erasures",
    "forget 1 --yes",
    "gc",
    "get t 1",
    "history",
    "history --json",
    "maintain",
    "merge t {file} --on id",
    "publish-iceberg --table t",
    "rename t u",
    "report --output {page}",
    "request-status x",
    "resolve",
    "restore --version 1 --yes",
    "scan t",
    "settings",
    "settings t",
    "set t index=true",
    "show t",
    "sql 'SELECT 1'",
    "stats",
    "tables",
    "tag a",
    "tag a --drop",
    "tags",
    "update t --set a=1 --where TRUE",
    "verify",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_needs_a_database_says_that_there_is_none(cli: Cli, tmp_path: Path, command: str) -> None:
    file, page, place = tmp_path / "rows.jsonl", tmp_path / "page.html", tmp_path / "none"
    file.write_text('{"id": 1}\n')
    words = shlex.split(command.format(file=file, page=page))
    done = cli(*words, "-d", place)
    assert done.code == 3, done
    assert f"{place.as_uri()}" in done.err + done.out
    assert not place.exists()
    assert not page.exists()


@pytest.mark.parametrize("command", ["set retention=5d", "append t {file} --create", "create t --columns 'id BIGINT'"])
def test_a_command_that_makes_a_database_makes_it(cli: Cli, tmp_path: Path, command: str) -> None:
    file, place = tmp_path / "rows.jsonl", tmp_path / "none"
    file.write_text('{"id": 1}\n')
    assert cli(*shlex.split(command.format(file=file)), "-d", place).code == 0
    assert place.exists()
