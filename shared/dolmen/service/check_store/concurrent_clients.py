"""Checks of concurrent clients: who wins, that nothing is lost, and what others see; last, a small database."""

from __future__ import annotations

import random
from functools import partial

import pyarrow as pa

from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, ObjectNotFoundError
from dolmen.service.check_store.contract import THRESHOLD_BYTES, Grant, Sandbox, check, delete, equal, expect, keys, put
from dolmen.store.base import ObjectStore, PreconditionFailed, PutOutcome, Stored, Unknown

_WRITERS = 8
_SCHEMA = pa.schema([("id", pa.int64()), ("writer", pa.int64())])
_LOST = "some concurrent commits would be lost. Do not use this store"
_STALE = "readers would miss commits, and commits would be lost. Do not use this store"
_RACES = 5
_DELETERS = 8
_ROUNDS = 10
_UPLOADERS = 4


@check(_LOST)
def exactly_one_of_many_creators_of_a_key_wins(sandbox: Sandbox) -> None:
    """When clients create the same key at once, one of them succeeds, and its object is there."""
    for race in range(_RACES):
        sandbox.raise_if_stopped()
        key = f"dir{race}/key"
        put_own = partial(_put_number, sandbox.store, key)
        outcomes = sandbox.run_threads(put_own, sandbox.load.creators)
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Stored)]
        refused = outcomes.count(PreconditionFailed())
        unknown = [outcome for outcome in outcomes if isinstance(outcome, Unknown)]
        found = int(sandbox.store.get(key).body)
        counts = f"{len(winners)} of {len(outcomes)} creators won, {refused} lost"
        expect(len(winners) == 1 or (not winners and unknown), counts)
        expect(refused + len(winners) + len(unknown) == len(outcomes), counts)
        expect(found in winners or unknown, f"{counts}; the object is another one's")


def _put_number(store: ObjectStore, key: str, number: int) -> PutOutcome:
    return store.put(key, b"%d" % number)


@check(_LOST)
def no_update_is_lost_among_many_writers(sandbox: Sandbox) -> None:
    """When clients increment one object by compare-and-swap, every acknowledged increment counts."""
    store, load = sandbox.store, sandbox.load
    put(store, "counter", b"0")
    runtime = Runtime()
    done, open_ = 0, 0
    for sure, unsure in sandbox.run_threads(lambda number: _count_up(sandbox, runtime, number), load.writers):
        done, open_ = done + sure, open_ + unsure
    found = int(store.get("counter").body)
    expect(done <= found <= done + open_, f"{done} increments were acknowledged, {open_} not, and {found} are there")
    expect(open_ or found == load.writers * load.increments, f"{found} of {load.writers * load.increments} are there")


def _count_up(sandbox: Sandbox, runtime: Runtime, number: int) -> tuple[int, int]:
    """Returns the numbers of acknowledged increments, and of those with an unknown outcome."""
    dice, sure, unsure = random.Random(number), 0, 0
    for _ in range(sandbox.load.increments):
        losses = 0
        while True:
            sandbox.raise_if_stopped()
            found = sandbox.store.get("counter")
            outcome = sandbox.store.put("counter", b"%d" % (int(found.body) + 1), if_match=found.etag)
            if isinstance(outcome, PreconditionFailed):
                losses += 1
                runtime.sleep(dice.uniform(0, min(1.0, 0.2 * 2**losses)))  # otherwise losers make most requests
                continue
            sure += isinstance(outcome, Stored)
            unsure += isinstance(outcome, Unknown)
            break
    return sure, unsure


@check("writers would fail while gc works", needs=[Grant.LIST, Grant.DELETE])
def creating_and_deleting_side_by_side_never_fails(sandbox: Sandbox) -> None:
    """Keys can be created next to keys that are being deleted."""

    def work(number: int) -> None:
        for round_ in range(_ROUNDS):
            sandbox.raise_if_stopped()
            key = f"data/2026/{round_ % 2}/{number}"
            put(sandbox.store, key)
            delete(sandbox.store, key)

    sandbox.run_threads(work, _DELETERS)
    equal(keys(sandbox.store), [], "afterwards there are")


@check(_LOST)
def exactly_one_of_many_uploads_in_parts_to_a_key_is_completed(sandbox: Sandbox) -> None:
    """The condition also holds for uploads in parts that are completed at once."""
    sandboxes = [sandbox.reopen(None) for _ in range(_UPLOADERS)]

    def upload(number: int) -> bool:
        with sandboxes[number].open_output("key") as output:
            output.write(bytes([number]) * (THRESHOLD_BYTES + number + 1))
            try:
                output.commit()
            except CorruptionError:
                return False
            return True

    won = [number for number, mine in enumerate(sandbox.run_threads(upload, _UPLOADERS)) if mine]
    equal(len(won), 1, "uploads that succeeded")
    equal(sandbox.store.head("key").size, THRESHOLD_BYTES + won[0] + 1, "the size of the object")


