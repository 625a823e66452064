"""Orphans go once they are old enough, and nothing else does."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dolmen import Database
from dolmen.base.records import replace
from dolmen.errors import StaleWriterError
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.gc.mark import KeySet
from dolmen.maintenance.gc.sweep import directories, hour_of, hour_prefix, sweep_cutoff
from dolmen.store.base import folders
from dolmen.store.local_store import LocalStore
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.aging import DAY_US, DEFAULTS, HOUR_US, SCHEMA, START_US, Place, rows
from support.commit_world import ScriptedStore, meanwhile
from support.stores import RUNTIME

LONG = os.environ.get("DOLMEN_LONG") == "1"


@pytest.fixture
def place() -> Place:
    place = Place()
    place.db.create_table("t", SCHEMA).append(rows(1, 2, 3))
    return place


def named(place: Place, table: str = "t", kind: str = "data", hours_ago: float = 0) -> str:
    """An orphan put now under the name of an hour."""
    suffix = {"data": "parquet", "tombstone": "del"}[kind]
    uuid = place.runtime().uuid()
    time_us = place.now_us - round(hours_ago * HOUR_US)
    return place.orphan(f"{hour_prefix(f'{kind}/{table}/', time_us)}{uuid}.{suffix}")


def test_an_orphan_goes_when_it_is_a_week_and_an_hour_old_and_not_before(place: Place) -> None:
    orphans = {named(place), named(place, kind="tombstone"), place.orphan("segment/files/" + "0" * 32)}
    place.pass_hours(7 * 24 + 0.9)
    place.collect(DEFAULTS)
    assert orphans <= place.there()
    place.pass_hours(1.2)
    done = place.collect(DEFAULTS)
    assert not orphans & place.there()
    assert done.deleted["orphans"].objects == 3
    assert done.deleted["orphans"].bytes == 3 * len(b"orphan")
    assert place.there() == place.needed_keys()


def test_orphans_of_dropped_and_of_never_created_tables_go_too(place: Place) -> None:
    place.db.create_table("u", SCHEMA).append(rows(1))
    place.db.drop_table("u")
    orphans = {named(place, "u"), named(place, "never_there"), named(place, "v", "tombstone")}
    place.pass_hours(9 * 24)
    place.collect(DEFAULTS)
    assert not orphans & place.there()


def test_manifests_of_attempts_that_lost_go_and_those_of_versions_stay(place: Place) -> None:
    for key in range(20):
        place.db.table("t").append(rows(key))
    versions = {key for key in place.bucket.objects if key.startswith("manifest/")}
    losers = {place.orphan(f"manifest/v{number:020d}-00000000.json") for number in (1, 7, place.db.version)}
    ahead = place.orphan(f"manifest/v{place.db.version + 2:020d}-00000000.json")
    place.pass_hours(9 * 24)
    done = place.collect(DEFAULTS)
    there = {key for key in place.bucket.objects if key.startswith("manifest/")}
    assert done.deleted["orphans"].objects == 3
    assert not losers & there
    assert versions | {ahead} <= there
    assert "VersionExpiredError" not in place.read_versions().values()


def test_objects_that_are_not_named_as_ours_are_left_alone(place: Place) -> None:
    names = (
        "data/readme.txt",
        "data/t/notes.txt",
        "data/t/2020/13/45/99/x.parquet",
        "data/UPPER/2020/01/01/01/x.parquet",
        "data/t/2020/01/01/01/deep/x.parquet",
        "manifest/readme",
        "index/t/x.ext",
        "other/x",
    )
    strange = {place.orphan(key) for key in names}
    place.pass_hours(400 * 24)
    place.collect(DEFAULTS, full=True)
    assert strange <= place.bucket.objects.keys()


def test_a_name_older_than_its_upload_is_found_within_two_days_and_later_by_a_full_sweep(place: Place) -> None:
    place.pass_hours(100 * 24)
    first = named(place)
    place.pass_hours(8 * 24)
    place.collect(DEFAULTS)
    assert first not in place.there()
    swept = place.manifest.swept
    near = named(place, hours_ago=(place.now_us - swept) / HOUR_US + 40)
    far = named(place, hours_ago=(place.now_us - swept) / HOUR_US + 60)
    trigger = named(place)
    place.pass_hours(8 * 24)
    place.collect(DEFAULTS)
    assert {near, far, trigger} & place.there() == {far}
    place.collect(DEFAULTS, full=True)
    assert far not in place.there()


def test_a_name_older_than_its_upload_is_found_though_nobody_ever_writes_again(place: Place) -> None:
    """Found by histories 5000132 and 5000202: nothing else came of age, so no sweep began."""
    named(place)
    place.pass_hours(9 * 24)
    place.collect(DEFAULTS)
    last = named(place, hours_ago=(place.now_us - place.manifest.swept) / HOUR_US + 2)
    place.pass_hours(9 * 24)
    place.collect(DEFAULTS)
    assert last not in place.there()
    version = place.manifest.version
    place.pass_hours(9 * 24)
    place.collect(DEFAULTS)
    assert place.manifest.version == version, "an idle database comes to rest"


def test_orphans_that_wait_are_told_of(place: Place) -> None:
    named(place)
    place.pass_hours(5 * 24)
    young = [named(place), named(place, "u")]
    place.pass_hours(4 * 24)
    done = place.collect(DEFAULTS)
    assert done.waiting is not None
    assert (done.waiting.objects, done.waiting.bytes) == (2, 12)
    assert "too young to go  2 (12 bytes)" in repr(done)
    assert set(young) <= place.there()


@pytest.mark.slow
def test_a_sweep_goes_on_where_the_last_one_ended(place: Place) -> None:
    for day in range(30):
        place.pass_hours(24)
        for _ in range(5):
            place.db.table("t").append(rows(day))
        named(place)
    place.collect(DEFAULTS)
    assert place.manifest.swept == sweep_cutoff(place.now_us - DEFAULTS.orphan_age_us)
    named(place)
    place.pass_hours(24)

    class Noting(MemoryStore):
        listed = 0

        def list(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
            for info in super().list(prefix, start_after):
                self.listed += prefix.startswith(("data/t", "manifest/"))
                yield info

    store = Noting(place.bucket, place.runtime())
    done = collect(place.context(store), settings=DEFAULTS)
    assert done.deleted["orphans"].objects == 1
    assert store.listed < 150, "of about 350: the last ten days, not the month"


def test_listing_the_tables_costs_a_request_for_each_whatever_they_hold(place: Place) -> None:
    for name in ("a", "t0", "t_", "tt", "z"):
        for _ in range(40):
            named(place, name)
    store = CountingStore(MemoryStore(place.bucket, place.runtime()))
    assert list(directories(store, "data")) == [f"data/{name}/" for name in ("a", "t", "t0", "t_", "tt", "z")]
    assert store.lists == 7


def test_names_of_any_characters_in_a_folder_end_its_listing(place: Place) -> None:
    store = MemoryStore(place.bucket, place.runtime())
    for name in ("data/t/é", "data/t/~~", "data/t/\U0010ffff", "data/t-x/y", "data/other", "data/u/1"):
        store.put(name, b"")
    assert [*folders(store, "data/")] == ["t-x", "t", "u"]


def test_hours_are_read_from_names_as_they_were_written() -> None:
    for kind in ("data", "tombstone"):
        prefix = hour_prefix(f"{kind}/t/", START_US)
        assert hour_of(f"{prefix}x.parquet") == START_US - START_US % HOUR_US
    for key in (
        "data/t/x.parquet",
        "segment/files/x",
        "data/t/2020/01/01/24/x",
        "data/t/2020/02/30/00/x",
        "data//2020",
    ):
        assert hour_of(key) is None


def test_a_set_of_keys_never_forgets_one() -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"DOLMEN_TEST_SEED={seed}")
    rng = random.Random(seed)
    keys = [f"data/t/{rng.getrandbits(128):032x}" for _ in range(rng.randrange(2000))]
    held = KeySet(keys + keys[:10])
    assert held.member_mask(keys).all()
    assert not held.member_mask([key + "x" for key in keys]).any()
    assert not KeySet([]).member_mask(["x"]).any()
    assert "x" not in KeySet([])
    assert keys == [] or keys[0] in held


def test_orphans_in_a_directory_go_by_the_time_of_their_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "db", RUNTIME)
    db = Database(store, RUNTIME)
    db.create_table("t", SCHEMA).append(rows(1, 2))
    now_us = RUNTIME.clock_us()
    rng = random.Random(5)
    old, young = set(), set()
    for number in range(40):
        age_us = rng.randrange(1, 30) * DAY_US
        key = f"{hour_prefix('data/t/', now_us - age_us)}{number:032x}.parquet"
        store.put(key, b"orphan")
        os.utime(tmp_path / "db" / key, ns=((now_us - age_us) * 1000,) * 2)
        (old if age_us > 7 * DAY_US else young).add(key)
    half_written = tmp_path / "db" / ".dolmen-tmp" / "x"
    half_written.parent.mkdir(exist_ok=True)
    half_written.write_bytes(b"x")
    done = collect(db._context)
    assert done.deleted["orphans"].objects == len(old)
    left = {info.key for info in store.list("data/")}
    assert young <= left
    assert not old & left
    assert half_written.exists(), "no listing shows it"
    assert db.table("t").count() == 2


def test_the_last_writer_before_the_fence_wins_or_loses_whole(place: Place) -> None:
    """A put of the pointer that is under way while the fence moves: CAS decides, and the mark follows it."""
    named(place)
    store = ScriptedStore(place.bucket, place.runtime())
    writer = place.open(store)
    tx = writer.transaction()
    tx.table("t").append(rows(50))
    place.pass_hours(6 * 24)
    tx.table("t").append(rows(51))
    place.pass_hours(24 + 0.5)

    def collect_now() -> None:
        place.pass_hours(1)
        place.collect(replace(DEFAULTS, orphan_age_us=7 * DAY_US))

    store.script.append(meanwhile(collect_now))
    with pytest.raises(StaleWriterError):
        tx.commit()
    assert sorted(place.db.table("t").to_arrow()["k"].to_pylist()) == [1, 2, 3]


MILLION = 1_000_000 if LONG else 30_000


@pytest.mark.slow
def test_a_million_objects_are_collected_in_bounded_memory() -> None:
    """In a process of its own, so that its peak is its own. 30,000 objects, or with DOLMEN_LONG=1 the million."""
    code = textwrap.dedent(f"""
        import pathlib, re, time
        from dolmen.maintenance.gc.collection import collect
        from support.aging import DEFAULTS, Place
        from support.garbage import fill

        def peak_memory():  # of this program alone: getrusage also tells of the process that started it
            return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) >> 10

        place = Place()
        live = fill(place, {MILLION})
        place.pass_hours(20 * 24)
        before = peak_memory()
        began = time.monotonic()
        done = collect(place.context(), settings=DEFAULTS)
        took = time.monotonic() - began
        assert done.deleted["orphans"].objects == {MILLION} - live, done
        peak = peak_memory()
        print(f"{MILLION:,} objects, {{live:,}} live: {{before}} MB, peak {{peak}} MB, {{took:.1f}} s")
        assert peak < 512
    """)
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root / "shared"), str(root / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
