"""``cluster_by``: compaction sorts rows by the z-order of some columns, and scans by any of them read less."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dolmen
from dolmen.declaration import Declaration, apply, plan
from dolmen.errors import InputError, SchemaError
from dolmen.maintenance.compact.clustering import ZOrder, sampled
from dolmen.maintenance.compact.compaction import Compacted, CompactionOptions, compact
from support.random_tables import FLAT, random_column

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
COLUMNS = "tenant BIGINT, at TIMESTAMP, name VARCHAR"


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    return dolmen.open(str(tmp_path / "db"))


def compacted(table: dolmen.Table, **options: object) -> Compacted:
    return compact(table._context, table.name, options=CompactionOptions(**options))


def files_read(table: dolmen.Table, where: str) -> int:
    return len(table.scan(where=where).explain().plan.files)


@pytest.mark.slow
def test_scans_by_either_column_read_few_files(db: dolmen.Database) -> None:
    rng = np.random.default_rng(7)
    rows = pa.table({"a": rng.integers(0, 1000, 60_000), "b": rng.permutation(60_000), "c": rng.random(60_000)})
    table = db.create_table("t", rows.schema, cluster_by="a, b", properties={"target_file_bytes": "32KB"})
    for start in range(0, 60_000, 6_000):
        table.append(rows.slice(start, 6_000))
    before = [files_read(table, where) for where in ("a = 17", "b < 600")]
    done = compacted(table, recluster=True, run_bytes=16_384, memory_bytes=200_000)
    assert done.spilled_bytes > 0
    count = table.files().num_rows
    after = [files_read(table, where) for where in ("a = 17", "b < 600")]
    assert all(some < 0.5 * count for some in after), (before, after, count)
    assert table.scan().to_arrow().sort_by("b").equals(rows.sort_by("b"))
    assert db.verify(deep=True).ok
    again = compacted(table, recluster=True, run_bytes=16_384)
    assert (again.rows, again.rows_deleted) == (60_000, 0)


def test_each_way_sets_it_and_a_sort_key_beside_it_is_refused(db: dolmen.Database) -> None:
    table = db.create_table("t", COLUMNS, cluster_by=["TENANT", "at"])
    assert table.settings()["cluster_by"] == "tenant, at"
    table.rename_column("at", "made at")
    assert table.settings()["cluster_by"] == 'tenant, "made at"'
    with pytest.raises(SchemaError, match="cluster_by"):
        table.drop_column("made at")
    with pytest.raises(SchemaError, match="not both"):
        table.set_sort_key("name")
    with pytest.raises(SchemaError, match="not both"):
        db.create_table("u", COLUMNS, None, "at", cluster_by="at")
    db.sql("ALTER TABLE t CLUSTER BY NONE")
    table.set_sort_key("name")
    with pytest.raises(SchemaError, match="not both"):
        table.set(cluster_by="tenant")
    db.sql("ALTER TABLE t RESET SORTED BY; ALTER TABLE t CLUSTER BY (name, tenant)")
    assert table.settings()["cluster_by"] == "name, tenant"
    db.sql(f"CREATE TABLE v ({COLUMNS}) PARTITIONED BY (day(at)) CLUSTER BY (tenant, name)")
    assert db.table("v").settings()["cluster_by"] == "tenant, name"


def test_a_declaration_changes_one_order_into_the_other(db: dolmen.Database) -> None:
    text = "tables:\n  t:\n    columns: {id: BIGINT, at: TIMESTAMP}\n    %s\n"
    for line, key, columns in [("cluster_by: id, AT", (), "id, at"), ("sort_key: id", ("id",), None)] * 2:
        apply(db, Declaration.parse(text % line))
        assert not plan(db, Declaration.parse(text % line)).changes
        assert (db.table("t").sort_key, db.table("t").settings()["cluster_by"]) == (key, columns)
    with pytest.raises(InputError, match=r"line 5.*not both"):
        Declaration.parse(text % "sort_key: id\n    cluster_by: id, at")


@pytest.mark.parametrize("wrong", ["day(at)", "nothing", "", "tenant, tenant", "a, b, c, d, e", "list"])
def test_what_cannot_be_clustered_is_refused(wrong: str, db: dolmen.Database) -> None:
    with pytest.raises(InputError):
        db.create_table("t", f"{COLUMNS}, list BIGINT[]", cluster_by=wrong)


@pytest.mark.parametrize("kind", [*FLAT])
def test_keys_of_any_type_follow_the_order_of_values(kind: str) -> None:
    """By one column the z-order is that of its parts; NULLs come last. The sample is the same each time."""
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(f"{SEED} {kind}")
    rows = pa.table({"k": random_column(rng, kind, 500), "l": random_column(rng, rng.choice([*FLAT]), 500)})
    [batch] = rows.combine_chunks().to_batches()
    order = ZOrder(pa.Table.from_batches(sampled([batch.slice(0, 130), batch.slice(130)], 500)).select(["k"]))
    keys = order.extend(batch)
    ascending = pa.Table.from_batches([keys]).sort_by("k")[order.names[0]].to_pylist()
    assert ascending == sorted(ascending)
    assert len(set(ascending)) >= min(2, len(rows["k"].unique()) - 1)
    both = ZOrder(rows)
    assert both.extend(batch)[both.names[0]].equals(ZOrder(rows).extend(batch)[both.names[0]])


@pytest.mark.slow
def test_random_tables_lose_no_row(db: dolmen.Database) -> None:
    """Deletes, partitions, several timestamps, little memory."""
    print(f"DOLMEN_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    spilled = 0
    for number in range(4):
        kinds = dice.sample([*FLAT], 2)
        columns = {name: random_column(dice, kind, 600) for name, kind in zip("kl", kinds, strict=True)}
        rows = pa.table({**columns, "n": pa.array(range(600))})
        properties = {"partition_by": "bucket[3](n)"} if dice.random() < 0.5 else {}
        table = db.create_table(f"t{number}", rows.schema, cluster_by="k, l", properties=properties)
        for start in range(0, 600, 100):
            table.append(rows.slice(start, 100))
        table.delete("n < 50")
        done = compacted(table, growth=2, memory_bytes=dice.choice((3_000, 1 << 20)), recluster=dice.random() < 0.5)
        assert done.rows == 550
        spilled += done.spilled_bytes
        assert sorted(table.scan().to_arrow()["n"].to_pylist()) == list(range(50, 600))
    report = db.verify(deep=True)
    assert report.ok, report
