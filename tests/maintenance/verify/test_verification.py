"""``verify`` on real databases: nothing is found in a healthy one, and every damage by its kind and its object."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import DatabaseNotFoundError, VersionNotFoundError
from dolmen.maintenance.verify.findings import KINDS
from dolmen.store.memory import MemoryBucket, MemoryStore
from maintenance.verify import harms_to_manifests, harms_to_objects  # noqa: F401  # they register what they do
from maintenance.verify.harms import HARMS, SCHEMA, Harm, rows
from support.damaged import Damaged, copy_of
from support.tables import World


@pytest.fixture(scope="module")
def bucket() -> MemoryBucket:
    """Files of several row groups, tombstones of both kinds (inline and not), vectors, an upsert, a dropped table."""
    bucket = MemoryBucket()
    runtime = Runtime()
    world = World(MemoryStore(bucket, runtime), runtime)
    table = world.db.create_table("t", SCHEMA, primary_key="id", sort_key="id")
    for number in range(4):
        world.append(rows(number * 40).sort_by("id"), group_rows=15)
    table.append(rows(200), request="a")
    table.delete("v > 17 AND v < 19")
    table.delete("s IN (" + ", ".join(f"'{n:040}'" for n in range(40)) + ") AND v > 5")
    table.delete(keys=[3, 5, 8], request="b")
    table.delete(keys=list(range(10_000, 10_600)))
    table.delete("id BETWEEN 60 AND 70", mode="positions")
    table.delete("id BETWEEN 100 AND 105", mode="positions")
    table.upsert(rows(10, 5))
    plain = world.db.create_table("other", pa.schema([("k", pa.int32())]))
    plain.append(pa.table({"k": pa.array([1, 2, 3], pa.int32())}))
    gone = world.db.create_table("gone", pa.schema([("k", pa.int32())]))
    gone.append(pa.table({"k": pa.array([1], pa.int32())}))
    world.db.drop_table("gone")
    return bucket


@pytest.fixture
def db(bucket: MemoryBucket) -> Damaged:
    return copy_of(bucket)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("all_versions", [False, True])
def test_nothing_is_found_in_a_healthy_database(db: Damaged, deep: bool, all_versions: bool) -> None:
    report = db.verify(deep=deep, all_versions=all_versions)
    assert report.findings == ()
    assert report.ok
    assert report.orphans == {}
    assert report.checked["data files"] == 7
    assert report.checked["vectors"] == 2
    assert report.checked["tombstones"] == 5
    assert report.checked["manifests"] == report.version
    assert bool(report.checked.get("row groups")) is deep


def test_nothing_is_found_in_any_version(db: Damaged) -> None:
    for version in range(1, db.manifest.version + 1):
        report = db.verify(version=version)
        assert report.findings == ()
        assert report.version == version
        assert report.orphans == {}


def test_an_empty_prefix_is_no_database() -> None:
    with pytest.raises(DatabaseNotFoundError):
        Damaged({}, 0).verify()


def test_a_version_that_never_was_can_not_be_verified(db: Damaged) -> None:
    with pytest.raises(VersionNotFoundError):
        db.verify(version=99)


@pytest.mark.parametrize(("harm", "kind", "options"), HARMS)
def test_damage_is_found_by_its_kind_and_object(db: Damaged, harm: Harm, kind: str, options: dict[str, Any]) -> None:
    named = harm(db)
    report = db.verify(**options)
    assert {(found.kind, found.object) for found in report.findings} == {(kind, named)}, report
    assert report.ok is (KINDS[kind].severity == "warning")
    assert report.findings[0].repair
    assert KINDS[kind].repair in repr(report)
    assert kind in report._repr_html_()
    assert report.to_dict()["findings"][0]["object"] == named


def test_two_files_that_were_swapped_are_both_found(db: Damaged) -> None:
    one, other = db.file(0), db.file(1)
    db.swap(one.path, other.path)
    found = db.found()
    assert {object for _, object in found} == {one.path, other.path}
    assert {kind for kind, _ in found} <= {"file-size", "footer-damaged"}


def test_two_vectors_that_were_swapped_are_both_found(db: Damaged) -> None:
    places = [place for place, file in enumerate(db.table().files) if file.vector]
    one, other = (db.file(place).vector for place in places)
    assert one is not None
    assert other is not None
    db.edit_file(places[0], vector=other)
    db.edit_file(places[1], vector=one)
    assert db.found() == {("vector-damaged", one.object), ("vector-damaged", other.object)}


def test_a_finding_tells_what_it_costs(db: Damaged) -> None:
    db.lose(db.file(1).path)
    db.lose(next(key for key in db.bucket.objects if key.startswith("data/gone/")))
    missing, released = sorted(db.verify().findings, key=lambda found: found.kind)
    version = db.manifest.version
    assert (missing.table, missing.rows, missing.versions) == ("t", 40, (version, version))
    assert missing.cost == f"40 rows, table t, version {version}"
    assert released.versions == (1, version - 1)


def test_orphans_are_counted_and_no_error(db: Damaged) -> None:
    db.put("data/t/2026/01/01/00/stray.parquet", b"12345")
    db.put("tombstone/t/2026/01/01/00/stray.del", b"123")
    db.put("manifest/v00000000000000000002-00000000.json", b"1")
    report = db.verify()
    assert report.ok
    assert report.findings == ()
    assert {name: (some.objects, some.bytes) for name, some in report.orphans.items()} == {
        "data/": (1, 5),
        "tombstone/": (1, 3),
        "manifest/": (1, 1),
    }
    assert "3 objects, 9 bytes" in repr(report)


def test_findings_beyond_a_thousand_of_a_kind_are_only_counted(db: Damaged) -> None:
    file = db.file()
    many = [msgspec.structs.replace(file, path=f"data/t/2026/01/01/00/{n:032x}.parquet") for n in range(1_100)]
    db.edit_table(files=tuple(many))
    report = db.verify()
    assert report.counts == {"file-missing": 1_100}
    assert len(report.findings) == 1_000


def test_progress_is_told(db: Damaged) -> None:
    told: list[tuple[str, int, int]] = []
    db.verify(deep=True, progress=lambda what, done, total: told.append((what, done, total)))
    assert {what for what, _, _ in told} >= {"manifests", "data files", "objects listed", ".del objects", "footers"}
    assert [(done, total) for what, done, total in told if what == "footers"][-1] == (6, 6)


def test_every_kind_of_finding_stands_in_the_operators_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "maintenance.md").read_text()
    table = page.partition("### Findings and repairs")[2]
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", table)) == KINDS.keys()
