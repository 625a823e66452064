"""The enumeration leaves nothing out, and repeats itself exactly."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from dolmen.errors import ObjectNotFoundError
from dolmen.store.memory import MemoryObject
from dolmen_simulator.interleavings.enumeration import Enumeration
from dolmen_simulator.interleavings.execution import Execution, Peer, Task
from dolmen_simulator.interleavings.registry import PAIRS
from dolmen_simulator.interleavings.search import Search
from dolmen_simulator.interleavings.steps import Fault
from dolmen_simulator.world.fates import Fate


def ends_of(name: str, fault: Fault | None, *, reduced: bool) -> tuple[set[bytes], int]:
    """The ends of a pair's executions, and the number of executions."""
    enumeration, ends = Enumeration(PAIRS[name]), set[bytes]()
    search = Search(lambda: enumeration.start(fault), reduced)
    for execution in search:
        ends.add(enumeration.judge.end(execution))
    return ends, search.executions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("create/create", None),
        ("create/drop", None),
        ("create/create", Fault(0, 3, Fate.RESPONSE_LOST)),
        ("create/drop", Fault(1, 3, Fate.CONFLICT)),
        ("create/drop", Fault(0, 3, Fate.CRASH_AFTER)),
    ],
)
def test_what_is_left_out_comes_to_nothing_new(name: str, fault: Fault | None) -> None:
    every, executions = ends_of(name, fault, reduced=False)
    some, fewer = ends_of(name, fault, reduced=True)
    assert some == every
    assert fewer < executions / 5


Call = tuple[str, str, str]


def program(calls: Sequence[Call]) -> Task:
    """A task that sends requests to the store, and returns the answers."""

    def task(peer: Peer) -> list[str]:
        answers, etags = [], dict[str, str]()
        for verb, key, body in calls:
            try:
                if verb == "get":
                    found = peer.store.get(key)
                    etags[key], answer = found.etag, str(found.body)
                elif verb == "list":
                    answer = " ".join(info.key for info in peer.store.list(key))
                elif verb == "time":
                    answer = str(peer.store.clock.now_us)
                elif verb == "wait":
                    peer.wait(1)
                    answer = ""
                elif verb == "put":
                    answer = str(peer.store.put(key, body.encode(), if_match=etags.get(key)))
                else:
                    answer = str(peer.store.delete([key]))
            except ObjectNotFoundError:
                answer = "nothing"
            answers.append(answer)
        return answers

    return task


def random_call(rng: random.Random) -> Call:
    key = rng.choice(("a", "b", "c/1", "c/2"))
    verb = rng.choice(("get", "get", "put", "put", "delete", "list", "time", "wait"))
    return verb, "c/" if verb == "list" else key, str(rng.randrange(10**9))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(300 if os.environ.get("DOLMEN_LONG") else 16))
def test_random_programs_end_as_they_do_in_all_orders(number: int) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED", random.randrange(10**9)))
    print(f"DOLMEN_TEST_SEED={seed}")
    rng = random.Random(f"{seed} {number}")
    tasks = tuple(program([random_call(rng) for _ in range(rng.randint(2, 5))]) for _ in range(2))
    objects = {"a": MemoryObject(b"", '"first"', 0)} if rng.random() < 0.5 else {}
    task = rng.randrange(2)
    fault = Fault(task, rng.randrange(3), rng.choice((Fate.LATE, Fate.LATE, *Fate))) if rng.random() < 0.7 else None
    ends = []
    for reduced in (False, True):
        ends.append(set[str]())
        for execution in Search(lambda: Execution(objects, tasks, fault=fault), reduced):
            there = {
                key: (there.body, there.last_modified_us) for key, there in sorted(execution.bucket.objects.items())
            }
            ends[-1].add(f"{there} {[str(outcome) for outcome in execution.outcomes]}")
    assert ends[0] == ends[1]
