"""What needs attention: each rule speaks when it should, and is silent before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dolmen.base.records import replace
from dolmen.base.units import DAY_US, HOUR_US
from dolmen.maintenance.health.health import (
    DeleteCost,
    Health,
    KeptCursor,
    Pipeline,
    PlannedWork,
    QueueHealth,
    RejectsHealth,
    SortOverlap,
)
from dolmen.maintenance.health.look import concerns_of
from support.tables import World


@pytest.fixture
def well() -> Health:
    """A database that nothing is wrong with."""
    world = World()
    world.db.create_table("t", pa.schema([("k", pa.int64())]), ["k"], ["k"])
    world.append(pa.table({"k": [1, 2, 3]}))
    return world.db.health()


def with_debt(health: Health, **figures: Any) -> Health:
    [table] = health.tables
    return replace(health, tables=(replace(table, debt=replace(table.debt, **figures)),))


def with_table(health: Health, **facts: Any) -> Health:
    return replace(health, tables=(replace(health.tables[0], **facts),))


def titles(health: Health) -> list[tuple[str, str]]:
    return [(concern.level, concern.title) for concern in concerns_of(health)]


def test_nothing_is_wrong_with_a_young_database(well: Health) -> None:
    assert (titles(well), well.worst) == ([], None)


@pytest.mark.parametrize(
    ("cost", "title"),
    [
        (DeleteCost(999, DAY_US - 1, 5, 50, 1, 10), None),
        (DeleteCost(1_000, 0, 5, 50, 1, 10), "1,000 unresolved deletes of table t, the oldest 0s old"),
        (DeleteCost(1, 2 * DAY_US, 5, 50, 1, 10), "1 unresolved delete of table t, the oldest 2d old"),
        (DeleteCost(80, 0, 5, 50, 1, 10, 1.9), None),
        (DeleteCost(80, 0, 5, 50, 1, 10, 2.0), "80 unresolved deletes of table t make its scans slow"),
        (DeleteCost(1, 0, 5, 50, 1, 10, 7.0), "1 unresolved delete of table t makes its scans slow"),
    ],
)
def test_deletes_are_many_or_old_or_slow(well: Health, cost: DeleteCost, title: str | None) -> None:
    assert titles(with_table(well, deletes=cost)) == ([("warning", title)] if title else [])


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"small_files": 16, "small_bytes": 10, "files": 16}, None),
        ({"small_files": 17, "small_bytes": 10, "files": 17}, "17 small files"),
        ({"small_files": 17, "small_bytes": 10, "files": 100}, None),
        ({"rows": 100, "dead_rows": 50}, None),
        ({"rows": 100, "dead_rows": 51}, "51 %"),
    ],
)
def test_files_are_many_and_small_or_mostly_deleted(well: Health, figures: dict[str, int], words: str | None) -> None:
    found = [title for _, title in titles(with_debt(well, **figures))]
    assert (len(found), words is None or words in found[0]) == (0 if words is None else 1, True)


def test_a_manifest_is_full(well: Health) -> None:
    debts = replace(well.debts, manifest_bytes=well.debts.manifest_budget)
    assert titles(replace(well, debts=debts)) == [("warning", "The manifest takes 100 % of its budget")]


def test_overlap_counts_if_it_is_deep_and_compaction_has_no_other_reason(well: Health) -> None:
    deep = SortOverlap("k", 40, 0, 40, 8.5, ((8.5, 40),))
    assert titles(with_table(well, overlap=deep)) == []  # of one file
    told = titles(with_debt(with_table(well, overlap=deep), files=40))
    assert told == [("notice", "Files of table t overlap in the sort key: 8.5 at a point on average")]


@pytest.mark.parametrize(
    ("publishes", "version", "lag_us", "level"),
    [
        (False, None, None, None),
        (True, 5, 6 * HOUR_US, None),
        (True, 5, 7 * HOUR_US, "warning"),
        (True, 0, 0, "notice"),
    ],
)
def test_publications_lag_or_are_missing(
    well: Health, publishes: bool, version: int | None, lag_us: int | None, level: str | None
) -> None:
    health = with_debt(well, published_version=version, publication_lag_us=lag_us)
    found = concerns_of(with_table(health, publishes=publishes))
    assert [concern.level for concern in found] == ([level] if level else [])
    assert all(concern.commands == ("dolmen publish-iceberg --table t",) for concern in found)


def test_an_index_that_lacks_a_tenth_of_the_rows_is_behind(well: Health) -> None:
    health = with_table(well, indexed=True)
    assert titles(with_debt(health, rows=100, index_entries=91)) == []
    assert titles(with_debt(health, rows=100, index_entries=80)) == [
        ("notice", "The index of table t lacks at least 20 of 100 rows")
    ]


def test_cursors_end(well: Health) -> None:
    now = well.looked_at
    for ends_at, title in (
        (now + 2 * DAY_US, None),
        (now + HOUR_US, "Cursor 'c' ends in 1h"),
        (now - 1, "Cursor 'c' has ended"),
    ):
        cursor = KeptCursor("c", 1, ends_at - 8 * DAY_US, ends_at)
        health = replace(well, versions=replace(well.versions, cursors=(cursor,)))
        assert titles(health) == ([("warning", title)] if title else [])


def test_rejects_and_dead_letters_wait(well: Health) -> None:
    place = RejectsHealth("/a b/rejected", {"t": 2, "": 1}, complete=False)
    queues = (QueueHealth("drops", "q", 5, 1, 1, "dead"), QueueHealth("delete requests", "r", problem="no"))
    found = concerns_of(replace(well, pipeline=Pipeline(place, queues)))
    assert [(concern.level, concern.title) for concern in found] == [
        ("warning", "At least 3 rejects wait"),
        ("warning", "1 message of drops was given up"),
        ("notice", "The queue of delete requests could not be read"),
    ]
    assert found[0].commands == ("dolmen rejected ls --rejected '/a b/rejected'",)
    unreadable = replace(well, pipeline=Pipeline(RejectsHealth("s3://x", problem="AccessDenied")))
    assert titles(unreadable) == [("notice", "The rejected files could not be listed")]


def test_garbage_waits_if_no_collection_ran_for_long(well: Health) -> None:
    work = PlannedWork("gc", None, "let 7 versions expire", "dolmen gc")
    health = replace(well, planned=(work,))
    assert titles(health) == [("notice", "Garbage waits for a collection")]
    lately = replace(health, debts=replace(health.debts, horizon_age_us=20 * DAY_US, orphan_cutoff_age_us=HOUR_US))
    assert titles(lately) == []
    assert titles(replace(well, planned=(replace(work, due_at=well.looked_at + 1),))) == []
    assert titles(replace(well, debts=replace(well.debts, revoked_intents=1))) == [
        ("notice", "1 job was taken for dead")
    ]


def test_the_most_urgent_comes_first(well: Health) -> None:
    place = RejectsHealth("r", {"t": 1})
    health = with_table(with_debt(well, rows=10, dead_rows=9), deletes=DeleteCost(1, 3 * DAY_US, 1, 1, 0, 0))
    found = replace(health, pipeline=Pipeline(place), erasures_in_danger=2)
    levels = [concern.level for concern in concerns_of(found)]
    assert levels == ["danger", "warning", "warning", "notice"]
