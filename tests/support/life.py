"""A random life of a database with every kind of upkeep: what collection is tested on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.merge import merge_segments
from dolmen.maintenance.resolve.resolution import resolve
from support.aging import SCHEMA, Place, rows


class Life:
    """A database whose root is so small that everything spills, and somebody who does something random with it."""

    def __init__(self, seed: int) -> None:
        self.random, self.place = random.Random(seed), Place(seed)
        self.db = self.place.db
        self.db.set(root_bytes="4KB")
        self.key = 0
        self.rows: dict[int, object] = {}
        for name in ("a", "b"):
            self.db.create_table(name, SCHEMA, primary_key=["k"])

    def new_rows(self) -> object:
        first, self.key = self.key, self.key + self.random.randrange(1, 6)
        return rows(*range(first, self.key))

    def step(self) -> None:
        """Does one thing, to one table."""
        name = self.random.choice(self.db.tables())
        table, context, key = self.db.table(name), self.place.context(), self.random.randrange(self.key + 1)
        some = f"k BETWEEN {key} AND {key + 9}"
        choices: list[tuple[int, Callable[[], object]]] = [
            (9, lambda: table.append(self.new_rows(), request=f"r{self.place.now_us}")),
            (3, lambda: table.upsert(rows(key, key + 1))),
            (3, lambda: table.delete(f"k = {key}")),
            (2, lambda: table.delete(some)),
            (3, lambda: table.delete(f"k IN ({key}, {key + 3})", mode="positions")),
            (1, lambda: table.delete(some, mode="positions")),
            (1, lambda: table.overwrite(self.new_rows())),
            (3, lambda: resolve(context, name)),
            (3, lambda: compact(context, name)),
            (3, lambda: merge_segments(context)),
            (1, lambda: self.drop_and_create(name)),
        ]
        weights, actions = zip(*choices, strict=True)
        self.random.choices(actions, weights)[0]()
        self.place.pass_hours(self.random.choice([0.1, 0.3, 1, 3]))
        self.remember()

    def drop_and_create(self, name: str) -> None:
        self.db.drop_table(name)
        self.db.create_table(name, SCHEMA, primary_key=["k"])

    def remember(self) -> None:
        """The rows of the newest version."""
        db = self.place.open()
        at = db.at(db.version)
        self.rows[db.version] = {name: sorted(at.table(name).to_arrow()["k"].to_pylist()) for name in at.tables()}


def copy_to_directory(place: Place, directory: Path) -> None:
    """The same objects as files, as old as they are there, for processes that can't see into this one's memory."""
    for key, found in place.bucket.objects.items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found.body)
        os.utime(path, ns=(found.last_modified_us * 1000, found.last_modified_us * 1000))
