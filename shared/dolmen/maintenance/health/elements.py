"""Parts of the page: HTML elements whose texts are escaped, tables, meters, and numbers, sizes and times as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from dolmen.base.units import LAST_US, SIZE_UNITS, duration_text, utc


def power_text(exponent: int) -> str:
    unit = min(exponent // 10, len(SIZE_UNITS) - 1)
    return f"{2 ** (exponent - 10 * unit):,} {SIZE_UNITS[unit]}"


def range_text(first: int, end: int) -> str:
    least, greatest = power_text(first), power_text(end)
    return f"{least.partition(' ')[0] if least.partition(' ')[2] == greatest.partition(' ')[2] else least} – {greatest}"


def time_text(at_us: int) -> str:
    """A time to the minute, in UTC; "" for 0."""
    if not at_us:
        return ""
    return f"{utc(at_us):%Y-%m-%d %H:%M} UTC" if 0 < at_us <= LAST_US else "beyond the year 9999"


def ago_text(at_us: int, now_us: int) -> str:
    """How long before now a time was, or how long after now it will be: ``3h ago``, ``in 2d``."""
    if at_us > now_us:
        return f"in {duration_text(at_us - now_us)}"
    return f"{duration_text(now_us - at_us)} ago"


def share_text(part: float, whole: float) -> str:
    """A share in percent: ``12 %``; "<1 %" for a small one."""
    share = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < share < 1 else f"{share:.0f} %"


_VOID = frozenset(("meta", "link", "br", "rect", "path", "line"))


class Html(str):
    """Text that is HTML, as ``element`` makes it. Nothing else makes it of a text that came from outside."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Children that are not ``Html`` are escaped; None is left out.

    Args:
        attributes: names end in ``_`` where Python reserves them, and ``_`` inside becomes ``-``. None and False
            leave an attribute out, and True gives it no value.
    """
    shown = "".join(_attribute(name, value) for name, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{shown}>" if name in ("meta", "link", "br") else f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
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


WIDTH, HEIGHT = 1_000, 100


def meter(part: float, whole: float, kind: str = "") -> Html:
    """A bar that is full to a share, with a class for its colour. Decoration: the text beside it says the same."""
    share = min(max(part / whole, 0.0), 1.0) if whole else 0.0
    fill = element("rect", class_=f"fill {kind}".strip(), width=round(share * WIDTH, 1), height=10)
    track = element("rect", class_="track", width=WIDTH, height=10)
    return element(
        "svg", track, fill, class_="meter", viewBox=f"0 0 {WIDTH} 10", preserveAspectRatio="none", aria_hidden="true"
    )


def labelled_meter(label: str, part: float, whole: float, text: str, kind: str = "") -> Html:
    """A bar between its name, and its figure and share."""
    return element(
        "div",
        element("span", label, class_="label"),
        meter(part, whole, kind),
        element("span", f"{text} ({share_text(part, whole)})", class_="amount"),
        class_="labelled",
    )


def grid(caption: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> Html:
    """A table. The first cell of each row is its header.

    Args:
        columns: the class of its cells for each header: number, time, words; "" for others.
        rows: texts, which are escaped, or HTML.
    """
    kinds = [kind or None for kind in columns.values()]
    head = (element("th", name, scope="col", class_=kind or None) for name, kind in columns.items())
    body = []
    for first, *others in rows:
        cells = (element("td", cell, class_=kind) for cell, kind in zip(others, kinds[1:], strict=True))
        body.append(element("tr", element("th", first, class_=kinds[0], scope="row"), *cells))
    thead = element("thead", element("tr", *head))
    table = element("table", element("caption", caption), thead, element("tbody", *body))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def small_print(*children: object) -> Html:
    return element("p", *children, class_="small-print")


def key_legend(*keys: tuple[str, str]) -> Html:
    """The legend of a chart: the class of each key, and its text."""
    spans = (
        element("span", element("span", class_=f"key {kind}".strip(), aria_hidden="true"), text) for kind, text in keys
    )
    return element("div", *spans, class_="legend")


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    parts = [part for name, value in pairs for part in (element("dt", name), element("dd", value))]
    return element("dl", *parts, class_="facts")
