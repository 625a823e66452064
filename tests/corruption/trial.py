"""One trial: damage, everything that would touch it, and the verdict."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from corruption.acts import Healthy, acts, healthy, opened, rows_after, rows_of
from corruption.damages import Damage
from corruption.worlds import World
from dolmen.base.runtime import Runtime
from dolmen.commit.head import Context, Head
from dolmen.commit.uploads import Heartbeat, parse_intent_key
from dolmen.errors import Error
from dolmen.format.layout import POINTER
from dolmen.maintenance.verify.verification import verify
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore

VERIFY = "verify deep"
UPKEEP = ("resolve", "compact", "merge", "gc")
"""Acts that are several commits and change no rows."""


class DamageError(AssertionError):
    """Damage that did harm, or that nobody told of."""


@dataclass
class Tally:
    """What trials have seen."""

    trials: Counter[str] = field(default_factory=Counter)
    """Damages, as ``how: where``."""
    named: Counter[str] = field(default_factory=Counter)
    """Acts that ended with an error that names a damaged object, by act."""
    right: Counter[str] = field(default_factory=Counter)
    """Acts that gave what they should although they read damaged bytes, by where these were."""
    verified: Counter[str] = field(default_factory=Counter)
    """Damages that a deep verification named, by where they were."""
    meaningless: Counter[str] = field(default_factory=Counter)
    """Damages of bytes that no act and no verification reads."""
    wrong: list[str] = field(default_factory=list)

    def hows(self) -> Counter[str]:
        """Damages by how."""
        found: Counter[str] = Counter()
        for what, count in self.trials.items():
            found[what.partition(":")[0]] += count
        return found

    def __str__(self) -> str:
        return (
            f"{sum(self.trials.values()):,} damages ({', '.join(f'{n:,} {how}' for how, n in self.hows().items())}); "
            f"{sum(self.named.values()):,} acts named it, {sum(self.right.values()):,} gave what is right; "
            f"verification named {sum(self.verified.values()):,}, {sum(self.meaningless.values()):,} meant nothing; "
            f"{len(self.wrong)} wrong"
        )


def trial(rng: random.Random, world: World, damage: Damage, tally: Tally, most: int) -> None:
    """Damages a copy of a database, does things that touch the damage, and verifies it.

    Args:
        most: so many of the acts that touch the damage are tried.

    Raises:
        DamageError: a wrong result, an error that names no damaged object, or one that is none of dolmen's.
    """
    if not damage.spans:
        return  # the swap of an object with itself, or of two that are equal
    tally.trials[f"{damage.how}: {damage.where}"] += 1
    reading = [(name, healthy(world, name)) for name in acts(world) if name != VERIFY]
    touching = [(name, known) for name, known in reading if _touches(damage, known)]
    chosen = touching if len(touching) <= most else rng.sample(touching, most)
    for name, known in chosen:
        _act(world, damage, name, known, tally)
    _verified(world, damage, bool(touching), tally)


def _touches(damage: Damage, known: Healthy) -> bool:
    return any(known.touches(key, *span, resized=damage.resized) for key, span in damage.spans.items())


def _damaged(world: World, damage: Damage) -> MemoryBucket:
    bucket = world.bucket()
    for key, body in damage.bodies.items():
        if damage.how == "lose":
            del bucket.objects[key]
        else:
            bucket.objects[key] = MemoryObject(body, f'"{hash(body)}"', world.objects[key].last_modified_us)
    return bucket


def _act(world: World, damage: Damage, name: str, known: Healthy, tally: Tally) -> None:
    bucket = _damaged(world, damage)
    before = bucket.objects.get(POINTER)
    act, writes = acts(world)[name]
    try:
        outcome = act(opened(bucket, world), world)
    except Error as error:
        if not any(key in str(error) for key in damage.spans):
            raise DamageError(f"{name}: names no damaged object: {type(error).__name__}: {error}") from error
        tally.named[name.split(" ")[0]] += 1
        if bucket.objects.get(POINTER) is not before:
            if name.split(" ")[0] not in UPKEEP:
                raise DamageError(f"{name}: committed, and said {error}") from error
            _check_after(world, damage, bucket, "", rows_of(world))  # some of its commits were made
        return
    except Exception as error:
        raise DamageError(f"{name}: {type(error).__name__}: {error}") from error
    if name.startswith("verify"):
        return  # told apart below
    if outcome != known.outcome:
        raise DamageError(f"{name}: {str(outcome)[:300]}, not {str(known.outcome)[:300]}")
    tally.right[damage.where] += 1
    if writes:
        _check_after(world, damage, bucket, name, known.after)


def _check_after(world: World, damage: Damage, bucket: MemoryBucket, name: str, wanted: object) -> None:
    """With the damaged objects put right again, what was committed is whole, and as it would have been."""
    for key, body in damage.bodies.items():
        there = bucket.objects.get(key)
        if damage.how == "lose" or (there is not None and there.body == body):
            bucket.objects[key] = world.objects[key]
    try:
        rows = rows_after(name, opened(bucket, world))
    except Error as error:
        raise DamageError(f"{name}: afterwards {type(error).__name__}: {error}") from error
    if rows != wanted:
        raise DamageError(f"{name}: carried damage on: {rows}, not {wanted}")


def _verified(world: World, damage: Damage, touched: bool, tally: Tally) -> None:
    """A deep verification names a damaged object, unless nothing ever reads the bytes."""
    if not _touches(damage, healthy(world, VERIFY)):
        if touched:
            raise DamageError("verification does not read what others read")
        tally.meaningless[damage.where] += 1
        return
    runtime = Runtime(clock_us=lambda: world.now_us, threads=1)
    store = MemoryStore(_damaged(world, damage), runtime)
    try:
        report = verify(Context(store, runtime, Head(store, runtime)), deep=True, all_versions=True)
        told = [str(finding) for finding in report.findings]
    except Error as error:
        told = [str(error)]
    except Exception as error:
        raise DamageError(f"{VERIFY}: {type(error).__name__}: {error}") from error
    if not any(key in line for key in damage.spans for line in told):
        if not _is_read(world, damage) or _of_no_account(damage):
            tally.meaningless[damage.where] += 1
            return
        raise DamageError(f"{VERIFY}: does not tell of it, but of {told[:3]}")
    tally.verified[damage.where] += 1


def _is_read(world: World, damage: Damage) -> bool:
    """Whether anything reads the objects. Of what no kept version needs, an object that is gone is taken for deleted by
    the collection that looks for it, and so by verification."""
    names = [name for name in acts(world) if damage.how != "lose" or name not in ("gc", "verify", VERIFY)]
    return any(healthy(world, name).reads(key) for name in names for key in damage.spans)


def _of_no_account(damage: Damage) -> bool:
    """Whether an intent is lost, or holds another object of the same job: it protects nothing, and nothing is lost."""
    for key, body in damage.bodies.items():
        parsed = parse_intent_key(key)
        if parsed is None:
            return False
        try:
            if damage.how != "lose" and Heartbeat.decode(body, key).txid != parsed[0]:
                return False
        except Error:
            return False
    return True
