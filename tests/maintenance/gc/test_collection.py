"""Collection keeps what can be read, deletes the rest in time, and comes to rest."""

from __future__ import annotations

import msgspec
import pytest

from dolmen.base.records import replace
from dolmen.errors import ConflictError, CorruptionError, StaleWriterError, VersionExpiredError
from dolmen.format.manifest import EMPTY, Manifest, references
from dolmen.maintenance.gc.collection import collect
from dolmen.maintenance.gc.mark import needed_keys
from dolmen.store.base import Deleted
from dolmen.store.memory import MemoryStore
from dolmen_simulator.counting import CountingStore
from support.aging import DAY_US, DEFAULTS, EAGER, HOUR_US, Place, busy, rows


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def old(place: Place) -> Place:
    """A busy life, a month ago."""
    busy(place)
    place.pass_hours(30 * 24)
    return place


# ---- versions expire -------------------------------------------------------------------------------------------------


def test_a_database_without_a_commit_has_nothing_to_collect(place: Place) -> None:
    assert (place.collect().objects, place.bucket.objects) == (0, {})


def test_old_versions_expire_and_the_newest_stay_whatever_their_age(old: Place) -> None:
    before = old.db.version
    done = old.collect(replace(EAGER, keep_versions=4))
    assert (done.horizon, done.versions_expired) == (before - 3, before - 4)
    found = old.read_versions()
    assert [version for version, what in found.items() if what == "VersionExpiredError"] == list(range(1, before - 3))
    assert "VersionExpiredError" not in [found[version] for version in range(before - 3, before + 1)]


def test_no_version_within_the_retention_expires_nor_the_one_that_was_newest_when_it_began(place: Place) -> None:
    table = place.db.create_table("t", rows().schema)
    for key in range(8):
        table.append(rows(key))
        place.pass_hours(24)
    settings = replace(EAGER, retention_us=60 * HOUR_US)  # versions 8 and 9 are younger, and 7 was the newest then
    place.collect(settings)
    assert place.manifest.horizon == 7
    at = place.open().at(timestamp=place.now_us - 60 * HOUR_US)
    assert at.version == 7
    assert at.table("t").count() == 6


def test_nothing_expires_while_the_defaults_keep_a_thousand_versions(old: Place) -> None:
    assert old.collect(DEFAULTS).versions_expired == 0
    assert old.manifest.horizon == 0


def test_settings_come_from_the_database(old: Place) -> None:
    old.db.set(keep_versions=1, retention="1h")
    old.pass_hours(2)
    collect(old.context())
    assert old.manifest.horizon == old.db.version


# ---- what expired versions dropped -----------------------------------------------------------------------------------


def test_in_the_end_there_is_what_the_newest_version_needs_and_nothing_else(old: Place) -> None:
    rows_before = old.read_versions()[old.db.version]
    old.collect_all()
    assert old.there() == old.needed_keys()
    manifest = old.manifest
    assert manifest.released == ()
    assert manifest.freed == manifest.horizon
    kept = {key for key in old.bucket.objects if key.startswith("manifest/")}
    assert min(kept) == next(key for key in kept if f"v{manifest.horizon:020d}" in key)
    assert old.read_versions()[old.db.version] == rows_before


def test_an_object_with_a_reference_left_stays_though_another_was_released(place: Place) -> None:
    table = place.db.create_table("t", rows().schema, primary_key=["k"])
    table.append(rows(1, 2, 3))
    with place.db.transaction() as tx:  # one .del object: a tombstone, and a vector
        tx.table("t").delete("k = 1", mode="positions")
        tx.table("t").delete("k = 7")
    shared = place.manifest.table("t").files[0].vector
    assert shared is not None
    table.delete("k = 2", mode="positions")
    assert shared.object in place.manifest.released[-1].objects
    place.pass_hours(30 * 24)
    place.collect_all()
    assert shared.object in place.there()
    assert place.read_versions()[place.db.version] == {"t": [3]}


def test_what_a_kept_version_needs_stays_though_the_newest_does_not(old: Place) -> None:
    before = old.read_versions()
    keep = replace(EAGER, keep_versions=6)
    old.collect_all(keep, times=2)
    horizon = old.manifest.horizon
    assert 1 < horizon < len(before)
    after = old.read_versions()
    assert {version: after[version] for version in range(horizon, len(before))} == {
        version: before[version] for version in range(horizon, len(before))
    }


