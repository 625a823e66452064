"""Charts as inline SVG, stretched to the room that they get: no text is in them but title and description.

Tables of figures that scroll by themselves where they do not fit.

HTML of elements and texts. Every text is escaped, unless it is ``Html`` already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from dolmen.base.units import count_text
from dolmen.maintenance.health.concerns import power_text, range_text, share_text
from dolmen.maintenance.health.health import FileSizes, KeptVersions, SortOverlap

_VOID = frozenset(("meta", "link", "br", "rect", "path", "line"))


class Html(str):
    """Text that is HTML, as ``element`` makes it. Nothing else makes it of a text that came from outside."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        children: ``Html`` as it is, and anything else as escaped text; None is left out.
        attributes: names end in ``_`` where Python reserves them, and ``_`` inside becomes ``-``. None and False
            leave an attribute out, and True gives it no value.
    """
    shown = "".join(_attribute(name, value) for name, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{shown}>" if name in ("meta", "link", "br") else f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    """Several children after one another. See ``element``."""
    return Html("".join(_text(child) for child in children if child is not None))


def _text(child: object) -> str:
    return child if isinstance(child, Html) else escape(_visible(str(child)))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-") if name != "viewBox" else name
    return f" {shown}" if value is True else f' {shown}="{escape(_visible(str(value)))}"'


def _visible(text: str) -> str:
    """The text without control characters and lone surrogates, which HTML does not allow: they are shown escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in " \n" else c.encode("unicode_escape").decode() for c in text)


MOST_BARS = 14
"""The most bars of a histogram; neighbouring sizes share one if there are more."""


_WIDTH, _HEIGHT = 1_000, 100


def meter(part: float, whole: float, kind: str = "") -> Html:
    """A bar that is full to a share. Decoration: the text beside it says the same.

    Args:
        kind: class of its colour.
    """
    share = min(max(part / whole, 0.0), 1.0) if whole else 0.0
    fill = element("rect", class_=f"fill {kind}".strip(), width=round(share * _WIDTH, 1), height=10)
    track = element("rect", class_="track", width=_WIDTH, height=10)
    return element(
        "svg", track, fill, class_="meter", viewBox=f"0 0 {_WIDTH} 10", preserveAspectRatio="none", aria_hidden="true"
    )


