"""Charts as inline SVG, stretched to the room that they get: no text is in them but title and description."""

from __future__ import annotations

from collections.abc import Iterable

from dolmen.maintenance.health.health import FileSizes, KeptVersions, SortOverlap
from dolmen.maintenance.health.page.markup import Html, element, join
from dolmen.maintenance.health.words import power_text, range_text, share_text

MOST_BARS = 14
"""The most bars of a histogram; neighbouring sizes share one if there are more."""
_WIDTH, _HEIGHT = 1_000, 100


def meter(part: float, whole: float, kind: str = "") -> Html:
    """A bar that is full to a share. Decoration: the same stands beside it in words.

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
        f"Over the range of the sort key, from the least to the greatest, up to {overlap.deepest:,} files share a "
        f"place, and {overlap.mean:,.1f} on average."
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
