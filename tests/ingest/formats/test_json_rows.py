"""JSON in every shape: the rows are the same as in lines, whatever is around and between them."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from dolmen.errors import InputError, RowError
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.formats import BadRow, SourceFile, detect, infer, read, survey
from dolmen.ingest.formats.json import json_rows
from dolmen.ingest.formats.source_file import ReadOptions

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.randrange(2**32)))
TEXTS = pa.schema([("id", pa.int64()), ("value", pa.string())])
NUMBERS = pa.schema([("a", pa.int64())])


def _source(data: bytes, rows: str = "values", block_bytes: int = 1 << 20, **options: Any) -> SourceFile:
    read_options = ReadOptions(dialect=Dialect(json_rows=rows), **options)
    return SourceFile(lambda: io.BytesIO(data), detect("t.json"), "t.json", read_options, block_bytes)


def _read(data: str | bytes, rows: str = "values", schema: pa.Schema | None = NUMBERS, **options: Any) -> list[Any]:
    """The rows, which do not depend on the size of blocks."""
    data = data.encode() if isinstance(data, str) else data
    whole: list[Any] = read(_source(data, rows, **options), schema).read_all().to_pylist()
    for block_bytes in (1, 13):
        assert read(_source(data, rows, block_bytes, **options), schema).read_all().to_pylist() == whole
    return whole


def _error(data: str | bytes, rows: str = "values", schema: pa.Schema | None = NUMBERS) -> RowError:
    """The error, which does not depend on the size of blocks, with rows quarantined or not."""
    data = data.encode() if isinstance(data, str) else data
    errors = []
    for block_bytes in (1, 13, 1 << 20):
        with pytest.raises(RowError) as caught:
            read(_source(data, rows, block_bytes), schema).read_all()
        errors.append(caught.value)
    assert len({(str(error), error.line, error.row) for error in errors}) == 1
    return errors[0]


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1}, {"a": 2}]', '{"a":1}{"a":2}', '{"a":1},{"a":2},', '[{"a":1}{"a":2}]', '[{"a":1},{"a":2},]',
        '\x1e{"a":1}\n\x1e{"a":2}\n', '[{"a":1}]\n[{"a":2}]', '[\n  {\n    "a": 1\n  },\r\n  {\n    "a": 2\n  }\n]\n',
        '\ufeff[{"a":1}]\ufeff[]{"a":2}', '{"a":1}\n{"a":2}', '\n\n{"a"\n:\n1}\r\r{"a":2}',
    ],
)  # fmt: skip
def test_objects_are_rows_whatever_is_between_them(text: str) -> None:
    assert _read(text) == [{"a": 1}, {"a": 2}]
    assert infer(_source(text.encode())) == NUMBERS
    assert survey(_source(text.encode())) == NUMBERS


@pytest.mark.parametrize("text", ["", " \n", "[]", "[\n]\n[]", ","])
def test_a_file_may_have_no_rows(text: str) -> None:
    assert _read(text) == []
    with pytest.raises(InputError, match="no rows"):
        infer(_source(text.encode()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"Records": [{"a": 1}, {"a": 2}]}', "Records"),
        ('{"Records":[{"a":1}]}{"Records":[{"a":2}]}', "Records"),
        ('[{"Records":[{"a":1}]},\n{"x":[{"Records":[{"a":9}]}],"Records":{"a":2}}]', "Records"),
        ('{"n":1,"detail":{"items":[{"a":1},\n{"a":2}],"more":{}},"items":[{"a":9}]}', "detail.items"),
        ('{"Records":null}{"Records":[]}{"Records":[{"a":1},{"a":2}]}', "Records"),
        ('{"detail":null}{"detail":{"items":null}}{"detail":{"items":[{"a":1},{"a":2}]}}', "detail.items"),
        ('{"text":"\\"Records\\":[{\\"a\\":9}]","Records" : [{"a":1},{"a":2}]}', "Records"),
        ('{"\\u0052ecords":[{"a":1},{"a":2}]}', "Records"),
        ('{"été":[{"a":1}]}{"\\u00e9t\\u00e9":[{"a":2}]}', "été"),
        ('{"Records":[{"a":1},{"a":2}],"deep":' + "[" * 250 + "]" * 250 + "}", "Records"),
    ],
)
def test_rows_are_at_a_path_in_each_object(text: str, path: str) -> None:
    assert _read(text, path) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("text", "rows", "line", "phrase"),
    [
        ('[{"a":1},\n{"a":2}', "values", 1, "no end"),
        ('\n{"a":1}\n{"a":', "values", 3, "no end"),
        ('\n{"a":"x', "values", 2, "no end"),
        ('{"x":\n[1,\n', "Records", 1, "no end"),
        ('{"x":1,\n"Records":[{"a":1}', "Records", 2, "no end"),
        ('[{"a":1}\n]]', "values", 2, "no opening bracket"),
        ('{"a":1}\n}', "values", 2, "no opening bracket"),
        ('[{"a":1}\n}', "values", 2, "']' is due"),
        ('{"Records":[{"a":1}\n}}', "Records", 2, "']' is due"),
        ('\n{"records":[]}', "Records", 2, "'Records' is not in"),
        ('{"Records":[]}\n{}', "Records", 2, "'Records' is not in"),
        ('{"detail":{}}', "detail.items", 1, "is not in"),
        ('{"detail":[\n{"items":[]}]}', "detail.items", 1, "'detail' is a list"),
        ('{"Records":[],\n"Records":[]}', "Records", 1, "twice"),
        ('{"Records":null,\n"Records":[]}', "Records", 1, "twice"),
        ('{"Records":\n5}', "Records", 1, "not a list or object"),
        ('{"Records":[]}\n5', "Records", 2, "no object"),
    ],
)
def test_a_file_whose_shape_is_wrong_is_refused_with_its_line(text: str, rows: str, line: int, phrase: str) -> None:
    error = _error(text, rows)
    assert (error.line, phrase in error.reason) == (line, True), error


@pytest.mark.parametrize(
    ("text", "line", "row", "phrase"),
    [
        ('[{"a":1},\n\n5]', 3, 2, "not a JSON object"),
        ('[{"a":1},null]', 1, 2, "not a JSON object"),
        ('[{"a":1},\n[{"a":2}]]', 2, 2, "not a JSON object"),
        ('{"a":1}\nxyz\n{"a":2}', 2, 2, "not JSON"),
        ('[\n{\n"a":\nx},\n{"a":2}]', 2, 1, "not JSON"),
        ('[{"a":NaN}]', 1, 1, "NaN"),
        ('[{"a":1,\n"a":2}]', 1, 1, "twice"),
        ('[{"a":1},\n{"a":"1\n"}]', 2, 2, "control character"),
        ('[{"a":' + "[" * 201 + "]" * 201 + "}]", 1, 1, "nested more than 200"),
        ('[{"a":1},\n{"a":[2}]}]', 2, 2, "not JSON"),
        ("'a'", 1, 1, "not JSON"),
        ("hello", 1, 1, "not JSON"),
    ],
)
def test_a_bad_row_is_named_by_its_first_line(text: str, line: int, row: int, phrase: str) -> None:
    error = _error(text)
    assert (error.line, error.row, phrase in error.reason) == (line, row, True), error


def test_bad_rows_are_passed_on_with_their_text_and_line() -> None:
    data = b'[{"a": 1},\n {\n  "a":\n  x},\n 5, {"a": 2},\n {"a": "y"}]'
    for block_bytes in (1, 13, 1 << 20):
        bad: list[BadRow] = []
        table = read(_source(data, block_bytes=block_bytes), NUMBERS, on_bad_row=bad.append).read_all()
        assert table["a"].to_pylist() == [1, 2]
        assert [(each.row, each.line, each.column) for each in bad] == [(2, 2, None), (3, 5, None), (5, 6, "a")]
        assert [each.text for each in bad] == [b'{   "a":   x}', b"5", b'{"a": "y"}']


def test_rows_that_are_no_objects_are_values_of_a_column() -> None:
    for text, values in (
        ("[1, 2.5,\n3]", [1.0, 2.5, 3.0]),
        ('"a, b"\n"c"\n', ["a, b", "c"]),
        ("[[1,2],[],[3]]", [[1, 2], [], [3]]),
        ('[[{"x":1}]]', [[{"x": 1}]]),
        ('[5,{"x":1}]', ["5", '{"x":1}']),
    ):
        assert [row["value"] for row in _read(text, schema=None)] == values
    assert _read('{"n":2,"rows":[[1,"a"],[2,"b"]]}', "rows", TEXTS) == [
        {"id": None, "value": '[1,"a"]'},
        {"id": None, "value": '[2,"b"]'},
    ]


def test_values_are_refused_where_no_column_is_for_them_or_arrays_leave_it_open() -> None:
    assert "not a JSON object" in _error("[1, 2]").reason
    for text in ("[1]\n[2]", "1 [2]", "[1] 2"):
        assert "several arrays" in _error(text, schema=None).reason
    ignoring = _source(b"[1, 2]", extra="ignore")
    with pytest.raises(RowError):
        read(ignoring, NUMBERS).read_all()


def test_lines_of_null_are_skipped_if_the_options_say_so() -> None:
    assert _read('[{"a":1},null,\nnull]\nnull{"a":2}', null_lines="skip") == [{"a": 1}, {"a": 2}]


def test_a_row_is_limited_but_not_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "MAX_RECORD_BYTES", 1000)
    many = ",".join(f'{{"a":{number}}}' for number in range(1000))
    assert len(read(_source(f"[{many}]".encode(), block_bytes=100), NUMBERS).read_all()) == 1000
    skipped = f'{{"x":[{many}],"Records":[{many}]}}'.encode()
    assert len(read(_source(skipped, "Records", 100), NUMBERS).read_all()) == 1000
    for text in ('[{"a":1},\n{"a":"' + "x" * 2000 + '"}]', '[{"a":1},\n{"a":[' + "1," * 1000 + "1]}]"):
        with pytest.raises(RowError, match="longer") as caught:
            read(_source(text.encode(), block_bytes=100), NUMBERS).read_all()
        assert caught.value.line == 2


@pytest.mark.parametrize("text", ['[{"a": 1}]', '{\n  "a": 1\n}', '[\n{"a": 1}\n]', '{"a": 1}{"a": 2}'])
def test_a_file_that_is_not_of_lines_is_refused_with_what_reads_it(text: str) -> None:
    reason = _error(text, "lines").reason
    assert "ingest_json_rows: values" in reason
    assert "--json-rows values" in reason
    assert "jq -c" in reason


class _Random:
    """Random values, and random ways to write them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        signs = ["a", "é", "\\", "/", *'"{}[],:\n\r\x1e\u2028', "😀", "items", "0", "null"]
        return "".join(self.random.choices(signs, k=self.random.randrange(8)))

    def value(self, depth: int = 0) -> Any:
        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: self.random.random() < 0.5,
            lambda: self.random.randrange(-5, 5),
            self.text,
            self.text,
            lambda: [self.value(depth + 1) for _ in range(self.random.randrange(3))],
            lambda: {self.text(): self.value(depth + 1) for _ in range(self.random.randrange(3))},
        ]
        return self.random.choice(kinds[: None if depth < 3 else 5])()

    def dumps(self, value: Any) -> str:
        return json.dumps(
            value,
            indent=self.random.choice([None, 0, 1, "\t"]),
            separators=self.random.choice([(",", ":"), (", ", ": "), (" , ", " :\n")]),
            ensure_ascii=self.random.random() < 0.5,
        )

    def between(self) -> str:
        return self.random.choice(["", "\n", ",", " , ", "\r\n", "\x1e", "\n\n\t"])

    def document(self, rows: list[Any], shape: str) -> str:
        """Some rows in one document of a shape."""
        if shape == "values":
            if self.random.random() < 0.3:
                return self.dumps(rows)
            text = self.between().join(map(self.dumps, rows))
            return f"[{text}]" if self.random.random() < 0.5 else text
        value: Any = rows[0] if len(rows) == 1 and self.random.random() < 0.5 else rows
        for name in reversed(shape.split(".")):
            members = [(self.text() + "x", self.value()) for _ in range(self.random.randrange(3))] + [(name, value)]
            self.random.shuffle(members)
            value = dict(members)
        return self.dumps(value)

    def parts(self, rows: list[Any]) -> Iterator[list[Any]]:
        cuts = sorted(self.random.randrange(len(rows) + 1) for _ in range(self.random.randrange(3)))
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            yield rows[start:end]