@check(_STALE)
def others_read_at_once_what_was_written(sandbox: Sandbox) -> None:
    """Another process reads an object and each of its replacements as soon as they are written."""
    equal(sandbox.call_elsewhere(read_if_there, "key"), None, "before it is created, another process reads")
    etag = put(sandbox.store, "key", b"0")
    for number in range(1, 6):
        equal(sandbox.call_elsewhere(read_if_there, "key"), b"%d" % (number - 1), "another process reads")
        etag = put(sandbox.store, "key", b"%d" % number, etag)
    sandbox.call_elsewhere(put, "key", b"theirs", etag)
    equal(sandbox.store.get("key").body, b"theirs", "what another process wrote is read as")
    equal(sandbox.store.put("key", b"mine", if_match=etag), PreconditionFailed(), "replacing what another one replaced")


@check("gc would overlook objects, or look for what is gone", needs=[Grant.LIST, Grant.DELETE])
def others_list_at_once_what_was_written_and_deleted(sandbox: Sandbox) -> None:
    """Another process lists an object as soon as it exists, and no longer once it is deleted."""
    names = [f"dir/{number}" for number in range(5)]
    for number, name in enumerate(names):
        put(sandbox.store, name)
        equal(sandbox.call_elsewhere(keys, "dir/"), names[: number + 1], "another process lists")
    for number, name in enumerate(names):
        delete(sandbox.store, name)
        equal(sandbox.call_elsewhere(keys, "dir/"), names[number + 1 :], "after a delete another process lists")
        equal(sandbox.call_elsewhere(read_if_there, name), None, "after a delete another process reads")


@check("the store would not be the same for all: do not use it")
def a_store_opened_again_has_the_same_objects(sandbox: Sandbox) -> None:
    """Another client sees the objects of the first one."""
    put(sandbox.store, "key", b"x")
    again = sandbox.reopen(None)
    equal(again.url, sandbox.store.url, "its URL")
    equal(again.get("key").body, b"x", "it holds")


def read_if_there(store: ObjectStore, key: str) -> bytes | None:
    """Reads an object from another process; None if there is none."""
    try:
        return store.get(key).body
    except ObjectNotFoundError:
        return None


@check("dolmen loses or doubles rows on this store: do not use it, and please report it", needs=[Grant.LIST])
def a_database_keeps_what_many_writers_commit(sandbox: Sandbox) -> None:
    """Concurrent writers append and delete while readers read. In the end, each row is there once or not at all."""
    from dolmen.api.database import Database  # the other process does not need them
    from dolmen.maintenance.verify.verification import verify

    commits = sandbox.load.commits
    runtime = Runtime()
    Database(sandbox.store, runtime).create_table("events", _SCHEMA, primary_key="id")

    def write(writer: int) -> int:
        table = Database(sandbox.reopen(None), runtime).table("events")
        for number in range(commits):
            sandbox.raise_if_stopped()
            id_ = writer * commits + number
            table.append(pa.table({"id": [id_, -1 - id_], "writer": [writer, writer]}, schema=_SCHEMA))
            if number % 3 == 2:
                table.delete({"id": id_})
            seen = set(table.scan(columns=["id"], where={"writer": writer}).to_arrow()["id"].to_pylist())
            mine = _ids(writer, commits, number + 1)
            expect(seen == mine, f"writer {writer} does not read what it wrote in {number + 1} commits: {seen ^ mine}")
        return commits + commits // 3

    written = sum(sandbox.run_threads(write, _WRITERS))
    database = Database(sandbox.reopen(None), runtime)
    found = sorted(database.table("events").to_arrow()["id"].to_pylist())
    expected = sorted(id_ for writer in range(_WRITERS) for id_ in _ids(writer, commits, commits))
    expect(found == expected, f"{len(found)} rows are there and {len(expected)} should be")
    equal(database.version, written + 1, "the version")
    report = verify(database._context, deep=True, all_versions=True)
    expect(report.ok, f"verify finds {'; '.join(map(str, report.errors[:3]))}")


def _ids(writer: int, commits: int, done: int) -> set[int]:
    """The rows of a writer after some commits: two per commit, less one that each third commit deleted."""
    appended = range(writer * commits, writer * commits + done)
    return {-1 - id_ for id_ in appended} | {id_ for number, id_ in enumerate(appended) if number % 3 != 2}
