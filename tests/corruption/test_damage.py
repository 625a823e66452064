"""Any damage of any object is told of by whoever reads it, or harms nobody: never a wrong row, never another error.

Half of the seeds are always the same, the other half begin at one that is new each time, and printed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pyarrow as pa
import pytest

from corruption.acts import acts, healthy
from corruption.damages import HOW, Damage, by_kind, draw, flip, kind_of, regions
from corruption.trial import DamageError, Tally, trial
from corruption.worlds import WORLDS, World, kept, kinds, spilled

LONG = bool(os.environ.get("DOLMEN_LONG"))
FIXED_SEED = 20_260_101
FRESH_SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(10**9)))
TRIALS = {"kinds": 16_000, "spilled": 12_000, "kept": 22_000} if LONG else {"kinds": 50, "spilled": 40, "kept": 70}
"""By database, how many damages are tried; in the long mode with more acts for each."""
SELDOM = 10
"""Kinds of damage that are drawn at most this often in a hundred are not required of every hundred."""
MOST_MEMORY = 256 << 20
"""Bytes of Arrow memory that nothing exceeds, whatever a damaged length says."""
LONGEST_FIRST = (spilled, kept, kinds)


def _trials(build: Callable[[], World], fresh: int) -> tuple[Tally, int]:
    """What the damages of one database come to, in a process of their own; and its most bytes of Arrow memory."""
    world = build()
    there = sorted(by_kind(world))
    tally, count = Tally(), TRIALS[world.name]
    for turn in range(count):
        seed = f"{FIXED_SEED if turn < count // 2 else fresh} {turn}"
        rng = random.Random(seed)
        damage = draw(rng, world, there[turn % len(there)])
        try:
            trial(rng, world, damage, tally, most=3 if LONG else 1)
        except DamageError as error:
            tally.wrong.append(f"{world.name}, seed {seed!r}: {damage}: {error}")
    return tally, pa.default_memory_pool().max_memory()


@pytest.fixture(scope="module")
def running() -> Iterator[dict[object, Future[tuple[Tally, int]]]]:
    """The trials of all databases, one of them on each core at a time."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(WORLDS), os.cpu_count() or 1), mp_context=spawn) as pool:
        yield {build: pool.submit(_trials, build, FRESH_SEED) for build in LONGEST_FIRST}


@pytest.mark.slow
@pytest.mark.timeout(14_400 if LONG else 1_200)
@pytest.mark.parametrize("build", LONGEST_FIRST, ids=lambda build: build.__name__)
def test_damage_is_told_of_or_harms_nobody(
    build: Callable[[], World], running: dict[object, Future[tuple[Tally, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    world = build()
    with capsys.disabled():
        print(f"\nDOLMEN_TEST_SEED={FRESH_SEED} {world.name}: ", end="", flush=True)
        tally, memory = running[build].result()
        print(tally)
    assert not tally.wrong, "\n".join(tally.wrong[:20])
    assert memory < MOST_MEMORY
    assert {kind_of(key) for key in world.objects if "orphan" not in key} == set(by_kind(world))
    assert set(tally.hows()) >= {how.__name__ for how, often in HOW.items() if LONG or often > SELDOM}
    assert tally.hows()["flip"] > TRIALS[world.name] * (0.7 if LONG else 0.5), "of 85 in a hundred drawn"


@pytest.mark.slow
def test_the_databases_hold_every_kind_of_object_and_all_of_them_are_read() -> None:
    found = Counter(kind for build in WORLDS for kind in by_kind(build()))
    assert found.keys() == {
        "pointer", "manifest", "data", "tombstone", "heartbeat", "done",
        *(f"{kind} segment" for kind in (
            "files", "overlays", "removed", "tombstones", "table", "applied", "released", "history",
        )),
    }  # fmt: skip
    for build in WORLDS:
        world = build()
        read = {kind_of(key) for name in acts(world) for key in healthy(world, name).read}
        assert read >= set(by_kind(world)), f"{world.name}: nobody reads {set(by_kind(world)) - read}"


@pytest.mark.slow
def test_acts_are_the_same_each_time() -> None:
    """Else an act that reads no damaged byte could not be left out."""
    for build in (kinds, kept, spilled):
        world = build()
        for name in list(acts(world))[::7]:
            first = healthy(world, name)
            again = healthy.__wrapped__(world, name)
            assert (first.outcome, first.after, first.read) == (again.outcome, again.after, again.read)


@pytest.mark.slow
@pytest.mark.parametrize("build", WORLDS, ids=lambda build: build.__name__)
def test_each_region_of_each_kind_of_object_is_told_of_by_a_deep_verification(build: object) -> None:
    """One flipped bit in every region of the newest object of each kind that the database needs now."""
    world: World = build()  # type: ignore[operator]
    tally, rng = Tally(), random.Random(5)
    needed = healthy(world, "verify deep").read
    for keys in by_kind(world).values():
        key = next((key for key in reversed(keys) if key in needed), keys[-1])
        for name in {name for name, first, end in regions(world, key) if end > first}:
            damage: Damage = flip(rng, world, key, name)
            trial(rng, world, damage, tally, most=1)
    assert sum(tally.verified.values()) == sum(tally.trials.values()) - sum(tally.meaningless.values())
    assert not tally.meaningless, tally.meaningless
