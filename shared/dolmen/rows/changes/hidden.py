"""Finds which of a feed's columns a version does not show, as they were dropped then and a later restore brought them
back.

In such a version these columns are NULL in all rows, whatever its files still hold. A column that was added later is
not among them: older rows have its default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from dolmen.format.nesting import fields_inside
from dolmen.format.schema import Field, Schema

Hidden: TypeAlias = Mapping[int, frozenset[int]]
"""By id of a column, the ids of it or of the fields inside it that a version does not show."""


def hidden_columns(own: Schema, commit_ts: int, fields: Iterable[Field]) -> Hidden:
    """The columns, and fields inside them, that a version of the table does not show.

    A table that was dropped and restored may give an id a second time, so the time of a column's addition counts too.

    Args:
        own: the version's columns.
        commit_ts: its commit timestamp.
        fields: columns of the feed.
    """
    there = {field.id: field for field in own.fields}
    found: dict[int, frozenset[int]] = {}
    for field in fields:
        known = there.get(field.id)
        if known == field:
            continue
        if known is None or known.added_ts != field.added_ts:
            if field.added_ts <= commit_ts or field.id < own.next_id:
                found[field.id] = frozenset((field.id,))
            continue
        shown = {(inside.id, inside.added_ts) for inside in fields_inside(known.type)}
        gone = frozenset(
            inside.id
            for inside in fields_inside(field.type)
            if (inside.id, inside.added_ts) not in shown and (inside.added_ts <= commit_ts or inside.id < own.next_id)
        )
        if gone:
            found[field.id] = gone
    return found