def test_readers_of_expired_versions_have_time_to_end(old: Place) -> None:
    reader = old.open().at(4).table("t").scan().to_reader()
    kept = old.there()
    old.collect()
    assert old.there() == kept
    old.pass_hours(0.9)
    old.collect()
    assert old.there() == kept
    assert reader.read_all().num_rows == 30
    old.pass_hours(0.2)
    old.collect()
    assert old.there() < kept


def test_the_time_for_readers_does_not_begin_anew_with_every_run(old: Place) -> None:
    old.collect()
    for _ in range(6):
        old.pass_hours(0.25)
        old.db.table("t").append(rows(1))
        old.collect(replace(EAGER, retention_us=1))
    assert old.manifest.freed > 1


def test_a_version_that_expired_is_refused_as_such_and_not_as_damaged(old: Place) -> None:
    at = old.open()
    old.collect_all()
    with pytest.raises(VersionExpiredError):
        at.at(4)


# ---- coming to rest --------------------------------------------------------------------------------------------------


def test_an_idle_database_comes_to_rest_and_then_costs_only_a_few_reads(old: Place) -> None:
    for _ in range(20):
        old.collect()
        old.pass_hours(36)
    version = old.db.refresh()
    for _ in range(30):
        store = CountingStore(MemoryStore(old.bucket, old.runtime()))
        collect(old.context(store), settings=EAGER)
        assert (store.puts, store.heads) == (0, 0)
        assert store.gets <= 3
        assert store.lists <= 20
        old.pass_hours(36)
    assert old.db.refresh() == version


def test_a_dry_run_says_what_a_run_would_do_and_does_nothing(old: Place) -> None:
    old.orphan("data/t/2025/10/09/09/" + "0" * 32 + ".parquet")
    for _ in range(6):
        before, version = dict(old.bucket.objects), old.db.refresh()
        dry = old.collect(dry_run=True)
        assert old.bucket.objects == before
        done = old.collect()
        assert dry.deleted == done.deleted
        assert dry.revoked == done.revoked
        assert "would delete" in repr(dry)
        if done.objects == 0 and old.db.refresh() == version:
            break
        old.pass_hours(2)
    else:
        pytest.fail("it did not come to rest")


def test_what_was_done_is_told(old: Place) -> None:
    old.collect()
    old.pass_hours(2)
    done = old.collect()
    assert done.finished
    assert done.deleted["released"].objects > 0
    assert done.deleted["manifests"].bytes > 0
    assert "manifests of expired versions" in repr(done)
    assert "<table>" in done._repr_html_()
    assert done.objects == sum(amount.objects for amount in done.deleted.values())


# ---- stopping and going on -------------------------------------------------------------------------------------------


class Patience:
    """A deadline that is over after some questions."""

    def __init__(self, questions: int) -> None:
        self.questions = questions

    def __call__(self) -> bool:
        self.questions -= 1
        return self.questions < 0


def many_released(place: Place, tables: int = 12) -> None:
    """Tables dropped one by one."""
    for number in range(tables):
        table = place.db.create_table(f"d{number}", rows().schema)
        table.append(rows(number))
        table.delete(f"k = {number}", mode="positions")
        place.db.drop_table(f"d{number}")


@pytest.mark.slow
@pytest.mark.parametrize("questions", range(8))
def test_a_run_that_has_to_stop_records_what_it_did_and_the_next_goes_on(
    old: Place, monkeypatch: pytest.MonkeyPatch, questions: int
) -> None:
    for module in ("deletion", "sweep"):
        monkeypatch.setattr(f"dolmen.maintenance.gc.{module}.BATCH", 3)
    many_released(old)
    for hour in range(5):
        old.orphan(f"data/t/2025/10/09/0{hour}/{hour:032x}.parquet")
    old.pass_hours(10 * 24)
    freed, runs = [], 0
    while True:
        done = old.collect(deadline=Patience(questions) if runs < 40 else lambda: False)
        freed.append(old.manifest.freed)
        runs += 1
        old.pass_hours(1.1)
        if done.finished and done.objects == 0 and old.manifest.freed == old.manifest.horizon:
            break
        assert runs < 60
    assert freed == sorted(freed)
    assert old.there() == old.needed_keys()
    if questions > 3:
        assert runs <= 40, "each run came further than the one before"


