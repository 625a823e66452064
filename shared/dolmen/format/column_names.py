"""The names that a table's columns had: a file that was dropped before a rename has the names of its time.

A table knows its columns by ids, and a file has names. Both meet when the file is read. So a schema records each name
that a column loses, and when: ``former``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from dolmen.format.erasures import CLOCK_STEP_US
from dolmen.format.schema import FormerName, Schema

MOST_FORMER_NAMES = 256
"""The most former names of a table that are kept: they are in each manifest."""

Names: TypeAlias = Mapping[int, str]
"""Names of columns at one time, by id. A column that was not there has none."""


def record_names(before: Schema, after: Schema, ts: int) -> Schema:
    """The later one of two schemas of a table, with the names and places that columns lost between them.

    Args:
        ts: timestamp of the statement that made it.
    """
    names = {field.id: field.name for field in after.fields}
    lost = (FormerName(field.id, field.name, ts) for field in before.fields if names.get(field.id) != field.name)
    former, since = (*before.former, *lost), named_since(before)
    if excess := former[:-MOST_FORMER_NAMES]:
        former, since = former[-MOST_FORMER_NAMES:], max(since, excess[-1].until_ts)
    places, placed = [field.id for field in before.fields], placed_since(before)
    if placed is None or places != [field.id for field in after.fields][: len(places)]:
        placed = ts
    return msgspec.structs.replace(after, former=former, named_since=since, placed_since=placed)


def named_since(schema: Schema) -> int:
    """Timestamp from which on all names of a table's columns are known.

    An older dolmen records none: there, all that is known is when the columns were last altered.
    """
    return schema.altered_ts if schema.named_since is None else schema.named_since


def placed_since(schema: Schema) -> int | None:
    """Timestamp from which on all columns are in the places that they have now; None if that is not known.

    Columns that are added at the end move no others.
    """
    if schema.named_since is not None:
        return schema.placed_since
    ids = [field.id for field in schema.fields]
    return schema.altered_ts if ids == sorted(ids) else None


def names_at(schema: Schema, ts: int) -> Names:
    """The names that columns had at a time, as far as they are known.

    A column that was added later has its name already, unless another column had it: producers may be ahead.
    """
    latest = 2**63
    claims: dict[int, tuple[int, str]] = {field.id: (latest, field.name) for field in schema.fields}
    for name in reversed(schema.former):
        if name.until_ts > ts:
            claims[name.id] = name.until_ts, name.name
    owners: dict[str, tuple[int, int]] = {}
    for id_, (until, claimed) in claims.items():
        owners[claimed] = min(owners.get(claimed, (until, id_)), (until, id_))
    return {id_: name for name, (_, id_) in owners.items()}


def names_around(schema: Schema, at_us: int | None) -> tuple[Names, ...]:
    """The different names that columns had at a time by the server's clock, which tells whole seconds.

    Args:
        at_us: None = the time is not known, so it may be any.
    """
    first, last = (0, 2**63 - 1) if at_us is None else (at_us - CLOCK_STEP_US, at_us + CLOCK_STEP_US)
    between = (name.until_ts for name in schema.former if first < name.until_ts <= last)
    return distinct_names(names_at(schema, ts) for ts in (first, *between, last))


def distinct_names(several: Iterable[Names]) -> tuple[Names, ...]:
    """Leaves out repetitions."""
    found: list[Names] = []
    for names in several:
        if names not in found:
            found.append(names)
    return tuple(found)
