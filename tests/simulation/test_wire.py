"""What S3Store tells its callers of each fate of each verb, and what has then truly happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.errors import (
    CorruptionError,
    InputError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from dolmen.store.base import Deleted, PreconditionFailed, Stored, Unknown
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.world.fates import Answer, Crash, Fate, Refusal, StoreRequest, Verb, Wire, fates_of
from dolmen_simulator.world.server import RepeatedCompletion, Server
from dolmen_simulator.world.wire import SimulatedStore

NOW_US = 1_767_225_600_000_000
BODY = b"a body of twenty-six bytes"


class Script(Wire):
    """Deals the fates it was given to the requests of one verb, one after the other; all else is well.

    What is to come later stays under way until ``arrive``.
    """

    def __init__(self) -> None:
        self.fates: dict[Verb, list[Fate]] = {}
        self.sent: list[StoreRequest] = []
        self.truth: list[tuple[Verb, Answer]] = []
        self.under_way: list[Callable[[], object]] = []
        self.failing: tuple[str, ...] = ()
        self.removed: list[str] = []
        self.silences = 0

    def step(self, request: StoreRequest) -> Fate:
        self.sent.append(request)
        fates = self.fates.get(request.verb)
        return fates.pop(0) if fates else Fate.OK

    def wait_for_timeout(self, request: StoreRequest) -> None:
        self.silences += 1

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        self.under_way.append(arrive)

    def keys_not_removed(self, request: StoreRequest) -> Collection[str]:
        return self.failing

    def before_removal(self, key: str) -> None:
        self.removed.append(key)

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        self.truth.append((request.verb, answer))

    def arrive(self) -> None:
        """What is under way arrives."""
        while self.under_way:
            self.under_way.pop(0)()

    def count(self, verb: Verb) -> int:
        """How often this was sent."""
        return sum(request.verb is verb for request in self.sent)


class World:
    """A store over a wire, and what that store truly holds."""

    def __init__(self, repeated: RepeatedCompletion = RepeatedCompletion.ANSWERED, page: int = 1_000) -> None:
        self.wire = Script()
        self.bucket = MemoryBucket(lambda: NOW_US)
        self.server = Server(self.bucket, self.wire, page=page, repeated=repeated)
        self.now_us, self.frozen_us = NOW_US, 0
        self.bucket.clock_us = lambda: self.now_us
        self.runtime = Runtime(
            clock_us=lambda: self.now_us,
            monotonic=lambda: self.now_us / 1e6,
            sleep=self.sleep,
            random=random.Random(1),
            threads=1,
        )
        self.store = SimulatedStore(self.server, "tester", self.runtime, threshold_bytes=10, part_bytes=8)

    def sleep(self, seconds: float) -> None:
        """Takes no time, but for a process that is frozen in it."""
        self.now_us += self.frozen_us

    def given(self, verb: Verb, *fates: Fate) -> None:
        self.wire.fates[verb] = list(fates)

    def holds(self) -> dict[str, bytes]:
        return {key: there.body for key, there in self.bucket.objects.items()}

    def upload(self, key: str = "key") -> int:
        with self.store.open_output(key) as output:
            output.write(BODY)
            return output.commit()


def told(call: Callable[[], Any]) -> Any:
    """What a call returns, or the type of what it raises."""
    try:
        return call()
    except (Crash, StoreUnavailableError, CorruptionError, ObjectNotFoundError) as error:
        return type(error)


# What a put that creates an object is told, whether it is there then, and whether it is there once all has arrived.
PUTS: dict[Fate, tuple[type, bool, bool]] = {
    Fate.OK: (Stored, True, True),
    Fate.CRASH_BEFORE: (Crash, False, False),
    Fate.CRASH_AFTER: (Crash, True, True),
    Fate.REQUEST_LOST: (Unknown, False, False),
    Fate.RESPONSE_LOST: (Unknown, True, True),
    Fate.LATE: (Unknown, False, True),
    Fate.DOUBLED: (PreconditionFailed, True, True),  # it meets its own earlier self
    Fate.DOUBLED_LATER: (Stored, True, True),
    Fate.THROTTLED: (Unknown, False, False),
    Fate.THROTTLED_AFTER: (Unknown, True, True),
    Fate.CONFLICT: (Stored, True, True),  # sent again: nothing had landed
    Fate.UNREACHABLE: (Stored, True, True),
}


@pytest.mark.parametrize("fate", PUTS, ids=lambda fate: fate.name)
def test_a_put_is_told_the_truth_or_that_it_is_unknown(fate: Fate) -> None:
    world = World()
    world.given(Verb.PUT, fate)
    outcome, there, in_the_end = PUTS[fate]
    answer = told(lambda: world.store.put("key", BODY))
    assert answer is outcome or isinstance(answer, outcome)
    assert (world.holds() == {"key": BODY}) is there
    world.wire.arrive()
    assert (world.holds() == {"key": BODY}) is in_the_end
    resent = fate in (Fate.CONFLICT, Fate.UNREACHABLE)
    assert world.wire.count(Verb.PUT) == 1 + resent, "a put with an unknown outcome is never sent twice"


@pytest.mark.parametrize("fate", PUTS, ids=lambda fate: fate.name)
def test_a_put_that_replaces_is_judged_when_it_arrives(fate: Fate) -> None:
    """Somebody else replaces the object while it is under way: it never overwrites what it did not see."""
    world = World()
    first = world.store.put("key", b"first")
    assert isinstance(first, Stored)
    world.given(Verb.PUT, fate)
    told(lambda: world.store.put("key", b"mine", if_match=first.etag))
    if world.holds() == {"key": b"first"}:
        other = world.store.put("key", b"theirs", if_match=first.etag)
        assert isinstance(other, Stored)
    before = world.holds()
    world.wire.arrive()
    assert world.holds() == before


def test_409_to_the_end_of_patience_is_no_failed_precondition() -> None:
    world = World()
    world.given(Verb.PUT, *[Fate.CONFLICT] * 6)
    with pytest.raises(StoreUnavailableError, match="409 ConditionalRequestConflict"):
        world.store.put("key", BODY)
    assert world.holds() == {}
    assert world.wire.truth == []
    assert isinstance(world.store.put("key", BODY), Stored)


def test_a_process_that_was_frozen_does_not_send_an_old_put_again() -> None:
    world = World()
    first = world.store.put("key", b"first")
    assert isinstance(first, Stored)
    world.frozen_us = 31_000_000
    world.given(Verb.PUT, Fate.CONFLICT)
    with pytest.raises(StoreUnavailableError, match="409"):
        world.store.put("key", BODY, if_match=first.etag)
    assert world.holds() == {"key": b"first"}
    world.given(Verb.PUT, Fate.CONFLICT)
    assert isinstance(world.store.put("new", BODY), Stored), "what only creates bears no time"


@pytest.mark.parametrize("fate", [Fate.CONFLICT, Fate.UNREACHABLE, Fate.REQUEST_LOST, Fate.THROTTLED])
def test_no_commit_lands_long_after_it_was_dated_though_its_process_was_frozen(fate: Fate) -> None:
    """A pointer's put was refused, and the process stood still for half an hour before it was sent again: answers to
    at(timestamp) that were settled would have changed."""
    world = World()
    db = Database(world.store, world.runtime)
    db.create_table("t", pa.schema([("k", pa.int64())]))
    landed: list[int] = []

    def on_arrival(request: StoreRequest, answer: Answer) -> None:
        if request.key == "_latest_manifest" and request.verb is Verb.PUT and not isinstance(answer, Refusal):
            landed.append(world.now_us)

    world.wire.on_arrival = on_arrival  # type: ignore[method-assign]
    world.given(Verb.PUT, Fate.OK, fate)  # manifest, pointer
    world.frozen_us = 30 * 60 * 1_000_000
    with suppress(StoreUnavailableError, UnknownOutcomeError):
        db.table("t").append(pa.table({"k": [1]}))
    assert world.wire.fates[Verb.PUT] == []
    dated = [round(commit.created_at.timestamp() * 1e6) for commit in db.history()]
    assert all(at_us - dated[0] < 60_000_000 for at_us in landed)


def test_404_for_a_condition_on_an_absent_object_is_a_failed_precondition() -> None:
    world = World()
    assert isinstance(world.store.put("key", BODY, if_match='"0"'), PreconditionFailed)
    assert [str(answer) for _, answer in world.wire.truth] == ["404 NoSuchKey"]


READS: dict[Verb, Callable[[World], Any]] = {
    Verb.GET: lambda world: world.store.get("key").body,
    Verb.HEAD: lambda world: world.store.head("key").size,
    Verb.LIST: lambda world: [found.key for found in world.store.list("")],
}
RIGHT: dict[Verb, Any] = {Verb.GET: BODY, Verb.HEAD: len(BODY), Verb.LIST: ["key"]}


@pytest.mark.parametrize(("verb", "fate"), [(verb, fate) for verb in READS for fate in fates_of(verb)])
def test_a_read_is_sent_again_until_it_is_answered(verb: Verb, fate: Fate) -> None:
    world = World()
    world.store.put("key", BODY)
    world.given(verb, fate, fate)
    answer = told(lambda: READS[verb](world))
    assert answer == (Crash if fate is Fate.CRASH_BEFORE else RIGHT[verb])
    assert world.wire.count(verb) == (1 if fate in (Fate.OK, Fate.CRASH_BEFORE) else 3)
    world.given(verb, *[Fate.REQUEST_LOST] * 8)
    assert told(lambda: READS[verb](world)) is StoreUnavailableError
    assert world.wire.silences >= 8


def test_a_list_comes_in_pages_and_each_of_them_may_fail() -> None:
    world = World(page=2)
    keys = [f"some/{number}" for number in range(7)]
    for key in [*keys, "other"]:
        world.store.put(key, BODY)
    world.given(Verb.LIST, Fate.OK, Fate.THROTTLED, Fate.OK, Fate.REQUEST_LOST)
    assert [found.key for found in world.store.list("some/", "some/0")] == keys[1:]
    assert world.wire.count(Verb.LIST) == 5


# What a delete of two keys does: which are there when it is told, and once all has arrived.
DELETES: dict[Fate, bool] = {
    Fate.OK: False,
    Fate.CRASH_BEFORE: True,
    Fate.CRASH_AFTER: False,
    Fate.REQUEST_LOST: False,
    Fate.RESPONSE_LOST: False,
    Fate.LATE: False,
    Fate.DOUBLED: False,
    Fate.DOUBLED_LATER: False,
    Fate.THROTTLED: False,
    Fate.THROTTLED_AFTER: False,
    Fate.UNREACHABLE: False,
}


@pytest.mark.parametrize("fate", fates_of(Verb.DELETE), ids=lambda fate: fate.name)
def test_a_delete_is_sent_again_until_each_key_has_an_outcome(fate: Fate) -> None:
    world = World()
    for key in ("a", "b", "c"):
        world.store.put(key, BODY)
    world.given(Verb.DELETE, fate)
    answer = told(lambda: world.store.delete(["a", "b", "missing"]))
    there = DELETES[fate]
    assert answer == (Crash if "CRASH" in fate.name else [Deleted("a"), Deleted("b"), Deleted("missing")])
    assert sorted(world.holds()) == (["a", "b", "c"] if there else ["c"])
    world.wire.arrive()
    assert sorted(world.holds()) == (["a", "b", "c"] if there else ["c"])


def test_a_delete_that_fails_for_some_keys_says_for_which_in_an_answer_of_200() -> None:
    world = World()
    for key in ("a", "b"):
        world.store.put(key, BODY)
    world.wire.failing = ("b",)
    outcomes = world.store.delete(["a", "b"])
    assert [outcome.key for outcome in outcomes if outcome.error is None] == ["a"]
    assert "InternalError" in (outcomes[1].error or "")
    assert list(world.holds()) == ["b"]
    world.given(Verb.DELETE, *[Fate.REQUEST_LOST] * 8)
    assert all(outcome.error for outcome in world.store.delete(["a", "b"]))


STEPS = (Verb.CREATE_UPLOAD, Verb.UPLOAD_PART, Verb.COMPLETE_UPLOAD)
UPLOADS = [(verb, fate) for verb in STEPS for fate in fates_of(verb)]


@pytest.mark.parametrize("repeated", RepeatedCompletion, ids=lambda repeated: repeated.name)
@pytest.mark.parametrize(("verb", "fate"), UPLOADS)
def test_an_upload_in_parts_is_whole_or_not_there(verb: Verb, fate: Fate, repeated: RepeatedCompletion) -> None:
    """Whatever becomes of one of its requests. Only a conflict at the completion makes it fail: S3 has then given the
    upload up, and its parts with it."""
    world = World(repeated)
    world.given(verb, fate)
    answer = told(world.upload)
    world.wire.arrive()
    there = world.holds()
    if "CRASH" in fate.name:
        assert answer is Crash
        landed = verb is Verb.COMPLETE_UPLOAD and fate is Fate.CRASH_AFTER
        assert there == ({"key": BODY} if landed else {})
    elif (verb, fate) == (Verb.COMPLETE_UPLOAD, Fate.CONFLICT):
        assert answer is StoreUnavailableError
        assert there == {}
    else:
        assert answer == len(BODY)
        assert there == {"key": BODY}


@pytest.mark.parametrize("fate", fates_of(Verb.COPY_PART), ids=lambda fate: fate.name)
@pytest.mark.parametrize("part", [1, 3])
def test_a_part_that_is_copied_is_whole_or_not_there(part: int, fate: Fate) -> None:
    world = World()
    world.store.put("source", BODY)
    etag = world.store.head("source").etag

    def upload() -> int:
        with world.store.open_output("key") as output:
            output.copy("source", (0, 5), etag)
            output.write(b"between")
            output.copy("source", (2, len(BODY)), etag)
            return output.commit()

    world.given(Verb.COPY_PART, *[Fate.OK] * (part // 2), fate)
    answer = told(upload)
    world.wire.arrive()
    if "CRASH" in fate.name:
        assert answer is Crash
        assert "key" not in world.holds()
    else:
        assert world.holds()["key"] == BODY[:5] + b"between" + BODY[2:]
        assert answer == len(BODY) + 10
    assert world.wire.count(Verb.GET) == 0


def test_a_part_is_copied_of_the_object_with_its_etag_alone() -> None:
    world = World()
    world.store.put("source", BODY)
    for key, told_ in (("source", ObjectChangedError), ("absent", ObjectNotFoundError)):
        with world.store.open_output("key") as output, pytest.raises(told_):
            output.copy(key, (0, 5), '"0"')
    assert world.store.copies is None
    etag = world.store.head("source").etag
    with world.store.open_output("key") as output, pytest.raises(InputError):
        output.copy("source", (0, len(BODY) + 1), etag)
    assert world.holds() == {"source": BODY}


@pytest.mark.parametrize("repeated", RepeatedCompletion, ids=lambda repeated: repeated.name)
@pytest.mark.parametrize("second", [Fate.OK, Fate.CONFLICT, Fate.REQUEST_LOST, Fate.THROTTLED])
def test_a_completion_that_is_repeated_after_it_landed_is_found_to_have_landed(
    second: Fate, repeated: RepeatedCompletion
) -> None:
    """S3 answers a repeated completion like the first, MinIO knows the upload no more; both are success."""
    world = World(repeated)
    world.given(Verb.COMPLETE_UPLOAD, Fate.RESPONSE_LOST, second)
    assert world.upload() == len(BODY)
    assert world.holds() == {"key": BODY}
    assert world.wire.count(Verb.ABORT_UPLOAD) == 0


def test_an_upload_that_is_aborted_leaves_nothing_and_takes_no_part_that_comes_later() -> None:
    world = World()
    world.given(Verb.UPLOAD_PART, Fate.OK, Fate.DOUBLED_LATER)
    with world.store.open_output("key") as output:
        output.write(BODY)
        assert len(world.server.uploads) == 1
    assert world.server.uploads == {}
    world.wire.arrive()
    assert world.holds() == {}
    assert world.server.uploads == {}
    assert [str(answer) for _, answer in world.wire.truth if isinstance(answer, Refusal)] == ["404 NoSuchUpload"]


def test_an_abort_that_arrives_after_the_completion_changes_nothing_and_before_it_makes_it_fail() -> None:
    world = World()
    world.upload("first")
    upload = next(request for request in world.wire.sent if request.verb is Verb.COMPLETE_UPLOAD).upload
    client = world.store.connection.client
    with pytest.raises(Exception, match="NoSuchUpload"):
        client.abort_multipart_upload(Bucket="simulation", Key="first", UploadId=upload)
    assert world.holds() == {"first": BODY}
    output = world.store.open_output("second")
    output.write(BODY)
    (upload,) = world.server.uploads
    client.abort_multipart_upload(Bucket="simulation", Key="second", UploadId=upload)
    with pytest.raises(StoreUnavailableError, match="'second'"):
        output.commit()
    assert world.holds() == {"first": BODY}


def test_nothing_is_cleaned_up_once_a_completion_may_have_landed() -> None:
    world = World()
    world.given(Verb.COMPLETE_UPLOAD, *[Fate.REQUEST_LOST] * 5, Fate.LATE)
    assert told(world.upload) is StoreUnavailableError
    assert world.wire.count(Verb.ABORT_UPLOAD) == 0
    world.wire.arrive()
    assert world.holds() == {"key": BODY}


def test_an_upload_in_parts_never_replaces_another_object() -> None:
    world = World()
    world.store.put("key", b"theirs")
    with pytest.raises(CorruptionError):
        world.upload()
    assert world.holds() == {"key": b"theirs"}


def test_the_object_of_an_upload_in_parts_is_as_old_as_its_beginning() -> None:
    world = World()
    output = world.store.open_output("key")
    output.write(BODY)
    world.now_us += 3_600_000_000
    output.commit()
    assert world.store.head("key").last_modified_us == NOW_US
    assert world.store.clock.now_us == world.now_us


@pytest.mark.parametrize("fate", [Fate.OK, Fate.CONFLICT, Fate.THROTTLED_AFTER, Fate.REQUEST_LOST])
def test_every_answer_tells_the_servers_time_and_silence_tells_none(fate: Fate) -> None:
    world = World()
    world.given(Verb.PUT, *[fate] * 6)
    told(lambda: world.store.put("key", BODY))
    assert world.store.clock.now_us == (0 if fate is Fate.REQUEST_LOST else NOW_US)


@pytest.mark.parametrize("byte_range", [(0, 4), (20, 100), (26, 30), (0, 0)])
def test_ranges_past_the_end_come_back_shorter(byte_range: tuple[int, int]) -> None:
    world = World()
    world.store.put("key", BODY)
    first, end = byte_range
    assert world.store.get("key", byte_range).body == BODY[first:end]
