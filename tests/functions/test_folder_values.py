"""``ingest_hive``: the rows of dropped files get values from the names of their folders."""

from __future__ import annotations

import io
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.errors import InputError, SchemaError
from support.functions import World

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("day", pa.date32(), False), ("country", pa.string())])


@pytest.fixture
def hive(world: World) -> World:
    world.create("orders", SCHEMA)
    world.database.table("orders").set(ingest_hive="day, country")
    return world


def test_rows_of_each_format_get_the_values_of_their_folders(hive: World) -> None:
    parquet = io.BytesIO()
    pq.write_table(pa.table({"id": [5]}), parquet)
    bodies = {
        "1.csv": "id\n1\n",
        "2.jsonl": '{"id": 2}\n',
        "3.tsv": "country\tid\n\t3\nDE\t4\n",
        "5.parquet": parquet.getvalue(),
    }
    records = [hive.drop(f"orders/day=2026-11-27/country=DE/{name}", body) for name, body in bodies.items()]
    records.append(hive.drop("orders/country=__HIVE_DEFAULT_PARTITION__/x/day=2026-11-28/6.csv", "id\n6\n"))
    records.append(hive.drop("orders/day=2026-11-28/country=a%2Fb/7.csv", "day,id\n2026-11-28,7\n"))
    assert hive.ingest(*records) == []
    rows = hive.rows("orders")
    assert rows[:5] == [{"id": n, "day": date(2026, 11, 27), "country": "DE"} for n in range(1, 6)]
    assert [(row["id"], row["country"]) for row in rows[5:]] == [(6, None), (7, "a/b")]
    assert hive.rejects() == {}


def test_a_header_is_not_needed_and_upserts_find_their_keys(world: World) -> None:
    world.database.create_table("t", SCHEMA, primary_key=["id", "day"])
    world.database.table("t").set(ingest_hive="day", ingest_header=False, ingest_mode="upsert")
    for country in ("DE", "FR"):
        assert world.ingest(world.drop("t/day=2026-11-27/1.csv", f"1,{country}\n2,{country}\n")) == []
    assert world.ingest(world.drop("t/day=2026-11-28/1.csv", "1,CH\n")) == []
    assert [row["country"] for row in world.rows("t")] == ["FR", "CH", "FR"]


def test_other_folders_and_values_are_rejected_with_the_path_and_the_column(hive: World) -> None:
    drops = {
        "orders/1.csv": ("id\n1\n", "no folder has a value of column 'day'"),
        "orders/day=2026-11-27/2.csv": ("id\n1\n", "no folder has a value of column 'country'"),
        "orders/day=yesterday/country=DE/3.csv": ("id\n1\n", "column 'day': 'yesterday' in a folder is not date"),
        "orders/day=2026-11-27/country=DE/hour=7/4.csv": ("id\n1\n", "no column 'hour' is read from folders"),
        "orders/day=__HIVE_DEFAULT_PARTITION__/country=DE/5.csv": ("id\n1\n", "column 'day' is NULL in a folder"),
        "orders/day=2026-11-27/country=DE/6.jsonl": ('{"id": 1, "country": "FR"}\n', "'country' differs in the file"),
        "orders/day=2026-11-27/country=DE/day=2026-11-27/7.csv": ("id\n1\n", "give 'day' twice"),
        "orders/day=2026-11-27/country=__HIVE_DEFAULT_PARTITION__/8.csv": ("id,country\n1,DE\n", "differs in the file"),
    }  # fmt: skip
    assert hive.ingest(*(hive.drop(path, body) for path, (body, _) in drops.items())) == []
    reasons = {report["file"]: report["reason"] for report in hive.rejects().values()}
    assert reasons.keys() == drops.keys()
    for path, (_, reason) in drops.items():
        assert reason in reasons[path]
        assert path in reasons[path]
    assert hive.ids("orders") == []


def test_new_columns_and_bad_rows_work_beside_it(hive: World) -> None:
    hive.database.table("orders").set(ingest_new_columns="add", ingest_on_bad_row="quarantine")
    record = hive.drop("orders/day=2026-11-27/country=DE/1.csv", "id,amount\n1,5\nx,6\n3,7\n")
    assert hive.ingest(record) == []
    assert [(row["id"], row["country"], row["amount"]) for row in hive.rows("orders")] == [(1, "DE", 5), (3, "DE", 7)]


def test_settings_name_columns_and_no_changes(hive: World) -> None:
    table = hive.database.table("orders")
    with pytest.raises(SchemaError, match="hour"):
        table.set(ingest_hive="hour")
    with pytest.raises(InputError):
        table.set(ingest_hive="day,,")
    with pytest.raises(SchemaError, match="have all columns inside"):
        table.set(ingest_mode="cdc", cdc_envelope="flat", cdc_sequence="id")


def test_a_table_that_its_first_file_creates_has_the_columns_of_its_folders(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    first = world.drop("made/day=2026-11-27/Country=DE/hour=07/1.csv", "id,Day\n1,2026-11-27\n")
    assert world.ingest(first) == []
    assert world.ingest(world.drop("made/day=2026-11-28/country=FR/hour=08/2.csv", "id,Day\n2,2026-11-28\n")) == []
    assert world.rows("made") == [
        {"id": 1, "Day": date(2026, 11, 27), "Country": "DE", "hour": "07"},
        {"id": 2, "Day": date(2026, 11, 28), "Country": "FR", "hour": "08"},
    ]
    world.ingest(world.drop("twice/a=1/A=2/1.csv", "id\n1\n"), world.drop("made/3.csv", "id,Day\n3,2026-11-28\n"))
    reasons = [report["reason"] for report in world.rejects().values()]
    assert any("give 'A' twice" in each for each in reasons)
    assert any("no folder has a value of column" in each for each in reasons)
    assert world.database.tables() == ["made"]
