"""What was trimmed and stripped is not missed: all that dolmen uses of its dependencies works from the layers alone."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from support.built import run_as_deployed

pytestmark = pytest.mark.slow


def run(source: str, *arguments: str) -> str:
    result = run_as_deployed(source, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_every_codec_works() -> None:
    source = """
import io, sys
import pyarrow as pa, pyarrow.parquet as pq
table = pa.table({"a": list(range(10_000)), "s": [str(i % 100) for i in range(10_000)]})
for codec in ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]:
    file = io.BytesIO()
    pq.write_table(table, file, compression=codec, write_page_checksum=True, write_page_index=True)
    found = pq.ParquetFile(io.BytesIO(file.getvalue()), page_checksum_verification=True)
    assert found.metadata.row_group(0).column(0).compression == codec.upper().replace("NONE", "UNCOMPRESSED"), codec
    assert found.read().equals(table), codec
for codec in ["gzip", "bz2", "zstd", "lz4", "brotli"]:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(b"abc" * 10_000)
    with pa.CompressedInputStream(pa.BufferReader(sink.getvalue()), codec) as stream:
        assert stream.read() == b"abc" * 10_000, codec
for codec in ["lz4", "zstd"]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    assert pa.ipc.open_file(sink.getvalue()).read_all().equals(table), codec
print("all", sys.version_info[:2])
"""
    assert run(source) == "all (3, 13)"


def test_datasets_csv_json_and_compute_work(tmp_path: Path) -> None:
    source = """
import io, sys
import pyarrow as pa, pyarrow.compute as pc, pyarrow.csv, pyarrow.dataset as ds, pyarrow.json, pyarrow.feather
folder = sys.argv[1]
table = pa.table({"day": ["a", "b"] * 50, "n": list(range(100))})
ds.write_dataset(table, folder, format="parquet", partitioning=ds.partitioning(pa.schema([("day", pa.string())])))
found = ds.dataset(folder, partitioning=["day"]).to_table(filter=(ds.field("day") == "b") & (ds.field("n") > 90))
assert sorted(found["n"].to_pylist()) == [91, 93, 95, 97, 99]
assert pyarrow.csv.read_csv(io.BytesIO(b"a,b\\n1,x\\n")).to_pylist() == [{"a": 1, "b": "x"}]
assert pyarrow.json.read_json(io.BytesIO(b'{"a": {"b": [1]}}\\n')).to_pylist() == [{"a": {"b": [1]}}]
assert table.group_by("day").aggregate([("n", "sum")]).sort_by("day")["n_sum"].to_pylist() == [2450, 2500]
assert table.join(table.slice(0, 2), "n", join_type="inner").num_rows == 2
print("all")
"""
    assert run(source, str(tmp_path)) == "all"


def test_pyarrows_own_s3_client_works(ministack: str) -> None:
    source = """
import sys
import pyarrow.fs, pyarrow as pa, pyarrow.parquet as pq
s3 = pyarrow.fs.S3FileSystem(
    endpoint_override=sys.argv[1], scheme="http", region="us-east-1", access_key="test", secret_key="testtest",
    allow_bucket_creation=True,
)
s3.create_dir("from-the-layer")
pq.write_table(pa.table({"a": [1, 2, 3]}), "from-the-layer/t.parquet", filesystem=s3)
print(pq.read_table("from-the-layer/t.parquet", filesystem=s3)["a"].to_pylist())
"""
    assert run(source, ministack.removeprefix("http://")) == "[1, 2, 3]"


def test_a_database_on_s3_works_with_the_sdk_of_the_layer(s3_url: str, s3_endpoint: str) -> None:
    source = """
import os, sys
url, os.environ["AWS_ENDPOINT_URL_S3"] = sys.argv[1:]
os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_DEFAULT_REGION": "us-east-1"}
import boto3, dolmen, pyarrow as pa
assert "/.aws-sam/" in boto3.__file__, boto3.__file__
db = dolmen.open(url)
table = db.create_table("t", pa.schema([("id", pa.int64()), ("kind", pa.string())]), primary_key=["id"])
table.append(pa.table({"id": [1, 2, 3, 4], "kind": ["a", "b", "c", "d"]}))
table.delete(where="kind LIKE 'a%' OR id BETWEEN 4 AND 9")  # parsed by sqlglot
table.delete(keys=[2])
print(table.scan().to_arrow().to_pylist())
"""
    assert run(source, s3_url, s3_endpoint) == "[{'id': 3, 'kind': 'c'}]"


def content(kind: str) -> bytes:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "kind": ["view", "buy"]})
    file = io.BytesIO()
    match kind:
        case "csv" | "tsv":
            pc.write_csv(rows, file, pc.WriteOptions(delimiter="," if kind == "csv" else "\t"))
        case "jsonl":
            file.write("".join(json.dumps(row) + "\n" for row in rows.to_pylist()).encode())
        case "parquet":
            pq.write_table(rows, file)
        case "arrow":
            with pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
        case "avro":
            fields = [{"name": "id", "type": "long"}, {"name": "kind", "type": "string"}]
            schema = {"type": "record", "name": "row", "fields": fields}
            fastavro.writer(file, schema, rows.to_pylist(), codec="deflate")
        case "orc":
            orc.write_table(rows, file)
        case "xlsx":
            rows.to_pandas().to_excel(file, index=False, engine="openpyxl")
    return file.getvalue()


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "arrow", "avro", "orc", "xlsx"])
def test_every_format_is_read_plain_and_compressed(tmp_path: Path, kind: str) -> None:
    plain = content(kind)
    compressed = {"": plain, ".gz": gzip.compress(plain), ".bz2": bz2.compress(plain)}
    compressed[".zst"] = pa.compress(plain, "zstd", asbytes=True)
    names = []
    for ending, body in compressed.items():
        names.append(str(tmp_path / f"rows.{kind}{ending}"))
        Path(names[-1]).write_bytes(body)
    source = """
import sys
import pyarrow as pa
from dolmen.ingest.formats.formats import SourceFile, detect, read
schema = pa.schema([("id", pa.int64()), ("kind", pa.string())])
for name in sys.argv[1:]:
    print(read(SourceFile(lambda: open(name, "rb"), detect(name), name), schema).read_all().to_pylist())
"""
    row = "[{'id': 1, 'kind': 'view'}, {'id': 2, 'kind': 'buy'}]"
    assert run(source, *names).splitlines() == [row] * 4
