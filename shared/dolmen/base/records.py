"""``replace`` and ``field_names`` for records of both kinds: dataclasses, and Structs, which import faster."""

from __future__ import annotations

import dataclasses
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
