"""Adoption refuses with all reasons at once, and readers notice files that are changed afterwards."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

import dolmen
from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.commit.head import context_of
from dolmen.errors import AdoptionError, CorruptionError, Error, InputError
from dolmen.format.layout import AdoptedPath, check_format_version, check_reference
from dolmen.format.manifest import FEATURES, Manifest
from support.lake import write_plain

UUID = "0123456789abcdef" * 2


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return dolmen.open(tmp_path / "db")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def reasons(db: Database, source: Path | str | list[str], *, may_load: bool = True) -> str:
    """Why files are refused. The message says whether to load their rows instead."""
    with pytest.raises(AdoptionError) as caught:
        db.adopt("t", source if isinstance(source, list) else str(source))
    assert db.tables() == []
    assert ("dolmen append" if may_load else "Do not load") in str(caught.value)
    return "\n".join(caught.value.reasons)


def test_all_reasons_are_told_at_once_by_column_and_file(db: Database, lake: Path) -> None:
    times = pa.array(np.array([1, 2], "datetime64[ns]"))
    write_plain(lake / "1.parquet", pa.table({"id": [1, 2], "at": times, "half": pa.array([1, 2], pa.float16())}))
    write_plain(lake / "2.parquet", pa.table({"id": ["1", "2"], "at": times, "_commit_ts": [1, 2]}))
    write_plain(lake / "day=2026-01-01" / "3.parquet", pa.table({"id": [1]}))
    (lake / "readme.txt").write_text("no rows")
    (lake / "4.parquet").write_bytes(b"PAR1 not quite a file PARE")
    (lake / "5.parquet").write_bytes(b"PAR1" + b"\0" * 100 + b"\xff\xff\0\0PAR1")
    told = reasons(db, lake)
    assert "column 'at': " in told
    assert "column 'half': type halffloat" in told
    assert "column 'id': " in told
    assert "string" in told
    assert "column 'day': " in told
    assert "'_commit_ts' is reserved" in told
    assert "readme.txt" in told
    assert "encrypted" in told
    assert "damaged" in told
    assert len(told.splitlines()) == 8


def test_old_timestamps_of_96_bits_are_refused(db: Database, lake: Path) -> None:
    lake.mkdir()
    times = pa.table({"at": pa.array([1, 2], pa.timestamp("us"))})
    pq.write_table(times, lake / "1.parquet", use_deprecated_int96_timestamps=True)
    assert "INT96" in reasons(db, lake)


class OpenKeys(encryption.KmsClient):
    """Keeps keys as they are."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize("plain_footer", [True, False])
def test_encrypted_files_are_refused(db: Database, lake: Path, plain_footer: bool) -> None:
    lake.mkdir()
    table = pa.table({"a": [1], "b": [2]})
    wanted = encryption.EncryptionConfiguration("k", column_keys={"k": ["b"]}, plaintext_footer=plain_footer)
    factory = encryption.CryptoFactory(OpenKeys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
    with pq.ParquetWriter(lake / "1.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    assert "encrypted" in reasons(db, lake)


def test_summaries_of_other_files_are_refused(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"a": [1]}))
    metadata = pq.read_metadata(lake / "1.parquet")
    metadata.set_file_path("1.parquet")
    metadata.write_metadata_file(lake / "summary.parquet")
    assert "other files" in reasons(db, lake)


def test_field_ids_that_contradict_each_other_are_refused(db: Database, lake: Path) -> None:
    def field(name: str, id_: int | None) -> pa.Field:
        return pa.field(name, pa.int64(), metadata=None if id_ is None else {"PARQUET:field_id": str(id_)})

    def write(number: int, *fields: pa.Field) -> None:
        write_plain(lake / f"{number}.parquet", pa.table([[1]] * len(fields), schema=pa.schema(fields)))

    write(1, field("a", 1), field("b", 2))
    write(2, field("a", 2), field("b", 1))
    write(3, field("a", 1), field("b", 1))
    write(4, field("a", 1), field("b", None))
    told = reasons(db, lake)
    assert "column 'a': " in told
    assert "same field id" in told
    assert "others" in told


@pytest.mark.parametrize("folder", ["_delta_log", ".hoodie"])
def test_tables_of_other_formats_are_no_folders_of_files(db: Database, lake: Path, folder: str) -> None:
    write_plain(lake / "1.parquet", pa.table({"id": [1]}))
    (lake / folder).mkdir()
    (lake / folder / "00.json").write_text("{}")
    assert "table" in reasons(db, lake, may_load=False)


def test_what_belongs_to_dolmen_and_what_is_not_there_is_refused(db: Database, lake: Path, tmp_path: Path) -> None:
    write_plain(tmp_path / "db" / "data" / "x" / "1.parquet", pa.table({"id": [1]}))
    assert "dolmen" in reasons(db, "data/x", may_load=False)
    assert "no files" in reasons(db, lake)
    assert "no such file" in reasons(db, [str(lake / "1.parquet"), str(lake / "2")])
    for source in ("s3://bucket/lake", "memory://lake", "gs://bucket/lake", "../lake"):
        with pytest.raises(InputError):
            db.adopt("t", source)


def test_keys_are_checked_with_everything_else(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"id": [1.5]}))
    with pytest.raises(InputError, match="column 'key'"):
        db.adopt("t", str(lake), "key")
    with pytest.raises(InputError, match="double"):
        db.adopt("t", str(lake), "id")
    with pytest.raises(InputError):
        db.adopt("t", str(lake), properties={"nothing": 1})


def scan(db: Database) -> str:
    with pytest.raises(CorruptionError) as caught:
        db.table("t").scan(where="n >= 0").to_arrow()
    assert caught.value.key.startswith("file:///")
    return str(caught.value)


