"""Facts about plans, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Facts = Sequence[tuple[str, str]]


def text(facts: Facts) -> str:
    """One fact a line, names aligned."""
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)


def html(facts: Facts) -> str:
    """A table."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    return f"<table>{rows}</table>"
