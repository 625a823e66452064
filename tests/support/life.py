"""A random life of a database with every kind of upkeep: what collection is tested on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dolmen import Snapshot
from dolmen.errors import TableNotFoundError
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.gc.mark import manifest_keys, needed_keys, tagged_manifests
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.segment_merging import merge_segments
from support.aging import SCHEMA, Place, rows


class Life:
    """A database whose root is so small that everything spills, and somebody who does something random with it."""

    def __init__(self, seed: int) -> None:
        self.random, self.place = random.Random(seed), Place(seed)
        self.db = self.place.db
        self.db.set(root_bytes="4KB")
        self.key = 0
        self.rows: dict[int, dict[str, list[int]]] = {}
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
            (2, self.tag),
            (1, self.drop_tag),
            (1, lambda: self.restore(name)),
            (1, self.restore_all),
            (1, lambda: self.clone(name)),
        ]
        weights, actions = zip(*choices, strict=True)
        self.random.choices(actions, weights)[0]()
        self.place.pass_hours(self.random.choice([0.1, 0.3, 1, 3]))
        self.remember()

    def drop_and_create(self, name: str) -> None:
        self.db.drop_table(name)
        self.db.create_table(name, SCHEMA, primary_key=["k"])

    def version(self) -> dict[str, Any]:
        """One that may be read, or the tag of one."""
        manifest = self.place.manifest
        if manifest.tags and self.random.random() < 0.5:
            return {"tag": self.random.choice(sorted(manifest.tags))}
        return {"version": self.random.randint(max(manifest.horizon, 1), manifest.version)}

    def tag(self) -> None:
        until = self.random.choice((None, None, "3h", "2d"))
        self.db.tag(self.random.choice("xyz"), **self.version_only(), until=until, move=True)

    def version_only(self) -> dict[str, Any]:
        chosen = self.version()
        return {"version": self.db.at(**chosen).version}

    def drop_tag(self) -> None:
        if tags := self.db.tags():
            self.db.drop_tag(self.random.choice(sorted(tags)))

    def restore(self, name: str) -> None:
        """Restores one table; one that did not exist in the version is left as it is."""
        chosen = self.version()
        then = self.db.at(**chosen)
        with suppress(TableNotFoundError):
            self.db.table(name).restore(**chosen)
            known = then.manifest.name_of(self.place.manifest.tables[name].uuid)
            assert known is not None
            assert self.keys_of(self.db.at(self.db.refresh()), name) == self.keys_of(then, known)

    def restore_all(self) -> None:
        chosen = self.version()
        then = self.db.at(**chosen)
        if then.tables():
            self.db.restore(**chosen)
            assert self.db.tables() == then.tables()

    def clone(self, name: str) -> None:
        """Clones a table of now, or of then; and drops a clone of before, so that there are not more and more."""
        for old in self.db.tables():
            if old.startswith("clone"):
                self.db.drop_table(old)
        chosen = self.version()
        then = self.db.at(**chosen)
        if name in then and not name.startswith("clone"):
            self.db.clone(name, "clone", **chosen)
            assert self.keys_of(self.db.at(self.db.refresh()), "clone") == self.keys_of(then, name)

    def check_nothing_is_left(self) -> None:
        """Checks that there are exactly the objects that the newest version and those with tags need."""
        context, manifest = self.place.context(), self.place.manifest
        needed = set(needed_keys(manifest, context.segments))
        for key in tagged_manifests(manifest):
            needed |= {found for found in manifest_keys(key, context.segments) if not found.startswith("manifest/")}
            assert key in self.place.bucket.objects
        assert self.place.there() == needed

    @staticmethod
    def keys_of(at: Snapshot, name: str) -> list[int]:
        return sorted(at.table(name).to_arrow()["k"].to_pylist())

    def remember(self) -> None:
        """The rows of the newest version."""
        db = self.place.open()
        at = db.at(db.version)
        self.rows[db.version] = {name: self.keys_of(at, name) for name in at.tables()}


def copy_to_directory(place: Place, directory: Path) -> None:
    """The same objects as files, as old as they are there, for processes that can't see into this one's memory."""
    for key, found in place.bucket.objects.items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found.body)
        os.utime(path, ns=(found.last_modified_us * 1000, found.last_modified_us * 1000))
