"""What the first bytes of a file show, whatever its name says."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import Any

import fastavro
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, ipc, orc, parquet

from dolmen.errors import InputError
from dolmen.ingest.formats.formats import Format
from dolmen.ingest.inference.sniff.container import sniff_container

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"]})
CSV = b"a,b\n1,x\n"


def bytes_of(write: Any) -> bytes:
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def arrow(new: Any) -> bytes:
    def write(sink: io.BytesIO) -> None:
        with new(sink, TABLE.schema) as writer:
            writer.write_table(TABLE)

    return bytes_of(write)


def archive(name: str, content: bytes) -> bytes:
    def write(sink: io.BytesIO) -> None:
        with zipfile.ZipFile(sink, "w") as made:
            made.writestr(name, content)

    return bytes_of(write)


def workbook() -> bytes:
    book = openpyxl.Workbook()
    return bytes_of(book.save)


AVRO = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
PARQUET = bytes_of(lambda sink: parquet.write_table(TABLE, sink))
FILES = {
    "parquet": (PARQUET, Format("parquet")),
    "arrow file": (arrow(ipc.new_file), Format("arrow")),
    "arrow stream": (arrow(ipc.new_stream), Format("arrow")),
    "feather": (bytes_of(lambda sink: feather.write_feather(TABLE, sink)), Format("arrow")),
    "avro": (bytes_of(lambda sink: fastavro.writer(sink, AVRO, [{"a": 1}])), Format("avro")),
    "orc": (bytes_of(lambda sink: orc.write_table(TABLE, sink)), Format("orc")),
    "xlsx": (workbook(), Format("excel")),
    "ods": (
        bytes_of(lambda sink: pd.DataFrame({"a": [1]}).to_excel(sink, engine="odf", index=False)),
        Format("excel"),
    ),
    "encrypted xlsx": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), Format("excel")),
    "gzip of parquet": (gzip.compress(PARQUET), Format("parquet", "gzip")),
    "gzip of csv": (gzip.compress(CSV), Format("jsonl", "gzip")),
    "bzip2": (bz2.compress(CSV), Format("jsonl", "bz2")),
    "zstd": (pa.compress(CSV, "zstd", asbytes=True), Format("jsonl", "zstd")),
    "zip of csv": (archive("in/x.CSV", CSV), Format("csv", "zip")),
    "zip of something": (archive("x", CSV), Format("jsonl", "zip")),
    "csv": (CSV, None),
    "text": (b"ORC,PAR1\n1,2\n", None),
    "more text": (b"PAR1,PAR2\n1,2\n", None),
    "BZh": (b"BZh91,b\n", None),
    "empty": (b"", None),
}


@pytest.mark.parametrize("what", FILES)
def test_the_first_bytes_show_the_format_whatever_the_name_says(what: str) -> None:
    data, format = FILES[what]
    assert sniff_container(data[:4096], "t.json") == format
    for size in range(64):
        sniff_container(data[:size], "t.json")


def test_a_compression_without_a_hint_of_what_is_inside_shows_nothing() -> None:
    assert sniff_container(gzip.compress(CSV), "t") is None
    assert sniff_container(gzip.compress(CSV), "t.csv.gz") == Format("csv", "gzip")
    assert sniff_container(archive("x", CSV), "t") is None


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (lzma.compress(CSV), "xz data: unpack"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "7-Zip archive: unpack"),
        (b"Rar!\x1a\x07\x01", "RAR"),
        (bytes_of(lambda sink: zipfile.ZipFile(sink, "w").close()), "no file in it"),
        (b"%PDF-1.7\n", "CSV"),
        (b"SQLite format 3\0", "CSV"),
    ],
)
def test_what_is_never_read_is_refused_with_a_hint(data: bytes, hint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=hint):
        sniff_container(data, "t.csv")
