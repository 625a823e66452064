"""ARCHITECTURE.md and the packages' own descriptions name what is there, and leave no package out."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from dolmen.service.local import run_local

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
SOURCES = {"dolmen": "shared", "pyspark_dolmen": "shared", "dolmen_simulator": "simulator"}
NAME = r"(?:dolmen|dolmen_simulator|pyspark_dolmen)(?:\.\w+)*"


def folder_of(package: str) -> Path:
    return ROOT / SOURCES[package.partition(".")[0]] / package.replace(".", "/")


def packages() -> list[str]:
    return sorted(
        ".".join(path.parent.relative_to(ROOT / source).parts)
        for source in set(SOURCES.values())
        for path in (ROOT / source).rglob("__init__.py")
    )


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def members(body: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """What a module or class defines: its names, with the bodies of classes."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            found[statement.name] = statement.body
        elif isinstance(statement, ast.FunctionDef):
            found[statement.name] = []
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = []
        elif isinstance(statement, ast.Assign):
            found |= {target.id: [] for target in statement.targets if isinstance(target, ast.Name)}
    return found


def exists(name: str) -> bool:
    """Whether a dotted name is a package, a module, or something that a module defines."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        place = folder_of(".".join(parts[:length]))
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not module.exists():
            continue
        body: list[ast.stmt] = tree_of(module).body
        for part in parts[length:]:
            found = members(body)
            if part not in found:
                return False
            body = found[part]
        return True
    return False


def test_every_name_of_the_code_on_the_page_exists() -> None:
    named = set(re.findall(rf"`({NAME})`", PAGE))
    assert len(named) > 80
    assert sorted(name for name in named if not exists(name)) == []


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert exists("dolmen.commit.loop.commit")
    assert exists("dolmen.commit.root_budget.RootBudget.fit")
    assert not exists("dolmen.commit.loop.comit")
    assert not exists("dolmen.commit.root_budget.RootBudget.fits")
    assert not exists("dolmen.comit.loop")


def test_every_path_on_the_page_exists() -> None:
    paths = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|/[a-z_]+\.py|\.toml|\.yaml))`", PAGE))
    assert len(paths) > 8
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_handler_on_the_page_is_in_its_file() -> None:
    handlers = re.findall(r"`(functions/\w+/app\.py)` `(\w+)`", PAGE)
    assert len(handlers) == 3
    for path, function in handlers:
        assert function in members(tree_of(ROOT / path).body), path


def test_every_package_has_its_line() -> None:
    lines = re.findall(rf"^\| `({NAME})` \| \S.*\|$", PAGE, re.MULTILINE)
    assert sorted(lines) == packages()


def test_the_four_walks_are_there_and_each_ends_in_a_commit_or_in_rows() -> None:
    walks = dict(re.findall(r"^## Walk \d: (.*?)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
    assert list(walks) == ["a drop", "a delete", "a scan", "a compaction"]
    for name, end in {
        "a drop": "dolmen.transactions.unit_of_work.UnitOfWork.commit",
        "a delete": "dolmen.transactions.unit_of_work.UnitOfWork.commit",
        "a scan": "dolmen.rows.scan.read.row_groups.row_mask",
        "a compaction": "dolmen.commit.loop.submit",
    }.items():
        assert f"`{end}`" in walks[name]


def test_a_walk_names_the_functions_in_the_order_of_their_calls(tmp_path: Path) -> None:
    db = dolmen.open(str(tmp_path / "database"))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user_id", pa.int64())])
    events = db.create_table("events", schema, primary_key="id", sort_key="user_id")
    for start in range(0, 800, 100):
        events.append([{"id": id_, "user_id": id_ % 50} for id_ in range(start, start + 100)])
    places = (db.url, tmp_path / "landing", tmp_path / "queue")
    for place in places[1:]:
        (Path(place) / "events").mkdir(parents=True)

    (tmp_path / "landing" / "events" / "1.csv").write_text("id,user_id\n1000,7\n")
    with calling("Walk 1: a drop", least=14):
        run_local(*places, poll_seconds=0.01, once=True)
    (tmp_path / "queue" / "1.json").write_text(json.dumps({"table": "events", "where": "user_id > 42"}))
    with calling("Walk 2: a delete", least=10):
        run_local(*places, poll_seconds=0.01, once=True)
    with calling("Walk 3: a scan", least=12):
        rows = events.scan(where="user_id = 7").to_arrow()
    assert rows.num_rows == 17
    db.resolve()  # so that compaction is the first to commit
    with calling("Walk 4: a compaction", least=12):
        db.maintain()
    with calling("The commit loop", least=6):
        events.delete("user_id = 41 OR id < 5")


@contextmanager
def calling(section: str, least: int) -> Iterator[None]:
    """Fails unless what runs here calls functions that a section of the page names, in the order in which it does.

    Args:
        least: how many of them it calls at least.
    """
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    named = list(dict.fromkeys(re.findall(rf"`({NAME})`", text)))
    called: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
            if name in named and not frame.f_code.co_name[0].isupper():  # the body of a class is called at import
                called.setdefault(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert [name for name in named if name in called] == list(called), section
    assert len(called) >= least, sorted(called)


@pytest.mark.parametrize(("package", "picture"), [("dolmen", 0), ("dolmen_simulator", 1)])
def test_the_picture_has_the_layers_of_the_contract_in_their_order(package: str, picture: int) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each.get("containers") == [package]]
    promised = [{name for name in re.findall(r"\w+", layer) if exists(f"{package}.{name}")} for layer in layers]
    drawn = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[picture].partition("---\n")
    lines = re.findall(r"^  (?=\w)(\w+(?: [|:] \w+)*)(?:  |$)", drawn[2] or drawn[0], re.MULTILINE)
    expected = [layer for layer in promised if layer and layer != {"__main__"}]
    assert [set(re.findall(r"\w+", line)) for line in lines] == expected


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_it_is_for_what_it_imports_and_where_to_begin(package: str) -> None:
    text = ast.get_docstring(tree_of(folder_of(package) / "__init__.py"))
    assert text
    assert len(text.splitlines()) >= 3
    text = " ".join(text.split())
    assert re.search(r"\bimport", text)
    if package != "pyspark_dolmen":
        assert "Begin with ``" in text
    assert [name for name in re.findall(rf"``({NAME})``", text) if not exists(name)] == []
