"""Healths of databases to draw: one with something of everything, and hostile names."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa

from dolmen.base.records import replace
from dolmen.maintenance.health.health import Health, Pipeline, QueueHealth, RejectsHealth
from support.aging import DAY_US, HOUR_US, Place

SECRET = "s3cr3t"
"""Occurs in every value of a row, and nowhere else."""
HOSTILE = "<script>alert(1)</script>\"'&\x00\u202e\ud800<img src=//evil.example/x onerror=alert(2)>"
"""A name as nobody would choose it."""

PIPELINE = Pipeline(
    RejectsHealth("s3://landing/rejected", {"orders": 12, "": 1}, 3, 1_760_000_000_000_000),
    (
        QueueHealth("drops", "https://sqs.eu-west-1.amazonaws.com/1/ingest", 7, 2, 0, "https://sqs/dead"),
        QueueHealth("delete requests", "https://sqs.eu-west-1.amazonaws.com/1/delete", 0, 0, 4, "https://sqs/dead"),
    ),
)


def secret_rows(first: int, count: int = 40) -> pa.Table:
    """Rows of which every text has ``SECRET`` in it."""
    numbers = range(first, first + count)
    names = [f"{chr(97 + number * 7 % 26)}-{SECRET}-{number:04}" for number in numbers]
    return pa.table({"name": sorted(names), "amount": [7_777_000_000 + number for number in numbers]})


def busy_place() -> Place:
    """A database with small files, deletes of all kinds, tags, cursors, erasures, an index and a publication."""
    place = Place()
    db = place.db
    db.set(erase_within="30d")
    db.create_table("orders", secret_rows(0).schema, ["name"], ["name"], {"index": True, "iceberg": "v2"})
    table = db.table("orders")
    for number in range(24):
        table.append(secret_rows(number * 25), request=f"load-{number}", message=f"batch {number}")
        place.now_us += HOUR_US
    db.tag("before-import", until="90d")
    db.cursor("replica", start=10)
    db.maintain(steps=["index", "publish"])
    for number in range(20):
        table.append(secret_rows(number * 17, 10))
    table.delete(f"name = 'a-{SECRET}-0000'")
    table.delete(keys=[f"h-{SECRET}-0001", f"o-{SECRET}-0002"])
    table.delete(f"name LIKE '%{SECRET}-01%'", mode="positions")
    table.erase(f"name = 'c-{SECRET}-0004'", request="erase-7", message="asked for by mail")
    db.create_table("plain", pa.schema([("k", pa.int64())])).append(pa.table({"k": [1, 2, 3]}))
    db.create_table("empty", pa.schema([("k", pa.int64())]))
    db.tag("later")
    place.now_us += 28 * DAY_US + 20 * HOUR_US
    db.create_table("fresh", pa.schema([("k", pa.int64())]))
    return place


def hostile(value: Any) -> Any:
    """The same health with ``HOSTILE`` in every text that can hold anything."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = {"level", "state", "step"}
        changed = {field.name: hostile(getattr(value, field.name)) for field in fields(value) if field.name not in kept}
        return replace(value, **changed)
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, tuple):
        return tuple(hostile(each) for each in value)
    if isinstance(value, dict):
        return {hostile(name): hostile(each) for name, each in value.items()}
    return value


def busy_health(pipeline: Pipeline = PIPELINE) -> Health:
    """The health of ``busy_place``."""
    return busy_place().open().health(pipeline)
