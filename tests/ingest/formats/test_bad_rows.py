"""Bad rows are told one by one, and all the others are read: whatever the blocks, as if each row stood alone."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from dolmen.base.records import replace
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.ingest.formats import source_file, text_blocks
from dolmen.ingest.formats.formats import BadRow, SourceFile, detect, read
from dolmen.ingest.formats.json import jsonl

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("paid", pa.decimal128(6, 2)),
        ("tags", pa.list_(pa.int8())),
    ]
)
GOOD = {
    "id": ["1", "-7", "12.0", " 5 ", '"3"'],
    "name": ["x", "", '""', "Köln", '"two\nlines"', '"say ""hi"""', '"a,b"', '5" screen'],
    "at": ["", "2024-01-01T00:00:00Z", "2024-01-01 10:00:00+02:00"],
    "paid": ["", "1.5", "9999.99", "1e2"],
    "tags": ["", "[]", '"[1,2]"', '"[null]"'],
}
BAD = {
    "id": ["", "x", "1.5", "0x1"],
    "name": ['"a"b', '"a"b"', '"a" ', "a,b"],
    "at": ["2024-01-01", "today"],
    "paid": ["1.234", "1e9"],
    "tags": ["[300]", "1", "[1"],
}
GOOD_JSON = {
    "id": ["1", '"7"', "12.0"],
    "name": ["null", '"x"', "5", '{"a": 1}'],
    "at": ["null", '"2024-01-01T00:00:00Z"'],
    "paid": ["null", "1.5", '"9999.99"'],
    "tags": ["null", "[]", "[1, 2]"],
}
BAD_JSON = {
    "id": ["null", "x", "1.5", "true", "NaN"],
    "name": ['"\\ud800"', '"a', '"a", "name": 1', '"a", "other": 1'],
    "at": ["5", '"today"'],
    "paid": ["1.234", "[1]"],
    "tags": ["[300]", "1", "[1", '{"a": 1}'],
}
BAD_LINES = [b"null", b"[1]", b"{", b"}", b'{"id": 1}{"id": 2}', b"\xff", b'{"id": 1} x', b"5"]


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    return random.Random(seed)


ROUNDS = 600 if os.environ.get("DOLMEN_LONG") else 3


def _csv_row(chance: random.Random, bad_share: float) -> bytes:
    cells = {column: chance.choice(choices) for column, choices in GOOD.items()}
    if chance.random() < bad_share:
        for column in chance.sample(list(BAD), chance.choice([1, 1, 2])):
            cells[column] = chance.choice(BAD[column])
    row = ",".join(cells.values()).encode()
    if chance.random() < bad_share / 8:
        row = row.replace(b"2024", b"\xff\xfe")
    return row[: row.rfind(b",")] if chance.random() < bad_share / 8 and row.endswith(b",") else row


def _json_row(chance: random.Random, bad_share: float) -> bytes:
    if chance.random() < bad_share / 4:
        return chance.choice(BAD_LINES)
    cells = {column: chance.choice(choices) for column, choices in GOOD_JSON.items()}
    if chance.random() < bad_share:
        for column in chance.sample(list(BAD_JSON), chance.choice([1, 1, 2])):
            cells[column] = chance.choice(BAD_JSON[column])
    return ("{" + ", ".join(f'"{column}": {value}' for column, value in cells.items()) + "}").encode()


def _told(name: str, data: bytes, block_bytes: int) -> tuple[list[dict[str, Any]], list[BadRow]]:
    told: list[BadRow] = []
    table = read(
        SourceFile(lambda: io.BytesIO(data), detect(name), name, block_bytes=block_bytes),
        SCHEMA,
        on_bad_row=told.append,
    ).read_all()
    table.validate(full=True)
    return table.to_pylist(), told


def _alone(name: str, head: bytes, row: bytes) -> list[dict[str, Any]] | BadRow:
    """What becomes of a row that has a file of its own."""
    try:
        return read(SourceFile(lambda: io.BytesIO(head + row), detect(name), name), SCHEMA).read_all().to_pylist()
    except RowError as error:
        return BadRow(error.reason, error.row, error.line, error.column, row)


def _model(name: str, head: bytes, rows: list[bytes], line: int) -> tuple[list[dict[str, Any]], list[BadRow]]:
    good: list[dict[str, Any]] = []
    bad: list[BadRow] = []
    first_line = line
    for number, row in enumerate(rows, 1):
        outcome = _alone(name, head, row)
        if isinstance(outcome, BadRow):
            assert outcome.line is not None
            bad.append(replace(outcome, row=number, line=outcome.line + line - first_line))
        else:
            good += outcome
        line += row.count(b"\n") + 1
    return good, bad


