"""The whole page: its style, its head, and its sections in the order of what matters most."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dolmen.base.units import count_text, duration_text, size_text
from dolmen.maintenance.health.elements import Html, ago_text, element, share_text, small_print, time_text
from dolmen.maintenance.health.health import Concern, Health, Level
from dolmen.maintenance.health.sections import background, erasures, pipeline, unknown_facts, versions
from dolmen.maintenance.health.table_sections import table_overview, table_panels

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The page's content security policy: no script runs in it, and nothing is loaded from anywhere."""

_SIGNS: dict[Level, tuple[str, str]] = {
    "danger": ("✖", "Danger"),
    "warning": ("▲", "Warning"),
    "notice": ("●", "Notice"),
}


@cache
def style() -> str:
    """The page's style sheet."""
    return "\n" + Path(__file__).with_name("page.css").read_text()


def draw_page(health: Health, *, link_to_itself: bool = False) -> str:
    """Draws a health as one HTML document that needs nothing else; with ``link_to_itself`` it can be reloaded."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="robots", content="noindex"),
        element("link", rel="icon", href="data:,"),
        element("title", f"dolmen: {health.url}"),
        element("style", Html(style())),
    )
    main = element(
        "main",
        _status(health),
        _concerns(health),
        _figures(health),
        table_overview(health),
        table_panels(health),
        versions(health),
        erasures(health),
        pipeline(health),
        background(health),
        unknown_facts(health),
        id="main",
    )
    skip = element("a", "To the content", class_="skip", href="#main")
    page = element("div", _header(health, link_to_itself), main, _footer(health), class_="page")
    return "<!DOCTYPE html>\n" + element("html", head, element("body", skip, page), lang="en") + "\n"


def _header(health: Health, link_to_itself: bool) -> Html:
    again = element("a", "Look again", href="/") if link_to_itself else None
    shape = element("path", fill="currentColor", d="M2 6h20v4H2z M4 11h4v9H4z M16 11h4v9h-4z")
    logo = element("svg", shape, viewBox="0 0 24 24", aria_hidden="true")
    version = health.versions.newest
    when = (
        f"Version {version:,}, committed {ago_text(health.debts.created_at, health.looked_at)}. "
        if version
        else "Nothing was ever committed here. "
    )
    return element(
        "header",
        element("div", logo, "dolmen", again, class_="brand"),
        element("h1", "Health of the database"),
        element(
            "p",
            element("code", health.url),
            element("br"),
            f"{when}Looked at on {time_text(health.looked_at)}, by the store's clock.",
            class_="where",
        ),
    )


def _status(health: Health) -> Html:
    worst = health.worst
    sign, text = "✔", "Nothing needs attention"
    if worst is not None:
        sign, _ = _SIGNS[worst]
        text = count_text(len(health.concerns), "thing needs attention", "things need attention")
    return element(
        "div",
        element("span", sign, class_="sign", aria_hidden="true"),
        element("span", text),
        class_=f"status {worst or 'well'}",
        role="status",
    )


def _concerns(health: Health) -> Html | None:
    if not health.concerns:
        return None
    items = [_concern(concern) for concern in health.concerns]
    note = small_print(
        "Commands take the database from the option ",
        element("code", "-d", class_="whole"),
        ", or from the variable ",
        element("code", "DOLMEN_DATABASE"),
        ".",
    )
    return element(
        "section",
        element("h2", "What needs attention", id="attention"),
        element("ol", *items, class_="concerns"),
        note if any(each.commands for each in health.concerns) else None,
        aria_labelledby="attention",
    )


def _concern(concern: Concern) -> Html:
    sign, word = _SIGNS[concern.level]
    return element(
        "li",
        element(
            "div",
            element("span", element("span", f"{sign} ", aria_hidden="true"), word, class_=f"badge {concern.level}"),
            element("h3", concern.title),
            class_="head",
        ),
        element("p", concern.detail),
        element("pre", "\n".join(concern.commands)) if concern.commands else None,
        class_=f"concern {concern.level}",
    )


def _figures(health: Health) -> Html:
    debts, kept = health.debts, health.versions
    files, rows, dead = health.total("files"), health.total("rows"), health.total("dead_rows")
    deletes = health.total("tombstones")
    figures = [
        ("Data files", size_text(health.total("bytes")), count_text(files, "file")),
        ("Rows in files", f"{rows:,}", f"{dead:,} of them deleted" if dead else "none of them known to be deleted"),
        ("Tables", f"{len(health.tables) + health.tables_left_out:,}", ""),
        ("Versions kept", f"{debts.versions:,}", f"for {duration_text(kept.retention_us)}"),
        ("Unresolved deletes", f"{deletes:,}", "they cost scans" if deletes else "none"),
        (
            "Manifest",
            share_text(debts.manifest_bytes, debts.manifest_budget),
            f"{size_text(debts.manifest_bytes)} of {size_text(debts.manifest_budget)}",
        ),
    ]
    parts = []
    for name, value, note in figures:
        value_with_note = element("dd", value, element("span", note, class_="note") if note else None)
        parts.append(element("div", element("dt", name), value_with_note))
    return element("dl", *parts, class_="figures")


def _footer(health: Health) -> Html:
    left_out = f" {health.tables_left_out:,} smaller tables are not shown." if health.tables_left_out else ""
    return element(
        "footer",
        small_print(
            "All figures come from the metadata of the newest version. No data file was read, and no value of a row "
            f"is on this page.{left_out}"
        ),
    )
