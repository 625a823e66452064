"""Charts as SVG, by hand: bars on a logarithmic scale, and lines. They follow the reader's light or dark page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 760
_BAR = 13
_LABEL = 190
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 13px; }
.small { font-size: 11px; }
.grid { stroke: #d0d7de; stroke-width: 1; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .grid { stroke: #3d444d; } }
"""

COLORS = {
    "dolmen": "#2f81f7",
    "pyarrow": "#8b949e",
    "delta": "#d1495b",
    "iceberg": "#2a9d8f",
    "lance": "#e09f3e",
    "ducklake": "#9b5de5",
}
"""A color for each peer, which can be seen on light and dark pages."""


@dataclass(frozen=True)
class Bar:
    """One bar: its peer, its value (None: there is none), and the text at its end."""

    peer: str
    value: float | None
    text: str


def bars(title: str, groups: Mapping[str, Sequence[Bar]], names: Mapping[str, str]) -> str:
    """Horizontal bars in groups, longer means more, on a logarithmic scale.

    Args:
        names: of the peers, for the legend.
    """
    values = [bar.value for group in groups.values() for bar in group if bar.value]
    least = 10 ** math.floor(math.log10(min(values, default=1.0)))
    most = max(10 ** math.ceil(math.log10(max(values, default=10.0))), 10 * least)
    room = WIDTH - _LABEL - 90
    scale = room / math.log10(most / least)
    drawn, top = [_legend(names, 40)], 62
    bottom = top + sum(len(group) * _BAR + 14 for group in groups.values())
    for power in range(round(math.log10(least)), round(math.log10(most)) + 1):
        x = _LABEL + (power - math.log10(least)) * scale
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6}" y2="{bottom}"/>')
        drawn.append(f'<text class="small" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{10.0**power:g}</text>')
    for label, group in groups.items():
        middle = top + len(group) * _BAR / 2 + 4
        drawn.append(f'<text x="{_LABEL - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        for bar in group:
            long = max(1.0, math.log10(bar.value / least) * scale) if bar.value else 0.0
            drawn.append(
                f'<rect x="{_LABEL}" y="{top}" width="{long:.1f}" height="{_BAR - 2}" fill="{COLORS[bar.peer]}"/>'
                f'<text class="small" x="{_LABEL + long + 4:.1f}" y="{top + 9}">{escape(bar.text)}</text>'
            )
            top += _BAR
        top += 14
    return _svg(title, bottom + 24, drawn)


@dataclass(frozen=True)
class Panel:
    """One diagram of lines: for each peer its points, (round, value)."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def lines(title: str, panels: Sequence[Panel], names: Mapping[str, str], columns: int = 2) -> str:
    """Diagrams side by side, all from round 0, on a logarithmic scale."""
    wide, high = WIDTH // columns, 190
    drawn = [_legend(names, 40)]
    for number, panel in enumerate(panels):
        left, top = number % columns * wide + 56, number // columns * high + 80
        drawn += _panel(panel, left, top, wide - 76, high - 66)
    return _svg(title, 62 + -(-len(panels) // columns) * high, drawn)


def _panel(panel: Panel, left: int, top: int, wide: int, high: int) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    values = [value for _, value in points if value > 0]
    least = 10 ** math.floor(math.log10(min(values, default=1.0)))
    most = max(10 ** math.ceil(math.log10(max(values, default=10.0))), 10 * least)
    last = max((turn for turn, _ in points), default=1.0) or 1.0

    def at(turn: float, value: float) -> tuple[float, float]:
        share = math.log10(max(value, least) / least) / math.log10(most / least)
        return left + turn / last * wide, top + (1 - share) * high

    drawn = [f'<text class="title" x="{left}" y="{top - 8}">{escape(panel.title)}</text>']
    for power in range(round(math.log10(least)), round(math.log10(most)) + 1):
        _, y = at(0, 10.0**power)
        drawn.append(f'<line class="grid" x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="small" x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for turn in (0, last):
        x, _ = at(turn, least)
        drawn.append(f'<text class="small" x="{x:.1f}" y="{top + high + 14}" text-anchor="middle">{turn:g}</text>')
    for peer, line in panel.lines.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[peer]}" stroke-width="2"/>')
    return drawn


def _legend(names: Mapping[str, str], y: int) -> str:
    drawn, x = [], 8.0
    for peer, name in names.items():
        drawn.append(f'<rect x="{x:.0f}" y="{y - 10}" width="11" height="11" fill="{COLORS[peer]}"/>')
        drawn.append(f'<text class="small" x="{x + 15:.0f}" y="{y}">{escape(name)}</text>')
        x += 30 + 6.1 * len(name)
    return "".join(drawn)


def _svg(title: str, high: float, drawn: Sequence[str]) -> str:
    inside = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high:.0f}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{_STYLE}</style>\n'
        f'<text class="title" x="8" y="18">{escape(title)}</text>\n{inside}\n</svg>\n'
    )
