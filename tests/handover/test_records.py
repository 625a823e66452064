"""Records of drops: written once however often a message comes, read whole or not at all, removed only when settled."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dolmen.base.records import replace
from dolmen.errors import CorruptionError, InputError, UnsupportedFormatError
from dolmen.ingest.announcements import Drop
from dolmen.service.handover.handover_records import HandoverRecord, HandoverRecords
from dolmen.store import open_store
from dolmen.store.base import Stored
from dolmen.store.local_store import LocalStore
from dolmen.store.memory import MemoryBucket, MemoryStore
from support.crashing_store import Countdown, Crash, CrashingStore

A = Drop("drops", "landing/events/a b+ü.csv", 17, "e1", "v1", "01", 1_700_000_000_000_000)
B = Drop("drops", "landing/events/b.csv", 1 << 52, "e2")


def test_a_record_holds_every_field_of_its_drops(tmp_path: Path) -> None:
    handed = HandoverRecords(LocalStore(tmp_path))
    key = handed.add([B, A])
    assert list(handed.read_all()) == [HandoverRecord(key, (A, B))]


def test_the_same_drops_are_the_same_record_in_any_order_and_number() -> None:
    store = MemoryStore()
    handed = HandoverRecords(store)
    assert handed.add([A, B]) == handed.add([B, A, A]) == handed.add([A, B])
    assert handed.add([A]) != handed.add([A, B])
    assert len(list(store.list(""))) == 2


def test_records_come_oldest_first(s3_url: str) -> None:
    handed = HandoverRecords(open_store(f"{s3_url}/handed"))
    drops = [replace(B, key=f"landing/events/{n}.csv") for n in range(3)]
    keys = [handed.add([drop]) for drop in drops]
    order = {info.key: info.last_modified_us for info in handed._store.list("")}
    found = [one.key for one in handed.read_all()]
    assert found == sorted(keys, key=lambda key: (order[key], key))


def test_a_settled_record_is_gone_and_may_be_settled_again() -> None:
    handed = HandoverRecords(MemoryStore())
    handed.add([A])
    handed.add([B])
    [first, second] = handed.read_all()
    handed.remove(first)
    handed.remove(first)
    assert list(handed.read_all()) == [second]


def test_a_record_that_another_job_settles_meanwhile_is_passed_over() -> None:
    handed = HandoverRecords(MemoryStore())
    for drop in (A, B):
        handed.add([drop])
    pending = handed.read_all()
    first = next(pending)
    for other in HandoverRecords(handed._store).read_all():
        handed.remove(other)
    assert list(pending) == []
    assert first.drops in ((A,), (B,))


def test_what_waits_is_counted_and_timed_by_the_stores_clock() -> None:
    clock = [1_700_000_000_000_000]
    handed = HandoverRecords(MemoryStore(MemoryBucket(lambda: clock[0])))
    assert (handed.count().records, handed.count().age_seconds) == (0, 0)
    handed.add([A])
    clock[0] += 90_000_000
    handed.add([B])
    assert handed.count().records == 2
    assert 90 <= handed.count().age_seconds < 91


def test_other_objects_are_no_records() -> None:
    store = MemoryStore()
    handed = HandoverRecords(store)
    for key in ("README.md", "a.json", f"sub/{'0' * 64}.json", f"{'0' * 64}.json.tmp"):
        assert isinstance(store.put(key, b"{}"), Stored)
    assert list(handed.read_all()) == []
    assert handed.count().records == 0


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"format": 1, "drops": [{"bucket": "b", "key": "k"}]}, "size"),
        ({"format": 1, "drops": [], "more": 1}, "more"),
        ({"format": 0, "drops": []}, "format 0"),
        ([], "record"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(document: Any, said: str) -> None:
    store = MemoryStore()
    handed = HandoverRecords(store)
    key = _put(store, document)
    handed.add([A])
    with pytest.raises(CorruptionError, match=said) as raised:
        list(handed.read_all())
    assert key in str(raised.value)


def test_records_beside_a_damaged_one_are_all_given_first() -> None:
    store = MemoryStore()
    handed = HandoverRecords(store)
    _put(store, [])
    for drop in (A, B):
        handed.add([drop])
    pending = handed.read_all()
    assert {next(pending).drops, next(pending).drops} == {(A,), (B,)}
    with pytest.raises(CorruptionError):
        next(pending)


def test_a_flipped_bit_is_noticed() -> None:
    store = MemoryStore()
    key = HandoverRecords(store).add([A])
    found = store.get(key)
    outcome = store.put(key, found.body.replace(b'"size":17', b'"size":16'), if_match=found.etag)
    assert isinstance(outcome, Stored)
    with pytest.raises(CorruptionError, match="digest"):
        list(HandoverRecords(store).read_all())


def test_a_newer_record_asks_for_an_upgrade() -> None:
    store = MemoryStore()
    _put(store, {"format": 2, "drops": [], "and": "more"})
    with pytest.raises(UnsupportedFormatError, match="format 2"):
        list(HandoverRecords(store).read_all())


def test_no_drops_are_no_record() -> None:
    with pytest.raises(InputError):
        HandoverRecords(MemoryStore()).add([])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_beside_the_put_leaves_one_record_once_it_is_repeated(after: bool) -> None:
    store = MemoryStore()
    crashing: Any = CrashingStore(store, Countdown(1, after=after))
    with pytest.raises(Crash):
        HandoverRecords(crashing).add([A])
    assert len(list(store.list(""))) == after
    HandoverRecords(store).add([A])
    assert [one.drops for one in HandoverRecords(store).read_all()] == [(A,)]


def _put(store: MemoryStore, document: Any) -> str:
    body = json.dumps(document).encode()
    key = f"{sha256(body).hexdigest()}.json"
    assert isinstance(store.put(key, body), Stored)
    return key