# ---- errors ----------------------------------------------------------------------------------------------------------


class StubbornStore(MemoryStore):
    """Answers DeleteObjects with errors for some keys."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.bucket, place.runtime())
        self.stuck: set[str] = set()

    def delete(self, keys):  # type: ignore[no-untyped-def]
        done = super().delete([key for key in keys if key not in self.stuck])
        failed = [Deleted(key, "AccessDenied: no") for key in keys if key in self.stuck]
        return [*done, *failed]


def test_an_object_that_cannot_be_deleted_is_told_of_and_stays_on_the_list(old: Place) -> None:
    store = StubbornStore(old)
    newest = old.manifest
    first, second, *_ = [key for entry in newest.released for key in entry.objects]
    store.stuck = {first}
    version = next(entry.version for entry in newest.released if first in entry.objects)
    old.collect()
    old.pass_hours(2)
    done = collect(old.context(store), settings=EAGER)
    assert done.errors == {first: "AccessDenied: no"}
    assert old.manifest.freed == version - 1
    assert first in old.there()
    assert second not in old.there(), "the others went"
    old.collect_all()
    assert first not in old.there()
    assert old.manifest.freed == old.manifest.horizon


def test_an_orphan_that_cannot_be_deleted_is_found_again(place: Place) -> None:
    place.db.create_table("t", rows().schema)
    orphan = place.orphan("data/t/2025/10/09/09/" + "0" * 32 + ".parquet")
    place.pass_hours(20 * 24)
    store = StubbornStore(place)
    store.stuck = {orphan}
    assert collect(place.context(store), settings=EAGER).errors == {orphan: "AccessDenied: no"}
    place.pass_hours(10 * 24)
    assert place.collect().errors == {}
    assert orphan not in place.there()


def test_a_table_that_was_dropped_long_ago_leaves_nothing_of_its_segments_either(place: Place) -> None:
    place.db.set(root_bytes="8KB")
    table = place.db.create_table("t", rows().schema)
    for key in range(40):
        table.append(rows(key))
    assert place.manifest.table("t").segments
    place.db.drop_table("t")
    assert any(entry.trees for entry in place.manifest.released)
    place.pass_hours(30 * 24)
    place.collect_all()
    assert place.there("data/", "tombstone/", "segment/files/") == set()


# ---- the fence -------------------------------------------------------------------------------------------------------


def slow_writer(place: Place):  # type: ignore[no-untyped-def]
    """A transaction that has uploaded a file and not committed yet."""
    tx = place.open().transaction()
    tx.table("t").append(rows(77))
    return tx


def test_a_writer_slower_than_the_fence_is_refused_and_one_that_is_not_keeps_its_files(place: Place) -> None:
    place.db.create_table("t", rows().schema)
    stale, orphan = slow_writer(place), place.orphan("data/t/2025/10/09/09/" + "0" * 32 + ".parquet")
    place.pass_hours(7 * 24 + 3)
    fresh = slow_writer(place)
    place.pass_hours(1)
    place.collect()
    assert orphan not in place.there()
    with pytest.raises(StaleWriterError):
        stale.commit()
    fresh.commit()
    assert place.read_versions()[place.db.refresh()] == {"t": [77]}


def test_what_lands_between_plan_and_fence_is_kept(place: Place) -> None:
    """The writer's file is old enough to be an orphan for the plan; it lands just before the fence."""
    place.db.create_table("t", rows().schema)
    orphan = place.orphan("data/t/2025/10/09/09/" + "0" * 32 + ".parquet")
    writer = slow_writer(place)
    place.pass_hours(30 * 24)

    class Overtaken(MemoryStore):
        """The writer commits while this one plans."""

        def list(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
            if not landed:
                landed.append(writer.commit().version)
            return super().list(prefix, start_after)

    landed: list[int] = []
    collect(place.context(Overtaken(place.bucket, place.runtime())), settings=EAGER)
    assert landed == [2]
    assert orphan not in place.there()
    assert place.read_versions()[2] == {"t": [77]}


def test_two_collections_at_once_plan_again_and_do_no_harm(old: Place) -> None:
    before = old.read_versions()

    class Overtaken(MemoryStore):
        """Another collection runs while this one plans."""

        def list(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
            if prefix == "intent/" and not others:
                others.append(old.collect())
            return super().list(prefix, start_after)

    for _ in range(4):
        others: list[object] = []
        collect(old.context(Overtaken(old.bucket, old.runtime())), settings=EAGER)
        assert others
        old.pass_hours(2)
    assert old.there() == old.needed_keys()
    horizon = old.manifest.horizon
    after = old.read_versions()
    assert {v: after[v] for v in range(horizon, len(before) + 1)} == {
        v: before[v] for v in range(horizon, len(before) + 1)
    }


def test_neither_horizon_nor_fence_moves_back_when_settings_become_more_generous(old: Place) -> None:
    old.orphan("data/t/2025/10/09/09/" + "0" * 32 + ".parquet")
    old.collect_all(times=2)
    before = old.manifest
    old.pass_hours(1)
    old.db.table("t").append(rows(99))
    old.orphan("data/t/2025/10/10/09/" + "0" * 32 + ".parquet")
    old.collect_all(replace(DEFAULTS, orphan_age_us=300 * DAY_US))
    after = old.manifest
    assert (after.horizon, after.orphan_cutoff, after.swept) == (before.horizon, before.orphan_cutoff, before.swept)


# ---- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_off_us", [-20 * HOUR_US, 0, 20 * HOUR_US])
def test_age_goes_by_the_servers_clock_whatever_the_local_one_says(local_off_us: int) -> None:
    place = Place(local_off_us=local_off_us)
    busy(place)
    orphan = place.orphan("data/t/2025/10/09/09/" + "0" * 32 + ".parquet")
    settings = replace(EAGER, retention_us=30 * HOUR_US, orphan_age_us=30 * HOUR_US)
    place.pass_hours(22)
    place.collect(settings)
    assert place.manifest.horizon <= 3
    assert orphan in place.there()
    place.pass_hours(11)
    place.collect(settings)
    assert place.manifest.horizon >= 14
    assert orphan not in place.there()


def test_age_begins_when_an_object_was_dropped_not_when_it_was_written(place: Place) -> None:
    table = place.db.create_table("t", rows().schema)
    table.append(rows(1))
    place.pass_hours(300 * 24)
    place.db.drop_table("t")
    place.db.create_table("u", rows().schema)
    place.db.create_table("w", rows().schema)
    version, files = place.db.version - 3, place.there("data/")
    place.collect_all()
    assert place.there("data/") == files
    assert place.read_versions()[version] == {"t": [1]}
    place.pass_hours(3 * 24)
    place.collect_all()
    assert place.there("data/") == set()


def test_a_fence_that_another_one_overtook_is_refused(old: Place) -> None:
    from dolmen.commit.loop import submit
    from dolmen.commit.statements.background import MoveFence

    old.collect()
    with pytest.raises(ConflictError, match="plan again"):
        submit(old.context().head, "gc", [MoveFence((0, 0), 5, 5)])


def test_what_a_version_needs_is_told_for_every_version(old: Place) -> None:
    """The mark itself: each version's objects are there, and it names all of the manifest's own."""
    context = old.context()
    for version in range(1, old.db.version + 1):
        manifest: Manifest = old.open().at(version)._manifest
        wanted = set(needed_keys(manifest, context.segments))
        assert wanted <= old.there()
        assert set(references(manifest)) <= wanted
    assert set(needed_keys(EMPTY, context.segments)) == set()


@pytest.mark.parametrize(
    "path",
    [
        "/data/t/2025/10/09/08/x.parquet",
        "s3://bucket/data/t/x.parquet",
        "s3a://bucket/data/t/x.parquet",
        "data/t/%61.parquet",
        "data/t/../t/x.parquet",
        "data\\t\\x.parquet",
        "DATA/t/x.parquet",
    ],
)
def test_a_reference_in_another_form_than_the_objects_key_is_refused_before_anything_is_deleted(
    old: Place, path: str
) -> None:
    newest = old.manifest
    entry = newest.table("t")
    strange = msgspec.structs.replace(entry, files=(msgspec.structs.replace(entry.files[0], path=path),))
    forged = msgspec.structs.replace(newest, tables={"t": strange}).encode()
    old.bucket.objects[newest.key] = replace(old.bucket.objects[newest.key], body=forged)
    before = old.bucket.objects.copy()
    with pytest.raises(CorruptionError):
        collect(old.context(), settings=EAGER)
    assert old.bucket.objects == before
