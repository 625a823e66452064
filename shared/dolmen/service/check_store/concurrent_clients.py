"""Checks of concurrent clients: who wins, that nothing is lost, and what others see."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, ObjectNotFoundError, StoreUnavailableError
from dolmen.service.check_store.contract import Check, Need, Sandbox, collector, equal, errors, expect, keys, put
from dolmen.service.check_store.large_objects import THRESHOLD_BYTES
from dolmen.store.base import ObjectStore, PreconditionFailed, PutOutcome, Stored, Unknown

CHECKS: list[Check] = []
check = collector(CHECKS)

_LOST = "of commits at once some would be lost. Do not use this store"
_STALE = "what was committed would not be seen, and commits be lost. Do not use this store"
_RACES = 5
_DELETERS = 8
_ROUNDS = 10
_UPLOADERS = 4


@check(_LOST)
def exactly_one_of_many_creators_of_a_key_wins(sandbox: Sandbox) -> None:
    """When clients create the same key at once, one of them succeeds, and its object is there."""
    for race in range(_RACES):
        sandbox.go_on()
        key = f"dir{race}/key"
        put_own = partial(_put_number, sandbox.store, key)
        outcomes = sandbox.at_once(put_own, sandbox.load.creators)
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Stored)]
        refused = outcomes.count(PreconditionFailed())
        unknown = [outcome for outcome in outcomes if isinstance(outcome, Unknown)]
        found = int(sandbox.store.get(key).body)
        told = f"{len(winners)} of {len(outcomes)} creators were told that they won, {refused} that they lost"
        expect(len(winners) == 1 or (not winners and unknown), told)
        expect(refused + len(winners) + len(unknown) == len(outcomes), told)
        expect(found in winners or unknown, f"{told}; the object is of another")


def _put_number(store: ObjectStore, key: str, number: int) -> PutOutcome:
    return store.put(key, b"%d" % number)


@check(_LOST)
def no_update_is_lost_among_many_writers(sandbox: Sandbox) -> None:
    """When clients increment one object by compare-and-swap, every acknowledged increment counts."""
    store, load = sandbox.store, sandbox.load
    put(store, "counter", b"0")
    runtime = Runtime()
    done, open_ = 0, 0
    for sure, unsure in sandbox.at_once(lambda number: _count_up(sandbox, runtime, number), load.writers):
        done, open_ = done + sure, open_ + unsure
    found = int(store.get("counter").body)
    expect(done <= found <= done + open_, f"{done} increments were acknowledged, {open_} not, and {found} are there")
    expect(open_ or found == load.writers * load.increments, f"{found} of {load.writers * load.increments} are there")


def _count_up(sandbox: Sandbox, runtime: Runtime, number: int) -> tuple[int, int]:
    """Returns the number of acknowledged increments, and of those without a clear answer."""
    dice, sure, unsure = random.Random(number), 0, 0
    for _ in range(sandbox.load.increments):
        losses = 0
        while True:
            sandbox.go_on()
            found = sandbox.store.get("counter")
            outcome = sandbox.store.put("counter", b"%d" % (int(found.body) + 1), if_match=found.etag)
            if isinstance(outcome, PreconditionFailed):
                losses += 1
                runtime.sleep(dice.uniform(0, min(1.0, 0.2 * 2**losses)))  # otherwise losers make most of the requests
                continue
            sure += isinstance(outcome, Stored)
            unsure += isinstance(outcome, Unknown)
            break
    return sure, unsure


@check("writers would fail while gc works", needs=[Need.LIST, Need.DELETE])
def creating_and_deleting_side_by_side_never_fails(sandbox: Sandbox) -> None:
    """Keys can be created next to keys that are being deleted."""

    def work(number: int) -> None:
        for round_ in range(_ROUNDS):
            sandbox.go_on()
            key = f"data/2026/{round_ % 2}/{number}"
            put(sandbox.store, key)
            equal(errors(sandbox.store.delete([key])), [None], f"deleting {key!r}")

    sandbox.at_once(work, _DELETERS)
    equal(keys(sandbox.store), [], "afterwards there are")


@check(_LOST)
def exactly_one_of_many_uploads_in_parts_to_a_key_is_completed(sandbox: Sandbox) -> None:
    """The condition also holds for uploads in parts that are completed at once."""
    sandboxes = [sandbox.again(None) for _ in range(_UPLOADERS)]

    def upload(number: int) -> bool:
        with sandboxes[number].open_output("key") as output:
            output.write(bytes([number]) * (THRESHOLD_BYTES + number + 1))
            try:
                output.commit()
            except CorruptionError:
                return False
            return True

    won = [number for number, mine in enumerate(sandbox.at_once(upload, _UPLOADERS)) if mine]
    equal(len(won), 1, "uploads that were told that they are the object")
    equal(sandbox.store.head("key").size, THRESHOLD_BYTES + won[0] + 1, "the size of the object")


@check(_STALE)
def others_read_at_once_what_was_written(sandbox: Sandbox) -> None:
    """Another process reads an object and each of its replacements as soon as they are written."""
    equal(sandbox.elsewhere(read_if_there, "key"), None, "before it is created, another process reads")
    etag = put(sandbox.store, "key", b"0")
    for number in range(1, 6):
        equal(sandbox.elsewhere(read_if_there, "key"), b"%d" % (number - 1), "another process reads")
        etag = put(sandbox.store, "key", b"%d" % number, etag)
    mine = sandbox.elsewhere(replace_it, "key", etag, b"theirs")
    expect(mine is not None, "another process could not replace it")
    equal(sandbox.store.get("key").body, b"theirs", "what another process wrote is read as")
    equal(sandbox.store.put("key", b"mine", if_match=etag), PreconditionFailed(), "replacing what another one replaced")


@check("gc would overlook objects, or look for what is gone", needs=[Need.LIST, Need.DELETE])
def others_list_at_once_what_was_written_and_deleted(sandbox: Sandbox) -> None:
    """Another process lists an object as soon as it exists, and no longer once it is deleted."""
    names = [f"dir/{number}" for number in range(5)]
    for number, name in enumerate(names):
        put(sandbox.store, name)
        equal(sandbox.elsewhere(list_keys, "dir/"), names[: number + 1], "another process lists")
    for number, name in enumerate(names):
        equal(errors(sandbox.store.delete([name])), [None], f"deleting {name!r}")
        equal(sandbox.elsewhere(list_keys, "dir/"), names[number + 1 :], "after a delete another process lists")
        equal(sandbox.elsewhere(read_if_there, name), None, "after a delete another process reads")


@check("the store would not be the same for all: do not use it")
def a_store_opened_again_is_the_same_place(sandbox: Sandbox) -> None:
    """Another client sees the objects of the first one."""
    put(sandbox.store, "key", b"x")
    again = sandbox.again(None)
    equal(again.url, sandbox.store.url, "its URL")
    equal(again.get("key").body, b"x", "it holds")


def read_if_there(store: ObjectStore, key: str) -> bytes | None:
    """Reads an object from another process; None if there is none."""
    try:
        return store.get(key).body
    except ObjectNotFoundError:
        return None


def replace_it(store: ObjectStore, key: str, etag: str, body: bytes) -> str | None:
    """Replaces an object from another process; its new ETag, or None if that was refused."""
    outcome = store.put(key, body, if_match=etag)
    if isinstance(outcome, Unknown):
        raise StoreUnavailableError(f"a put of {key!r}: {outcome.reason}")
    return outcome.etag if isinstance(outcome, Stored) else None


def list_keys(store: ObjectStore, prefix: str) -> Sequence[str]:
    """Lists keys from another process."""
    return keys(store, prefix)
