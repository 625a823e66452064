"""The losses that ``dolmen infer`` lists for files that name the types of their columns."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

import dolmen
from dolmen.errors import InputError, RowError


def _arrow(table: pa.Table) -> io.BytesIO:
    sink = io.BytesIO()
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    sink.seek(0)
    return sink


def _losses(*columns: pa.Array, metadata: dict[str, str] | None = None) -> tuple[str, ...]:
    table = pa.table({f"c{n}": column for n, column in enumerate(columns)}).replace_schema_metadata(metadata)
    return dolmen.infer(_arrow(table), format="arrow").losses


@pytest.mark.parametrize(
    ("column", "loss"),
    [
        (pa.nulls(2), "column 'c0': it has no type: it is text"),
        (pa.array([{"n": None}], pa.struct([("n", pa.null())])), "column 'c0.n': it has no type: it is text"),
        (pa.array([[0]], pa.list_(pa.timestamp("s", "Asia/Tokyo"))), "column 'c0': the time zone 'Asia/Tokyo' is"),
        (pa.array([1], pa.duration("s")), "column 'c0': durations are integers, in microseconds"),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), "column 'c0': that each list has 2 items is not kept"),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))), "'arrow.uuid' is not kept"),
        (pa.array([{}], pa.struct([])), "column 'c0': it has no fields: it is text"),
        (pa.array([Decimal(1)], pa.decimal256(50, 2)), "column 'c0': decimals have 38 digits"),
        (
            pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["low"]), ordered=True),
            "column 'c0': the order of its categories is not kept",
        ),
        (
            pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["x"])]),
            "column 'c0': its union is a struct with a member for each type",
        ),
    ],
    ids=str,
)
def test_a_loss_is_named_with_its_column(column: pa.Array, loss: str) -> None:
    (found,) = _losses(column)
    assert loss in found


def test_what_is_held_is_no_loss_and_columns_alike_share_a_sentence() -> None:
    whole = [
        pa.array([0], pa.timestamp("ns", "UTC")),
        pa.array(["x"]).dictionary_encode(),
        pa.array([1.5], pa.float16()),
        pa.array([dt.time(1)]),
    ]
    assert _losses(*whole, metadata={"pandas": "{}", "org.apache.spark.version": "4"}) == ()
    assert _losses(pa.nulls(1), pa.nulls(1), metadata={"geo": "{}"}) == (
        "columns 'c0', 'c1': it has no type: it is text",
        "the file's metadata is not kept: 'geo'",
    )


def test_digits_of_old_timestamps_are_a_loss() -> None:
    sink = io.BytesIO()
    parquet.write_table(pa.table({"at": [dt.datetime(2026, 1, 1)]}), sink, use_deprecated_int96_timestamps=True)
    sink.seek(0)
    assert dolmen.infer(sink, format="parquet").losses == ("column 'at': times of INT96 are cut to microseconds",)


def test_a_variant_is_said_to_be_a_struct(tmp_path: Any) -> None:
    path = tmp_path / "t.parquet"
    duckdb.execute(f"COPY (SELECT 1 AS id, 5::VARIANT AS v) TO '{path}' (FORMAT parquet)")
    assert dolmen.infer(path).losses == ("column 'v': a VARIANT is a struct of its encoded parts",)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([1000, 1001], pa.timestamp("ns")), "row 2, column 'c0': .* write whole microseconds, or text"),
        (pa.array([[1000], [1001]], pa.list_(pa.time64("ns"))), "row 2, column 'c0'.*microseconds"),
        (pa.array([Decimal(1), Decimal(10) ** 60], pa.decimal256(70, 0)), "row 2, column 'c0': .* write it as text"),
    ],
    ids=["timestamp", "time", "decimal"],
)
def test_a_value_that_no_column_holds_is_refused_when_the_file_is_inferred(column: pa.Array, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        _losses(column)


def test_names_that_no_table_can_have_are_numbered_and_said() -> None:
    table = pa.Table.from_arrays([pa.array([n]) for n in range(4)], names=["a", "", "A", "a"])
    found = dolmen.infer(_arrow(table), format="arrow")
    assert found.schema.names == ["a", "column_2", "A_2", "a_3"]
    assert found.properties == {"ingest_names": "number"}
    assert "missing and repeated names are numbered" in found.summary
    with pytest.raises(InputError, match="column 2 has no name"):
        dolmen.infer(_arrow(table), format="arrow", names="strict")


def test_old_feather_is_refused_with_what_helps(tmp_path: Any) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(InputError, match=r"Feather version 1.*pyarrow\.feather\.write_feather"):
        dolmen.infer(tmp_path / "a.feather")
