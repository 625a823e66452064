"""Random lives with every kind of upkeep: what collection goes by is complete, and every kept version stays whole."""

from __future__ import annotations

import os
import random

import pytest

from dolmen.base.records import replace
from dolmen.maintenance.gc.mark import needed_keys, reached_keys, read_released
from dolmen.maintenance.segment_merging import merge_segments
from dolmen.maintenance.verify.verification import verify
from support.aging import EAGER, SCHEMA, Place, rows
from support.life import Life

LONG = os.environ.get("DOLMEN_LONG") == "1"


FIXED = 7
"""How much a life has to do is asked of this seed; the others only have to be right."""


def seeds() -> list[int]:
    fresh = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().getrandbits(32))
    return [FIXED, *range(fresh, fresh + (40 if LONG else 1))]


@pytest.mark.slow
def test_what_an_older_version_needs_the_newest_needs_too_or_it_was_released_since() -> None:
    """The rule that the mark is built on, for every version of a life."""
    for seed in seeds():
        print(f"DOLMEN_TEST_SEED={seed}")
        life = Life(seed)
        for _ in range(60):
            life.step()
        context, manifest = life.place.context(), life.place.manifest
        reader = context.segments
        assert seed != FIXED or manifest.segments_of("released")
        needed_since: set[str] = set(needed_keys(manifest, reader))
        entries = list(read_released(manifest, reader, 0))
        db = life.place.open()
        for version in range(manifest.version, 0, -1):
            missing = set(needed_keys(db.at(version)._manifest, reader)) - needed_since
            assert missing == set(), (seed, version)
            for entry in entries:
                if entry.version == version:
                    needed_since |= set(entry.objects)
                    for tree in entry.trees:
                        needed_since |= {tree.object, *reached_keys(tree, reader)}


@pytest.mark.slow
def test_every_kept_version_of_a_random_life_reads_as_it_did_and_nothing_is_left_over() -> None:
    settings = replace(EAGER, keep_versions=8, retention_us=30 * 3_600_000_000, orphan_age_us=24 * 3_600_000_000)
    for seed in seeds():
        print(f"DOLMEN_TEST_SEED={seed}")
        life = Life(seed)
        expired = deleted = 0
        for number in range(90):
            life.step()
            if number % 7 == 6:
                done = life.place.collect(settings)
                assert not done.errors
                expired, deleted = expired + done.versions_expired, deleted + done.objects
        assert seed != FIXED or min(expired, deleted) > 20
        found, newest = life.place.read_versions(), life.place.manifest
        for version, was in life.rows.items():
            assert found[version] == (was if newest.is_kept(version) else "VersionExpiredError"), (seed, version)
        tags = {name: life.place.open().at(tag=name) for name in newest.tags}
        for at in tags.values():
            assert at.version not in life.rows or life.rows[at.version] == {
                name: life.keys_of(at, name) for name in at.tables()
            }, (seed, at)
        for _ in range(8):
            life.place.pass_hours(40)
            life.place.collect(replace(settings, keep_versions=1))
        life.place.collect(replace(settings, keep_versions=1), full=True)
        life.check_nothing_is_left()
        for name in life.db.tags():
            life.db.drop_tag(name)
        for _ in range(8):
            life.place.pass_hours(40)
            life.place.collect(replace(settings, keep_versions=1))
        life.place.collect(replace(settings, keep_versions=1), full=True)
        life.check_nothing_is_left()
        merge_segments(life.place.context())  # a change spilled beside a merge waits for the next one
        assert verify(life.place.context(), deep=True).findings == (), seed


@pytest.mark.slow
def test_ids_that_were_applied_long_ago_are_forgotten_when_their_segment_is_old_enough() -> None:
    place = Place()
    place.db.set(root_bytes="4KB")
    table = place.db.create_table("t", SCHEMA)
    for number in range(80):
        table.append(rows(number), request=f"request-{number}")
        place.pass_hours(1)

    def segments() -> set[str]:
        return {segment.object for segment in place.manifest.segments_of("applied")}

    before = segments()
    assert before
    place.pass_hours(31 * 24)
    place.collect()
    assert before <= segments()
    place.pass_hours(8 * 24)
    place.collect()
    assert not before & segments()
    for _ in range(4):
        place.pass_hours(60)
        place.collect()
    assert not before & place.there()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_database_with_everything_in_segments_comes_to_rest(seed: int) -> None:
    life = Life(seed)
    for _ in range(60):
        life.step()
    for _ in range(20):
        life.place.pass_hours(60)
        life.place.collect()
    version = life.db.refresh()
    for _ in range(10):
        life.place.pass_hours(60)
        life.place.collect()
    assert life.db.refresh() == version
