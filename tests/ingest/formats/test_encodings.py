"""Text in every encoding: CSV and JSON are read as if they were UTF-8, and what an encoding lacks is told of."""

from __future__ import annotations

import gzip
import io
import json
from functools import partial
from typing import Any, get_args

import pyarrow as pa
import pytest

from dolmen.errors import InputError, RowError
from dolmen.format.dialect import Dialect, Encoding
from dolmen.ingest.formats.formats import BadRow, SourceFile, detect, infer, read
from dolmen.ingest.formats.source_file import ReadOptions
from dolmen.ingest.formats.text_blocks import MARKS, TextStream

CODECS: dict[Encoding, str] = {
    "utf-8": "utf-8",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
    "utf-32": "utf-32",
    "utf-32le": "utf-32-le",
    "utf-32be": "utf-32-be",
    "windows-1252": "cp1252",
    "latin-1": "latin-1",
}
BLOCKS = [1, 3, 13, 1 << 20]
ROWS = [{"a": 1, "b": "Köln"}, {"a": 2, "b": 'ß,\n"é"'}, {"a": 3, "b": None}]
CSV = 'a,b\r\n1,Köln\r\n2,"ß,\n""é"""\r\n3,'
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def source(data: bytes, encoding: Encoding, name: str = "t.csv", block_bytes: int = 1 << 20) -> SourceFile:
    options = ReadOptions(dialect=Dialect(encoding=encoding))
    return SourceFile(lambda: io.BytesIO(data), detect(name), name, options, block_bytes)


def rows(data: bytes, encoding: Encoding, name: str = "t.csv", block_bytes: int = 1 << 20) -> list[dict[str, Any]]:
    return read(source(data, encoding, name, block_bytes), SCHEMA).read_all().to_pylist()


def with_mark(text: str, encoding: Encoding) -> bytes:
    """The text with a byte order mark, if the encoding has one."""
    mark = "\ufeff" if encoding == "utf-8" or encoding.endswith(("le", "be")) else ""  # Python writes that of utf-16
    return (mark + text).encode(CODECS[encoding])


@pytest.mark.slow
@pytest.mark.parametrize("encoding", get_args(Encoding))
@pytest.mark.parametrize("block_bytes", BLOCKS)
def test_csv_and_json_are_read_in_every_encoding(encoding: Encoding, block_bytes: int) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    for name, text in (("t.csv", CSV), ("t.tsv", CSV.replace(",", "\t")), ("t.jsonl", lines)):
        expected = [{**row, "b": row["b"] and str(row["b"]).replace(",", "\t")} for row in ROWS]
        expected = expected if name == "t.tsv" else ROWS
        for data in (text.encode(CODECS[encoding]), with_mark(text, encoding)):
            assert rows(data, encoding, name, block_bytes) == expected
            assert infer(source(data, encoding, name, block_bytes)) == SCHEMA
        assert rows(gzip.compress(text.encode(CODECS[encoding])), encoding, f"{name}.gz", block_bytes) == expected


def test_every_character_of_an_encoding_is_read() -> None:
    signs = set(map(chr, range(1, 256))) - set('\r\n",')
    latin = "".join(sorted(signs))
    windows = "".join(
        sorted(sign for byte in range(256) if (sign := bytes([byte]).decode("cp1252", "ignore")) in signs)
    )
    for encoding, text in (("latin-1", latin), ("windows-1252", f"{windows}€„Ž™"), ("utf-16be", "𝄞\ue000\uffff🜚")):
        data = f"a,b\n1,{text}\n".encode(CODECS[encoding])
        assert rows(data, encoding, block_bytes=7) == [{"a": 1, "b": text}]


def test_a_second_mark_is_text() -> None:
    assert rows("\ufeffa,b\n1,\ufeffx\n".encode("utf-16-le"), "utf-16le") == [{"a": 1, "b": "\ufeffx"}]


@pytest.mark.parametrize(
    ("encoding", "data", "problem"),
    [
        ("windows-1252", b"a,b\r1,\x80\r\n2,\x81\n", "line 3: the byte 0x81 at offset 11: not windows-1252"),
        ("utf-16le", "a,b\n1,x\n".encode("utf-16-le") + b"\x00\xd8x\x00", "line 3: the bytes 0x00 d8 at offset 16"),
        ("utf-16", "a,b\n1,x\n".encode("utf-16") + b"x", "line 3: the byte 0x78 at offset 18"),
        ("utf-32be", b"\x00\x00\x00\n\x00\x00\xd8\x00", "line 2: the bytes 0x00 00 d8 00 at offset 4"),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_bytes_that_an_encoding_lacks_are_an_error_of_the_file(
    encoding: Encoding, data: bytes, problem: str, name: str
) -> None:
    for block_bytes in BLOCKS:
        bad: list[BadRow] = []
        with pytest.raises(InputError, match=problem) as caught:
            read(source(data, encoding, "t.csv", block_bytes), SCHEMA, on_bad_row=bad.append).read_all()
        assert not isinstance(caught.value, RowError)
        stream = TextStream(io.BytesIO(data).read, name, encoding)
        with pytest.raises(InputError, match=problem):
            list(iter(partial(stream.read, block_bytes), b""))


def test_rows_before_a_byte_that_the_encoding_lacks_are_read_first() -> None:
    for block_bytes in BLOCKS:
        bad: list[BadRow] = []
        reader = read(
            source(b"a,b\nx,1\n2,\x81\n", "windows-1252", "t.csv", block_bytes), SCHEMA, on_bad_row=bad.append
        )
        with pytest.raises(InputError, match="line 3"):
            reader.read_all()
        assert [row.line for row in bad] == [2]


@pytest.mark.parametrize("encoding", get_args(Encoding))
def test_a_byte_order_mark_does_not_contradict_the_encoding(encoding: Encoding) -> None:
    for mark, marked in MARKS.items():
        data = mark + "a,b\n1,x\n".encode(CODECS[marked])
        if encoding in (marked, marked[:-2]):
            assert rows(data, encoding) == [{"a": 1, "b": "x"}]
            continue
        for block_bytes in BLOCKS:
            with pytest.raises(InputError, match=f"{marked[:6].upper()}.*ingest_encoding"):
                rows(data, encoding, block_bytes=block_bytes)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_without_a_mark_the_order_of_bytes_is_not_guessed(encoding: Encoding) -> None:
    with pytest.raises(InputError, match=f"{encoding}le or {encoding}be"):
        rows("a,b\n1,x\n".encode(f"{encoding}-le"), encoding)
    with pytest.raises(InputError, match="is empty"):
        rows(b"", encoding)


@pytest.mark.parametrize("encoding", get_args(Encoding))
def test_data_of_another_format_is_told_of_as_that(encoding: Encoding) -> None:
    for data in (gzip.compress(CSV.encode()), b"PAR1" + bytes(100), b"PK\x03\x04" + bytes(100)):
        with pytest.raises(InputError, match="rename it"):
            rows(data, encoding)


def test_a_stream_of_text_needs_little_memory() -> None:
    class Endless:
        size = 0

        def read(self, size: int) -> bytes:
            self.size += size
            return b"\xe4" * size

    file = Endless()
    stream = TextStream(file.read, "t.csv", "latin-1")
    assert b"".join(stream.read(1000) for _ in range(100)).decode() == "ä" * 50_000
    assert file.size < 60_000
