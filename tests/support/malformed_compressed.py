# ruff: noqa: E501
"""Files that are compressed wrongly, or are not what their names say."""

from __future__ import annotations

import bz2
import gzip
import io
import zipfile

import pyarrow as pa

from support.malformed_case import LINES, MalformedFile, flip_bit, whole
from support.malformed_parquet import PARQUET

_GZIP, _BZIP2 = gzip.compress(LINES, mtime=0), bz2.compress(LINES)
_ZSTD = pa.compress(LINES, codec="zstd", asbytes=True)


def _zip() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("users.csv"), LINES)
    return sink.getvalue()


def _encrypted(archive: bytes) -> bytes:
    """The archive as one that needs a password: its flag is all that is looked at."""
    return archive[:6] + bytes([archive[6] | 1]) + archive[7:]


MALFORMED_COMPRESSED: list[MalformedFile] = [
    # compression
    whole("truncated", "truncated.csv.gz", _GZIP[: len(_GZIP) // 2], "truncated"),
    whole("truncated", "last-byte-missing.csv.gz", _GZIP[:-1], "truncated", None),
    whole("truncated", "truncated.csv.zst", _ZSTD[: len(_ZSTD) // 2], "truncated"),
    whole("truncated", "truncated.parquet.gz", gzip.compress(PARQUET, mtime=0)[:-20], "truncated"),
    whole("damaged compression", "flipped.csv.gz", flip_bit(_GZIP, len(_GZIP) - 6), "damaged"),
    whole("damaged compression", "garbage-after.csv.gz", _GZIP + b"garbage", "damaged"),
    whole("damaged compression", "garbage-after.csv.zst", _ZSTD + b"garbage", "damaged"),
    whole("wrong name", "plain.csv.gz", LINES, "gzip"),
    whole("wrong name", "compressed.csv", _GZIP, "gzip"),
    whole("wrong name", "parquet.jsonl", PARQUET, "Parquet"),
    whole("wrong name", "workbook.csv", b"PK\x03\x04" + bytes(60), "zip", None),
    whole("wrong name", "text.parquet", LINES, "Parquet"),
    whole("unsupported format", "users.pdf", b"%PDF-1.7", "format"),
    whole("unsupported format", "users.csv.xz", b"\xfd7zXZ", "format", None),
    # gzip
    whole("truncated", "header-cut-off.csv.gz", _GZIP[:5], "truncated"),
    whole("truncated", "magic-alone.csv.gz", b"\x1f\x8b", "truncated"),
    whole("truncated", "second-member-cut-off.csv.gz", _GZIP + gzip.compress(b"1,a\n" * 999, mtime=0)[:-9], "truncated"),
    whole("damaged compression", "wrong-magic.csv.gz", b"\x1f\x8c" + _GZIP[2:], "damaged"),
    whole("damaged compression", "wrong-checksum.csv.gz", flip_bit(_GZIP, len(_GZIP) - 8), "damaged"),
    whole("damaged compression", "wrong-length.csv.gz", flip_bit(_GZIP, len(_GZIP) - 1), "damaged"),
    whole("damaged compression", "second-member-damaged.csv.gz", _GZIP + flip_bit(gzip.compress(b"1,a\n" * 999, mtime=0), -8), "damaged"),
    whole("damaged compression", "unknown-method.csv.gz", _GZIP[:2] + b"\x07" + _GZIP[3:], "damaged"),
    whole("no header", "empty.csv.gz", b"", "empty"),
    whole("wrong name", "zstd.csv.gz", _ZSTD, "gzip"),
    whole("wrong name", "compressed-twice.csv.gz", gzip.compress(_GZIP, mtime=0), "gzip"),
    # bzip2
    whole("truncated", "truncated.csv.bz2", _BZIP2[:-20], "truncated"),
    whole("damaged compression", "flipped.csv.bz2", flip_bit(_BZIP2, len(_BZIP2) // 2), "damaged"),
    whole("damaged compression", "garbage-after.csv.bz2", _BZIP2 + b"garbage", "damaged"),
    whole("damaged compression", "wrong-magic.csv.bz2", b"BZx" + _BZIP2[3:], "damaged"),
    whole("damaged compression", "nothing-between.csv.bz2", _BZIP2 + bz2.compress(b"") + bz2.compress(b"1,a\n"), "damaged"),
    whole("wrong name", "plain.csv.bz2", LINES, "bz2"),
    whole("wrong name", "bzip2.csv", _BZIP2 * 2, "bzip2"),
    # Zstandard
    whole("damaged compression", "wrong-magic.csv.zst", b"\x29" + _ZSTD[1:], "damaged"),
    whole("no header", "empty.csv.zst", b"", "empty"),
    whole("wrong name", "plain.csv.zst", LINES, "zstd"),
    whole("wrong name", "gzip.csv.zst", _GZIP, "zstd"),
    whole("wrong name", "zstd.jsonl", _ZSTD, "zstd"),
    # archives and other files
    whole("wrong name", "zip.csv", _zip(), "zip"),
    whole("wrong name", "zip-with-a-password.csv", _encrypted(_zip()), "zip"),
    whole("wrong name", "zip.csv.gz", _zip(), "gzip"),
    whole("wrong name", "zip.parquet", _zip(), "Parquet"),
    whole("wrong name", "xz.csv", b"\xfd7zXZ\x00" + bytes(3000), "xz"),
    whole("wrong name", "tar.csv", b"users.csv".ljust(257, b"\0") + b"ustar\x0000" + bytes(247), "no column"),
    whole("wrong name", "sqlite.csv", b"SQLite format 3\0" + bytes(100), "SQLite"),
    whole("wrong name", "letter.csv", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "PDF"),
    whole("wrong name", "picture.csv", b"\x89PNG\r\n\x1a\n" + bytes(30), "PNG"),
    whole("wrong name", "error-page.parquet", "<!DOCTYPE html>\n<html></html>\n", "Parquet"),
    whole("wrong name", "orc.parquet", b"ORC" + bytes(100), "Parquet"),
    whole("wrong name", "avro.parquet", b"Obj\x01" + bytes(100), "Parquet"),
    *(
        whole("unsupported format", name, LINES, "format")
        for name in (
            "users.7z", "users.xml", "users.txt", "users.gz",
            "users", "users.csv.gpg", "users.csv.gz.part", "users.csv.lz4", "users.sqlite",
        )
    ),
]  # fmt: skip
