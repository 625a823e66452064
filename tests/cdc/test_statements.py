"""What changes are made of: replacing rows by keys that are known, and predicates that are bound already."""

from __future__ import annotations

import pytest

from dolmen.errors import RowError
from dolmen.predicate.parse import parse
from support.aging import Place, rows


@pytest.fixture
def place() -> Place:
    place = Place()
    table = place.db.create_table("t", rows().schema, primary_key="k")
    table.append(rows(1, 2, 3))
    return place


def test_replacing_adds_rows_and_deletes_the_older_ones_of_other_keys_in_one_statement(place: Place) -> None:
    with place.db.transaction() as transaction:
        transaction.table("t").replace(rows(3, 4), [1, 3])
        assert transaction.table("t").count() == 3
    assert sorted(place.db.table("t").to_arrow()["k"].to_pylist()) == [2, 3, 4]
    entry = place.db._context.head.refresh().manifest.table("t")
    assert entry.files[-1].row_ts == entry.tombstones[-1].ts


def test_replacing_nothing_is_no_commit(place: Place) -> None:
    version = place.db.version
    with place.db.transaction() as transaction:
        transaction.table("t").replace(rows(), [])
    assert place.db.version == version


def test_a_key_that_is_null_deletes_nothing(place: Place) -> None:
    with place.db.transaction() as transaction, pytest.raises(RowError, match="NULL"):
        transaction.table("t").replace(rows(9), [None])
    assert place.db.table("t").count() == 3


def test_a_bound_predicate_says_what_its_text_says(place: Place) -> None:
    table = place.db.table("t")
    bound = parse("k >= 2", place.db._context.head.refresh().manifest.table("t").schema, now_us=0)
    assert table.count(bound) == table.count("k >= 2") == 2
    table.delete(bound)
    assert table.to_arrow()["k"].to_pylist() == [1]
