"""Sort keys with DESC, NULLS FIRST and transforms: set in each way, written, merged and published."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.declaration import Declaration, apply, plan
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import InputError, SchemaError, UnsupportedFormatError
from dolmen.format import manifest as manifests
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from support.random_tables import random_column

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(str(tmp_path / "db"))


COLUMNS = "id BIGINT, at TIMESTAMP, name VARCHAR"
KEY = ["day(at) DESC NULLS FIRST", "id"]


def stored(table: dolmen.Table) -> list[pa.Table]:
    """The rows of each live file, as they lie there."""
    files = LiveFiles.of(table._entry, table._context.segments)
    bodies = [table._context.store.get(file.path).body for file in files]
    return [pq.read_table(pa.BufferReader(body)) for body in bodies]


def test_a_key_is_created_changed_shown_and_followed_by_renames(db: Database) -> None:
    table = db.create_table("t", COLUMNS, sort_key="days(at) desc nulls first, ID")
    assert list(table.sort_key) == table.describe()["sort_key"] == KEY
    table.rename_column("at", "made at")
    assert table.sort_key[0] == 'day("made at") DESC NULLS FIRST'
    with pytest.raises(SchemaError, match="sort key"):
        table.drop_column("made at")
    table.set_sort_key(["name DESC", "id"])
    table.drop_column("made at")
    assert table.sort_key == ("name DESC", "id")
    with pytest.raises(SchemaError, match=r"sorted by hour.*'id'"):
        table.set_sort_key("hour(id)")
    table.set_sort_key(None)
    assert table.sort_key == ()


def test_sql_sets_what_python_sets(db: Database) -> None:
    db.sql(f"CREATE TABLE t ({COLUMNS}) WITH (sort_key = 'day(at) DESC NULLS FIRST, id')")
    assert list(db.table("t").sort_key) == KEY
    db.sql('ALTER TABLE t SET SORTED BY ("name" DESC, bucket(4, id), at)')
    assert db.table("t").sort_key == ("name DESC", "bucket[4](id)", "at")


def test_only_such_keys_need_a_reader_that_knows_them(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def features() -> tuple[str, ...]:
        return db._context.head.refresh().manifest.features

    table = db.create_table("t", COLUMNS, sort_key="at, id")
    assert table._entry.sort_key == (2, 1)
    assert manifests.SORT_ORDERS not in features()
    table.set_sort_key("at DESC, id")
    assert manifests.SORT_ORDERS in features()
    monkeypatch.setattr(manifests, "FEATURES", manifests.FEATURES - {manifests.SORT_ORDERS})
    with pytest.raises(UnsupportedFormatError, match=r"sort-orders"):
        dolmen.open(str(tmp_path / "db"), runtime=Runtime()).table("t").count()


def test_a_declaration_shows_and_applies_another_order(db: Database) -> None:
    text = 'tables:\n  t:\n    columns: {id: BIGINT, at: TIMESTAMP}\n    sort_key: "day(AT) desc, id"\n'
    made = plan(db, Declaration.parse(text))
    assert ["day(at) DESC", "id"] in [change.after for change in made.changes]
    apply(db, Declaration.parse(text))
    assert db.table("t").sort_key == ("day(at) DESC", "id")
    assert not plan(db, Declaration.parse(text)).changes
    changed = plan(db, Declaration.parse(text.replace("desc", "desc nulls first")))
    assert [change.what for change in changed.changes] == ["sort_key"]
    apply(db, Declaration.parse(text.replace("desc", "desc nulls first")))
    assert db.table("t").sort_key == tuple(KEY)
    with pytest.raises(InputError, match=r"line 4.*day.*'id'"):
        Declaration.parse(text.replace("AT", "id"))


def test_iceberg_is_told_the_order(db: Database, tmp_path: Path) -> None:
    def published() -> tuple[int, list[dict[str, Any]]]:
        db.publish_iceberg("t")
        newest = max(tmp_path.rglob("*.metadata.json"), key=lambda path: path.stat().st_mtime_ns)
        document = json.loads(newest.read_bytes())
        orders = {each["order-id"]: each["fields"] for each in document["sort-orders"]}
        assert orders[0] == []
        return document["default-sort-order-id"], orders[document["default-sort-order-id"]]

    table = db.create_table("t", COLUMNS)
    table.append([{"id": 1}])
    assert published() == (0, [])
    table.set_sort_key(KEY)
    first, fields = published()
    assert fields == [
        {"transform": "day", "source-id": 2, "direction": "desc", "null-order": "nulls-first"},
        {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-last"},
    ]
    table.set_sort_key("id")
    second, _ = published()
    assert 0 < first != second > 0


def test_verify_finds_rows_that_are_not_in_the_order_of_their_file(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dolmen.rows.write import runs

    table = db.create_table("t", "id BIGINT, x DOUBLE", sort_key="x DESC NULLS FIRST, id")
    table.append([{"id": n, "x": [None, float("nan"), 1.5, -0.0][n % 4]} for n in range(40)])
    assert db.verify(deep=True).ok
    assert stored(table)[0]["x"].to_pylist()[:10] == [None] * 10
    monkeypatch.setattr(runs, "_is_sorted", lambda keys: True)
    table.append([{"id": 1, "x": 1.0}, {"id": 2, "x": 2.0}])
    assert [finding.kind for finding in db.verify(deep=True).findings] == ["row-order"]


@pytest.mark.slow
def test_random_tables_are_compacted_into_one_order_and_lose_no_row(db: Database) -> None:
    """Small memory, so that rows are merged from many runs; deletes, and keys that change between files."""
    print(f"DOLMEN_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    directions = ["", " DESC", " NULLS FIRST", " DESC NULLS FIRST"]
    spilled = 0
    for number in range(4):
        kinds = {
            "k": dice.choice(["int64", "float64", "string", "naive", "binary", "bool"]),
            "l": dice.choice(["int8", "date"]),
        }
        columns = {name: random_column(dice, kind, 600) for name, kind in kinds.items()}
        rows = pa.table({**columns, "n": pa.array(range(600))})
        term = "day(k)" if kinds["k"] == "naive" and dice.random() < 0.5 else "k"
        table = db.create_table(f"t{number}", rows.schema, sort_key=[term + dice.choice(directions), "l"])
        for start in range(0, 600, 60):
            if dice.random() < 0.2:
                table.set_sort_key([term + dice.choice(directions), "l" + dice.choice(directions)])
            table.append(rows.slice(start, 60))
        table.delete("n < 100")
        options = CompactionOptions(memory_bytes=(4_000, 1 << 20)[number % 2], growth=2)
        spilled += compact(table._context, f"t{number}", options=options).spilled_bytes
        [whole] = stored(table)
        assert sorted(whole["n"].to_pylist()) == list(range(100, 600))
        assert table.scan(where="n >= 100").count() == 500
    assert spilled > 0
    report = db.verify(deep=True)
    assert report.ok, report


def test_a_descending_time_puts_the_newest_rows_first(db: Database) -> None:
    table = db.create_table("t", COLUMNS, sort_key="at DESC")
    for start in (0, 50, 100, 150):
        table.append(
            pa.table({"id": range(start, start + 50), "at": pa.array(range(start, start + 50), pa.timestamp("us"))})
        )
    compact(table._context, "t", options=CompactionOptions(growth=2))
    [whole] = stored(table)
    assert whole["id"].to_pylist() == list(range(199, -1, -1))
    assert pc.sum(table.scan(where="id IN (3, 77, 149)").to_arrow()["id"]).as_py() == 229


def test_a_primary_key_is_found_and_replaced_in_a_descending_table(db: Database) -> None:
    """Look-ups, upserts and the index go by keys, whatever the order of rows."""
    for index in (False, True):
        name = f"t{int(index)}"
        table = db.create_table(name, "id BIGINT NOT NULL, v BIGINT", "id", "id DESC, v", {"index": index})
        for start in range(0, 300, 100):
            table.upsert([{"id": n, "v": n} for n in range(start, start + 150)])
        db.maintain()
        table.upsert([{"id": n, "v": -n} for n in range(7, 300, 10)])
        db.maintain()
        assert table.count() == 350
        found = {row["id"]: row["v"] for row in table.get_many([7, 8, 297, 349, 350]).to_pylist()}
        assert found == {7: -7, 8: 8, 297: -297, 349: 349}
    with pytest.raises(InputError):
        table.set_sort_key("id DESC, id")
