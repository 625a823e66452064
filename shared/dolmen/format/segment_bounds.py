"""Bounds over many data files, for the root: what prunes a whole segment before it is fetched."""

from __future__ import annotations

from collections.abc import Sequence

from dolmen.errors import SchemaError
from dolmen.format.entries import ColumnStats, DataFile
from dolmen.format.schema import Schema, is_nested
from dolmen.format.statistics import Bounds, bounds
from dolmen.format.values import Plain, to_json


def bounds_of_all(entries: Sequence[DataFile], schema: Schema) -> dict[int, ColumnStats]:
    """Bounds by column id that hold for all of these files; a column that any of them lacks is left out."""
    known = set(entries[0].stats) & schema.by_id.keys()
    for entry in entries:
        known &= entry.stats.keys()
    found: dict[int, ColumnStats] = {}
    for id_ in sorted(known):
        arrow_type = schema.by_id[id_].arrow_type
        if is_nested(arrow_type):
            continue
        try:
            each = [bounds(entry.stats[id_], arrow_type) for entry in entries]
            found[id_] = _together(each, [entry.rows for entry in entries])
        except SchemaError:
            continue  # not of this type, hence unknown
    return found


def _together(each: Sequence[Bounds], rows: Sequence[int]) -> ColumnStats:
    valued = [own for own, count in zip(each, rows, strict=True) if not _is_empty(own, count)]
    return ColumnStats(
        to_json(_extreme([own.min for own in valued], least=True)),
        to_json(_extreme([own.max for own in valued], least=False)),
        _sum([own.nulls for own in each]),
        _sum([own.nans for own in each]),
    )


def _is_empty(own: Bounds, rows: int) -> bool:
    """Whether it is certain that there is no value but NULL and NaN."""
    return own.nulls is not None and own.nans is not None and own.nulls + own.nans >= rows


def _extreme(ends: Sequence[Plain], *, least: bool) -> Plain:
    if not ends or None in ends:
        return None
    return min(ends) if least else max(ends)  # type: ignore[type-var]


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(counts)  # type: ignore[arg-type]