@pytest.mark.slow
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_csv_is_read_as_if_each_row_stood_alone(newline: bytes, chance: random.Random) -> None:
    head = ",".join(SCHEMA.names).encode() + newline
    for _ in range(ROUNDS):
        share = chance.choice([0, 0.05, 0.5, 1])
        rows = [_csv_row(chance, share) for _ in range(chance.choice([1, 5, 80]))]
        data = head + newline.join(rows) + chance.choice([newline, b""])
        good, bad = _model("t.csv", head, rows, 2)
        for block_bytes in (1 << 20, chance.choice([1, 7, 60, 900])):
            assert _told("t.csv", data, block_bytes) == (good, bad)


@pytest.mark.slow
def test_json_lines_are_read_as_if_each_row_stood_alone(chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_LINES_AT_ONCE", 4)
    monkeypatch.setattr(source_file, "_ROWS_AFTER_BAD", 3)
    for _ in range(ROUNDS):
        share = chance.choice([0, 0.05, 0.5, 1])
        rows = [b'{"id": 0}', *(_json_row(chance, share) for _ in range(chance.choice([1, 5, 80])))]
        data = b"\n".join(rows) + chance.choice([b"\n", b""])
        good, bad = _model("t.jsonl", b"", rows, 1)
        for block_bytes in (1 << 20, chance.choice([1, 7, 60, 900])):
            assert _told("t.jsonl", data, block_bytes) == (good, bad)


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, row_group_size=7)
    return sink.getvalue()


def _arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=11)
    return sink.getvalue()


def _avro(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    paid = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}
    types = {"id": "long", "name": "string", "paid": paid, "tags": {"type": "array", "items": ["null", "int"]}}
    fields = [{"name": name, "type": ["null", types[name]]} for name in table.column_names]
    fastavro.writer(sink, {"type": "record", "name": "row", "fields": fields}, table.to_pylist(), sync_interval=50)
    return sink.getvalue()


@pytest.mark.parametrize(("name", "write"), [("t.parquet", _parquet), ("t.arrow", _arrow), ("t.avro", _avro)])
def test_files_with_types_are_read_as_if_each_row_stood_alone(
    name: str, write: Callable[[pa.Table], bytes], chance: random.Random
) -> None:
    types = [("id", pa.int64()), ("name", pa.string()), ("paid", pa.decimal128(9, 3)), ("tags", pa.list_(pa.int32()))]
    for _ in range(ROUNDS):
        worst = chance.choice([2, 20, 200])
        source = [
            {
                "id": chance.choice([None, *range(worst)]),
                "name": "x",
                "paid": chance.choice(["1.005", *["1.230"] * worst]),
                "tags": chance.choice([None, [1], [None, 300], *[[2]] * worst]),
            }
            for _ in range(chance.choice([1, 30, 100]))
        ]
        for row in source:
            row["paid"] = pa.scalar(row["paid"]).cast(pa.decimal128(9, 3)).as_py()
        good, bad = _told(name, write(pa.Table.from_pylist(source, pa.schema(types))), 1)
        fits = [
            row["id"] is not None and row["paid"].as_tuple().digits[-1] == 0 and (row["tags"] or [0])[-1] != 300
            for row in source
        ]
        assert [(row["id"], row["paid"], row["tags"]) for row in good] == [
            (row["id"], row["paid"], row["tags"]) for row, fit in zip(source, fits, strict=True) if fit
        ]
        assert [row.row for row in bad] == [place for place, fit in enumerate(fits, 1) if not fit]
        assert [json.loads(row.text or b"")["id"] for row in bad] == [source[(row.row or 0) - 1]["id"] for row in bad]


