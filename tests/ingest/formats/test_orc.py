"""ORC files, as pyarrow writes them."""

from __future__ import annotations

import datetime as dt
import gzip
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from dolmen.errors import InputError, LimitError, RowError, SchemaError
from dolmen.ingest.formats import orc_reader
from dolmen.ingest.formats.formats import BadRow, ReadOptions, SourceFile, detect, infer, read

TABLE = pa.table(
    {
        "i8": pa.array([1, None, -3], pa.int8()),
        "i64": [1, 2, 2**62],
        "f": pa.array([1.5, None, -0.0], pa.float32()),
        "s": ["a", None, ""],
        "b": [True, None, False],
        "bin": pa.array([b"a", None, b""]),
        "d": [dt.date(2024, 2, 29), None, dt.date(1, 1, 1)],
        "at": pa.array(
            [dt.datetime(2024, 7, 1, 12, 0, 0, 123456), None, dt.datetime(1969, 12, 31, 23, 59, 59, 500000)]
        ),
        "utc": pa.array([dt.datetime(2024, 7, 1, 12), None, dt.datetime(1950, 1, 1)], pa.timestamp("us", "UTC")),
        "dec": pa.array([Decimal("1.23"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
        "l": [[1, None], None, []],
        "st": [{"x": 1}, None, {"x": None}],
    }
)


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    orc.write_table(table, sink, **options)
    return sink.getvalue()


def source(data: bytes, name: str = "t.orc", **options: Any) -> SourceFile:
    return SourceFile(lambda: io.BytesIO(data), detect(name), name, ReadOptions(**options))


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "zstd", "lz4"])
def test_a_file_comes_back_with_its_types(compression: str) -> None:
    data = written(TABLE, compression=compression)
    assert infer(source(data)).names == TABLE.column_names
    assert [field.type for field in infer(source(data))] == [field.type for field in TABLE.schema]
    assert read(source(data), None).read_all().to_pylist() == TABLE.to_pylist()


def test_values_are_cast_without_loss_only() -> None:
    data = written(TABLE.select(["i64"]))
    schema = pa.schema([("i64", pa.int32())])
    with pytest.raises(RowError, match="row 3, column 'i64'"):
        read(source(data), schema).read_all()
    bad: list[BadRow] = []
    assert read(source(data), schema, on_bad_row=bad.append).read_all()["i64"].to_pylist() == [1, 2]
    assert [(row.row, row.text) for row in bad] == [(3, b'{"i64": 4611686018427387904}')]
    with pytest.raises(SchemaError, match="never stored as string"):
        read(source(data), pa.schema([("i64", pa.string())])).read_all()


def test_stripes_are_read_one_by_one_and_only_the_columns_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": pa.array(range(200_000)), "b": [str(n * 7919) for n in range(200_000)]})
    data = written(table, stripe_size=100_000)
    assert orc.ORCFile(io.BytesIO(data)).nstripes > 3
    found = list(read(source(data, extra="ignore"), pa.schema([("a", pa.int64())])))
    assert pa.Table.from_batches(found)["a"].to_pylist() == list(range(200_000))
    assert len(found) > 3
    monkeypatch.setattr(orc_reader, "MAX_STRIPE_BYTES", 10_000)
    with pytest.raises(LimitError, match=r"stripe \d+ has .* rows"):
        read(source(data), None).read_all()


def test_times_that_pyarrow_cannot_hold_are_refused() -> None:
    data = written(pa.table({"at": pa.array([dt.datetime(1600, 1, 1)], pa.timestamp("us"))}))
    with pytest.raises(InputError, match="range"):
        read(source(data), None).read_all()


@pytest.mark.parametrize("size", [0, 1, 3, 10, 100, -1])
def test_a_file_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(InputError, match="ORC"):
        read(source(written(TABLE)[:size]), None).read_all()


def test_an_archive_around_it_is_unpacked() -> None:
    data = gzip.compress(written(TABLE))
    assert read(source(data, "t.orc.gz"), None).read_all().num_rows == 3


def test_a_map_goes_into_a_map() -> None:
    table = pa.table({"m": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))})
    assert read(source(written(table)), table.schema).read_all().to_pylist() == table.to_pylist()
