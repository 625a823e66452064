"""Writes the examples of docs/format.md: what the code really makes, from a small database with a fixed seed.

Run ``python docs/examples.py`` after a change of the format; a test fails when the page is out of date.
"""

from __future__ import annotations

import json
import random
import re
from itertools import count
from pathlib import Path

import pyarrow as pa

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.format.del_object import read_footer
from dolmen.store.memory import MemoryBucket, MemoryStore

PAGE = Path(__file__).with_name("format.md")


def examples() -> dict[str, str]:
    """The JSON of each example by its name."""
    ticks = count(1_767_225_600_000_000, 1_000)
    runtime = Runtime(clock_us=lambda: next(ticks), monotonic=lambda: 0.0, random=random.Random(7), threads=1)
    store = MemoryStore(MemoryBucket(clock_us=lambda: next(ticks)), runtime)
    db = Database(store, runtime)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("event_time", pa.timestamp("us", tz="UTC")),
            ("amount", pa.float64()),
        ]
    )
    events = db.create_table("events", schema, primary_key="id", sort_key="event_time")
    times = pa.array([1_767_225_600_000_000 + i for i in range(3)], pa.timestamp("us", tz="UTC"))
    events.append(pa.table({"id": [1, 2, 3], "event_time": times, "amount": [0.5, None, float("nan")]}))
    events.delete("amount > 0.25 AND event_time < '2027-01-01'")
    events.delete(keys=[2])
    pointer = store.get("_latest_manifest").body
    manifest = store.get(json.loads(pointer)["manifest"]).body
    deletes = [info.key for info in store.list("tombstone/")]
    footer = read_footer(store.get(deletes[0]).body, deletes[0])
    assert footer.table == json.loads(manifest)["tables"]["events"]["uuid"]
    body = store.get(deletes[0]).body
    length = int.from_bytes(body[-8:-4], "little")
    return {
        "pointer": pointer.decode(),
        "manifest": json.dumps(json.loads(manifest), indent=1),
        "del_footer": body[-8 - length : -8].decode(),
    }


def filled(page: str) -> str:
    """The page with each example after its marker."""
    for name, text in examples().items():
        marker = f"<!-- example: {name} -->"
        page = re.sub(
            re.escape(marker) + r"\n(\n```json\n.*?\n```\n)?",
            lambda _, marker=marker, text=text: f"{marker}\n\n```json\n{text}\n```\n",
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
