"""docs/configuration.md names every variable, property and parameter that there is, with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dolmen.format.ingest_properties import TABLE_PROPERTIES
from dolmen.format.properties import DATABASE_PROPERTIES, Property
from dolmen.ingest.formats.source_file import MAX_BYTES
from support.template import PARAMETERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
_VARIABLE = re.compile(r"\bDOLMEN_[A-Z0-9_]*[A-Z0-9]\b(?!_)")
_DEFAULTS_IN_WORDS = {None: ("none", "by the ", "the column's own name"), "": ("the empty text",)}


def _part(heading: str) -> str:
    """What stands under a heading, up to the next of its level."""
    level = heading.partition(" ")[0]
    _, found, rest = PAGE.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(rf"\n{level} ", rest)[0]


def _rows(part: str) -> dict[str, str]:
    """The tables' rows: what the first column names, and what the second says."""
    return dict(re.findall(r"^\| `([A-Za-z0-9_]+)` \| ([^|]*) \|", part, re.MULTILINE))


def test_every_variable_that_is_read_is_described_and_no_other() -> None:
    sources = [path for folder in ("shared", "functions") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in [*sources, ROOT / "template.yaml"] for name in _VARIABLE.findall(path.read_text())}
    described = {name for name in _rows(_part("## Variables")) if name.startswith("DOLMEN_")}
    assert described == read
    assert set(_VARIABLE.findall(PAGE)) <= described


@pytest.mark.parametrize(
    ("heading", "known"),
    [("### Of the database", DATABASE_PROPERTIES), ("### Of a table", TABLE_PROPERTIES)],
    ids=["database", "table"],
)
def test_every_property_is_described_with_its_default(heading: str, known: dict[str, Property]) -> None:
    described = _rows(_part(heading))
    assert set(described) == set(known)
    for name, said in described.items():
        default = known[name].default
        if default in _DEFAULTS_IN_WORDS:
            assert said.startswith(_DEFAULTS_IN_WORDS[default]), name
        else:
            assert said == f"`{default}`", name


def test_every_parameter_of_the_stack_is_described_with_its_default() -> None:
    described = _rows(_part("## Parameters of the stack"))
    assert set(described) == set(PARAMETERS)
    for name, said in described.items():
        default = PARAMETERS[name].get("Default")
        assert said == ("required" if default is None else "empty" if default == "" else f"`{default}`"), name


def test_the_limit_of_a_file_is_the_one_of_the_code() -> None:
    assert _rows(_part("## Variables"))["DOLMEN_MAX_FILE_BYTES"].startswith(f"`{MAX_BYTES}`")
