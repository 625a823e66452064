"""HTML of elements and texts. Every text is escaped, unless it is ``Html`` already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = frozenset(("meta", "link", "br", "rect", "path", "line"))


class Html(str):
    """Text that is HTML, as ``element`` makes it. Nothing else makes it of a text that came from outside."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        children: ``Html`` as it is, and anything else as escaped text; None is left out.
        attributes: names end in ``_`` where Python reserves them, and ``_`` inside stands for ``-``. None and False
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
