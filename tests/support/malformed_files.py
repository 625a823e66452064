# ruff: noqa: E501
"""Files that must be refused, as data: each with what its error has to say. For tests of reading and of rejects."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet


@dataclass(frozen=True)
class MalformedFile:
    """A file and the error it must give.

    Args:
        cause: what kind of fault it is; several files may share one.
        name: the file's name, unique among them, with the endings that say its format.
        data: its bytes.
        schema: the table's columns; None to infer them.
        reason: a phrase of the error's message.
        line, row, column: the place the error names; None where there is none.
    """

    cause: str
    name: str
    data: bytes
    schema: pa.Schema | None
    reason: str
    line: int | None = None
    row: int | None = None
    column: str | None = None


USERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("born", pa.date32()),
        pa.field("seen", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("score", pa.float64()),
        pa.field("paid", pa.decimal128(6, 2)),
        pa.field("small", pa.int8()),
        pa.field("ok", pa.bool_()),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
    ]
)
"""The schema of the table that most of the files were meant for; only ``id`` is not nullable."""


def _parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, **options)
    return sink.getvalue()


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


_ROWS = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"name {n}" for n in range(1000)]})
_PARQUET = _parquet(_ROWS, compression="none", use_dictionary=False, write_page_checksum=True)
_FOOTER = len(_PARQUET) - 8 - int.from_bytes(_PARQUET[-8:-4], "little")
_LINES = b"id,name\n" + b"".join(b"%d,name %d\n" % (n, n) for n in range(1000))
_GZIP, _ZSTD = gzip.compress(_LINES, mtime=0), pa.compress(_LINES, codec="zstd", asbytes=True)


def _text(cause: str, name: str, data: bytes, reason: str, line: int, row: int | None = None,
          column: str | None = None, schema: pa.Schema | None = USERS) -> MalformedFile:  # fmt: skip
    return MalformedFile(cause, name, data, schema, reason, line, row, column)


def _whole(cause: str, name: str, data: bytes, reason: str, schema: pa.Schema | None = USERS) -> MalformedFile:
    return MalformedFile(cause, name, data, schema, reason)


MALFORMED_FILES = [
    # a cell that does not fit its column
    _text("not of the type", "word-as-integer.csv", b"id,name\n1,a\n2,b\nthree,c\n", "'three' is not a valid int64", 4, 3, "id"),
    _text("not of the type", "late-word.csv", b"id\n" + b"".join(b"%d\n" % n for n in range(5000)) + b"x\n", "'x' is not", 5002, 5001, "id"),
    _text("not of the type", "after-quoted-lines.csv", b'id,name\n1,"a\nb\r\nc"\nx,d\n', "'x' is not", 5, 2, "id"),
    _text("not of the type", "blank-lines-between.csv", b"id,name\n1,a\n\n\nx,d\n", "'x' is not", 5, 2, "id"),
    _text("not of the type", "hexadecimal.csv", b"id\n1\n0x10\n", "'0x10' is not a valid int64", 3, 2, "id"),
    _text("not of the type", "yes-as-bool.csv", b"id,ok\n1,true\n2,yes\n", "'yes' is not a valid bool", 3, 2, "ok"),
    _text("not of the type", "word-as-number.tsv", b"id\tscore\n1\t1.5\n2\t1,5\n", "'1,5' is not a valid double", 3, 2, "score"),
    _text("not of the type", "thirtieth-of-february.csv", b"id,born\n1,2024-02-30\n", "'2024-02-30' is not a valid date32", 2, 1, "born"),
    _text("not of the type", "american-date.csv", b"id,born\n1,2024-02-29\n2,02/28/2024\n", "is not a valid date32", 3, 2, "born"),
    _text("not of the type", "string-as-integer.jsonl", b'{"id": 1}\n{"id": "two"}\n', "'two' is not a valid int64", 2, 2, "id"),
    _text("not of the type", "bool-as-integer.jsonl", b'{"id": 1}\n\n{"id": true}\n', "'true' is not a valid int64", 3, 2, "id"),
    _text("not of the type", "object-as-list.jsonl", b'{"id": 1, "tags": ["a"]}\n{"id": 2, "tags": {"a": 1}}\n', "array", 2, 2, "tags"),
    _text("not of the type", "nested-word.jsonl", b'{"id": 1, "at": {"x": 1}}\n{"id": 2, "at": {"x": "one"}}\n', "number", 2, 2, "at"),
    # numbers that would be changed
    _text("does not fit", "too-large-for-int8.csv", b"id,small\n1,127\n2,128\n", "does not fit without loss", 3, 2, "small"),
    _text("does not fit", "beyond-int64.csv", b"id\n9223372036854775807\n9223372036854775808\n", "does not fit without loss", 3, 2, "id"),
    _text("does not fit", "half-an-integer.jsonl", b'{"id": 1.0}\n{"id": 1.5}\n', "'1.5' is not a valid int64: it does not fit", 2, 2, "id"),
    _text("does not fit", "third-decimal-place.csv", b"id,paid\n1,1.250\n2,1.255\n", "does not fit without loss", 3, 2, "paid"),
    _text("does not fit", "too-many-digits.jsonl", b'{"id": 1, "paid": 12345.67}\n', "does not fit without loss", 1, 1, "paid"),
    _text("does not fit", "beyond-double.csv", b"id,score\n1,1e308\n2,1e309\n", "'1e309' is not a valid double", 3, 2, "score"),
    _text("does not fit", "nanoseconds.csv", b"id,local\n1,2024-01-01T00:00:00.123456789\n", "is not a valid timestamp[us]", 2, 1, "local"),
    # time zones
    _text("time zone", "no-offset.csv", b"id,seen\n1,2024-01-01T00:00:00Z\n2,2024-01-01T00:00:00\n", "it has no UTC offset", 3, 2, "seen"),
    _text("time zone", "date-for-a-moment.jsonl", b'{"id": 1, "seen": "2024-01-01"}\n', "it has no UTC offset", 1, 1, "seen"),
    _text("time zone", "offset-for-local-time.csv", b"id,local\n1,2024-01-01T00:00:00+02:00\n", "it has a UTC offset", 2, 1, "local"),
    # NULL where there must be a value
    _text("null", "empty-id.csv", b"id,name\n1,a\n,b\n", "not nullable", 3, 2, "id"),
    _text("null", "quoted-empty-id.csv", b'id,name\n1,a\n"",b\n', "not nullable", 3, 2, "id"),
    _text("null", "null-id.jsonl", b'{"id": 1}\n{"id": null}\n', "not nullable", 2, 2, "id"),
    _text("null", "no-id.jsonl", b'{"id": 1}\n{"name": "b"}\n', "not nullable", 2, 2, "id"),
    # records of another length than the header
    _text("ragged", "field-too-few.csv", b"id,name,ok\n1,a,true\n2,b\n", "2 fields where the header has 3", 3, 2),
    _text("ragged", "field-too-many.csv", b"id,name\n1,a\n2,b,\n", "3 fields where the header has 2", 3, 2),
    _text("ragged", "comma-in-unquoted-text.csv", b"id,name\n1,Smith, John\n", "3 fields where the header has 2", 2, 1),
    _text("ragged", "cut-off-in-a-record.csv", b"id,name,ok\n1,a,true\n2", "1 field where the header has 3", 3, 2, schema=None),
    # quotes
    _text("quote never closed", "open-quote.csv", b'id,name\n1,a\n2,"b\n3,c\n4,d\n', "never closed", 3, 2),
    _text("quote never closed", "open-quote-in-last-field.csv", b'id,name\n1,"a"\n2,"', "never closed", 3, 2, schema=None),
    _text("text after quote", "text-after-quote.csv", b'id,name\n1,"a"\n2,"b"c\n', "text follows a closing quote", 3, 2),
    _text("text after quote", "undoubled-quote.csv", b'id,name\n1,"say "hi""\n', "text follows a closing quote", 2, 1, schema=None),
    # encoding
    _text("not UTF-8", "latin1.csv", "id,name\n1,Köln\n2,Bär\n".encode("latin-1"), "not UTF-8", 2, 1, "name"),
    _text("not UTF-8", "latin1-header.csv", "id,größe\n1,2\n".encode("latin-1"), "not UTF-8", 1, schema=None),
    _text("not UTF-8", "latin1.jsonl", '{"id": 1}\n{"id": 2, "name": "Köln"}\n'.encode("latin-1"), "not UTF-8", 2, 2),
    _text("not UTF-8", "latin1-inferred.ndjson", '{"name": "Köln"}\n'.encode("latin-1"), "not UTF-8", 1, 1, schema=None),
    _text("not UTF-8", "half-a-surrogate.jsonl", b'{"id": 1, "name": "\\ud83d"}\n', "surrogate", 1, 1),
    _whole("not UTF-8", "utf-16.csv", "id,name\n1,a\n".encode("utf-16"), "UTF-16"),
    # headers
    _whole("no header", "empty.csv", b"", "is empty"),
    _whole("no header", "blank.csv", b"\r\n\n", "is empty", None),
    _whole("column twice", "column-twice.csv", b"id,name,id\n1,a,2\n", "column 'id' is there twice"),
    _whole("nameless column", "pandas-index.csv", b",id\n0,1\n", "column 1 has no name", None),
    _whole("nameless column", "comma-after-the-last.csv", b"id,name,\n1,a,\n", "column 3 has no name"),
    _whole("unknown column", "unknown-column.csv", b"id,nmae\n1,a\n", "no column 'nmae' in the table"),
    _whole("unknown column", "case-of-a-name.csv", b"ID\n1\n", "no column 'ID' in the table"),
    _whole("missing column", "no-id-column.csv", b"name\na\n", "column 'id' is missing and not nullable"),
    # JSON
    _text("not JSON", "cut-off-in-a-line.jsonl", b'{"id": 1}\n{"id": 2, "na', "not JSON", 2, 2),
    _text("not JSON", "comma-too-many.jsonl", b'{"id": 1,}\n', "not JSON", 1, 1),
    _text("not JSON", "single-quotes.jsonl", b"{\"id\": 1}\n{'id': 2}\n", "not JSON", 2, 2, schema=None),
    _text("not JSON", "leading-zero.jsonl", b'{"id": 007}\n', "not JSON", 1, 1),
    _text("not JSON", "two-objects-in-a-line.jsonl", b'{"id": 1}\n{"id": 2}{"id": 3}\n', "not JSON", 2, 2),
    _text("not JSON", "pretty-printed.json", b'{"id": 1}\n{\n  "id": 2\n}\n', "not JSON", 2, 2),
    _text("not JSON", "raw-tab.jsonl", b'{"id": 1, "name": "a\tb"}\n', "not JSON", 1, 1, schema=None),
    _text("NaN", "nan.jsonl", b'{"id": 1, "score": 1.5}\n{"id": 2, "score": NaN}\n', "NaN is not JSON", 2, 2),
    _text("NaN", "infinity.jsonl", b'{"score": -Infinity}\n', "-Infinity is not JSON", 1, 1, schema=None),
    _text("not an object", "array.json", b'[{"id": 1}, {"id": 2}]\n', "not a JSON object", 1, 1),
    _text("not an object", "number.jsonl", b'{"id": 1}\n2\n', "not a JSON object", 2, 2, schema=None),
    _text("key twice", "key-twice.jsonl", b'{"id": 1}\n{"id": 2, "name": "a", "id": 3}\n', "key 'id' is there twice", 2, 2),
    _text("key twice", "key-twice-inside.jsonl", b'{"at": {"x": 1, "x": 2}}\n', "key 'x' is there twice", 1, 1, schema=None),
    _text("unknown column", "unknown-key.jsonl", b'{"id": 1}\n{"id": 2, "nmae": "a"}\n', "no column 'nmae'", 2, 2, "nmae"),
    _text("unknown column", "unknown-key-inside.jsonl", b'{"id": 1, "at": {"x": 1, "z": 2}}\n', "unexpected field", 1, 1, "at"),
    _text("nested too deeply", "deep.jsonl", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "nested more than", 1, 1, schema=None),
    _text("nested too deeply", "deep-objects.jsonl", b'{"id": 1}\n' + b'{"id":' * 50_000 + b"}" * 50_000, "nested more than", 2, 2),
    _whole("nothing to infer from", "empty.jsonl", b"", "declare a schema", None),
    # base64
    _text("not base64", "not-base64.csv", b"id,raw\n1,aGVsbG8=\n2,hello!\n", "is not a valid binary", 3, 2, "raw"),
    _text("not base64", "unpadded-base64.jsonl", b'{"id": 1, "raw": "aGVsbG8"}\n', "is not a valid binary", 1, 1, "raw"),
    # JSON inside CSV
    _text("not JSON", "json-cell.csv", b'id,tags\n1,"[""a""]"\n2,"[""a"""\n', "", 3, 2, "tags"),
    # compression
    _whole("truncated", "truncated.csv.gz", _GZIP[: len(_GZIP) // 2], "truncated"),
    _whole("truncated", "last-byte-missing.csv.gz", _GZIP[:-1], "truncated", None),
    _whole("truncated", "truncated.csv.zst", _ZSTD[: len(_ZSTD) // 2], "truncated"),
    _whole("truncated", "truncated.parquet.gz", gzip.compress(_PARQUET, mtime=0)[:-20], "truncated"),
    _whole("damaged compression", "flipped.csv.gz", _flipped(_GZIP, len(_GZIP) - 6), "damaged"),
    _whole("damaged compression", "garbage-after.csv.gz", _GZIP + b"garbage", "damaged"),
    _whole("damaged compression", "garbage-after.csv.zst", _ZSTD + b"garbage", "damaged"),
    _whole("wrong name", "plain.csv.gz", _LINES, "not (only) gzip"),
    _whole("wrong name", "compressed.csv", _GZIP, "holds gzip data"),
    _whole("wrong name", "parquet.jsonl", _PARQUET, "holds Parquet data"),
    _whole("wrong name", "workbook.csv", b"PK\x03\x04" + bytes(60), "holds zip data", None),
    _whole("wrong name", "text.parquet", _LINES, "not a readable Parquet file"),
    _whole("unsupported format", "users.xlsx", b"PK\x03\x04", "no supported format"),
    _whole("unsupported format", "users.csv.xz", b"\xfd7zXZ", "no supported format", None),
    # Parquet
    _whole("damaged Parquet", "empty.parquet", b"", "not a readable Parquet file"),
    _whole("damaged Parquet", "truncated.parquet", _PARQUET[:-100], "not a readable Parquet file", None),
    _whole("damaged Parquet", "beginning-cut-off.parquet", _PARQUET[1000:], "not a readable Parquet file"),
    _whole("damaged Parquet", "flipped-page.parquet", _flipped(_PARQUET, 600), "not a readable Parquet file"),
    _whole("damaged Parquet", "flipped-footer.parquet", _flipped(_PARQUET, _FOOTER), "not a readable Parquet file"),
    _whole("other kind", "integer-as-string.parquet", _parquet(pa.table({"id": [1], "name": [5]})), "never stored as string"),
    _whole("other kind", "string-as-integer.parquet", _parquet(pa.table({"id": ["1"]})), "text is never parsed here"),
    _whole("other kind", "float-as-integer.parquet", _parquet(pa.table({"id": [1.0]})), "never stored as int64"),
    _whole("unknown column", "unknown-column.parquet", _parquet(pa.table({"id": [1], "nmae": ["a"]})), "no column 'nmae'"),
    _whole("missing column", "no-id-column.parquet", _parquet(pa.table({"name": ["a"]})), "'id' is missing"),
    _whole("cannot be stored", "duration.parquet", _parquet(pa.table({"d": pa.array([1], pa.duration("us"))})), "cannot be stored", None),
    MalformedFile("does not fit", "too-large-for-int8.parquet", _parquet(pa.table({"id": [1, 2], "small": [127, 128]})), USERS,
                  "'128' cannot be stored as int8", row=2, column="small"),
    MalformedFile("null", "null-id.parquet", _parquet(pa.table({"id": [1, 2, None]})), USERS, "not nullable", row=3, column="id"),
]  # fmt: skip
