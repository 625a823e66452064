"""The whole page: its style, its head, and its sections in the order of what matters most."""

from __future__ import annotations

from dolmen.base.units import count_text, duration_text
from dolmen.maintenance.health.elements import Html, ago_text, element, share_text, size_text, small_print, time_text
from dolmen.maintenance.health.health import Concern, Health, Level
from dolmen.maintenance.health.sections import background, erasures, pipeline, unknown_facts, versions
from dolmen.maintenance.health.table_sections import table_overview, table_panels

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f4f5f7; --surface: #ffffff; --text: #1b2129; --muted: #56616f; --edge: #d9dee5; --track: #e6e9ee;
  --accent: #0f6e66; --accent-soft: #9fd0c9; --small: #a8520c; --command: #eef1f4;
  --danger: #b3261e; --danger-soft: #fdecea; --warning: #865400; --warning-soft: #fff4dc;
  --notice: #2451b2; --notice-soft: #eaf0fd; --well: #176b3a; --well-soft: #e5f5eb;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #10141a; --surface: #181e26; --text: #e6eaf0; --muted: #a4afbd; --edge: #2d3641; --track: #2a323d;
    --accent: #4fc3b4; --accent-soft: #285d57; --small: #f0a04b; --command: #10151b;
    --danger: #ff9d94; --danger-soft: #3a1c1b; --warning: #f3c467; --warning-soft: #352910;
    --notice: #9dbcff; --notice-soft: #1b2741; --well: #7fd8a2; --well-soft: #16301f;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
}
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 8px; top: 8px; background: var(--surface); padding: 8px 12px; z-index: 1; }
.page { max-width: 1120px; margin: 0 auto; padding: 24px 16px 48px; }
h1, h2, h3, h4 { line-height: 1.25; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 1.25rem; margin: 40px 0 12px; }
h3 { font-size: 1.05rem; margin: 0; }
h4 { font-size: 0.95rem; margin: 0 0 8px; }
p { margin: 0 0 8px; max-width: 75ch; }
p, li, caption { overflow-wrap: anywhere; }
a { color: var(--accent); }
a:focus-visible, summary:focus-visible, [tabindex]:focus-visible {
  outline: 3px solid var(--accent); outline-offset: 2px; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; font-size: 0.875em; }
code { overflow-wrap: anywhere; }
.whole { white-space: nowrap; }
pre { margin: 8px 0 0; padding: 8px 12px; background: var(--command); border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; user-select: all; }
.muted { color: var(--muted); }
.small-print { color: var(--muted); font-size: 0.875rem; }
.concerns + .small-print { margin-top: 10px; }
.bars + .small-print { margin-top: 8px; }
.card > :last-child, .panel > :last-child { margin-bottom: 0; }
.brand { display: flex; align-items: center; gap: 8px; color: var(--muted); font-weight: 600; margin-bottom: 16px; }
.brand svg { width: 24px; height: 24px; color: var(--accent); }
.brand a { margin-left: auto; font-weight: 400; }
.where { color: var(--muted); margin-bottom: 20px; overflow-wrap: anywhere; max-width: none; }

.status { display: flex; gap: 12px; align-items: center; padding: 14px 16px; border-radius: 10px; font-weight: 600;
  border: 1px solid currentColor; margin-bottom: 16px; }
.status .sign { font-size: 1.3rem; line-height: 1; }
.well { color: var(--well); background: var(--well-soft); }
.danger { color: var(--danger); background: var(--danger-soft); }
.warning { color: var(--warning); background: var(--warning-soft); }
.notice { color: var(--notice); background: var(--notice-soft); }
.concerns { list-style: none; margin: 0; padding: 0; display: grid; gap: 12px; grid-template-columns: minmax(0, 1fr); }
.concern { background: var(--surface); border: 1px solid var(--edge); border-left-width: 5px; border-radius: 10px;
  padding: 14px 16px; color: var(--text); }
.concern.danger { border-left-color: var(--danger); }
.concern.warning { border-left-color: var(--warning); }
.concern.notice { border-left-color: var(--notice); }
.concern .head { display: flex; gap: 10px; align-items: baseline; flex-wrap: wrap; margin-bottom: 4px; }
.badge { font-size: 0.75rem; font-weight: 700; padding: 1px 8px; border-radius: 99px; border: 1px solid currentColor;
  white-space: nowrap; }
.concern p { margin: 0; color: var(--muted); }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 24px 0 0; }
.figures > div { background: var(--surface); border: 1px solid var(--edge); border-radius: 10px; padding: 12px 14px; }
.figures dt { color: var(--muted); font-size: 0.875rem; }
.figures dd { margin: 2px 0 0; font-size: 1.35rem; font-weight: 600; line-height: 1.3;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.figures .note { display: block; font-size: 0.8125rem; font-weight: 400; color: var(--muted); }

.card, .scroll { background: var(--surface); border: 1px solid var(--edge); border-radius: 10px; }
.card { padding: 16px; margin-bottom: 12px; }
.scroll { overflow-x: auto; margin-bottom: 12px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); font-size: 0.875rem; padding: 10px 14px 2px; }
.scroll th, .scroll td { text-align: left; padding: 8px 14px; border-bottom: 1px solid var(--edge);
  vertical-align: top; }
