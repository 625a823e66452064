"""Collection and writers come between each other's requests, at every one of them in turn."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import pytest

from dolmen.base.records import replace
from dolmen.commit.head import Context
from dolmen.errors import RetryableError, StaleWriterError
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.resolution import resolve
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryStore
from support.aging import EAGER, SCHEMA, Place, rows
from support.crashing_store import CrashingStore

SETTINGS = replace(EAGER, keep_versions=3)
LONG = os.environ.get("DOLMEN_LONG") == "1"


def verbs() -> Iterator[int]:
    """Which verbs to come before, one per history; without DOLMEN_LONG=1 every 25th, from a random one on."""
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"DOLMEN_TEST_SEED={seed}")
    return count(1) if LONG else count(random.Random(seed).randint(1, 25), 25)


class Interruption:
    """Does something just before one of the verbs; counts them all."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.at, self.action, self.done = at, action, 0

    def call(self, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.done += 1
        if self.done == self.at:
            self.action()
        return verb(*args, **options)


def interrupted(place: Place, at: int, action: Callable[[], object]) -> tuple[Context, Interruption]:
    """A context in whose requests something comes between."""
    interruption = Interruption(at, action)
    context = place.context(CrashingStore(MemoryStore(place.bucket, place.runtime()), interruption))  # type: ignore[arg-type]
    interruption.done = 0
    return context, interruption


@cache
def prepared() -> Place:
    """A table with small files, spilled and inline, deletes of both kinds, and orphans."""
    place = Place()
    place.db.set(root_bytes="6KB")
    table = place.db.create_table("t", SCHEMA, primary_key=["k"])
    for start in range(0, 120, 6):
        table.append(rows(*range(start, start + 6)))
        place.pass_hours(0.1)
    table.delete("k IN (3, 50)", mode="positions")
    table.delete("k = 70")
    table.upsert(rows(10, 11))
    place.orphan(f"data/t/2025/10/09/09/{'0' * 32}.parquet")
    place.pass_hours(20 * 24)
    assert place.manifest.table("t").segments
    return place


def positions(context: Context) -> None:
    from dolmen.api.table import Table

    Table(context, "t").delete("k BETWEEN 20 AND 30", mode="positions")


def append(context: Context) -> None:
    from dolmen.api.table import Table

    Table(context, "t").append(rows(500, 501), request="once")


WRITERS: dict[str, Callable[[Context], object]] = {
    "append": append,
    "delete": positions,
    "resolve": lambda context: resolve(context, "t"),
    "compact": lambda context: compact(context, "t"),
    "merge": merge_segments,
}


def check(place: Place, kept: dict[int, object]) -> None:
    """All kept versions read as they did; in the end nothing is left over."""
    found, horizon = place.read_versions(), place.manifest.horizon
    for version, was in kept.items():
        assert found[version] == ("VersionExpiredError" if version < horizon else was), version
    newest = found[place.db.refresh()]
    for _ in range(4):
        place.pass_hours(9 * 24)
        place.collect(replace(SETTINGS, keep_versions=1), full=True)  # names may be older than their upload by weeks
    assert verify(place.context(), deep=True).findings == ()
    assert place.there() == place.needed_keys()
    assert place.read_versions()[place.db.refresh()] == newest


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
@pytest.mark.parametrize("hours", [1.5, 9 * 24])
def test_collection_may_come_between_any_two_requests_of_a_writer(
    writer: Callable[[Context], object], hours: float
) -> None:
    """In the short break the writer goes on and commits; after the long one what it has written may be gone."""
    refused = 0
    for at in verbs():
        place = prepared().copy()
        before = place.read_versions()

        def action(place: Place = place) -> None:
            for _ in range(2):
                place.pass_hours(hours)
                place.collect(SETTINGS)

        context, interruption = interrupted(place, at, action)
        try:
            writer(context)
        except StaleWriterError:
            refused += 1
            writer(place.context())
        if interruption.done < at:
            break
        check(place, before)
    assert at > 4
    if hours < 100 and writer is not WRITERS["compact"]:
        assert refused == 0, "only who has an intent and gives no sign for an hour"
    elif LONG:
        assert refused > 0


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
@pytest.mark.parametrize("runs_before", [0, 1])
def test_a_writer_may_come_between_any_two_requests_of_a_collection(
    writer: Callable[[Context], object], runs_before: int
) -> None:
    for at in verbs():
        place = prepared().copy()
        for _ in range(runs_before):
            place.collect(SETTINGS)
            place.pass_hours(2)
        before = place.read_versions()
        versions = [version for version, what in before.items() if what != "VersionExpiredError"]
        context, interruption = interrupted(place, at, lambda place=place: writer(place.context()))  # type: ignore[misc]
        try:
            collect(context, settings=SETTINGS)
        except RetryableError:
            pytest.fail("a collection is not disturbed by a writer")
        if interruption.done < at:
            break
        check(place, {version: before[version] for version in versions})
    assert at > 6
