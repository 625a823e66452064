"""Random tables that pyarrow wrote in random ways: predicates find what they find in a table of dolmen's own."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.errors import PredicateError
from support.random_predicates import random_predicate
from support.random_tables import random_table

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
LAKES = 60 if os.environ.get("DOLMEN_LONG") else 2
PREDICATES = 20


def write(rng: random.Random, table: pa.Table, path: Path) -> None:
    """Writes rows with options that change what is in the file, and not what it says."""
    pq.write_table(
        table,
        path,
        row_group_size=rng.choice([7, 50, 1_000]),
        version=rng.choice(["2.4", "2.6"]),
        data_page_version=rng.choice(["1.0", "2.0"]),
        compression=rng.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=rng.random() < 0.5,
        write_statistics=rng.random() < 0.8,
        store_schema=rng.random() < 0.5,
        store_decimal_as_integer=rng.random() < 0.5,
        write_page_checksum=rng.random() < 0.5,
        write_page_index=rng.random() < 0.5,
    )


def plain(table: pa.Table) -> list[str]:
    """Rows as text: NaN equals itself, and times may be of any year."""
    numbers = {"date32[day]": pa.int32(), "timestamp[us]": pa.int64(), "timestamp[us, tz=UTC]": pa.int64()}
    columns = [column.cast(numbers.get(str(column.type), column.type)) for column in table.columns]
    return [str(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("place", range(LAKES))
def test_a_lake_answers_as_a_table_with_the_same_rows_does(place: int, tmp_path: Path) -> None:
    seed = SEED + place
    print(f"DOLMEN_TEST_SEED={seed}")
    rng = random.Random(seed)
    rows = random_table(rng, 300)
    db = dolmen.open(tmp_path / "db")
    own = db.create_table("own", rows.schema)
    (tmp_path / "lake").mkdir()
    for part in range(3):
        write(rng, rows.slice(part * 100, 100), tmp_path / "lake" / f"{part}.parquet")
        own.append(rows.slice(part * 100, 100))
    db.adopt("adopted", str(tmp_path / "lake"))
    adopted = db.table("adopted")

    def check(where: str | None) -> None:
        assert adopted.count(where) == own.count(where), where
        found, wanted = (table.scan(where=where).to_arrow() for table in (adopted, own))
        assert found.schema.types == wanted.schema.types
        assert plain(found) == plain(wanted), where

    check(None)
    compared = 0
    for number in range(PREDICATES):
        where = random_predicate(rng, rows)
        try:
            own.count(where)
        except PredicateError:
            continue
        check(where)
        compared += 1
        if number % 7 == 3:
            for table in (own, adopted):
                table.delete(where, mode=("positions", "tombstone")[number % 2])
    assert compared > PREDICATES / 2
    assert db.verify(deep=True).ok
    db.maintain()
    assert sorted(plain(adopted.scan().to_arrow())) == sorted(plain(own.scan().to_arrow()))
