"""The site of docs/: every page stands in its navigation, every link leads somewhere, every command is described."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from scripts.command_reference import reference

from dolmen.cli.run import command_line
from dolmen_simulator.command import app as simulator

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("[A-Z]*.md"), ROOT / "simulator" / "README.md"])
GENERATED = {"commands.md"}


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name variables and functions of MkDocs."""


Loader.add_multi_constructor("", lambda loader, suffix, node: None)


def navigation() -> list[Any]:
    nav: list[Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    return nav


def pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry if isinstance(entry, list) else entry.values():
            yield from pages_of(each)


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        kept = re.sub(r"[^\w\- ]", "", unicodedata.normalize("NFC", text))
        found.add(kept.replace(" ", "-"))
    return found


def test_the_glossary_has_as_many_words_as_other_pages_say() -> None:
    words = re.findall(r"^\| \*\*", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) == 30
    for page in (DOCS / "glossary.md", DOCS / "index.md", ROOT / "CONTRIBUTING.md"):
        assert re.search(r"\b30\b", page.read_text()), page


def test_every_page_stands_in_the_navigation_once() -> None:
    listed = sorted(pages_of(navigation()))
    assert listed == sorted({path.name for path in DOCS.glob("*.md")} | GENERATED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(page))  # bucket[16](id) is no link
    for path, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = (page.parent / path).resolve() if path else page
        if path not in GENERATED:
            assert target.exists(), path
            assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def described(parameter: Any) -> bool:
    """Whether it is an option of the command; those that complete commands in a shell come from Typer."""
    return parameter.param_type_name == "option" and "completion" not in parameter.name


def test_the_reference_of_commands_has_every_command_and_every_option() -> None:
    page = reference()

    def check(name: str, command: Any) -> None:
        assert f" {name}\n" in page
        for parameter in command.params:
            for option in parameter.opts if described(parameter) else ():
                assert f"`{option}`" in page.partition(f" {name}\n")[2].partition("\n## ")[0], (name, option)
        for each, inner in getattr(command, "commands", {}).items():
            check(f"{name} {each}", inner)

    for name, command in {**command_line().commands, "simulate": typer.main.get_command(simulator)}.items():
        check(f"dolmen {name}", command)


def test_the_reference_of_python_names_everything_that_is_public() -> None:
    import dolmen

    page = (DOCS / "api.md").read_text()
    named = set(re.findall(r"^::: \S+\.(\w+)$", page, re.MULTILINE))
    assert set(dolmen.__all__) - {"Error", "__version__"} <= named  # Error stands with the other errors
    assert "::: dolmen.errors" in page
