"""What options change about reading: delimiters, headers, NULLs, what is extra, and how much a file may hold."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import fields
from pyarrow import parquet

from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.dialect import Dialect
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.formats.formats import BadRow, ReadOptions, SourceFile, detect, infer, read
from dolmen.ingest.formats.json import jsonl

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])


def _options(**options: Any) -> ReadOptions:
    dialect = {field.name: options.pop(field.name) for field in fields(Dialect) if field.name in options}
    return ReadOptions(Dialect(**dialect), **options)


def _read(data: bytes, schema: pa.Schema | None = AB, *, name: str = "t.csv", **options: Any) -> list[dict[str, Any]]:
    """The rows, which are the same in blocks of any size."""
    outcomes = []
    for block_bytes in (1 << 20, 1, 13):
        reader = read(
            SourceFile(lambda: io.BytesIO(data), detect(name), name, _options(**options), block_bytes=block_bytes),
            schema,
        )
        outcomes.append(reader.read_all().to_pylist())
    assert outcomes[0] == outcomes[1] == outcomes[2]
    return outcomes[0]


def _infer(data: bytes, *, name: str = "t.csv", **options: Any) -> pa.Schema:
    return infer(SourceFile(lambda: io.BytesIO(data), detect(name), name, _options(**options)))


def test_options_are_those_of_a_tables_properties() -> None:
    assert ReadOptions.of(IngestSettings()) == ReadOptions()
    properties = {"ingest_delimiter": "tab", "ingest_header": "false", "ingest_nulls": ",NULL"}
    properties |= {"ingest_timestamp_format": "epoch_ms", "ingest_on_extra": "ignore"}
    assert ReadOptions.of(IngestSettings.read(properties)) == _options(
        delimiter="\t", header=False, nulls=("", "NULL"), timestamp_formats=("epoch_ms",), extra="ignore"
    )


@pytest.mark.parametrize("delimiter", ["", ",,", '"', "\n", "\r", "\0", "é"])
def test_what_cannot_delimit_is_refused(delimiter: str) -> None:
    with pytest.raises(InputError, match="delimiter"):
        Dialect.of({"ingest_delimiter": delimiter})


@pytest.mark.parametrize("delimiter", [";", "|", "\t", " ", "x", ":"])
def test_any_character_delimits(delimiter: str) -> None:
    lines = ["a,b", '1,"p,q"', "2,"]
    data = "\n".join(line.replace(",", delimiter) for line in lines).encode()
    assert _read(data, delimiter=delimiter) == [{"a": 1, "b": f"p{delimiter}q"}, {"a": 2, "b": None}]


def test_a_delimiter_overrides_that_of_the_format() -> None:
    assert _read(b"a|b\n1|x\ty\n", name="t.tsv", delimiter="|") == [{"a": 1, "b": "x\ty"}]


# ---- without a header


def test_without_a_header_fields_are_the_tables_columns_in_order() -> None:
    assert _read(b"1,x\n\n2,\n", header=False) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert _read(b"\xef\xbb\xbf1,x", header=False) == [{"a": 1, "b": "x"}]
    assert _read(b"", header=False) == []
    assert _read(b"\n1\n\n", pa.schema([("a", pa.int64())]), header=False) == [{"a": None}, {"a": 1}, {"a": None}]


def test_without_a_header_a_record_has_as_many_fields_as_the_table() -> None:
    for data, found in ((b"1,x\n2,y,z\n", "3 fields"), (b"1,x\n2\n", "1 field")):
        with pytest.raises(RowError, match=f"{found}.* 2") as caught:
            _read(data, header=False)
        assert (caught.value.line, caught.value.row) == (2, 2)


def test_without_a_header_further_fields_are_ignored_where_asked() -> None:
    assert _read(b"1,x,y,z\n2,,,\n", header=False, extra="ignore") == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert _read(b"1,x\n", header=False, extra="ignore") == [{"a": 1, "b": "x"}]
    one = pa.schema([("a", pa.int64())])
    assert _read(b"\n1,x\n\n2,y\n", one, header=False, extra="ignore") == [{"a": 1}, {"a": 2}]
    with pytest.raises(RowError, match=r"4 fields.* 3"):
        _read(b"1,x,y\n1,x,y,z\n", header=False, extra="ignore")
    with pytest.raises(RowError, match=r"1 field.* 2"):
        _read(b"1\n", header=False, extra="ignore")


def test_without_a_header_columns_are_inferred_under_numbers() -> None:
    data = b"1,x,2024-01-01\n2.5,y,\n"
    schema = pa.schema([("column_1", pa.float64()), ("column_2", pa.string()), ("column_3", pa.date32())])
    assert _infer(data, header=False) == schema
    assert [row["column_1"] for row in _read(data, None, header=False)] == [1.0, 2.5]
    with pytest.raises(InputError, match="is empty"):
        _infer(b"\n", header=False)


def test_without_a_header_the_first_record_may_be_bad() -> None:
    told: list[BadRow] = []
    data = b'1,"x"y\n2,z\n'
    options = _options(header=False)
    rows = read(
        SourceFile(lambda: io.BytesIO(data), detect("t.csv"), "t.csv", options), AB, on_bad_row=told.append
    ).read_all()
    assert rows.to_pylist() == [{"a": 2, "b": "z"}]
    assert [(row.row, row.line, row.text) for row in told] == [(1, 1, b'1,"x"y')]


# ---- NULLs


def test_texts_that_mean_null_do_unless_they_are_quoted() -> None:
    data = b'a,b\nNULL,NULL\n1,"NULL"\n\\N,\\N\n,\n2,null\n3, NULL\n'
    assert _read(data, nulls=("NULL", "\\N")) == [
        {"a": None, "b": None},
        {"a": 1, "b": "NULL"},
        {"a": None, "b": None},
        {"a": None, "b": ""},
        {"a": 2, "b": "null"},
        {"a": 3, "b": " NULL"},
    ]
    assert [row["b"] for row in _read(data.replace(b"\\N,", b"4,"), nulls=("", "NULL"))[1:4]] == ["NULL", "\\N", None]


def test_texts_that_mean_null_do_not_count_for_the_inferred_type() -> None:
    assert _infer(b"a,b\n1,-\n-,2024-01-01\n", nulls=("-",)) == pa.schema([("a", pa.int64()), ("b", pa.date32())])


# ---- what the table does not have


def test_columns_that_the_table_does_not_have_are_skipped_where_asked() -> None:
    data = 'x,b,,a,x\n"q\nr",é,"",1,\n,,5,2,\n'.encode()
    assert _read(data, extra="ignore") == [{"a": 1, "b": "é"}, {"a": 2, "b": None}]
    with pytest.raises(SchemaError):
        _read(data)
    with pytest.raises(SchemaError):
        _read(b"x,y\n1,2\n", extra="ignore")
    with pytest.raises(SchemaError, match=r"'a'.*twice"):
        _read(b"a,y,a\n1,2,3\n", extra="ignore")
    with pytest.raises(RowError, match="not UTF-8") as caught:
        _read(b"a,x\n1,ok\n2,\xff\n", extra="ignore")
    assert (caught.value.row, caught.value.column) == (2, None)


def test_keys_that_the_table_does_not_have_are_skipped_at_any_depth() -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("l", pa.list_(pa.struct([("x", pa.int64())])))]))])
    line = b'{"q": {"a": [1, NaN]}, "a": 1, "q": 2, "s": {"l": [{"x": 1, "y": {}}], "z": [[]], "z": 1}}\n'
    expected = {"a": 1, "s": {"l": [{"x": 1}]}}
    assert _read(line, schema, name="t.jsonl", extra="ignore") == [expected]
    slow = line + b'{"a": "2", "q": 1, "q": NaN}\n'
    assert _read(slow, schema, name="t.jsonl", extra="ignore") == [expected, {"a": 2, "s": None}]
    cell = json.dumps({"l": [{"x": 1, "y": 5}], "z": 1}).replace('"', '""')
    assert _read(f'a,s\n1,"{cell}"\n'.encode(), schema, extra="ignore") == [expected]
    for data in (line, b'{"a": 1, "s": {"z": 1}}\n'):
        with pytest.raises(RowError):
            _read(data, schema, name="t.jsonl")


@pytest.mark.parametrize(
    "line",
    [b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"s": {"x": 1, "x": 2}}', b'{"s": {"x": NaN}}', b'{"q": "\\ud800"}',
     b'{"q": 007}', b'{"q": [1}', b'{"q": "a\tb"}', b'{"q": 1} {"q": 2}', b'{"b": {"y": 1, "y": 2}}', b'{"b": [NaN]}',
     b'{"q": "\xff"}', b'{"q": ' + b"[" * 300 + b"]" * 300 + b"}"],
)  # fmt: skip
def test_malformed_lines_and_faults_of_wanted_keys_are_refused_all_the_same(line: bytes) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("s", pa.struct([("x", pa.int64())]))])
    for data in (line, b'{"a": 1}\n' + line, b'{"a": "1"}\n' + line + b'\n{"a": 1}'):
        with pytest.raises(RowError) as caught:
            _read(data, schema, name="t.jsonl", extra="ignore")
        assert caught.value.line == data[: data.index(line)].count(b"\n") + 1


def _some_json(chance: random.Random, depth: int = 0) -> str:
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind < 6:
        words = ["1", "-2.5", '"x"', "null", "true", "NaN", '"1"', '"é\\n"', "1e5", "-Infinity", '"{"', '"]"']
        return chance.choice(words if chance.random() < 0.3 else words[:5])
    items = [_some_json(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return f"[{', '.join(items)}]"
    names = [chance.choice(["a", "b", "x", "y", "s", "q"]) for _ in items]
    return "{" + ", ".join(f'"{name}": {value}' for name, value in zip(names, items, strict=True)) + "}"


@pytest.mark.slow
def test_skipping_keys_line_by_line_and_at_once_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"DOLMEN_TEST_SEED={seed}")
    chance = random.Random(seed)
    inner = pa.struct([("x", pa.float64()), ("s", pa.list_(pa.string()))])
    schema = pa.schema([("a", pa.float64()), ("s", inner), ("b", pa.list_(inner))])

    def outcome(line: str) -> Any:
        try:
            return _read(line.encode(), schema, name="t.jsonl", extra="ignore")
        except RowError as error:
            return str(error)

    seen = Counter[str]()
    for _ in range(5000 if os.environ.get("DOLMEN_LONG") else 250):
        line = "{" + ", ".join(f'"{chance.choice("absqy")}": {_some_json(chance)}' for _ in range(3)) + "}"
        at_once = outcome(line)
        with monkeypatch.context() as patched:
            patched.setattr(jsonl, "count_objects", lambda _: None)
            assert outcome(line) == at_once, line
        seen["refused" if isinstance(at_once, str) else "read"] += 1
    assert min(seen["refused"], seen["read"]) > 10, seen


def test_parquet_reads_only_the_columns_that_the_table_has() -> None:
    sink = io.BytesIO()
    point = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    table = pa.table({"z": [b"\xff"], "a": [1], "s": pa.array([{"x": 1, "y": 2}], point), "b": ["x"]})
    parquet.write_table(table, sink)
    schema = pa.schema([*AB, ("s", pa.struct([("y", pa.int64())]))])
    assert _read(sink.getvalue(), schema, name="t.parquet", extra="ignore") == [{"a": 1, "b": "x", "s": {"y": 2}}]
    with pytest.raises(SchemaError, match="column 'z'"):
        _read(sink.getvalue(), schema, name="t.parquet")


# ---- how much a file may hold


@pytest.mark.parametrize("name", ["t.csv.gz", "t.jsonl.gz", "t.csv.bz2", "t.csv.zst"])
def test_a_file_unpacks_to_a_limit(name: str) -> None:
    rows = b"a\n" + b"1\n" * 499 if "csv" in name else b'{"a":1}\n\n' * 100 + b"\n" * 100
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
    data = pack[name.rpartition(".")[2]](rows)
    assert len(_read(data, name=name, max_bytes=1000)) in (499, 100)
    with pytest.raises(InputError, match=r"unpacks.* 999 bytes"):
        _read(data, name=name, max_bytes=999)
    with pytest.raises(InputError, match="unpacks"):
        _infer(data, name=name, max_bytes=999)


def test_a_bomb_is_given_up_long_before_it_is_unpacked() -> None:
    bomb = bz2.compress(b"\n" * (32 << 20))
    taken = 0

    class Counted(io.BytesIO):
        def read(self, *size: Any) -> bytes:
            nonlocal taken
            data = super().read(*size)
            taken += len(data)
            return data

    options = ReadOptions(max_bytes=1 << 20)
    with pytest.raises(InputError, match="unpacks"):
        read(SourceFile(lambda: Counted(bomb * 2000), detect("t.csv.bz2"), "t.csv.bz2", options), AB).read_all()
    assert taken < len(bomb) * 2000


def test_what_is_unpacked_into_a_temporary_file_has_a_limit_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"a": range(1000), "b": ["x"] * 1000}), path)
    size, data = path.stat().st_size, gzip.compress(path.read_bytes())
    assert len(_read(data, name="t.parquet.gz", max_temporary_bytes=size)) == 1000
    with pytest.raises(InputError, match="unpacks"):
        _read(data, name="t.parquet.gz", max_temporary_bytes=size - 1)
    with pytest.raises(InputError, match="unpacks"):
        _read(path.read_bytes(), name="t.parquet", max_bytes=1000)
