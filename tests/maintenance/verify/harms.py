"""Ways to damage a database, each of which ``verify`` has to find by its kind and its object: where they register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen.format.entries import KeysTombstone
from support.damaged import Damaged

NAN = float("nan")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.float64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))]
)


def rows(start: int, count: int = 40) -> pa.Table:
    """Some NULL, some NaN, long and short texts, in no order."""
    ids = [start + (i * 7) % count for i in range(count)]
    return pa.table(
        {
            "id": ids,
            "v": [None if i % 5 == 0 else NAN if i % 7 == 0 else i / 2 for i in ids],
            "s": [None if i % 11 == 0 else f"{i:05}" * (i % 6) for i in ids],
            "l": [None if i % 3 == 0 else [i, i + 1] for i in ids],
        },
        SCHEMA,
    )


Harm = Callable[[Damaged], str]
"""Does it, and returns the object that is to be named."""

HARMS: list[Any] = []
"""Cases for a test: what does harm, the kind of finding that it is, and what ``verify`` needs for that."""


def damage(kind: str, **options: Any) -> Callable[[Harm], Harm]:
    """Registers a way to damage a database: returns the object that ``verify`` must name, by this kind alone."""

    def register(function: Harm) -> Harm:
        HARMS.append(pytest.param(function, kind, options, id=function.__name__))
        return function

    return register


def vector_file(db: Damaged) -> int:
    return next(place for place, file in enumerate(db.table().files) if file.vector)


def vector_of(db: Damaged) -> Any:
    return db.file(vector_file(db)).vector


def tombstone(db: Damaged, kind: type, inline: bool) -> tuple[int, Any]:
    field = "values" if kind is KeysTombstone else "predicate"
    return next(
        (place, each)
        for place, each in enumerate(db.table().tombstones)
        if isinstance(each, kind) and (getattr(each, field) is not None) is inline
    )


def edit_tombstone(db: Damaged, place: int, **changes: Any) -> str:
    tombstones = list(db.table().tombstones)
    tombstones[place] = msgspec.structs.replace(tombstones[place], **changes)
    return db.edit_table(tombstones=tuple(tombstones))


def edit_stats(db: Damaged, column: int, **changes: Any) -> str:
    file = db.file()
    stats = {**file.stats, column: msgspec.structs.replace(file.stats[column], **changes)}
    return db.edit_file(stats=stats)


def manifests(db: Damaged) -> list[str]:
    return sorted(key for key in db.bucket.objects if key.startswith("manifest/"))
