"""CONTRIBUTING.md lists what to change to add a format, a store, a command, a type or a property: the code has it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dolmen.format.dialect import DIALECT_PROPERTIES, Dialect
from dolmen.format.ingest_properties import INGEST_PROPERTIES, TABLE_PROPERTIES, CdcSettings, IngestSettings
from dolmen.format.properties import DATABASE_PROPERTIES, DatabaseSettings, TableSettings
from project.test_types import MAPPINGS

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## Adding to a table of the code\n"
LISTS = ("A file format", "A store", "A command", "A column type", "A property of tables")


def lists() -> dict[str, list[str]]:
    """The items of each list, by its title. An item may go on in the next line."""
    _, found, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(HEADING)
    assert found
    parts = re.split(r"^\*\*(.+)\*\*\n", rest.partition("\n## ")[0], flags=re.MULTILINE)
    return {
        title: re.findall(r"^- (.+(?:\n  .+)*)$", body, re.MULTILINE)
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def wrong(item: str) -> list[str]:
    """What an item names that is not there: files, and names that do not stand in its first file."""
    named = re.findall(r"`([^`]+)`", item)
    paths = [name for name in named if "/" in name]
    lines = [f"no file {path}" for path in paths if not (ROOT / path).exists()]
    sources = [ROOT / path for path in paths if path.endswith(".py") and (ROOT / path).is_file()]
    text = "".join(path.read_text() for path in sources)
    names = [name for name in named if "/" not in name and re.fullmatch(r"[A-Z]\w+|_\w+", name)]
    return lines + [f"{item}: no {name} there" for name in names if sources and not re.search(rf"\b{name}\b", text)]


def test_there_is_a_list_for_each_table() -> None:
    assert tuple(lists()) == LISTS
    assert all(len(items) > 2 for items in lists().values())


@pytest.mark.parametrize("title", LISTS)
def test_a_list_names_files_and_tables_that_there_are(title: str) -> None:
    assert [line for item in lists()[title] for line in wrong(item)] == []


def test_modules_that_map_kinds_of_types_are_there() -> None:
    for place in MAPPINGS:
        module, name = place.split(":")
        path = ROOT / "shared" / f"{module.replace('.', '/')}.py"
        assert re.search(rf"^(class )?{name}\b", path.read_text(), re.MULTILINE), place


STORE_CODE = ("store/", "ingest/announcements.py", "format/layout.py")
"""The code that a list for a store names: it may know the kinds of stores apart."""
AWS_CODE = {"iceberg/glue.py": "Glue is a service of AWS, and publishes databases in S3 alone"}
DIRECTORY_CODE = {
    "adopt/candidate_file.py": "a plain path, or a URL of Hadoop's, is one of this machine",
    "ingest/drops/announce_files.py": "a directory is named by its path too",
    "service/local/pipeline.py": "the local pipeline watches a directory",
    "service/check_store/check_run.py": "a directory is removed as a whole, with the folders made for it",
    "store/__init__.py": "exports the classes",
}


def stores_told_apart(source: str) -> set[str]:
    """The ways in which code distinguishes kinds of stores by itself, instead of asking the store or its scheme."""
    tree = ast.parse(source)
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dolmen.store")
        for alias in node.names
    }
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"s3a?:(//)?|s3a?", node.value)
    }
    return texts | imported & {"S3", "MEMORY", "FILE", "S3Store", "LocalStore", "MemoryStore"}


def test_no_other_code_tells_stores_apart() -> None:
    package = ROOT / "shared/dolmen"
    found = {
        path.relative_to(package).as_posix(): apart
        for path in sorted(package.rglob("*.py"))
        if not path.relative_to(package).as_posix().startswith(STORE_CODE)
        and (apart := stores_told_apart(path.read_text()))
    }
    for file in DIRECTORY_CODE:
        found[file] = found.get(file, set()) - {"FILE", "LocalStore"}
    assert {file: apart for file, apart in found.items() if apart and file not in AWS_CODE} == {}


@pytest.mark.parametrize("source", ["url.startswith('s3://')", "from dolmen.store.base import S3", "scheme == 's3'"])
def test_code_that_tells_stores_apart_is_found(source: str) -> None:
    assert stores_told_apart(source)


def test_every_property_has_a_field_of_the_settings_that_read_it() -> None:
    ingest = set(IngestSettings.__struct_fields__) - {"cdc", "dialect"}
    ingest |= {name.removeprefix("ingest_") for name in DIALECT_PROPERTIES}
    attributes = {each.attribute or name.removeprefix("ingest_") for name, each in DIALECT_PROPERTIES.items()}
    assert attributes == {*Dialect.__struct_fields__}
    cdc = {name.removesuffix("_us") for name in CdcSettings.__struct_fields__}
    older = {"ingest_on_extra"}  # what ingest_new_columns is while it is not set
    assert set(INGEST_PROPERTIES) - older == {f"ingest_{name}" for name in ingest} | {f"cdc_{name}" for name in cdc}
    table = set(TableSettings.__struct_fields__)
    assert set(TABLE_PROPERTIES) == table | set(INGEST_PROPERTIES)
    database = {name.removesuffix("_us") for name in DatabaseSettings.__struct_fields__}
    assert set(DATABASE_PROPERTIES) == database
