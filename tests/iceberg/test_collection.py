"""Collection of publications: what readers may have open stays, the rest goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from dolmen import Table
from dolmen.base.records import replace
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, InvalidNameError
from dolmen.format.layout import RESERVED_TAGS
from dolmen.iceberg.manifests import ManifestBody, decode_manifest_list
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.publication_directory import PublicationDirectory, pin_version
from dolmen.maintenance.gc.collection import collect
from dolmen.store.base import Buffer, Deleted, ObjectInfo, PutOutcome
from dolmen.store.memory import MemoryStore
from support.aging import EAGER, SCHEMA, Place, rows

QUICK = replace(EAGER, orphan_age_us=24 * 3_600_000_000)


@pytest.fixture
def place() -> Place:
    place = Place()
    place.db.create_table("t", SCHEMA, primary_key="k").append(rows(*range(100)))
    return place


def published_keys(place: Place) -> set[str]:
    return {info.key for info in place.db._context.store.list("iceberg/")}


def needed_keys(table: Table, numbers: list[int]) -> set[str]:
    """The keys of some metadata files, and of all objects to which they lead."""
    context = context_of(table)
    directory = PublicationDirectory(context.store, context.runtime, table._entry.uuid)
    needed = {directory.hint_key}
    for number in numbers:
        path = directory.metadata_path(number)
        metadata = TableMetadata.decode(directory.read(path))
        assert metadata is not None
        needed.add(directory.key(path))
        for snapshot in metadata.snapshots:
            needed.add(directory.key(snapshot.manifest_list))
            for manifest in decode_manifest_list(directory.read(snapshot.manifest_list), "list"):
                needed.add(directory.key(manifest.path))
                body = ManifestBody.decode(directory.read(manifest.path), "manifest")
                needed.update(directory.key(entry.path) for entry in body.entries if entry.content)
                data = [directory.key(entry.path) for entry in body.entries if not entry.content]
                assert all(context.store.head(key) for key in data)
    return needed


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("snapshots", ["newest", "kept"])
def test_replaced_publications_go_and_the_newest_stays(place: Place, version: str, snapshots: str) -> None:
    table = place.db.table("t")
    table.set(iceberg=version, iceberg_snapshots=snapshots)
    for step in range(12):
        table.append(rows(100 + step))
        table.delete(f"k = {step}")
        place.db.maintain()
        place.pass_hours(12)
        place.collect(QUICK)
        needed_keys(place.open().table("t"), [step + 1])
    place.pass_hours(49)
    place.collect(QUICK)
    assert published_keys(place) == needed_keys(place.open().table("t"), [12])


def test_a_reader_may_go_on_for_reader_grace_in_what_was_replaced(place: Place) -> None:
    table = place.db.table("t")
    table.publish_iceberg()
    place.pass_hours(100)
    table.append(rows(100))
    table.publish_iceberg()
    place.pass_hours(0.5)
    assert place.collect(QUICK).deleted.get("publications") is None
    needed_keys(place.open().table("t"), [1, 2])
    place.pass_hours(1)
    assert place.collect(QUICK).deleted["publications"].objects > 0
    assert published_keys(place) >= needed_keys(place.open().table("t"), [2])


@pytest.mark.parametrize("hint", [1, 2])
def test_what_the_hint_names_stays_while_its_publisher_has_not_replaced_it(place: Place, hint: int) -> None:
    table = place.db.table("t")
    table.publish_iceberg()
    table.append(rows(100))
    table.publish_iceberg()
    directory = PublicationDirectory(context_of(table).store, context_of(table).runtime, table._entry.uuid)
    place.bucket.objects[directory.hint_key] = replace(
        place.bucket.objects[directory.hint_key], body=str(hint).encode()
    )
    place.pass_hours(100)
    place.collect(QUICK)
    assert published_keys(place) == needed_keys(table, [hint, 2])


def test_what_an_overtaken_hint_named_stays_for_reader_grace_after_the_hint_is_replaced(place: Place) -> None:
    """A publisher died before it replaced the hint, and the next came much later: simulation, seed 42000049."""
    table = place.db.table("t")
    table.publish_iceberg()
    directory = PublicationDirectory(context_of(table).store, context_of(table).runtime, table._entry.uuid)
    stale = place.bucket.objects[directory.hint_key]
    table.append(rows(100))
    table.publish_iceberg()
    place.bucket.objects[directory.hint_key] = stale
    place.pass_hours(100)
    table.append(rows(101))
    table.publish_iceberg()
    place.pass_hours(0.5)
    assert place.collect(QUICK).deleted.get("publications") is None
    needed_keys(place.open().table("t"), [1, 2, 3])
    place.pass_hours(1)
    place.collect(QUICK)
    assert published_keys(place) >= needed_keys(place.open().table("t"), [3])


def test_what_a_slow_publisher_left_in_the_hint_stays_for_reader_grace(place: Place) -> None:
    table = place.db.table("t")
    table.publish_iceberg()
    directory = PublicationDirectory(context_of(table).store, context_of(table).runtime, table._entry.uuid)
    stale = place.bucket.objects[directory.hint_key]
    table.append(rows(100))
    table.publish_iceberg()
    place.bucket.objects[directory.hint_key] = stale
    place.pass_hours(100)
    table.publish_iceberg()  # nothing is new, but it replaces the hint
    assert directory.newest().hint == 2
    place.pass_hours(0.5)
    assert place.collect(QUICK).deleted.get("publications") is None
    needed_keys(place.open().table("t"), [1, 2])
    table.append(rows(101))
    table.publish_iceberg()
    assert place.collect(QUICK).deleted.get("publications") is None
    needed_keys(place.open().table("t"), [1, 2, 3])
    place.pass_hours(1.5)
    place.collect(QUICK)
    with pytest.raises(CorruptionError):
        directory.read(directory.metadata_path(1))
    table.append(rows(102))
    table.publish_iceberg()
    assert not place.collect(QUICK).errors  # that the first is gone is no damage
    needed_keys(place.open().table("t"), [3, 4])


def test_the_newest_publication_is_found_from_an_old_hint_after_collections(place: Place) -> None:
    table = place.db.table("t")
    for step in range(4):
        table.append(rows(100 + step))
        table.publish_iceberg()
    directory = PublicationDirectory(context_of(table).store, context_of(table).runtime, table._entry.uuid)
    place.bucket.objects[directory.hint_key] = replace(place.bucket.objects[directory.hint_key], body=b"1")
    place.pass_hours(100)
    place.collect(QUICK)
    assert directory.newest().number == 4
    needed_keys(table, [1, 4])


def test_what_a_publication_anew_replaced_stays_for_reader_grace(place: Place) -> None:
    table = place.db.table("t")
    table.publish_iceberg()
    place.pass_hours(100)
    table.publish_iceberg(anew=True)
    place.pass_hours(0.5)
    place.collect(QUICK)
    assert needed_keys(place.open().table("t"), [1, 2]) <= published_keys(place)


def test_objects_of_a_publisher_that_stopped_before_its_first_publication_go(place: Place) -> None:
    table = place.db.table("t")
    pin_version(context_of(table), context_of(place.db).head.refresh().manifest, table._entry.uuid)
    directory = PublicationDirectory(context_of(table).store, context_of(table).runtime, table._entry.uuid)
    directory.write("data-0123456789abcdef", "avro", b"x")
    place.pass_hours(48)
    place.collect(QUICK)
    assert published_keys(place) == set()


def test_what_a_catalog_may_still_name_stays_until_the_next_publication_is_registered(place: Place) -> None:
    table = place.db.table("t")
    shown = place.manifest
    assert table.publish_iceberg().version == shown.version
    for step in range(2):
        place.pass_hours(2)
        table.append(rows(100 + step))
        table.publish_iceberg()
    pin_version(context_of(table), shown, table._entry.uuid)  # as it is left when Glue could not be told
    assert place.db.stats().tables["t"].publication_lag_us > 0
    place.pass_hours(100)
    place.collect(QUICK)
    assert published_keys(place) == needed_keys(place.open().table("t"), [1, 3])
    assert not table.publish_iceberg().is_new
    place.collect(QUICK)
    assert published_keys(place) == needed_keys(place.open().table("t"), [3])
    assert place.db.stats().tables["t"].publication_lag_us == 0


def test_objects_of_a_publication_under_way_stay(place: Place) -> None:
    table = place.db.table("t")
    table.publish_iceberg()
    directory = PublicationDirectory(context_of(table).store, context_of(table).runtime, table._entry.uuid)
    key = directory.key(directory.write("data-0123456789abcdef", "avro", b"x"))
    place.pass_hours(23)
    place.collect(QUICK)
    assert key in published_keys(place)
    place.pass_hours(2)
    place.collect(QUICK)
    assert key not in published_keys(place)


def test_the_publication_of_a_dropped_table_goes_with_its_pin(place: Place) -> None:
    """The metadata at once, and the rest when no publication under way can name it."""
    place.db.table("t").publish_iceberg()
    place.db.drop_table("t")
    place.pass_hours(1)
    place.collect(QUICK)
    assert published_keys(place)
    assert not [key for key in published_keys(place) if key.endswith(".json")]
    assert pins(place)
    place.pass_hours(24)
    place.collect(QUICK)
    assert published_keys(place) == set()
    assert not pins(place)


def pins(place: Place) -> list[str]:
    return [name for name in place.open().tags() if name.startswith(RESERVED_TAGS)]


def bring_back(place: Place, version: int) -> Table:
    """Restores the table t."""
    db = place.open()
    db.restore(version, tables="t")
    return db.table("t")


class SlowPublisher(MemoryStore):
    """Something happens just before it creates an object whose key contains some text."""

    meanwhile: Callable[[], None] | None = None
    before = ".metadata.json"

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        if self.before in key and self.meanwhile:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super().put(key, body, if_match=if_match)


@pytest.mark.parametrize("before", [".metadata.json", "/snap-", "/data-"])
def test_what_is_published_while_its_table_is_dropped_and_collected_is_whole(place: Place, before: str) -> None:
    """Collection deleted the objects of a publication under way: simulation, seed 90000155."""
    store = SlowPublisher(place.bucket, place.runtime())
    store.before = before
    db = place.open(store)
    version = db.version

    def meanwhile() -> None:
        place.db.drop_table("t")
        place.pass_hours(1)
        place.collect(QUICK)

    store.meanwhile = meanwhile
    found = db.table("t").publish_iceberg()
    assert (found.version, store.meanwhile) == (version, None)
    assert [pin.rpartition(".")[2] for pin in pins(place)] == [str(version)]
    needed_keys(bring_back(place, version), [1])


def test_all_that_late_metadata_of_a_dropped_table_names_stays_with_it(place: Place) -> None:
    """Metadata that landed during the collection stayed, and what it names did not: simulation, seed 90000155."""
    found = place.db.table("t").publish_iceberg()
    (key,) = [key for key in published_keys(place) if key.endswith(".json")]
    place.db.drop_table("t")
    place.pass_hours(48)
    landed = place.bucket.objects[key]
    place.bucket.objects[key] = replace(landed, last_modified_us=place.now_us + 1_000_000)
    place.collect(QUICK)
    assert pins(place)
    needed_keys(bring_back(place, found.version), [1])
    place.db.refresh()
    place.db.drop_table("t")
    place.pass_hours(1)
    place.collect(QUICK)
    assert published_keys(place) == set()


def test_a_table_that_is_back_before_its_publication_is_gone_keeps_the_rest(place: Place) -> None:
    """A publisher of the restored table may have read the metadata just before it was deleted."""
    found = place.db.table("t").publish_iceberg()
    before = published_keys(place)
    place.db.drop_table("t")
    place.pass_hours(48)

    class Restoring(MemoryStore):
        """The table is restored just before its first object is deleted."""

        is_back = False

        def delete(self, keys: Sequence[str]) -> list[Deleted]:
            if not self.is_back and any(key.startswith("iceberg/") for key in keys):
                self.is_back = True
                bring_back(place, found.version)
            return super().delete(keys)

    store = Restoring(place.bucket, place.runtime())
    collect(place.context(store), settings=QUICK)
    assert store.is_back
    assert published_keys(place) == {key for key in before if not key.endswith(".json")}
    assert pins(place)


def test_the_newest_metadata_of_a_dropped_table_goes_last(place: Place) -> None:
    """An earlier one that were left would be taken for the newest, and collection keeps nothing for it."""
    table = place.db.table("t")
    for step in range(3):
        table.append(rows(100 + step))
        table.publish_iceberg()
    place.db.drop_table("t")
    place.pass_hours(1)

    class Batches(MemoryStore):
        """Remembers which metadata each request deleted."""

        def __init__(self) -> None:
            super().__init__(place.bucket, place.runtime())
            self.batches: list[list[str]] = []

        def delete(self, keys: Sequence[str]) -> list[Deleted]:
            if any(key.endswith(".metadata.json") for key in keys):
                self.batches.append([key.rpartition("/")[2] for key in keys])
            return super().delete(keys)

    store = Batches()
    collect(place.context(store), settings=QUICK)
    assert store.batches == [["v1.metadata.json", "v2.metadata.json"], ["v3.metadata.json"]]


def test_a_pin_stays_while_its_publisher_may_not_have_created_anything_yet(place: Place) -> None:
    pin_version(context_of(place.db), place.manifest, place.db.table("t")._entry.uuid)
    place.db.refresh()
    place.db.drop_table("t")
    place.pass_hours(23)
    place.collect(QUICK)
    assert pins(place)
    place.pass_hours(2)
    place.collect(QUICK)
    assert not pins(place)


def test_a_pin_stays_while_anything_of_a_dropped_table_is_left(place: Place) -> None:
    """By its pin the next collection finds it."""
    table = place.db.table("t")
    pin_version(context_of(place.db), place.manifest, table._entry.uuid)
    directory = PublicationDirectory(context_of(table).store, context_of(table).runtime, table._entry.uuid)
    place.db.refresh()
    place.db.drop_table("t")
    place.pass_hours(20)
    directory.write("data-0123456789abcdef", "avro", b"x")
    place.pass_hours(5)
    place.collect(QUICK)
    assert published_keys(place)
    assert pins(place)
    place.pass_hours(20)
    place.collect(QUICK)
    assert published_keys(place) == set()
    assert not pins(place)


def test_the_pin_of_a_table_that_is_back_and_published_stays(place: Place) -> None:
    """Collection had seen the table dropped, and its directory empty."""
    version = place.manifest.version
    pin_version(context_of(place.db), place.manifest, place.db.table("t")._entry.uuid)
    place.db.refresh()
    place.db.drop_table("t")
    place.pass_hours(25)

    class Overtaken(MemoryStore):
        """The table is restored and published as soon as its directory is listed."""

        published = 0

        def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
            yield from super().list(prefix, start_after)
            if prefix.startswith("iceberg/") and not self.published:
                self.published = bring_back(place, version).publish_iceberg().version

    store = Overtaken(place.bucket, place.runtime())
    collect(place.context(store), settings=QUICK)
    assert store.published > version
    assert [pin.rpartition(".")[2] for pin in pins(place)] == [str(store.published)]


class StubbornStore(MemoryStore):
    """Deletes no metadata."""

    def delete(self, keys: Sequence[str]) -> list[Deleted]:
        refused = [key for key in keys if key.endswith(".json")]
        done = super().delete([key for key in keys if key not in refused])
        return [*done, *(Deleted(key, "try again") for key in refused)]


def test_nothing_of_a_dropped_publication_goes_before_its_metadata(place: Place) -> None:
    place.db.table("t").publish_iceberg()
    place.db.drop_table("t")
    before = published_keys(place)
    place.pass_hours(1)
    runtime = place.runtime()
    context = place.context(StubbornStore(place.bucket, runtime))
    assert list(collect(context, settings=QUICK).errors.values()) == ["try again"]
    assert published_keys(place) == before
    place.pass_hours(24)
    place.collect(QUICK)
    assert published_keys(place) == set()


def test_without_its_pin_a_dropped_publication_is_found_by_a_full_collection(place: Place) -> None:
    found = place.db.table("t").publish_iceberg()
    (pin,) = place.db.tags()
    assert pin.endswith(f".{found.version}")
    place.db.drop_table("t")
    place.db.drop_tag(pin)
    place.pass_hours(48)
    place.collect(QUICK)
    assert published_keys(place)
    place.collect(QUICK, full=True)
    assert published_keys(place) == set()


def test_a_dry_run_deletes_nothing(place: Place) -> None:
    place.db.table("t").publish_iceberg()
    place.db.drop_table("t")
    place.pass_hours(48)
    before = published_keys(place)
    assert place.collect(QUICK, dry_run=True).deleted["publications"].objects == len(before)
    assert published_keys(place) == before
    assert place.db.tags()


def test_no_user_gives_a_tag_the_name_of_a_pin(place: Place) -> None:
    with pytest.raises(InvalidNameError, match=r"iceberg\."):
        place.db.tag("iceberg.mine")
