"""Whatever Arrow array is handed over, by whatever way: a value that is none of its column's type is never stored."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dolmen
from dolmen import Table
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.rows.write.conform import first_invalid

NOT_UTF8 = "the text is not UTF-8"
TEXTS = pa.Array.from_buffers(pa.string(), 5, pa.array([b"a", b"bb", None, b"x\xff", b"z"]).buffers())
"""The fourth (place 3) is not UTF-8."""


def _view(array: pa.Array) -> pa.Array:
    """The same texts, as a view of short ones."""
    values = [b"" if value is None else value for value in array.cast(pa.binary()).to_pylist()]
    packed = b"".join(struct.pack("<i12s", len(value), value) for value in values)
    return pa.Array.from_buffers(pa.string_view(), len(values), [None, pa.py_buffer(packed)])


def _large(array: pa.Array) -> pa.Array:
    buffers = array.cast(pa.large_binary()).buffers()
    return pa.Array.from_buffers(pa.large_string(), len(array), buffers)


def _runs(array: pa.Array) -> pa.Array:
    ends = pa.array([2, 4, 6, 8, 10], pa.int32())
    kind = pa.run_end_encoded(pa.int32(), pa.string())
    return pa.Array.from_buffers(kind, 10, [None], children=[ends, array])


SHAPES: dict[str, tuple[Callable[[pa.Array], pa.Array], int]] = {
    "string": (lambda texts: texts, 3),
    "sliced": (lambda texts: texts.slice(2), 1),
    "large_string": (_large, 3),
    "string_view": (_view, 3),
    "dictionary": (lambda texts: pa.DictionaryArray.from_arrays(pa.array([0, None, 4, 1, 3, 3]), texts), 4),
    "run-end encoded": (_runs, 6),
    "struct": (lambda texts: pa.StructArray.from_arrays([texts], ["x"]), 3),
    "sliced struct": (lambda texts: pa.StructArray.from_arrays([texts], ["x"]).slice(3), 0),
    "list": (lambda texts: pa.ListArray.from_arrays([0, 2, 2, 5], texts), 2),
    "sliced list": (lambda texts: pa.ListArray.from_arrays([0, 2, 2, 5], texts).slice(1), 1),
    "large list": (lambda texts: pa.LargeListArray.from_arrays([0, 2, 2, 5], texts), 2),
    "fixed-size list": (lambda texts: pa.FixedSizeListArray.from_arrays(texts.slice(1), 2), 1),
    "map": (lambda texts: pa.MapArray.from_arrays([0, 3, 5], pa.array(range(5)), texts), 1),
    "keys of a map": (lambda texts: pa.MapArray.from_arrays([0, 2], texts.slice(3), pa.array([1, 2])), 0),
    "list of structs": (
        lambda texts: pa.ListArray.from_arrays([0, 2, 5], pa.StructArray.from_arrays([texts], ["x"])), 1,
    ),
    "extension": (lambda texts: pa.ExtensionArray.from_storage(pa.json_(), texts), 3),
}  # fmt: skip


def _offsets(*ends: int) -> pa.Buffer:
    return pa.py_buffer(np.array(ends, np.int32).tobytes())


FAULTS: dict[str, tuple[Callable[[], pa.Array], int, str]] = {
    "decimal": (
        lambda: pa.Array.from_buffers(
            pa.decimal128(3, 0), 2, [None, pa.py_buffer(bytes(16) + (10**20).to_bytes(16, "little"))]
        ), 1, "more digits",
    ),
    "time64": (lambda: pa.array([0, -1], pa.int64()).view(pa.time64("us")), 1, "outside of a day"),
    "time32": (lambda: pa.array([86_400], pa.int32()).view(pa.time32("s")), 0, "outside of a day"),
    "date64": (lambda: pa.array([0, 5], pa.int64()).view(pa.date64()), 1, "not a whole number of days"),
    "index": (
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint64()), ["a"], safe=False), 2,
        "outside of its dictionary",
    ),
    "negative index": (
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, -1], pa.int8()), ["a"], safe=False), 1,
        "outside of its dictionary",
    ),
    "offsets of texts": (
        lambda: pa.Array.from_buffers(pa.string(), 2, [None, _offsets(0, 9, 3), pa.py_buffer(b"abc")]), 0, "damaged",
    ),
    "offsets of lists": (
        lambda: pa.Array.from_buffers(
            pa.list_(pa.int8()), 3, [None, _offsets(0, 1, 9, 3)], children=[pa.array([1, 2, 3], pa.int8())]
        ), 1, "outside of its values",
    ),
    "runs": (
        lambda: pa.Array.from_buffers(
            pa.run_end_encoded(pa.int32(), pa.int8()), 4, [None],
            children=[pa.array([3, 2, 4], pa.int32()), pa.array([1, 2, 3], pa.int8())],
        ), 0, "out of order",
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_that_is_not_utf_8_is_found_in_every_shape(shape: str) -> None:
    make, place = SHAPES[shape]
    found = first_invalid(make(TEXTS))
    assert found is not None
    assert found[0] == place
    assert found[1].startswith(NOT_UTF8)


@pytest.mark.parametrize("shape", SHAPES)
def test_sound_texts_pass_in_every_shape(shape: str) -> None:
    array = SHAPES[shape][0](pa.array(["a", "bb", None, "é漢", "z"]))
    assert first_invalid(array) is None
    assert first_invalid(array.slice(0, 0)) is None
    assert first_invalid(array.slice(1)) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_other_impossible_values_are_found(fault: str) -> None:
    make, place, reason = FAULTS[fault]
    found = first_invalid(make())
    assert found is not None
    assert found[0] == place
    assert reason in found[1]


def test_parts_of_a_column_answer_for_themselves_alone() -> None:
    lists = pa.ListArray.from_arrays([0, 2, 3, 5], TEXTS)
    assert first_invalid(lists.slice(0, 2)) is None
    structs = pa.StructArray.from_arrays([TEXTS], ["x"])
    assert first_invalid(structs.slice(0, 3)) is None
    assert first_invalid(structs.slice(4)) is None


WRITES: dict[str, Callable[[Table, Any], object]] = {
    "append": lambda table, rows: table.append(rows),
    "upsert": lambda table, rows: table.upsert(rows),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "delete keys": lambda table, rows: table.delete(keys=rows.select(["id", "s"]), on=["id", "s"]),
}


@pytest.mark.parametrize("write", WRITES)
def test_no_way_of_writing_lets_it_in(write: str, tmp_path: Path) -> None:
    table = dolmen.open(tmp_path / "db").create_table(
        "t", pa.schema([("id", pa.int64()), ("s", pa.string())]), primary_key="id"
    )
    table.append({"id": [0], "s": ["there"]})
    rows = pa.table({"id": range(5), "s": TEXTS})
    with pytest.raises(RowError, match=NOT_UTF8) as caught:
        WRITES[write](table, rows)
    assert (caught.value.row, caught.value.column) == (4, "s")
    assert table.scan().to_arrow().to_pylist() == [{"id": 0, "s": "there"}]


def test_the_row_is_counted_over_the_whole_stream(tmp_path: Path) -> None:
    table = dolmen.open(tmp_path / "db").create_table("t", pa.schema([("s", pa.list_(pa.string()))]))
    good = pa.record_batch({"s": pa.array([["a"]] * 1000)})
    bad = pa.record_batch({"s": pa.ListArray.from_arrays([0, 1, 3, 5], TEXTS)})
    with pytest.raises(RowError) as caught:
        table.append([good, bad])
    assert caught.value.row == 1003
    assert table.count() == 0


BAD_NAME = pa.schema([pa.field(b"\xff", pa.int64())])


def test_a_column_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    db = dolmen.open(tmp_path / "db")
    with pytest.raises(SchemaError, match="not UTF-8"):
        db.create_table("t", BAD_NAME)
    with pytest.raises(SchemaError, match="not UTF-8"):
        db.create_table("t", pa.schema([("s", pa.struct(list(BAD_NAME)))]))
    table = db.create_table("t", pa.schema([("id", pa.int64())]))
    with pytest.raises(SchemaError, match="not UTF-8"):
        table.append(pa.table([[1]], schema=BAD_NAME))


@pytest.mark.parametrize("rows", [{"\ud800": [1]}, {"s": ["\ud800"]}, [{"s": "\ud800"}]])
def test_text_of_half_a_character_is_refused(rows: Any, tmp_path: Path) -> None:
    table = dolmen.open(tmp_path / "db").create_table("t", pa.schema([("s", pa.string())]))
    with pytest.raises(InputError, match="surrogates"):
        table.append(rows)
