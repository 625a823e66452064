"""Arrow IPC: files and streams, whole or refused."""

from __future__ import annotations

import io
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.ingest.formats import arrow
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, infer, read

TABLE = pa.table({"a": pa.array(range(100), pa.int64()), "b": pa.array(["x", None] * 50).dictionary_encode()})
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def _written(table: pa.Table, *, stream: bool, chunk: int = 30, **options: Any) -> bytes:
    sink = io.BytesIO()
    new = ipc.new_stream if stream else ipc.new_file
    with new(sink, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue()


def _read(data: bytes, schema: pa.Schema | None = SCHEMA, name: str = "t.arrow", **options: Any) -> pa.Table:
    return read(SourceFile(lambda: io.BytesIO(data), detect(name), name, ReadOptions(**options)), schema).read_all()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("legacy", [True, False])
def test_files_and_streams_are_read_under_any_of_the_names(stream: bool, compression: str | None, legacy: bool) -> None:
    data = _written(TABLE, stream=stream, compression=compression, use_legacy_format=legacy)
    for name in ("t.arrow", "t.arrows", "t.feather", "t.ipc"):
        assert _read(data, name=name).to_pylist() == TABLE.to_pylist()


def test_files_that_polars_writes_are_read() -> None:
    for write in (polars.DataFrame.write_ipc, polars.DataFrame.write_ipc_stream):
        sink = io.BytesIO()
        write(polars.from_arrow(TABLE), sink)  # type: ignore[arg-type]
        assert _read(sink.getvalue()).to_pylist() == TABLE.to_pylist()


def test_feather_is_read_but_not_its_first_version() -> None:
    sink = io.BytesIO()
    feather.write_feather(TABLE, sink)
    assert _read(sink.getvalue(), None).to_pylist() == TABLE.to_pylist()
    with pytest.raises(InputError, match=r"version 1, .*write it"):
        _read(b"FEA1" + bytes(100))


def test_types_are_taken_from_the_schema_and_columns_matched_by_name() -> None:
    data = _written(TABLE, stream=False)
    assert infer(SourceFile(lambda: io.BytesIO(data), detect("t.arrow"), "t.arrow")) == SCHEMA
    wide = pa.schema([("c", pa.float64()), ("b", pa.string()), ("a", pa.int16())])
    assert _read(data, wide)["a"].to_pylist() == list(range(100))
    with pytest.raises(RowError, match="row 5, column 'a'"):
        _read(_written(pa.table({"a": [1, 2, 3, 4, 300]}), stream=True, chunk=2), pa.schema([("a", pa.int8())]))
    with pytest.raises(SchemaError, match=r"file 't\.arrow': column 'a'"):
        _read(data, pa.schema([("a", pa.string()), ("b", pa.string())]))


def test_a_file_without_rows_is_read() -> None:
    for stream in (True, False):
        assert _read(_written(TABLE.slice(0, 0), stream=stream)).num_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_whatever_is_cut_off_the_file_is_refused(stream: bool) -> None:
    """A stream may lawfully end at the end of any batch: rows would be missing, and nobody would know."""
    data = _written(TABLE, stream=stream)
    for size in range(0, len(data), 1 if stream else 3):
        with pytest.raises(InputError):
            _read(data[:size])


def test_what_follows_the_end_of_a_stream_is_refused() -> None:
    data = _written(TABLE, stream=True)
    with pytest.raises(InputError, match="end"):
        _read(data + data)


def test_batches_that_are_too_large_to_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "MAX_MESSAGE_BYTES", 2000)
    table = pa.table({"a": range(1000)})
    assert _read(_written(table, stream=False, chunk=100), None).num_rows == 1000
    with pytest.raises(InputError, match="smaller"):
        _read(_written(table, stream=False, chunk=1000), None)


def test_extra_columns_and_fields_are_ignored_where_asked() -> None:
    item = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    table = pa.table(
        {
            "a": [1, 2, 3],
            "z": ["extra"] * 3,
            "s": pa.array([{"x": 1, "y": 2}, None, {"x": None, "y": 3}], item),
            "l": pa.array([[{"x": 1, "y": 2}, None], [], None], pa.large_list(item)),
        }
    )
    kept = pa.struct([("x", pa.int32())])
    schema = pa.schema([("a", pa.int64()), ("s", kept), ("l", pa.list_(kept)), ("more", pa.string())])
    data = _written(table, stream=True, chunk=2)
    assert _read(data, schema, extra="ignore").to_pylist() == [
        {"a": 1, "s": {"x": 1}, "l": [{"x": 1}, None], "more": None},
        {"a": 2, "s": None, "l": [], "more": None},
        {"a": 3, "s": {"x": None}, "l": None, "more": None},
    ]
    with pytest.raises(SchemaError, match="column 'z'"):
        _read(data, schema)
    with pytest.raises(SchemaError):
        _read(data, pa.schema([("q", pa.int64())]), extra="ignore")


def test_what_a_file_may_hold_is_limited() -> None:
    data = _written(TABLE, stream=True)
    assert _read(data, max_bytes=10_000).num_rows == 100
    with pytest.raises(InputError, match=r"unpacks.* 800 bytes"):
        _read(data, max_bytes=800)