def test_a_bad_row_of_a_file_with_types_is_told_as_json_that_can_be_read_again() -> None:
    table = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "at": pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC")),
            "paid": pa.array(["1.50"]).cast(pa.decimal128(9, 3)),
            "raw": pa.array([b"\x00\xff"]),
            "score": pa.array([float("inf")]),
            "tags": pa.array([[300]], pa.list_(pa.int32())),
        }
    )
    narrow = pa.schema([field for field in table.schema if field.name != "tags"] + [("tags", pa.list_(pa.int8()))])
    told: list[BadRow] = []
    data = _arrow(table)
    read(SourceFile(lambda: io.BytesIO(data), detect("t.arrow"), "t.arrow"), narrow, on_bad_row=told.append).read_all()
    assert (told[0].row, told[0].line, told[0].column) == (1, None, "tags")
    text = told[0].text
    assert text is not None
    again = read(SourceFile(lambda: io.BytesIO(text), detect("t.jsonl"), "t.jsonl"), table.schema).read_all()
    assert again.to_pylist() == table.to_pylist()


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("t.csv", b'id,name\n1,a\n2,"never closed\n3,b\n', "never closed"),
        ("t.csv", b"id,nmae\n1,a\n", "no column 'nmae'"),
        ("t.csv", b'id,"name"x\n1,a\n', "quote"),
        ("t.csv", b"", "is empty"),
        ("t.csv.gz", gzip.compress(b"id\n1\n" * 9999)[:-10], "truncated"),
        ("t.json", b'[{"id": 1},\n {"id": 2}]\n', "jq -c"),
        ("t.parquet", b"PAR1", "Parquet"),
        ("t.arrow", _arrow(pa.table({"id": [1, 2]}))[:-40], "truncated|readable"),
        ("t.avro", _avro(pa.table({"id": [1, 2]}))[:-1], "damaged"),
        ("t.parquet", _parquet(pa.table({"id": ["a"]})), "never stored"),
    ],
)
def test_a_fault_that_is_not_of_one_row_is_an_error(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _told(name, data, 1 << 20)


def test_a_record_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "MAX_RECORD_BYTES", 1000)
    with pytest.raises(RowError, match="longer"):
        _told("t.csv", b'id,name\n1,"' + b"x" * 5000, 100)


def test_many_broken_records_in_a_row_do_not_gather_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "MAX_RECORD_BYTES", 5000)
    good, bad = _told("t.csv", b"id,name\n" + b'1,"a"b\n' * 2000 + b"2,x\n", 500)
    assert (len(good), len(bad), bad[-1].line) == (1, 2000, 2001)


class _EnoughError(Exception):
    pass


def test_what_is_told_of_bad_rows_may_end_the_reading() -> None:
    told: list[BadRow] = []

    def tell(row: BadRow) -> None:
        told.append(row)
        if len(told) == 3:
            raise _EnoughError

    for name, data in (("t.csv", b"id\n" + b"x\n" * 10), ("t.jsonl", b"x\n" * 10), ("t.arrow", _arrow(_nulls(10)))):
        told.clear()
        with pytest.raises(_EnoughError):
            read(SourceFile(lambda data=data: io.BytesIO(data), detect(name), name), SCHEMA, on_bad_row=tell).read_all()
        assert [row.row for row in told] == [1, 2, 3]


def _nulls(count: int) -> pa.Table:
    return pa.table({"id": pa.nulls(count, pa.int64())})


def test_a_row_is_converted_a_few_times_only_however_many_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []

    def convert(start: int, stop: int) -> pa.RecordBatch:
        converted.append(stop - start)
        for row in range(start, stop):
            if row % 100 == 0:
                raise RowError("", row=row + 1)
        return pa.record_batch({"a": range(start, stop)})

    told: list[BadRow] = []
    made = source_file.good_rows(10_000, 1, convert, lambda _: b"", told.append)
    assert sum(batch.num_rows for batch in made) == 9_900
    assert len(told) == 100
    assert sum(converted) < 6 * 10_000


def test_inferring_reads_strictly() -> None:
    with pytest.raises(RowError):
        read(SourceFile(lambda: io.BytesIO(b"a,b\n1\n"), detect("t.csv"), "t.csv"), None, on_bad_row=lambda _: None)


def test_columns_of_another_kind_are_told_before_any_row() -> None:
    told: list[BadRow] = []
    with pytest.raises(SchemaError, match=r"file 't\.parquet'"):
        _told("t.parquet", _parquet(pa.table({"id": pa.array([], pa.string())})), 1)
    assert told == []


def test_an_error_that_another_way_of_reading_avoids_says_what_the_problem_is_whatever_it_quotes() -> None:
    def problem(name: str, data: bytes) -> str | None:
        with pytest.raises(RowError) as caught:
            read(SourceFile(lambda: io.BytesIO(data), detect(name), name), None).read_all()
        return caught.value.problem

    assert problem("a.csv", b"a,b\n1,2\n3\n") == "few fields"
    assert problem("a.csv", b"a,b\n1,2\n3,4,5\n") is None
    assert problem("a.csv", b"a,b\n1,\xe9\n") == "not UTF-8"
    assert problem("a.jsonl", b'{"a": "\xe9"}\n') == "not UTF-8"
    quoted = b'"not UTF-8: 1 field where b has 2"'
    assert problem("a.jsonl", b"{%b: 1, %b: 2}\n" % (quoted, quoted)) is None
