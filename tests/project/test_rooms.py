"""The rooms of ``shared/dolmen``: the floors that their imports make, and nothing that stands outside of them."""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

from project.test_imports import import_graph

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shared" / "dolmen"
MOST_FLOORS = 14
MOST_CHAINED = 25
"""The longest chain of imports, in modules. Lower it when it gets shorter; nothing may make it longer."""


@cache
def rooms() -> dict[str, frozenset[str]]:
    """Each room with the rooms that it imports, wherever the import stands."""
    found: dict[str, set[str]] = {}
    for module, imported in import_graph(ROOT / "shared").items():
        if (room := _room(module)) is not None:
            found.setdefault(room, set()).update({_room(each) for each in imported} - {room, None})
    return {room: frozenset(below) for room, below in found.items()}


def test_nothing_stands_outside_of_the_rooms_but_errors() -> None:
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "errors.py"]


def test_the_rooms_are_the_layers_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["dolmen"])
    names = [name.strip(" ()") for layer in layers for name in layer.split("|")]
    assert sorted(names) == sorted(rooms())
    assert len(layers) <= 16


def test_the_rooms_stand_on_few_floors() -> None:
    """A room stands one floor above the highest room that it imports."""
    assert max(map(floor, rooms())) <= MOST_FLOORS, "\n" + picture()


def test_no_chain_of_imports_gets_longer() -> None:
    graph = import_graph(ROOT / "shared")

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max((chain(each) for each in graph[module]), key=len, default=()))

    longest = max((chain(module) for module in graph), key=len)
    assert len(longest) <= MOST_CHAINED, "\n".join(longest)


def test_a_file_name_occurs_once_in_a_room() -> None:
    files = [path.relative_to(PACKAGE) for path in PACKAGE.glob("*/**/*.py") if path.name != "__init__.py"]
    names = Counter((path.parts[0], path.name) for path in files)
    assert [name for name, times in names.items() if times > 1] == []


@cache
def floor(room: str) -> int:
    return 1 + max((floor(each) for each in rooms()[room]), default=0)


def picture() -> str:
    """The floors, the highest first, each with its rooms."""
    floors = range(max(map(floor, rooms())), 0, -1)
    return "\n".join(
        f"{number:2} {' '.join(sorted(room for room in rooms() if floor(room) == number))}" for number in floors
    )


def _room(module: str) -> str | None:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] or None if package == "dolmen" else None