@pytest.mark.slow
def test_random_rows_come_back_from_each_shape() -> None:
    by_chance = _Random(SEED)
    schema = pa.schema([("id", pa.list_(pa.int64())), ("value", pa.string())])
    counts = []
    for _ in range(15):
        rows = [{"id": [number], "value": [by_chance.value()]} for number in range(by_chance.random.randrange(5))]
        shape = by_chance.random.choice(["values", "items", "detail.items"])
        documents = [by_chance.document(part, shape) for part in by_chance.parts(rows)]
        text = "".join(document + by_chance.between() for document in documents)
        found = [{"id": row["id"], "value": json.loads(row["value"])} for row in _read(text, shape, schema)]
        assert found == rows, (SEED, shape, text)
        counts.append(len(found))
    assert max(counts) > 2


@pytest.mark.slow
def test_damage_is_refused_or_harmless_whatever_the_size_of_blocks() -> None:
    by_chance = _Random(SEED)
    texts = pa.schema([("id", pa.int64()), ("text", pa.string())])
    refused = 0
    for _ in range(30):
        rows = [{"id": number, "text": by_chance.text()} for number in range(4)]
        shape = by_chance.random.choice(["values", "items"])
        data = bytearray(by_chance.document(rows, shape).encode())
        offset = by_chance.random.randrange(len(data))
        data[offset : offset + by_chance.random.randrange(2)] = by_chance.random.choice(
            [b"", b'"', b"]", b"{", b"\\", b"x"]
        )
        results: list[Any] = []
        for block_bytes in (1, 13, 1 << 20):
            try:
                results.append(read(_source(bytes(data), shape, block_bytes), texts).read_all().to_pylist())
            except InputError as error:
                results.append(str(error))
        assert results[0] == results[1] == results[2], (SEED, shape, bytes(data))
        refused += isinstance(results[0], str)
    assert 0 < refused < 30


@pytest.mark.parametrize("shape", ["array", "indented", "records"])
def test_duckdb_and_polars_read_the_same(shape: str, tmp_path: Any) -> None:
    rows = [
        {"id": number, "text": f'é"\\{number}', "parts": [number, None], "o": {"x": number / 4}}
        for number in range(500)
    ]
    text = json.dumps({"Records": rows} if shape == "records" else rows, indent=2 if shape == "indented" else None)
    path = tmp_path / "rows.json"
    path.write_text(text)
    ours = read(_source(text.encode(), "Records" if shape == "records" else "values"), None).read_all().to_pylist()
    query = f"FROM read_json_auto('{path}')"
    if shape == "records":
        query = f"SELECT unnest(r) FROM (SELECT unnest(\"Records\") AS r FROM read_json_auto('{path}'))"
    theirs = duckdb.sql(query)
    assert ours == [dict(zip(theirs.columns, row, strict=True)) for row in theirs.fetchall()]
    if shape != "records":
        assert ours == pl.read_json(path).to_dicts()