@pytest.mark.parametrize("rows", [10, 300_000])
def test_a_changed_or_missing_file_is_noticed_and_named(db: Database, lake: Path, rows: int) -> None:
    path, other = lake / "1.parquet", lake / "2.parquet"
    write_plain(path, pa.table({"n": range(rows)}), 50_000)
    db.adopt("t", str(path))
    whole = path.read_bytes()
    assert db.table("t").count("n >= 0") == rows
    write_plain(other, pa.table({"n": range(rows, 0, -1)}), 50_000)
    os.replace(other, path)
    assert "1.parquet" in (told := scan(db))
    assert "table 't'" in told
    assert not db.verify().ok
    path.write_bytes(whole)  # the same bytes, at another time
    assert db.table("t").count("n >= 0") == rows
    os.truncate(path, len(whole) - 1)
    assert "was changed" in scan(db)
    path.unlink()
    assert "it is missing, and table 't' has adopted it" in scan(dolmen.open(db.url))
    assert db.table("t").count() == rows  # metadata knows
    assert db.verify().findings[0].kind == "file-missing"
    db.table("t").delete("TRUE")
    db.maintain()
    assert [finding.kind for finding in db.verify(deep=True).findings] == ["released-missing"]  # by older versions


@pytest.mark.parametrize(
    ("scheme", "root", "key"),
    [
        ("own", "", "old/1.parquet"),
        ("file", "", "srv/lake/y=1/ä ö%2F?#&.parquet"),
        ("s3", "a-bucket.with.dots", "k=ä/0001 +%.parquet"),
        ("memory", "a name/with ü", "x" * 1024),
    ],
)
def test_a_path_names_one_file_in_one_way(scheme: str, root: str, key: str) -> None:
    path = AdoptedPath("names", scheme, root, key, UUID)
    assert AdoptedPath.parse(path.encode()) == path
    assert check_reference(path.encode(), "m") == path.encode()


@pytest.mark.parametrize(
    "path",
    [
        f"adopted/ids/own/a/../b/{UUID}.parquet", f"adopted/ids/own/a%2F..%2Fb/{UUID}.parquet",
        f"adopted/ids/own/a//b/{UUID}.parquet", f"adopted/ids/own/%61/{UUID}.parquet",
        f"adopted/ids/own/a%00/{UUID}.parquet", f"adopted/ids/own/%FF/{UUID}.parquet",
        f"adopted/ids/https/host/a/{UUID}.parquet", f"adopted/ids/s3/-/a/{UUID}.parquet",
        f"adopted/neither/own/a/{UUID}.parquet", "adopted/ids/own/a/1.parquet", f"adopted/ids/own/{UUID}.parquet",
        f"adopted/ids/own/a/{UUID}.parquet/", f"adopted/ids/own/{'a' * 1025}/{UUID}.parquet",
        f"adopted/ids/own/a b/{UUID}.parquet", "adopted/",
    ],
)  # fmt: skip
def test_a_forged_path_is_refused(path: str) -> None:
    assert AdoptedPath.parse(path) is None
    with pytest.raises(CorruptionError):
        check_reference(path, "m")


def test_a_manifest_cannot_make_readers_look_into_other_kinds_of_stores(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"n": [1]}))
    db.adopt("t", str(lake))
    key = context_of(db).head.refresh().manifest.key
    path = Path(db.url.removeprefix("file://")) / key
    document = path.read_bytes()
    forged = document.rpartition(b',"crc32"')[0].replace(b"/names/file/", b"/names/s3/") + b"}"
    from dolmen.format.layout import seal

    path.write_bytes(seal(forged))
    with pytest.raises(CorruptionError, match="adopted"):
        dolmen.open(db.url, runtime=Runtime()).table("t").scan().to_arrow()
    assert {finding.kind for finding in dolmen.open(db.url).verify(deep=True).findings} == {"file-missing"}


def test_older_readers_are_told(db: Database, lake: Path) -> None:
    write_plain(lake / "1.parquet", pa.table({"n": [1]}))
    db.adopt("t", str(lake))
    manifest = context_of(db).head.refresh().manifest
    document = manifest.encode()
    assert Manifest.decode(document, manifest.key) == manifest
    with pytest.raises(Error, match="adopted-files"):
        check_format_version(document, manifest.key, FEATURES - {"adopted-files"})


def test_bounds_of_other_writers_lose_no_row(db: Database, lake: Path) -> None:
    lake.mkdir()
    query = """SELECT * FROM (VALUES
        ('nan'::DOUBLE, -0.0::DOUBLE, repeat('\u00e4', 40), 4000000000::UINTEGER, NULL::INT),
        (1.0, 0.0, repeat('z', 40), 1::UINTEGER, NULL),
        (2.0, 0.0, NULL, 2::UINTEGER, 5)) AS t(x, zero, text, u, n)"""
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{lake}/1.parquet' (FORMAT parquet)")
    values = {"x": [float("nan"), 3.0], "zero": [0.0, -0.0], "text": ["", "b"], "u": pa.array([0, 7], pa.uint32())}
    table = pa.table({**values, "n": pa.array([None, None], pa.int32())})
    pq.write_table(table, lake / "2.parquet", write_statistics=False)
    db.adopt("t", str(lake))
    table = db.table("t")
    for where, count in (
        ("x > 100", 2), ("x = 'NaN'", 2), ("zero = 0", 5), ("zero < 0", 0), ("text > 'zzz'", 2), ("u > 3000000000", 1),
        ("u < 2", 2), ("n IS NULL", 4), ("n = 5", 1), ("text IS NULL", 1), ("x <= 3", 3),
    ):  # fmt: skip
        assert table.count(where) == count, where
    assert db.verify(deep=True).ok
