"""Several workers at once, and workers that die between any two requests: every file is applied once, in any order."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from dolmen import Database, Transaction
from dolmen.ingest.batch import BatchRequest, Decision
from dolmen.store.memory import MemoryStore
from support.aging import DAY_US
from support.changes import Change, Feed, File, cut, history, model
from support.crashing_store import Countdown, Crash, CrashingStore

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
HISTORIES = 200 if os.environ.get("DOLMEN_LONG") else 8


def between(run: Callable[[], Any]) -> BatchRequest:
    """Stands in a batch and runs something, once, after the statements of the requests before it were made."""
    left = [run]

    def state(transaction: Transaction) -> Decision:
        if left:
            left.pop()()
        return "finish"

    return BatchRequest(f"between {id(left)}", "", state)


@pytest.mark.parametrize("number", range(HISTORIES))
def test_two_workers_between_each_others_reads_and_commits_come_to_the_same_rows(number: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED + number)
    files = cut(rng, history(rng, rng.randrange(5, 40), rng.randrange(1, 8)), rng.randrange(2, 9))
    feed = Feed(portion_rows=rng.choice([2, 500_000]))
    feed.create()
    workers = [feed.place.open(), feed.place.open()]
    for database in workers:
        database.table("t").count()  # each has seen the table before the first file
    arriving = [*files, *rng.choices(files, k=3)]
    rng.shuffle(arriving)
    while arriving:
        mine, theirs, arriving = arriving[:2], arriving[2:4], arriving[4:]
        rng.shuffle(workers)
        other = between(lambda theirs=theirs: feed.deliver(*theirs, database=workers[1]))  # type: ignore[misc]
        requests = [feed.request(file.id, file.body) for file in mine]
        requests.insert(rng.randrange(len(requests) + 1), other)
        feed.apply(*requests, database=workers[0])
    assert feed.rows() == model(files)


BLIND = File("late", (Change(1, 30, "v30"), Change(4, 31, None), Change(5, 32, "v32")))
OVERLAPPING = File("early", (Change(1, 9, "v9"), Change(2, 11, "v11"), Change(3, 12, None), Change(6, 13, "v13")))


@pytest.mark.parametrize("file", [BLIND, OVERLAPPING], ids=lambda file: file.id)
@pytest.mark.parametrize(
    "meanwhile",
    [
        File("above", (Change(1, 40, "v40"), Change(3, 41, "v41"), Change(4, 42, "v42"))),
        File("within", (Change(1, 10, None), Change(2, 12, None), Change(4, 31, "same"), Change(6, 14, None))),
        File("below", (Change(1, 1, "v1"), Change(7, 2, "v2"))),
    ],
    ids=lambda file: file.id,
)
def test_what_another_commits_meanwhile_is_heeded(file: File, meanwhile: File) -> None:
    feed = Feed()
    feed.create()
    before = File("before", tuple(Change(key, 3 + key, f"v{3 + key}") for key in range(1, 5)))
    feed.deliver(before)
    feed.deliver(File("far", (Change(9, 20, "v20"),)))
    feed.apply(feed.request(file.id, file.body), between(lambda: feed.deliver(meanwhile, database=feed.place.open())))
    expected = model([before, File("far", (Change(9, 20, "v20"),)), meanwhile, file])
    if meanwhile.id == "within" and file is BLIND:
        expected[4] = (31, "same")  # of equal sequences the first applied
    assert feed.rows() == expected


def test_a_row_appended_meanwhile_that_is_newer_is_heeded() -> None:
    feed = Feed()
    feed.create()
    feed.deliver(File("a", (Change(1, 1, "v1"),)))
    row = {"id": 2, "v": "by hand", "seq": 50}
    append = between(lambda: feed.place.open().table("t").append([row]))
    feed.apply(feed.request("b", File("b", (Change(2, 40, "v40"), Change(3, 41, "v41"))).body), append)
    assert feed.rows() == {1: (1, "v1"), 2: (50, "by hand"), 3: (41, "v41")}


@pytest.mark.slow
def test_a_worker_that_dies_at_any_request_leaves_a_file_that_is_applied_once() -> None:
    feed = Feed()
    feed.create()
    feed.deliver(File("a", (Change(1, 10, "v10"), Change(2, 11, None), Change(3, 12, "v12"))))
    feed.place.now_us += 8 * DAY_US
    batch = [
        File("early", (Change(1, 14, None), Change(3, 9, "v9"), Change(2, 13, "v13"))),
        File("late", (Change(4, 20, None), Change(5, 21, "v21"))),
    ]
    start, crashes = feed.place.copy(), 0
    expected: list[Any] = []
    while True:
        crashes += 1
        feed = Feed(place=start.copy())
        runtime = feed.place.runtime()
        countdown = Countdown((crashes + 1) // 2, after=crashes % 2 == 0)
        store: Any = CrashingStore(MemoryStore(feed.place.bucket, runtime), countdown)
        try:
            feed.deliver(*batch, database=Database(store, runtime))
            done = True
        except Crash:
            done = False
        again = feed.deliver(*batch, database=feed.place.open())
        assert {outcome.status for outcome in again.outcomes} <= ({"duplicate"} if done else {"duplicate", "applied"})
        memory = sorted(row["id"] for row in feed.place.db.table("t__deleted").to_arrow().to_pylist())
        expected.append((feed.rows(), memory))
        if done:
            break
    assert crashes > 20
    assert expected == [({2: (13, "v13"), 3: (12, "v12"), 5: (21, "v21")}, [1, 4])] * crashes


def test_a_file_that_another_has_applied_as_void_leaves_no_memory_without_changes() -> None:
    """The memory's creation was bound to no request: the table beside stayed alone, and in the way for ever."""
    feed = Feed()
    feed.create()
    file, later = File("a", (Change(1, 5, "v5"),)), File("b", (Change(2, 7, "v7"),))

    def void() -> None:
        feed.place.open().table("t").append([{"id": 1, "v": "newer", "seq": 6}])
        feed.deliver(file, database=feed.place.open())

    feed.apply(feed.request(file.id, file.body), between(void))
    assert feed.place.db.tables() == ["t"]
    feed.deliver(later)
    assert feed.rows() == {1: (6, "newer"), 2: (7, "v7")}


def test_a_memory_that_a_duplicate_was_to_create_is_created_by_the_next_file_of_its_batch() -> None:
    feed = Feed()
    feed.create()
    file, later = File("a", (Change(1, 5, "v5"),)), File("b", (Change(2, 7, None), Change(3, 8, "v8")))

    def void() -> None:
        feed.place.open().table("t").append([{"id": 1, "v": "newer", "seq": 6}])
        feed.deliver(file, database=feed.place.open())

    requests = [feed.request(each.id, each.body) for each in (file, later)]
    folded = feed.apply(*requests, between(void))
    assert [outcome.status for outcome in folded.outcomes[:2]] == ["duplicate", "applied"]
    assert feed.rows() == {1: (6, "newer"), 3: (8, "v8")}
    assert feed.place.db.table("t__deleted").count() == 1
