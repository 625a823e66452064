"""Partitions: no writer puts rows of two into one file, deletes of whole ones read nothing, and settings change."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.base.units import KIB
from dolmen.entries.partitions import NULL_FOLDER, PartitionSpec
from dolmen.entries.segments.live import LiveFiles
from dolmen.errors import InputError, SchemaError, UnsupportedFormatError
from dolmen.format import manifest as manifests
from dolmen.format.types import to_plain
from dolmen.maintenance.compact.compaction import CompactionOptions, compact
from dolmen.rows.write.partitioning import RowDivision
from dolmen.rows.write.runs import WriteOptions
from dolmen.store.local_store import LocalStore
from dolmen.transactions import row_statements
from dolmen_simulator.counting import CountingStore

START = date(2026, 1, 1)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("tenant", pa.string()), ("n", pa.int64())])


def rows(days: int = 4, tenants: int = 3, each: int = 2, first: int = 0) -> pa.Table:
    """Rows of some days and tenants, in no order of them."""
    made = [
        {"day": START + timedelta(days=day), "tenant": f"t{tenant}", "n": n}
        for n in range(each)
        for tenant in range(tenants)
        for day in range(days)
    ]
    return pa.Table.from_pylist([{**row, "id": first + number} for number, row in enumerate(made)], SCHEMA)


def check_files(table: dolmen.Table) -> list[str | None]:
    """What ``files`` says of the partition of each file, which its rows confirm. None: it has rows of several."""
    entry = table._entry
    spec = PartitionSpec.of(entry)
    assert spec is not None
    for file in LiveFiles.of(entry, table._context.segments):
        stored = pq.read_table(pa.BufferReader(table._context.store.get(file.path).body))
        ids = {int(field.metadata[b"PARQUET:field_id"]): number for number, field in enumerate(stored.schema)}
        columns = [stored.column(ids[field.id]).cast(field.arrow_type) for _, field in spec.terms]
        values = spec.values(pa.table(columns, [field.name for _, field in spec.terms]))
        found = set(zip(*map(to_plain, values), strict=True))
        claimed = spec.of_file(file)
        assert claimed is None or found == {claimed}, (file.path, claimed, found)
    shown: list[str | None] = table.files()["partition"].to_pylist()
    return shown


def in_order(table: dolmen.Table) -> pa.Table:
    return table.to_arrow().sort_by([(name, "ascending") for name in SCHEMA.names])


def test_an_append_writes_a_file_for_each_partition(db: Database) -> None:
    table = db.create_table("t", SCHEMA, partition_by="month(day), tenant")
    assert table.partition_by == ("month(day)", "tenant") == tuple(table.describe()["partition_by"])
    data = rows(days=40, tenants=2)
    table.append(data)
    expected = [f"day_month=2026-0{month}/tenant=t{tenant}" for month in (1, 2) for tenant in (0, 1)]
    assert check_files(table) == expected
    assert table.partitions().select(["partition", "files", "rows"]).to_pylist() == [
        {"partition": partition, "files": 1, "rows": count}
        for partition, count in zip(expected, (62, 62, 18, 18), strict=True)
    ]
    assert db.sql("FROM dolmen_partitions('t')").to_arrow().equals(table.partitions())
    assert table.to_arrow().sort_by("id").equals(data)


def test_each_partition_has_a_name_of_its_own(db: Database) -> None:
    table = db.create_table("t", SCHEMA, partition_by="tenant")
    tenants = [None, "__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__", "", "a/b", "a%2Fb", "A", "a"]
    table.append([{"id": number, "tenant": tenant} for number, tenant in enumerate(tenants)])
    names = [name.removeprefix("tenant=") for name in check_files(table) if name]
    assert len(set(names)) == len(tenants) == table.partitions().num_rows
    assert {unquote(name) for name in names if name != NULL_FOLDER} == {*tenants} - {None}


WRITES: dict[str, Callable[[dolmen.Table], object]] = {
    "append": lambda table: table.append(rows(first=50)),
    "insert": lambda table: table.insert(rows(first=50)),
    "upsert": lambda table: table.upsert(rows(first=3)),
    "update": lambda table: table.update({"tenant": "t9", "n": 1}, "n = 0"),
    "merge": lambda table: table.merge(rows(days=6, first=5), "id"),
    "overwrite": lambda table: table.overwrite(rows(days=7)),
    "overwrite where": lambda table: table.overwrite(rows(days=2, first=90), where="day < DATE '2026-01-03'"),
    "rows with NULL": lambda table: table.append({"id": [98, 99], "day": [None, START], "tenant": ["t0", None]}),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_write_divides_its_rows(db: Database, write: str) -> None:
    table = db.create_table("t", SCHEMA, primary_key="id", sort_key="n", partition_by="day, tenant")
    plain = db.create_table("plain", SCHEMA, primary_key="id")
    for each in (table, plain):
        each.append(rows())
        WRITES[write](each)
    assert None not in check_files(table)
    assert table.to_arrow().sort_by("id").equals(plain.to_arrow().sort_by("id"))
    report = db.verify(deep=True)
    assert report.ok, report


def test_a_writer_and_sql_divide_rows_too(db: Database) -> None:
    db.sql("CREATE TABLE t (id BIGINT, day DATE, tenant VARCHAR, n BIGINT) PARTITIONED BY (day, bucket(4, id))")
    with db.table("t").writer() as writer:
        writer.append(rows())
    db.sql("INSERT INTO t SELECT id + 100, CAST(day + INTERVAL 9 DAY AS DATE), tenant, n FROM t")
    table = db.table("t")
    assert table.partition_by == ("day", "bucket[4](id)")
    assert None not in check_files(table)
    assert table.count() == 48
    db.sql("ALTER TABLE t SET PARTITIONED BY (tenant)")
    assert table.partition_by == ("tenant",)
    db.sql("ALTER TABLE t RESET PARTITIONED BY")
    assert (table.partition_by, table.partitions().num_rows) == ((), 0)
    assert "partition" not in table.files().column_names


def test_an_append_of_many_partitions_makes_few_files_and_compaction_divides_them(db: Database) -> None:
    table = db.create_table("t", SCHEMA, partition_by="tenant", properties={"partition_files": 5})
    data = pa.concat_tables([rows(tenants=30), rows(tenants=4, each=3, first=1000)])
    table.append(data)
    names = check_files(table)
    assert sorted(map(str, names)) == ["None", "tenant=t0", "tenant=t1", "tenant=t2", "tenant=t3"]
    assert table.partitions().to_pylist()[-1]["rows"] == 26 * 8
    while db.compact("t")["t"].commits:
        pass
    assert sorted(map(str, check_files(table))) == sorted(f"tenant=t{number}" for number in range(30))
    assert table.to_arrow().sort_by("id").equals(data.sort_by("id"))
    assert db.verify(deep=True).ok


@pytest.mark.parametrize("terms", ["day, tenant", "bucket[3](tenant)", "truncate[2](long)", "long, year(day)"])
@pytest.mark.parametrize("sort_key", [None, "n"])
def test_compaction_merges_files_of_a_partition_and_then_rests(db: Database, terms: str, sort_key: str | None) -> None:
    schema = SCHEMA.append(pa.field("long", pa.string()))
    table = db.create_table("t", schema, sort_key=sort_key, partition_by=terms)
    parts = []
    for number in range(6):
        part = rows(first=number * 100)
        long = pa.array([None if n % 5 == 0 else f"{n % 3}{'x' * 30}{n % 2}" for n in range(part.num_rows)])
        parts.append(part.append_column("long", long))
        table.append(parts[-1])
    before = check_files(table)
    assert None not in before
    table.delete("n = 0 AND id % 7 = 0")
    db.compact("t")
    after = check_files(table)
    assert set(after) == set(before)
    assert len(after) == len(set(after))
    assert not db.compact("t")["t"].commits
    expected = pa.concat_tables(parts).to_pylist()
    kept = [row for row in expected if not (row["n"] == 0 and row["id"] % 7 == 0)]
    assert table.to_arrow().sort_by("id").to_pylist() == kept
    assert db.verify(deep=True).ok


@pytest.mark.slow
def test_row_groups_are_copied_within_a_partition(db: Database, store: CountingStore) -> None:
    table = db.create_table("t", SCHEMA, partition_by="bucket[2](id)")
    options = CompactionOptions(growth=1, splice_bytes=1, row_group_bytes=64, run_bytes=4 * KIB)
    for number in range(3):
        table.append(rows(each=200, first=number * 10_000))
        done = compact(table._context, "t", options=options)
    assert done.bytes_copied
    assert sorted(map(str, check_files(table))) == ["id_bucket=0", "id_bucket=1"]
    assert db.verify(deep=True).ok


def test_deleting_a_day_drops_its_files_by_metadata(db: Database, store: CountingStore) -> None:
    table = db.create_table("t", SCHEMA, partition_by="day", properties={"partition_files": 400})
    for number in range(3):
        table.append(rows(days=70, tenants=1, each=1, first=number * 1000))
    db.maintain()
    table.append(rows(days=70, tenants=1, each=1, first=9000))
    of_day = "day = DATE '2026-03-01'"
    assert table.count(of_day) == 4
    store.reset()
    table.delete(of_day)
    assert store.puts == 3
    paths = set(table.files()["path"].to_pylist())
    resolved = db.resolve("t")["t"]
    assert (resolved.read, resolved.rows) == (0, 4)
    store.reset()
    assert table.scan(["id"], where=of_day).to_arrow().num_rows == 0
    assert store.gets == 1  # the pointer
    compacted = db.compact("t")["t"]
    assert compacted.plan.groups[0].reason == "all rows deleted"
    gone = paths - set(table.files()["path"].to_pylist())
    assert gone
    assert table.partitions().num_rows == 69
    assert table.count() == 69 * 4


@pytest.mark.slow
def test_deleting_one_of_365_days_in_10_000_files_is_two_commits(db: Database, store: CountingStore) -> None:
    """The fourth PUT of some commits is a segment of entries that have left the manifest, uploaded beside it."""
    table = db.create_table("t", SCHEMA, partition_by="day", properties={"partition_files": 400})
    for number in range(28):
        table.append(rows(days=365, tenants=1, each=1, first=number * 1000))
    assert table.files().num_rows == 10_220

    def segments() -> int:
        return len(list(store.list("segment/")))

    fourth = 0
    for day in range(3, 363, 40):
        of_day = f"day = DATE '{START + timedelta(days=day)}'"
        before = segments()
        store.reset()
        table.delete(of_day)
        deleted = store.puts
        resolved = db.resolve("t")["t"]
        assert (resolved.read, resolved.bytes_read, resolved.rows, resolved.commits) == (0, 0, 28, 1)
        moved = segments() - before
        assert deleted in (3, 3 + moved)
        assert store.puts == 6 + moved
        fourth += moved
        store.reset()
        assert table.count(of_day) == 0
        assert store.gets == 1  # the pointer
    assert fourth <= 5  # of 18 commits


def test_replacing_a_day_reads_nothing_and_takes_no_more_than_a_delete(db: Database, store: CountingStore) -> None:
    table = db.create_table("t", SCHEMA, partition_by="day")
    table.append(rows(days=30))
    store.reset()
    table.append(rows(days=1))
    append = store.puts, store.gets
    store.reset()
    table.overwrite(rows(days=1, first=500), where="day = DATE '2026-01-01'")
    # The tombstone goes up beside the data file, and the newest version is asked for first.
    assert (store.puts, store.gets) == (append[0] + 1, append[1] + 1)
    assert db.resolve("t")["t"].read == 0
    assert None not in check_files(table)


def test_expired_days_are_dropped_by_metadata(db: Database) -> None:
    table = db.create_table("t", SCHEMA, partition_by="day", properties={"ttl": "day 1d"})
    table.append(rows(days=20))
    db.expire()
    assert db.resolve("t")["t"].read == 0
    db.compact("t")
    assert table.files().num_rows == 0 == table.count()


def test_another_setting_is_metadata_alone_and_compaction_follows_it(db: Database, store: CountingStore) -> None:
    table = db.create_table("t", SCHEMA, properties={"target_file_bytes": "4KB"})
    data = rows(days=8, each=100)
    data = data.set_column(3, "n", pa.array([random.Random(number).getrandbits(60) for number in range(data.num_rows)]))
    table.append(data)
    store.reset()
    table.set(partition_by="day")
    assert store.puts == 2
    assert check_files(table) == [None]
    assert not db.compact("t")["t"].commits  # a full file stays
    assert db.compact("t", repartition=True)["t"].files_out == 8
    assert None not in check_files(table)
    table.set(partition_by=None)
    table.append(rows(first=9000))
    table.set(partition_by=["bucket[2](id)", "year(day)"])
    assert table.settings()["partition_by"] == "bucket[2](id), year(day)"
    assert set(check_files(table)) == {None}
    db.compact("t")
    assert len(set(check_files(table)) - {None}) == 2  # the small file was divided
    db.compact("t", repartition=True)
    assert None not in check_files(table)
    assert table.to_arrow().sort_by("id").equals(pa.concat_tables([data, rows(first=9000)]).sort_by("id"))


def test_columns_are_renamed_and_widened_but_not_dropped(db: Database) -> None:
    table = db.create_table("t", SCHEMA, partition_by='bucket[4](day), "tenant"')
    table.append(rows(days=9))
    before = check_files(table)
    table.rename_column("tenant", "whose is it?")
    assert table.partition_by == ("bucket[4](day)", '"whose is it?"')
    assert check_files(table) == [str(each).replace("tenant", "whose%20is%20it%3F") for each in before]
    with pytest.raises(SchemaError, match="partition_by"):
        table.drop_column("day")
    table.widen_column("day", pa.timestamp("us"))
    assert None in check_files(table)  # a timestamp hashes otherwise than its day
    table.append({"id": [1], "day": [START]})
    db.compact("t")
    assert None not in check_files(table)
    assert db.verify(deep=True).ok


@pytest.mark.parametrize("how", [{"partition_by": "bucket[3](x)"}, {"sort_key": "truncate[3](x)"}])
def test_a_column_does_not_get_a_type_without_its_transform(db: Database, how: dict[str, str]) -> None:
    """Found by a published history: the next append failed in Arrow."""
    table = db.create_table("t", pa.schema([("x", pa.uint8())]), **how)  # type: ignore[arg-type]
    table.append({"x": [1, 200]})
    with pytest.raises(SchemaError, match=r"uint8 to uint64.*\[3\] of it.*partition_by or the sort key"):
        table.widen_column("x", pa.uint64())
    table.widen_column("x", pa.uint32())
    table.append({"x": [2**32 - 1]})
    assert table.count() == 3
    floats = db.create_table("floats", pa.schema([("x", pa.float32())]), sort_key="x")
    floats.widen_column("x", pa.float64())


def test_wrong_settings_are_refused(db: Database) -> None:
    table = db.create_table("t", SCHEMA)
    for value, part in (
        ("hour(day)", "hour of column 'day'"),
        ("nothing", "no column 'nothing'"),
        ("day(", "day"),
        (7, "7"),
    ):
        with pytest.raises(InputError, match=part) as error:
            table.set(partition_by=value)
        assert "partition_by" in str(error.value) or isinstance(error.value, SchemaError)
    with pytest.raises(InputError, match="partition_files"):
        table.set(partition_files=0)
    with pytest.raises(InputError):
        db.create_table("u", SCHEMA, partition_by="week(day)")
    assert db.tables() == ["t"]


def test_a_version_that_knows_no_partitions_refuses_the_database(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.create_table("u", SCHEMA)
    assert not db._context.head.refresh().manifest.features
    db.create_table("t", SCHEMA, partition_by="day")
    db.drop_table("t")
    assert db._context.head.refresh().manifest.features == (manifests.PARTITIONS,)
    monkeypatch.setattr(manifests, "FEATURES", manifests.FEATURES - {manifests.PARTITIONS})
    with pytest.raises(UnsupportedFormatError, match="partitions"):
        Database(db._context.store, Runtime()).tables()


def test_restores_and_clones_keep_partitions(db: Database) -> None:
    table = db.create_table("t", SCHEMA, partition_by="day")
    table.append(rows())
    version = db.version
    table.set(partition_by="tenant")
    table.append(rows(first=100))
    table.restore(version=version)
    table.append(rows(first=200))
    assert table.partition_by == ("day",)
    assert None not in check_files(table)
    db.clone("t", "c")
    db.table("c").append(rows(first=300))
    assert None not in check_files(db.table("c"))


@pytest.mark.slow
def test_rows_that_outgrow_the_memory_are_divided_alike(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    spilled: list[int] = []
    spill = RowDivision._spill
    monkeypatch.setattr(RowDivision, "_spill", lambda self: spilled.append(1) or spill(self))
    write = row_statements.write_data_files
    monkeypatch.setattr(
        row_statements,
        "write_data_files",
        lambda *args, **options: write(*args, options=WriteOptions(run_bytes=KIB), **options),
    )
    data = rows(days=5, each=200)
    for order, count in ((None, 5), ("day", 5)):
        name = f"t_{order}".lower()
        table = db.create_table(name, SCHEMA, partition_by="day")
        spilled.clear()
        table.append(data if order is None else data.sort_by(order))
        assert bool(spilled) == (order is None)
        files = check_files(table)
        assert len(set(files)) == count
        assert None not in files
        assert table.to_arrow().sort_by("id").equals(data)


@pytest.mark.slow
def test_random_histories_keep_the_promise(tmp_path: Any) -> None:
    dice = random.Random(int(os.environ["DOLMEN_TEST_SEED"]))
    specs = ["day", "bucket[3](id), month(day)", "truncate[1](tenant)", "day, tenant", None, "truncate[7](n)", "tenant"]
    db = Database(LocalStore(tmp_path), Runtime())
    db.set(root_bytes="8KB")
    table = db.create_table(
        "t", SCHEMA, primary_key="id", properties={"partition_files": 6, "target_file_bytes": "4KB"}
    )
    plain = db.create_table("plain", SCHEMA, primary_key="id")
    for each in (table, plain):
        each.append(rows(4, 2))
    table.set(partition_by="day")
    assert None in check_files(table)
    for step in range(40):
        change = dice.choice(["append", "upsert", "delete", "spec", "compact", "maintain", "update", "overwrite"])
        data = rows(dice.randint(1, 6), dice.randint(1, 4), first=dice.randint(0, 9) * 40)
        day = f"day = DATE '2026-01-0{dice.randint(1, 6)}'"
        for each in (table, plain):
            if change in ("append", "upsert"):
                each.upsert(data)
            elif change == "delete":
                each.delete(day)
            elif change == "update":
                each.update({"tenant": "t9"}, f"{day} AND n = 0")
            elif change == "overwrite":
                each.overwrite(data.slice(0, 1), where={"day": data["day"][0].as_py()})
        if change == "spec":
            table.set(partition_by=dice.choice(specs))
        elif change == "compact":
            db.compact("t", repartition=dice.random() < 0.5)
        elif change == "maintain":
            db.maintain()
        assert in_order(table).equals(in_order(plain)), step
        if table.partition_by:
            check_files(table)
    table.set(partition_by="day")
    db.compact("t", repartition=True)
    assert None not in check_files(table)
    report = db.verify(deep=True)
    assert report.ok, report
