"""The page about a database's health: whole, harmless, readable by everybody, and without values of rows."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen.base.units import count_text, size_text
from dolmen.maintenance.health.elements import power_text, range_text, share_text, time_text
from dolmen.maintenance.health.health import Health
from dolmen.maintenance.health.page import POLICY, draw_page, style
from support.healths import HOSTILE, SECRET, busy_health, busy_place, hostile
from support.tables import World

VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Reads a page, and checks that its elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), "an attribute stands twice"
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def health() -> Health:
    return busy_health()


@pytest.fixture(scope="module")
def page(health: Health) -> Outline:
    return Outline(draw_page(health))


def test_the_page_is_whole_and_loads_nothing(page: Outline) -> None:
    assert {tag for tag, _ in page.elements}.isdisjoint(
        {"script", "img", "iframe", "object", "embed", "form", "input", "base", "audio", "video", "use", "image"}
    )
    for _, attributes in page.elements:
        assert not {name for name in attributes if name.startswith("on")}
        assert not attributes.keys() & {"src", "srcset", "xlink:href", "action", "style"}
        href = attributes.get("href")
        assert href is None or href.startswith("#") or href == "data:,"
    policy = [meta["content"] for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy == [POLICY]
    assert "default-src 'none'" in POLICY
    assert "url(" not in "".join(page.texts)
    assert "@import" not in "".join(page.texts)


def test_only_a_page_that_is_served_links_to_itself(health: Health) -> None:
    served = Outline(draw_page(health, link_to_itself=True))
    assert [link["href"] for link in served.of("a") if link["href"] == "/"] == ["/"]


def test_the_page_tells_of_everything(page: Outline) -> None:
    for words in (
        "orders",
        "before-import",
        "replica",
        "sort key",
        "least key",
        "unresolved deletes",
        "key index",
        "Iceberg",
        "erase-7",
        "by mail",
        "in danger",
        "13 rejects wait",
        "4 messages",
        "dolmen resolve orders",
        "dolmen verify",
    ):
        assert words in page.text, words


def test_no_value_of_a_row_is_in_it(health: Health) -> None:
    document = msgspec.json.encode(health.to_dict()).decode()
    for told in (draw_page(health), document):
        assert SECRET not in told
        assert "7777" not in told
        assert "7,777" not in told
    assert SECRET in str(busy_place().manifest)  # which has bounds and predicates


def test_names_are_text_whatever_they_are(health: Health) -> None:
    page = draw_page(hostile(health))
    assert "<script" not in page
    assert "<img" not in page
    assert "\x00" not in page
    assert "\u202e" not in page
    page.encode()
    read = Outline(page)
    assert "script" not in {tag for tag, _ in read.elements}
    assert read.text.count("<script>alert(1)</script>") > 50
    assert all(not name.startswith("on") for _, attributes in read.elements for name in attributes)
    assert {tag for tag, _ in read.elements} == {tag for tag, _ in Outline(draw_page(health)).elements}


def test_hostile_names_of_columns_messages_and_requests_come_through_a_real_database() -> None:
    world = World()
    column = "<script>alert(1)</script>"
    world.db.create_table("t", pa.schema([(column, pa.int64())]), sort_key=column)
    table = world.db.table("t")
    table.append(pa.table({column: [1, 2]}), request="<b>request</b>", message="</style><script>alert(2)</script>")
    page = world.db.report()
    assert "<script" not in page
    assert "<b>" not in page
    assert page.count("</style>") == 1
    text = Outline(page).text
    for name in (column, "<b>request</b>", "</style><script>alert(2)</script>"):
        assert name in text


def test_everybody_can_read_it(page: Outline) -> None:
    """What assistive technology goes by: names, headers, captions, and one order of headings."""
    [html] = page.of("html")
    assert html["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "href"):
            wanted = attributes.get(name)
            if wanted and (name != "href" or wanted.startswith("#")):
                assert all(each.removeprefix("#") in ids for each in wanted.split()), wanted
    drawings = page.of("svg")
    assert all(
        ("aria-labelledby" in each and each.get("role") == "img") or each.get("aria-hidden") for each in drawings
    )
    assert sum(tag == "title" for tag, _ in page.elements) > 1
    assert sum(tag == "title" for tag, _ in page.elements) == sum(tag == "desc" for tag, _ in page.elements) + 1
    assert all(header.get("scope") for header in page.of("th"))
    assert len(page.of("caption")) == len([each for each in page.of("div") if each.get("role") == "region"])
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_colours_have_contrast_in_light_and_dark() -> None:
    """WCAG 2 asks for 4.5 between text and ground."""
    screen = style().split("@media print")[0].split("prefers-color-scheme")
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in screen)
    for colours in (light, light | dark):
        for ground in ("ground", "surface"):
            for text in ("text", "muted", "accent", "danger", "warning", "notice", "well", "small"):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground, colours[text], colours[ground])
        for kind in ("danger", "warning", "notice", "well"):
            assert contrast(colours[kind], colours[f"{kind}-soft"]) >= 4.5, kind
        assert contrast(colours["text"], colours["command"]) >= 4.5
        for shape in ("accent", "small", "danger", "warning", "notice"):
            assert contrast(colours[shape], colours["track"]) >= 3, shape
        assert contrast(colours["accent"], colours["accent-soft"]) >= 3


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_an_empty_database_and_one_without_rows_have_a_page_too() -> None:
    world = World()
    text = Outline(world.db.report()).text
    assert "Nothing was ever committed here" in text
    assert "Nothing needs attention" in text
    world.db.create_table("t", pa.schema([("k", pa.int64())]), sort_key="k")
    assert "0 files" in Outline(world.db.report()).text


def test_a_page_of_very_many_tables_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolmen.maintenance.health.look.MOST_TABLES", 60)
    world = World()
    with world.db.transaction() as transaction:
        for number in range(70):
            transaction.create_table(f"t{number}", pa.schema([("k", pa.int64())]))
    page = Outline(world.db.report())
    assert len(page.of("details")) == 50
    assert "10 smaller tables" in page.text
    assert not any("open" in each for each in page.of("details"))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (size_text(0), "0 bytes"),
        (size_text(999), "999 bytes"),
        (size_text(1_000), "0.98 KB"),
        (size_text(12_900), "12.6 KB"),
        (size_text(5 * 2**40), "5 TB"),
        (size_text(2**63), "8 EB"),
        (size_text(1_100_000), "1.05 MB"),
        (size_text(700 * 2**20), "700 MB"),
        (range_text(14, 15), "16 – 32 KB"),
        (range_text(9, 10), "512 bytes – 1 KB"),
        (count_text(1, "file"), "1 file"),
        (count_text(2_000, "file"), "2,000 files"),
        (power_text(0), "1 bytes"),
        (power_text(16), "64 KB"),
        (power_text(28), "256 MB"),
        (share_text(0, 0), "0 %"),
        (share_text(1, 1_000), "<1 %"),
        (share_text(1, 2), "50 %"),
        (time_text(0), ""),
        (time_text(2**62), "beyond the year 9999"),
        (time_text(-5), "beyond the year 9999"),
        (time_text(1_760_000_000_000_000), "2025-10-09 08:53 UTC"),
    ],
)
def test_numbers_are_said_as_people_say_them(told: str, words: str) -> None:
    assert told == words


@pytest.mark.slow
def test_a_hostile_health_is_hostile() -> None:
    found: Any = hostile(busy_health())
    assert HOSTILE in found.url
    assert HOSTILE in found.tables[0].name
    assert HOSTILE in found.versions.tags[0].name
