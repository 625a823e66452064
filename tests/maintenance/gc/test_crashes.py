"""A collection that dies anywhere is taken up by the next one, which comes to the same end."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest

from dolmen import Database
from dolmen.base.records import replace
from dolmen.commit.uploads import Intent
from dolmen.errors import StoreUnavailableError, UnknownOutcomeError
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.gc.mark import needed_keys
from dolmen.maintenance.verify.verification import verify
from dolmen.store import open_store
from dolmen.store.base import ObjectStore, PutOutcome, Unknown
from dolmen.store.local_store import LocalStore
from dolmen.store.memory import MemoryStore
from support.aging import EAGER, SCHEMA, Place, busy, rows
from support.crashing_store import Countdown, Crash, CrashingStore
from support.stores import RUNTIME


def aged() -> Place:
    """Something of everything that collection removes."""
    place = Place()
    busy(place)
    intent = Intent.begin(MemoryStore(place.bucket, place.runtime()), place.runtime(), "a job that died", ["t"])
    for _ in range(3):
        place.orphan(f"data/t/2025/10/09/15/{intent.name()}.parquet")
    place.orphan(f"data/t/2025/10/09/09/{'0' * 32}.parquet")
    place.orphan(f"segment/files/{'1' * 32}")
    place.orphan(f"manifest/v{3:020d}-00000000.json")
    place.orphan(f"manifest/v{place.db.version:020d}-00000000.json")
    place.pass_hours(20 * 24)
    return place


def crashed_runs(after: bool, runs_before: int) -> int:
    """Lets the run after some others die at each of its verbs in turn; returns how many verbs it has."""
    wanted = aged()
    before = wanted.read_versions()
    wanted.collect_all(times=6)
    for verb in count(1):
        place = aged()
        for _ in range(runs_before):
            place.collect()
            place.pass_hours(2)
        countdown = Countdown(after=after)
        context = place.context(CrashingStore(MemoryStore(place.bucket, place.runtime()), countdown))  # type: ignore[arg-type]
        countdown.left = verb
        try:
            collect(context, settings=EAGER)
            assert countdown.left > 0, "it ended by itself"
            return verb - 1
        except Crash:
            pass
        kept = place.read_versions()
        oldest = place.manifest.horizon
        assert {v: kept[v] for v in before if v >= oldest} == {v: before[v] for v in before if v >= oldest}
        place.pass_hours(2)
        place.collect_all(times=6)
        assert place.there() == wanted.there()
        assert place.manifest.released == ()
        assert verify(place.context(), deep=True).findings == ()
    raise AssertionError("unreachable")


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("runs_before", [0, 1])
def test_a_crash_at_any_verb_is_made_good_by_the_next_run(after: bool, runs_before: int) -> None:
    verbs = crashed_runs(after, runs_before)
    assert verbs >= 15


def test_a_lost_answer_of_the_fence_deletes_nothing_before_it_is_clear() -> None:
    place = aged()
    before = place.there()

    class Deaf(MemoryStore):
        """The answer to the put of the pointer is lost, and so is every look at it afterwards."""

        gone = False

        def put(self, key, body, *, if_match=None) -> PutOutcome:  # type: ignore[no-untyped-def]
            outcome = super().put(key, body, if_match=if_match)
            if if_match is not None:
                self.gone = True
                return Unknown("lost")
            return outcome

        def get(self, key, byte_range=None, *, etag=None, version=None):  # type: ignore[no-untyped-def]
            if self.gone:
                raise StoreUnavailableError("no answer")
            return super().get(key, byte_range, etag=etag, version=version)

    with pytest.raises(UnknownOutcomeError):
        collect(place.context(Deaf(place.bucket, place.runtime())), settings=EAGER)
    assert place.there() == before
    place.pass_hours(2)
    place.collect_all(times=6)
    assert place.there() == place.needed_keys()


# ---- other stores ----------------------------------------------------------------------------------------------------

NOW = replace(EAGER, retention_us=0, keep_versions=1, reader_grace_us=0)


def lived(store: ObjectStore) -> Database:
    """A short life, on a store whose clock can't be moved."""
    db = Database(store, RUNTIME)
    db.set(root_bytes="8KB")
    t = db.create_table("t", SCHEMA, primary_key=["k"])
    for key in range(30):
        t.append(rows(key))
    t.delete("k < 3", mode="positions")
    t.delete("k < 5", mode="positions")
    db.create_table("other", SCHEMA).append(rows(1))
    db.drop_table("other")
    t.overwrite(rows(100, 101))
    return db


def check_collected(store: ObjectStore) -> None:
    db = lived(store)
    context = db._context
    assert any(context.store.list("segment/files/"))
    prefixes = ("data/", "tombstone/", "segment/files/")

    def there() -> set[str]:
        return {info.key for prefix in prefixes for info in store.list(prefix)}

    def needed() -> set[str]:
        keys = needed_keys(context.head.refresh().manifest, context.segments)
        return {key for key in keys if key.startswith(prefixes)}

    for _ in range(1_000):  # the newest version is dated within the second that the store's clock shows
        collect(context, settings=NOW)
        if there() == needed() and len(list(store.list("manifest/"))) <= 3:
            break
        time.sleep(0.1)
    assert sorted(db.table("t").to_arrow()["k"].to_pylist()) == [100, 101]
    assert there() == needed()  # letter for letter
    assert sum(1 for _ in store.list("manifest/")) <= 3
    assert verify(context, deep=True).findings == ()


@pytest.mark.slow
def test_it_works_the_same_on_s3(s3_url: str) -> None:
    check_collected(open_store(s3_url, RUNTIME))


def test_it_works_the_same_in_a_directory(tmp_path: Path) -> None:
    check_collected(LocalStore(tmp_path / "db", RUNTIME))
