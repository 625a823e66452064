"""The page in a real browser: nothing is asked for, nothing goes wrong, nothing sticks out. Needs Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dolmen.base.runtime import Runtime
from dolmen.maintenance.health.page import draw_page
from dolmen.service.local.page_server import PageServer
from support.chromium import Chromium, find_chromium
from support.healths import busy_health, hostile

LONG, PROGRAM = bool(os.environ.get("DOLMEN_LONG")), find_chromium()
pytestmark = [
    pytest.mark.skipif(not LONG, reason="starts a browser: DOLMEN_LONG=1"),
    pytest.mark.skipif(LONG and PROGRAM is None, reason="there is no Chromium (in Debian: apt-get install chromium)"),
]
WIDTHS = [320, 360, 768, 1_280]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    assert PROGRAM
    with Chromium(PROGRAM) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, health = tmp_path_factory.mktemp("pages"), busy_health()
    pages = {"busy": draw_page(health), "hostile": draw_page(hostile(health))}
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page)
    return {name: folder / f"{name}.html" for name in pages}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["busy", "hostile"])
def test_nothing_sticks_out_and_nothing_is_asked_for(
    browser: Chromium, pages: dict[str, Path], name: str, width: int
) -> None:
    url = pages[name].as_uri()
    seen = browser.show(url, width=width)
    assert [request for request in seen.requests if not request.startswith("data:")] == [url]
    assert seen.messages == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("window.innerWidth") == width
    parts = "[...document.querySelectorAll('main > *, main > section > *')]"
    beyond = f"{parts}.filter(e => e.getBoundingClientRect().right > innerWidth)"
    assert browser.evaluate(f"{beyond}.map(e => e.outerHTML.slice(0, 200))") == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_follows_the_colours_of_the_reader(browser: Chromium, pages: dict[str, Path], dark: bool) -> None:
    browser.show(pages["busy"].as_uri(), width=1_000, dark=dark)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(", "))) < 200) == dark


def test_it_is_whole_without_scripts(browser: Chromium, pages: dict[str, Path]) -> None:
    seen = browser.show(pages["busy"].as_uri(), width=1_000, scripts=False)
    assert seen.messages == []
    assert browser.evaluate("document.scripts.length") == 0
    assert "What this page does not know" in browser.evaluate("document.body.innerText")


def test_drawings_have_room_and_names(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.show(pages["busy"].as_uri(), width=360)
    sizes = "e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height]"
    drawn = browser.evaluate(f"[...document.querySelectorAll('svg[role=img]')].map({sizes})")
    assert len(drawn) >= 2
    assert all(wide > 200 and high > 30 for wide, high in drawn)
    tree = browser.ask("Accessibility.getFullAXTree")["nodes"]
    names = {node["name"]["value"] for node in tree if node.get("role", {}).get("value") in ("image", "img")}
    assert {"Kept versions", "Overlap of files in the sort key"} <= {
        name.partition(" Over ")[0].partition(" Versions ")[0] for name in names
    }


def test_it_can_be_printed(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.show(pages["busy"].as_uri(), width=1_000, dark=True)
    paper = browser.print_pdf()
    assert paper.startswith(b"%PDF")
    assert 1 < paper.count(b"/Type /Page\n") < 15


def test_a_served_page_asks_for_itself_alone(browser: Chromium) -> None:
    health = busy_health()
    with PageServer(lambda: draw_page(health, link_to_itself=True), 0, Runtime()) as server:
        seen = browser.show(server.address, width=1_000)
        assert [request for request in seen.requests if not request.startswith("data:")] == [server.address]
        assert seen.messages == []
        browser.evaluate("document.querySelector('.brand a').click()")
        assert browser.show(server.address, width=1_000).messages == []