.scroll tbody tr:last-child > * { border-bottom: 0; }
.scroll thead th { color: var(--muted); font-size: 0.8125rem; font-weight: 600; white-space: nowrap; }
.scroll tbody th { font-weight: 600; }
.scroll td { min-width: 5.5rem; }
.scroll .words { min-width: 14rem; overflow-wrap: anywhere; }
.scroll .number, .bars .number { text-align: right; white-space: nowrap; }
.scroll .time { white-space: nowrap; }
.scroll .id { min-width: 11rem; }
.scroll tbody th, .scroll thead th:first-child { position: sticky; left: 0; background: var(--surface); }
.tag { display: inline-block; font-size: 0.75rem; font-weight: 600; color: var(--muted); border: 1px solid var(--edge);
  border-radius: 99px; padding: 0 7px; margin-left: 4px; white-space: nowrap; }
.tag.small { color: var(--small); border-color: currentColor; }

details.table { margin-bottom: 12px; padding: 0; }
details.table > summary { cursor: pointer; padding: 14px 16px; overflow-wrap: anywhere; }
details.table > summary h3 { display: inline; }
details.table > summary .muted { margin-left: 8px; font-size: 0.875rem; }
.inside { padding: 0 16px 16px; }
.inside > .small-print { margin-bottom: 14px; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 24px 32px; }
.panel { min-width: 0; }

svg { display: block; }
.fill { fill: var(--accent); }
.fill.small { fill: var(--small); }
.fill.danger { fill: var(--danger); }
.fill.warning { fill: var(--warning); }
.track { fill: var(--track); }
.meter { width: 100%; height: 10px; border-radius: 3px; }
.bars th, .bars td { padding: 2px 0; font-size: 0.875rem; font-weight: 400; text-align: left; }
.bars th { white-space: nowrap; padding-right: 10px; width: 1%; }
.bars thead th { color: var(--muted); font-size: 0.75rem; }
.bars thead th:last-child { text-align: right; padding-right: 0; }
.bars .number { padding-left: 10px; width: 1%; }
.bars .tag { margin-left: 6px; }
.labelled { display: grid; grid-template-columns: 9rem 1fr; gap: 2px 12px; align-items: center; margin-bottom: 10px;
  font-size: 0.875rem; }
.labelled .amount { grid-column: 2; color: var(--muted); font-size: 0.8125rem; }
.chart { display: grid; grid-template-columns: auto 1fr; gap: 4px 8px; font-size: 0.75rem;
  color: var(--muted); margin-bottom: 8px; }
.y-axis { display: flex; flex-direction: column; justify-content: space-between; text-align: right;
  line-height: 1; }
.plot svg { width: 100%; height: 130px; overflow: visible; }
.x-axis { grid-column: 2; display: flex; justify-content: space-between; }
.grid { stroke: var(--edge); stroke-width: 1; vector-effect: non-scaling-stroke; }
.area { fill: var(--accent-soft); }
.line { fill: none; stroke: var(--accent); stroke-width: 2; vector-effect: non-scaling-stroke; }
.key { display: inline-block; width: 14px; height: 10px; margin-right: 6px;
  background: var(--accent-soft); border-radius: 2px; }
.key.line-key { height: 0; border-top: 2px solid var(--accent); background: none; vertical-align: middle; }
.key.tag-key { width: 4px; height: 12px; background: var(--small); }
.key.cursor-key { width: 4px; height: 12px; background: var(--notice); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 0.8125rem; color: var(--muted);
  margin-bottom: 8px; }
.strip { width: 100%; height: 36px; }
.tag-tick { fill: var(--small); }
.cursor-tick { fill: var(--notice); }
.ends { display: flex; justify-content: space-between; font-size: 0.8125rem; color: var(--muted); margin: 2px 0 8px; }
.facts { margin: 0; display: grid; grid-template-columns: auto 1fr; gap: 4px 16px; font-size: 0.9375rem; }
.facts dt { color: var(--muted); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.unknown { margin: 0; padding-left: 1.2em; }
.unknown li { margin-bottom: 6px; max-width: 80ch; }
footer { margin-top: 40px; }

@media (max-width: 560px) {
  .page { padding: 16px 12px 32px; }
  h1 { font-size: 1.4rem; }
  .figures { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .figures dd { font-size: 1.15rem; }
  .labelled { grid-template-columns: 1fr; }
  .labelled .amount { grid-column: 1; }
  .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin-bottom: 8px; }
}
@media print {
  :root {
    --ground: #fff; --surface: #fff; --text: #000; --muted: #444; --edge: #bbb; --track: #e6e9ee; --command: #f2f2f2;
    --accent: #0f6e66; --accent-soft: #9fd0c9; --small: #a8520c; --danger: #b3261e; --danger-soft: #fff;
    --warning: #865400; --warning-soft: #fff; --notice: #2451b2; --notice-soft: #fff; --well: #176b3a;
    --well-soft: #fff;
  }
  body { font-size: 11pt; }
  .page { max-width: none; padding: 0; }
  .skip, .brand a { display: none; }
  .scroll { overflow: visible; }
  .concern, .figures > div, .panel, tr { break-inside: avoid; }
  h2, h3, h4, caption { break-after: avoid; }
  svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The page's content security policy: no script runs in it, and nothing is loaded from anywhere."""

_SIGNS: dict[Level, tuple[str, str]] = {
    "danger": ("✖", "Danger"),
    "warning": ("▲", "Warning"),
    "notice": ("●", "Notice"),
}


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
        element("style", Html(STYLE)),
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
    left_out = f" Of {health.tables_left_out:,} smaller tables nothing is shown." if health.tables_left_out else ""
    return element(
        "footer",
        small_print(
            "All figures come from the metadata of the newest version. No data file was read, and no value of a row "
            f"is on this page.{left_out}"
        ),
    )
