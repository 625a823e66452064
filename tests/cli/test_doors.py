"""A file that nobody has described is read alike by every door, and a declared table refuses by every door."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from cli.conftest import Cli
from dolmen.format.dialect import Dialect
from support.local_once import local_once
from support.refused_files import REFUSED, SCHEMA, content

FILES = {
    "german.csv": b"Nr;Betrag;Tag\n1;1.002,50;31.12.2024\n2;13,75;01.01.2025\n",
    "latin.csv.gz": gzip.compress("name|city\n'Zoë, x'|Zürich\n'Max'|Köln\n".encode("latin-1")),
    "titled.tsv": b"Report\n\nid\tis new\tid\n1\tyes\tNA\n2\tno\t3\n",
    "records.json": b'{"Records": [{"id": 1, "tags": ["a"]},\n {"id": 2, "tags": []}]}',
    "pretty.json.bz2": bz2.compress(b'[\n {"id": 1, "at": "2024-01-01T00:00:00Z"},\n {"id": 2, "at": null}\n]\n'),
    "plain.csv": b"id,name\n1,Ada\n2,Bob\n",
}
Made = tuple[pa.Schema, dict[str, Any]]


def _table(path: Path) -> Made:
    table = dolmen.open(str(path / "db")).table("t")
    return table.schema, table.describe()["properties"]


def _declaration(cli: Cli, file: Path, path: Path) -> Made:
    (path / "tables.yaml").write_text(cli("infer", file, "--yaml", "--table", "t").out)
    assert cli("apply", path / "tables.yaml", "--yes").code == 0
    return _table(path)


def _like(cli: Cli, file: Path, path: Path) -> Made:
    done = cli("create", "t", "--like", file)
    assert done.code == 0
    assert _line(file) in done.err
    return _table(path)


def _like_standard_input(cli: Cli, file: Path, path: Path) -> Made:
    raw = file.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
        assert cli("create", "t", "--like", "-").code == 0
    return _table(path)


def _append(cli: Cli, file: Path, path: Path) -> Made:
    done = cli("append", "t", file, "--create")
    assert done.code == 0
    assert _line(file) in done.err
    return _table(path)


def _backfill(cli: Cli, file: Path, path: Path) -> Made:
    assert cli("backfill", path / "landing", "--table", "t", "--auto-create").code == 0
    return _table(path)


def _local(cli: Cli, file: Path, path: Path) -> Made:
    local_once(path, path / "db")
    return _table(path)


def _line(file: Path) -> str:
    found = dolmen.infer(file)
    return "" if found.is_plain else found.summary


@pytest.mark.slow
@pytest.mark.parametrize("door", [_declaration, _like, _like_standard_input, _append, _backfill, _local])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_inferred_alike_by_every_door(
    cli: Cli, tmp_path: Path, name: str, door: Callable[[Cli, Path, Path], Made]
) -> None:
    file = tmp_path / "landing" / "t" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(FILES[name])
    found = dolmen.infer(file)
    (facts,) = cli("infer", file, "--json").lines()
    assert facts == found.facts()
    schema, properties = door(cli, file, tmp_path)
    assert schema == found.schema
    assert properties.keys() == found.properties.keys()
    assert Dialect.of(properties) == found.dialect
    if door in (_append, _backfill, _local):
        assert dolmen.open(str(tmp_path / "db")).table("t").count() == 2


@pytest.mark.parametrize("kind", REFUSED)
def test_a_declared_table_refuses_what_its_settings_do_not_say(cli: Cli, tmp_path: Path, kind: str) -> None:
    ending, body, reason = REFUSED[kind]
    database = dolmen.open(str(tmp_path / "db"))
    database.create_table("t", SCHEMA)
    file = tmp_path / "landing" / "t" / f"a.{ending}"
    file.parent.mkdir(parents=True)
    file.write_bytes(content(body))
    done = cli("append", "t", file)
    assert done.code == 2
    assert reason in " ".join(done.err.split())
    assert cli("backfill", tmp_path / "landing", "--table", "t").code != 0
    (report,) = [json.loads(path.read_bytes()) for path in (tmp_path / "rejected").rglob("*.error.json")]
    assert reason in report["reason"]
    assert database.table("t").count() == 0
    assert database.table("t").schema == SCHEMA
