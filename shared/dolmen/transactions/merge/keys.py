"""The rows that a merge must look at: those that may have a key of its source."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.keys import Keys
from dolmen.format.schema import Field
from dolmen.format.values import to_json, to_plain
from dolmen.predicate import And, Column, Compare, In, Literal, Predicate


def keys_predicate(keys: Keys, fields: tuple[Field, ...], *, listed: bool) -> Predicate:
    """A predicate that is TRUE for every row with one of the keys, and for few others.

    Args:
        keys: all of them, if they are listed; else some of them with the ends of each column. At least one.
        fields: the key's columns.
        listed: whether the predicate lists the values of each column; else it has their range.
    """
    parts: list[Predicate] = []
    for field in sorted(fields, key=lambda field: field.id):
        values = keys[str(field.id)]
        kind = str(values.type)
        column = Column(field.id, kind)
        if listed:
            distinct = pc.unique(values)
            plain = to_plain(distinct.take(pc.sort_indices(distinct)))
            parts.append(In(column, kind, tuple(to_json(value) for value in plain)))
            continue
        ends = pc.min_max(values)
        least, greatest = to_plain(pa.array([ends["min"], ends["max"]], values.type))
        parts.append(Compare(">=", column, Literal(kind, to_json(least))))
        parts.append(Compare("<=", column, Literal(kind, to_json(greatest))))
    return parts[0] if len(parts) == 1 else And(tuple(parts))