def size_histogram(sizes: FileSizes) -> Html:
    """A table of sizes with a bar for each: small files have a colour and a word of their own."""
    least, greatest = min(sizes.counts), max(sizes.counts)
    step = -(-(greatest - least + 1) // MOST_BARS)
    bars = [
        (first, sum(sizes.counts.get(exponent, 0) for exponent in range(first, first + step)))
        for first in range(least, greatest + 1, step)
    ]
    most = max(count for _, count in bars)
    rows = [_bar(first, first + step, count, most, sizes.small_below_bytes) for first, count in bars]
    head = element(
        "tr", element("th", "size", scope="col"), element("td", class_="wide"), element("th", "files", scope="col")
    )
    return element("table", element("thead", head), element("tbody", *rows), class_="bars")


def _bar(first: int, end: int, count: int, most: int, small_below: int) -> Html:
    small = 2**end <= small_below
    label = range_text(first, end) if first else f"below {power_text(end)}"
    return element(
        "tr",
        element("th", label, element("span", " small", class_="tag small") if small else None, scope="row"),
        element("td", meter(count, most, "small" if small else ""), class_="wide"),
        element("td", f"{count:,}", class_="number"),
    )


def overlap_chart(overlap: SortOverlap, name: str) -> Html:
    """The depth of overlap over the range of the sort key, by rank.

    Args:
        name: unique on the page, for the ids of title and description.
    """
    parts = overlap.depths
    top = max(overlap.deepest, 1)
    width = _WIDTH / len(parts)

    def outline(depths: Iterable[float]) -> str:
        points = (
            f"{place * width:.1f},{_HEIGHT - depth / top * _HEIGHT:.1f} "
            f"{(place + 1) * width:.1f},{_HEIGHT - depth / top * _HEIGHT:.1f}"
            for place, depth in enumerate(depths)
        )
        return " ".join(points)

    greatest = outline(most for _, most in parts)
    mean = outline(mean for mean, _ in parts)
    description = (
        "Over the range of the sort key, from the least to the greatest, up to "
        f"{count_text(overlap.deepest, 'file')} share a value, and {overlap.mean:,.1f} on average."
    )
    drawing = element(
        "svg",
        element("title", "Overlap of files in the sort key", id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *(element("line", class_="grid", x1=0, x2=_WIDTH, y1=y, y2=y) for y in (0, _HEIGHT // 2, _HEIGHT)),
        element("path", class_="area", d=f"M0,{_HEIGHT} L{greatest} L{_WIDTH},{_HEIGHT} Z"),
        element("path", class_="line", d=f"M{mean}"),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )
    axis = [element("span", f"{top:,}"), element("span", "0")]
    return element(
        "div",
        element("div", *axis, class_="y-axis", aria_hidden="true"),
        element("div", drawing, class_="plot"),
        element(
            "div", element("span", "least key"), element("span", "greatest key"), class_="x-axis", aria_hidden="true"
        ),
        class_="chart",
    )


def version_strip(versions: KeptVersions) -> Html:
    """The kept versions as a bar, with marks of tags above and of cursors below."""
    marks = [*(tag.version for tag in versions.tags), *(cursor.version for cursor in versions.cursors)]
    first = min([max(versions.oldest, 1), *(max(version, 1) for version in marks)])
    span = max(versions.newest - first, 1)

    def x(version: int) -> float:
        return round((max(version, first) - first) / span * (_WIDTH - 8), 1)

    begin = x(versions.oldest)
    kept = element("rect", class_="fill", x=begin, y=12, width=_WIDTH - begin, height=12)
    ticks = [
        element("rect", class_="tick tag-tick", x=x(tag.version), y=2, width=6, height=18) for tag in versions.tags
    ]
    ticks += [
        element("rect", class_="tick cursor-tick", x=x(cursor.version), y=16, width=6, height=18)
        for cursor in versions.cursors
    ]
    description = (
        f"Versions {versions.oldest:,} to {versions.newest:,} are kept, {len(versions.tags):,} tags and "
        f"{len(versions.cursors):,} cursors are marked."
    )
    drawing = element(
        "svg",
        element("title", "Kept versions", id="versions-title"),
        element("desc", description, id="versions-desc"),
        element("rect", class_="track", y=12, width=_WIDTH, height=12),
        kept,
        *ticks,
        class_="strip",
        viewBox=f"0 0 {_WIDTH} 36",
        preserveAspectRatio="none",
        role="img",
        aria_labelledby="versions-title versions-desc",
    )
    ends = element(
        "div", element("span", f"version {first:,}"), element("span", f"version {versions.newest:,}"), class_="ends"
    )
    return join((drawing, ends))


def labelled_meter(label: str, part: float, whole: float, told: str, kind: str = "") -> Html:
    """A bar with its name before, and its figure and share behind."""
    return element(
        "div",
        element("span", label, class_="label"),
        meter(part, whole, kind),
        element("span", f"{told} ({share_text(part, whole)})", class_="told"),
        class_="labelled",
    )


@dataclass(frozen=True)
class GridColumn:
    """A column of a table.

    Args:
        name: its header.
        kind: class of its cells: number, time, words; "" for others.
    """

    name: str
    kind: str = ""


def grid(caption: str, columns: Sequence[GridColumn], rows: Iterable[Sequence[object]]) -> Html:
    """A table. The first cell of each row is its header.

    Args:
        caption: what its rows are.
        rows: texts, which are escaped, or HTML.
    """
    head = element("tr", *(element("th", each.name, scope="col", class_=each.kind or None) for each in columns))
    body = [
        element(
            "tr",
            *(
                element(
                    "th" if place == 0 else "td", cell, class_=column.kind or None, scope="row" if place == 0 else None
                )
                for place, (column, cell) in enumerate(zip(columns, row, strict=True))
            ),
        )
        for row in rows
    ]
    table = element("table", element("caption", caption), element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """A list of names and values."""
    parts = [part for name, value in pairs for part in (element("dt", name), element("dd", value))]
    return element("dl", *parts, class_="facts")
