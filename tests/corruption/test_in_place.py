"""The same on a directory and on real S3 servers: objects damaged in place, by somebody who goes around dolmen."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dolmen
from corruption.acts import all_rows
from corruption.damages import kind_of
from corruption.worlds import few_rows
from dolmen.commit.head import context_of
from dolmen.errors import CorruptionError, Error
from dolmen.format.layout import POINTER
from support.ministack import boto3_client


def build(url: str) -> dolmen.Database:
    """A database with objects of most kinds."""
    rng = random.Random(3)
    db = dolmen.open(url)
    db.set(root_bytes="4KB")
    t = db.create_table("t", few_rows(rng, range(1)).schema, primary_key=["k"])
    for start in range(0, 240, 40):
        t.append(few_rows(rng, range(start, start + 40)), request=f"request {start}")
    t.delete("k < 30 OR k BETWEEN 100 AND 110", mode="positions")
    t.delete(keys=list(range(150, 1000, 2)))
    t.upsert(few_rows(rng, range(235, 245)))
    return db


def in_directory(url: str) -> Callable[[str, bytes], None]:
    """Writes over files."""

    def put(key: str, body: bytes) -> None:
        path = Path(url, key)
        path.chmod(0o644)
        path.write_bytes(body)

    return put


def in_bucket(url: str) -> Callable[[str, bytes], None]:
    """Puts objects with a client of its own."""
    client = boto3_client("s3", os.environ["AWS_ENDPOINT_URL"])
    bucket, _, prefix = url.removeprefix("s3://").partition("/")

    def put(key: str, body: bytes) -> None:
        client.put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=body)

    return put


@pytest.mark.parametrize("server", ["tmp_path", "s3_url", pytest.param("minio_url", marks=pytest.mark.slow)])
def test_objects_damaged_in_place_are_named(server: str, request: pytest.FixtureRequest) -> None:
    url = str(request.getfixturevalue(server))
    put = in_directory(url) if server == "tmp_path" else in_bucket(url)
    db = build(url)
    rows, rng = all_rows(db), random.Random(int(os.environ.get("DOLMEN_TEST_SEED", "5")))
    kinds: dict[str, list[str]] = {}
    for info in context_of(db).store.list(""):
        kinds.setdefault(kind_of(info.key), []).append(info.key)
    assert {"pointer", "manifest", "data", "tombstone", "files segment"} <= kinds.keys()

    for kind, keys in kinds.items():
        key, other = keys[-1], keys[0]
        good = context_of(db).store.get(key).body
        flipped = bytearray(good)
        flipped[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        damages = [bytes(flipped), good[:-1], b"", good + b"\0" * 9, context_of(db).store.get(other).body]
        for body in rng.sample(damages[: 5 if other != key else 4], 4 if server == "tmp_path" else 2):
            put(key, body)
            told = _read(url, rows)
            report = _verify(url)
            assert any(key in line for line in report), f"{kind}: {len(body)} bytes: verification tells of {report}"
            assert told is None or told.key == key
            assert told is not None or key != POINTER
        put(key, good)
    assert all_rows(dolmen.open(url)) == rows
    assert dolmen.verify(url, deep=True, all_versions=True).findings == ()


def _read(url: str, rows: Any) -> CorruptionError | None:
    """Right rows, or an error that says which object is damaged."""
    try:
        found = all_rows(dolmen.open(url))
    except CorruptionError as error:
        return error
    assert found == rows
    return None


def _verify(url: str) -> list[str]:
    try:
        return [str(finding) for finding in dolmen.verify(url, deep=True, all_versions=True).findings]
    except Error as error:
        return [str(error)]


@pytest.mark.parametrize("read", ["to_polars", "to_duckdb", "to_pandas", "sql"])
def test_engines_that_read_through_dolmen_meet_its_checks(read: str, tmp_path: Path) -> None:
    """By themselves DuckDB and Polars take what a flipped bit makes of a value."""
    rng = random.Random(1)
    db = dolmen.open(str(tmp_path))
    table = db.create_table("t", pa.schema([("v", pa.float64())]))
    table.append(pa.table({"v": [rng.random() for _ in range(5_000)]}))
    (file,) = context_of(db).head.refresh().manifest.table("t").files
    body = bytearray((tmp_path / file.path).read_bytes())
    body[10_000] ^= 4
    in_directory(str(tmp_path))(file.path, bytes(body))
    reads = {
        "sql": lambda: db.sql("SELECT sum(v) AS s FROM t").to_arrow(),
        "to_duckdb": lambda: table.scan().to_duckdb().fetchall(),
        "to_pandas": lambda: table.scan().to_pandas(),
        "to_polars": lambda: table.scan().to_polars(),
    }
    with pytest.raises(Exception, match=file.path):  # DuckDB wraps the error that its scan met
        reads[read]()
