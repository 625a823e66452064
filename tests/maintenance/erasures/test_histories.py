"""Random histories of erasures in which upkeep dies anywhere: a receipt says "gone" when that is true, and not before.

Names of people are the markers: no delete but an erasure names one, and nobody who was erased comes back.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import Error, TableNotFoundError
from dolmen.format.receipts import Receipt
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryStore
from support.aging import Place
from support.crashing_store import Countdown, Crash, CrashingStore
from support.erased import unpacked

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
ROUNDS = 1_000 if os.environ.get("DOLMEN_LONG") else 4
STEPS = 60
MARKER = re.compile(rb"marker-\d+-")
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("who", pa.string())])


class Life:
    """A database whose root is so small that everything spills, people who are erased from it, and upkeep that dies."""

    def __init__(self, seed: int) -> None:
        self.random, self.place = random.Random(seed), Place(seed)
        self.db = self.place.db
        choose = self.random.choice
        self.db.set(
            root_bytes=choice_of(self.random, "4KB", "256KB"),
            retention=choose(("1h", "1d", "20d")),
            keep_versions=choose((1, 5, 1000)),
            erase_within=choose(("1s", "2d", "12d")),
            erasure_memory=choose(("1s", "1d")),
            orphan_age="1d",
            reader_grace="1h",
        )
        self.next = self.key = 0
        self.alive: list[str] = []
        self.erased: dict[str, str] = {}
        self.known: dict[tuple[str, bytes], frozenset[str]] = {}
        for name in ("a", "b"):
            self.db.create_table(name, SCHEMA, primary_key=["n"], properties={"subject": "who"})
        self.crashes = 0
        self.drops = self.random.random() < 0.5
        """Whether tables are dropped, and may come back: then nobody is erased from single tables."""

    def rows(self) -> pa.Table:
        """Rows about somebody new and somebody else."""
        self.next += 1
        self.alive.append(f"marker-{self.next}-")
        who = [self.alive[-1]] * 3 + self.random.choices(self.alive, k=2)
        first, self.key = self.key, self.key + len(who)
        return pa.table({"n": pa.array(range(first, self.key), pa.int64()), "who": who}, schema=SCHEMA)

    def step(self) -> None:
        """One random thing, and a look at all objects."""
        name = self.random.choice(self.db.tables())
        table, key = self.db.table(name), self.random.randrange(self.key + 1)
        choices: list[tuple[int, Callable[[], object]]] = [
            (9, lambda: table.append(self.rows())),
            (2, lambda: table.upsert(self.rows())),
            (3, lambda: table.delete(f"n BETWEEN {key} AND {key + 3}")),
            (3, lambda: table.delete(f"n BETWEEN {key} AND {key + 3}", mode="positions")),
            (1, lambda: table.overwrite(self.rows())),
            (4, lambda: self.erase(name)),
            (1, lambda: self.db.tag(self.random.choice("xyz"), move=True)),
            (1, lambda: self.go_back(name)),
            (1, lambda: self.clone(name)),
            (1, lambda: self.drop(name)),
            (3, lambda: self.upkeep(lambda context: resolve(context, name))),
            (3, lambda: self.upkeep(lambda context: compact(context, name))),
            (3, lambda: self.upkeep(merge_segments)),
            (6, lambda: self.upkeep(collect)),
        ]
        weights, actions = zip(*choices, strict=True)
        self.random.choices(actions, weights)[0]()
        self.place.pass_hours(self.random.choice([0.1, 1, 3, 12]))
        self.look()

    def erase(self, name: str) -> None:
        """Erases somebody from one table, or from all."""
        if len(self.alive) < 3:
            return
        who = self.alive.pop(self.random.randrange(len(self.alive)))
        if self.drops or self.random.random() < 0.3:
            self.erased[self.db.forget(who).id] = who
            return
        where = self.random.choice([f"who = '{who}'", f"who LIKE '{who}%'"])
        for each in self.db.tables():  # and its clones
            self.erased[self.db.table(each).erase(where).id] = who if each == self.db.tables()[-1] else ""

    def go_back(self, name: str) -> None:
        manifest = self.place.manifest
        version = self.random.randint(max(manifest.horizon, 1), manifest.version)
        tag = self.random.choice([*manifest.tags, None])
        with suppress(TableNotFoundError):
            self.db.table(name).restore(tag=tag) if tag else self.db.table(name).restore(version)

    def clone(self, name: str) -> None:
        for old in [each for each in self.db.tables() if each.startswith("clone")]:
            self.db.drop_table(old)
        if name in self.db.tables():
            self.db.clone(name, "clone")

    def drop(self, name: str) -> None:
        if not self.drops:
            return
        self.db.drop_table(name)
        if name in ("a", "b"):
            self.db.create_table(name, SCHEMA, primary_key=["n"], properties={"subject": "who"})

    def upkeep(self, work: Callable[[Any], object], *, dies: bool = True) -> None:
        """Runs some upkeep in a new process, which may die at any of its requests."""
        left = self.random.randrange(1, 60) if dies and self.random.random() < 0.7 else None
        countdown = Countdown(left, after=self.random.random() < 0.5)
        store = CrashingStore(MemoryStore(self.place.bucket, self.place.runtime()), countdown)
        try:
            work(self.place.context(store))  # type: ignore[arg-type]
        except Crash:
            self.crashes += 1

    def markers(self) -> dict[str, set[str]]:
        """Keys of the objects in which each marker stands."""
        found: dict[str, set[str]] = {}
        for key, stored in list(self.place.bucket.objects.items()):
            known = self.known.get((key, stored.body))
            if known is None:
                parts = unpacked(key, stored.body)
                known = frozenset(name.decode() for part in parts for name in MARKER.findall(part))
                self.known[key, stored.body] = known
            for marker in known:
                found.setdefault(marker, set()).add(key)
        return found

    def receipts(self) -> dict[str, Receipt]:
        """All receipts by id."""
        objects = self.place.bucket.objects
        return {
            (receipt := Receipt.decode(objects[key].body, key)).id: receipt
            for key in objects
            if key.startswith("receipt/")
        }

    def look(self) -> None:
        """Compares the receipts with the objects."""
        found = self.markers()
        for receipt in self.receipts().values():
            assert MARKER.search(receipt.encode()) is None
            if receipt.gone_at and self.erased[receipt.id]:
                assert not found.get(self.erased[receipt.id]), (receipt, found[self.erased[receipt.id]])

    def end(self) -> None:
        """Lets time pass, with upkeep that often dies, until nothing is left to do."""
        for hours in range(0, 24 * 30, 6):
            self.place.pass_hours(6)
            for name in self.db.tables():
                self.upkeep(lambda context, name=name: resolve(context, name), dies=hours < 48)  # type: ignore[misc]
                self.upkeep(lambda context, name=name: compact(context, name), dies=hours < 48)  # type: ignore[misc]
            self.upkeep(merge_segments, dies=hours < 48)
            self.upkeep(collect, dies=hours < 48)
            self.look()
            manifest = self.place.manifest
            if hours >= 48 and not manifest.erasures and not manifest.leaving and not manifest.segments_of("erasures"):
                break
        receipts = self.receipts()
        assert {id_: receipts[id_].state for id_ in self.erased} == dict.fromkeys(self.erased, "gone")
        found = self.markers()
        assert not [who for who in self.erased.values() if found.get(who)]
        for id_ in self.erased:
            assert self.place.open().verify_receipt(id_).findings == ()
        assert verify(self.place.context(), deep=True).findings == ()


def choice_of(rng: random.Random, *values: str) -> str:
    """One of some texts."""
    return rng.choice(values)


@pytest.mark.slow
@pytest.mark.timeout(14_400 if ROUNDS > 100 else 1_200)
def test_a_receipt_says_gone_only_when_no_object_holds_the_rows_and_then_it_does() -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    erased = crashes = 0
    for round_ in range(ROUNDS):
        life = Life(SEED + round_)
        try:
            for _ in range(STEPS):
                life.step()
            life.end()
        except (AssertionError, Error):
            print(f"history {SEED + round_}")
            raise
        erased, crashes = erased + len(life.erased), crashes + life.crashes
    assert erased > ROUNDS
    assert crashes > ROUNDS
