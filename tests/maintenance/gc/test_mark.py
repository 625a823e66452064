"""The mark in parts: together they name what must stay, no more and no less."""

from __future__ import annotations

import os
import random

import pytest

from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.format.manifest import Manifest
from dolmen.maintenance.gc import mark as gc_mark_parts
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.gc.mark import (
    KeySet,
    keys_of_part,
    manifest_keys,
    mark,
    needed_keys,
    reached_keys,
    read_released,
    split_mark,
    stable_codes,
    tagged_manifests,
)
from support.aging import EAGER
from support.life import Life

FIXED = 7
"""How much a life has to do is asked of this seed; the others only have to be right."""


def seeds() -> list[int]:
    fresh = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().getrandbits(32))
    return [FIXED, *range(fresh, fresh + (40 if os.environ.get("DOLMEN_LONG") else 1))]


def must_stay(manifest: Manifest, reader: SegmentReader, after: int) -> set[str]:
    """As ``mark`` finds it, but as keys."""
    found = set(needed_keys(manifest, reader))
    for key in tagged_manifests(manifest):
        found.update(manifest_keys(key, reader))
    for entry in read_released(manifest, reader, after):
        found.update(entry.objects, *(manifest_keys(key, reader) for key in entry.manifests))
        for tree in entry.trees:
            found |= {tree.object, *reached_keys(tree, reader)}
    return found


@pytest.mark.slow
def test_parts_name_what_the_mark_holds_in_any_life(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds():
        print(f"DOLMEN_TEST_SEED={seed}")
        life = Life(seed)
        kinds: set[str] = set()
        for number in range(60):
            life.step()
            if number % 20 != 19:
                continue
            context, manifest = life.place.context(), life.place.manifest
            for after, entries in ((0, 1), (manifest.version // 2, 20), (manifest.version, 200_000)):
                monkeypatch.setattr(gc_mark_parts, "PART_ENTRIES", entries)
                keys, parts = split_mark(manifest, context.segments, after)
                found = {
                    *keys,
                    *(key for part in parts for key in keys_of_part(part, manifest, context.segments, after)),
                }
                assert found == must_stay(manifest, context.segments, after), (seed, number, after)
                kinds |= {part.kind for part in parts}
        assert seed != FIXED or kinds >= {"files", "released"}, kinds


@pytest.mark.slow
def test_released_trees_and_spilled_tombstones_are_parts() -> None:
    life = Life(FIXED)
    table = life.db.table("a")
    for number in range(40):
        table.append(life.new_rows())
        table.delete(f"k = {number} AND v < {number}.25")
    life.db.drop_table("b")
    life.drop_and_create("a")
    for number in range(40):
        life.db.table("a").append(life.new_rows())
        life.db.table("a").delete(f"k = {number} AND v < {number}.25")
    context, manifest = life.place.context(), life.place.manifest
    keys, parts = split_mark(manifest, context.segments, 0)
    found = {*keys, *(key for part in parts for key in keys_of_part(part, manifest, context.segments, 0))}
    assert found == must_stay(manifest, context.segments, 0)
    assert {part.kind for part in parts} >= {"files", "tombstones"}
    assert {part.kind for part in parts} & {"trees", "released"}


def test_a_set_made_of_codes_holds_the_keys_they_are_of_and_no_others() -> None:
    keys = [f"data/t/2026/01/01/00/{number:032x}.parquet" for number in range(1000)]
    found = KeySet.of_codes([stable_codes(keys[:400]), stable_codes(keys[300:500]), stable_codes(())])
    assert found.member_mask(keys).tolist() == [number < 500 for number in range(1000)]
    assert keys[0] in found
    assert keys[999] not in found
    assert not KeySet.of_codes([]).member_mask(keys).any()
    assert stable_codes(["data/a"]).tolist() == [7903169494740149425]  # in any process, and any release


@pytest.mark.slow
def test_a_marker_is_asked_about_the_version_that_moved_the_fence_or_a_later_one() -> None:
    life = Life(FIXED)
    for _ in range(40):
        life.step()
    asked: list[tuple[int, int]] = []

    def marker(manifest: Manifest, reader: SegmentReader, after: int) -> KeySet:
        asked.append((manifest.version, manifest.orphan_cutoff))
        return mark(manifest, reader, after)

    life.place.pass_hours(1000)
    before = life.place.manifest
    done = collect(life.place.context(), settings=EAGER, marker=marker)
    assert done.objects > 0 or done.versions_expired > 0
    for _ in range(3):
        life.place.pass_hours(100)
        collect(life.place.context(), settings=EAGER, marker=marker)
    assert asked
    assert all(version > before.version and cutoff > before.orphan_cutoff for version, cutoff in asked)
