"""How much memory the items of decoded lists and maps take as columns, known before they are made.

A NULL takes a byte of the file, and as much memory as any value of its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from dolmen.ingest.formats.limits import width


def widest_item(kind: pa.DataType) -> int:
    """The most bytes that an item in a list or map of this type takes; 0 if there are none in it."""
    if t.is_struct(kind):
        return max((widest_item(field.type) for field in kind), default=0)
    item = _item(kind)
    return 0 if item is None else max(width(item), widest_item(item))


def item_bytes(values: Sequence[Any], kind: pa.DataType) -> int:
    """The bytes that all items in values of this type take."""
    if widest_item(kind) == 0:
        return 0
    there = [value for value in values if value is not None]
    if t.is_struct(kind):
        return sum(item_bytes([value[field.name] for value in there], field.type) for field in kind)
    item = _item(kind)
    size = sum(map(len, there)) * width(item)
    if widest_item(item):
        inner = (value.values() if t.is_map(kind) else value for value in there)
        size += item_bytes(list(chain.from_iterable(inner)), item)
    return size


def _item(kind: pa.DataType) -> pa.DataType | None:
    return kind.value_type if t.is_list(kind) else kind.item_type if t.is_map(kind) else None
