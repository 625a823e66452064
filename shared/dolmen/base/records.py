"""``replace`` and ``field_names`` for records: dataclasses, and Structs, which import faster. Fact sheets show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

if TYPE_CHECKING:
    from dataclasses import replace as replace  # so that type checkers check the names and types of fields
else:

    def replace(record: Any, /, **changes: Any) -> Any:
        """A copy of a record with other values."""
        return (structs if isinstance(record, Struct) else dataclasses).replace(record, **changes)


def field_names(record: Any) -> tuple[str, ...]:
    """The names of a record's fields, in their order."""
    return record.__struct_fields__ if isinstance(record, Struct) else tuple(record.__dataclass_fields__)


def repr_without(record: Struct, *names: str) -> str:
    """The ``repr`` of a record without some of its fields."""
    shown = (f"{name}={getattr(record, name)!r}" for name in record.__struct_fields__ if name not in names)
    return f"{type(record).__name__}({', '.join(shown)})"


class FactSheet:
    """A result that is shown as text, one fact a line, and in notebooks as a table."""

    def facts(self) -> list[tuple[str, str]]:
        """The facts, as pairs of name and value."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = self.facts()
        width = max(len(name) for name, _ in facts)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)

    def _repr_html_(self) -> str:
        return html_table(self.facts())


def html_table(facts: Iterable[tuple[str, str]]) -> str:
    """The HTML of a table of names and values."""
    from html import escape

    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    return f"<table>{rows}</table>"
