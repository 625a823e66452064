"""Rows from standard input and from S3; tables that are created with their first rows, and dropped."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from support.ministack import boto3_client, endpoint_environment

Cli = Callable[..., Any]
CSV = b"id,name\n1,Ada\n2,\n"


def piped(program: str, tmp_path: Path, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"DOLMEN_DATABASE": str(tmp_path / "db")}
    return subprocess.run([program, *arguments], input=data, env=environment, capture_output=True, check=False)


def in_format(form: str) -> bytes:
    table, sink = pa.table({"id": [1, 2], "name": ["Ada", None]}), io.BytesIO()
    if form == "parquet":
        pq.write_table(table, sink)
        return sink.getvalue()
    if form == "arrow":
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()
    return CSV if form == "csv" else b'{"id": 1, "name": "Ada"}\n{"id": 2}\n'


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "parquet", "arrow"])
def test_rows_come_from_standard_input(tmp_path: Path, form: str, program: str) -> None:
    for create in (["--create"], []):
        done = piped(program, tmp_path, in_format(form), "append", "users", "-", "--format", form, *create)
        assert (done.returncode, done.stderr) == (0, b"")
    rows = dolmen.open(tmp_path / "db").table("users").scan().to_arrow().to_pylist()
    assert rows == [{"id": 1, "name": "Ada"}, {"id": 2, "name": None}] * 2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet", "arrow"])
def test_a_column_that_a_file_lacks_has_its_default(tmp_path: Path, form: str, program: str) -> None:
    table = dolmen.open(tmp_path / "db").create_table("users", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    table.add_column("source", pa.string(), "import", nullable=False)
    done = piped(program, tmp_path, in_format(form), "append", "users", "-", "--format", form)
    assert (done.returncode, done.stderr) == (0, b"")
    assert table.scan(["source"]).to_arrow()["source"].to_pylist() == ["import", "import"]


@pytest.mark.slow
def test_keys_and_columns_come_from_standard_input_too(tmp_path: Path, program: str) -> None:
    for data, *arguments in (
        (CSV, "create", "users", "--like", "-", "--primary-key", "id"),
        (CSV, "append", "users", "-"),
        (b"id\n1\n", "delete", "users", "--keys-file", "-"),
    ):
        assert piped(program, tmp_path, data, *arguments, "--format", "csv").returncode == 0
    assert dolmen.open(tmp_path / "db").table("users").scan().to_arrow()["id"].to_pylist() == [2]


@pytest.mark.slow
def test_a_fault_in_standard_input_is_named_so(tmp_path: Path, program: str) -> None:
    assert piped(program, tmp_path, CSV, "append", "users", "-", "--format", "csv", "--create").returncode == 0
    done = piped(program, tmp_path, b"id,name\n3,x\nfour,y\n", "append", "users", "-", "--format", "csv")
    assert done.returncode == 2
    assert b"'standard input', line 3, row 2, column 'id'" in b" ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["-"], "give --format csv"),
        (["-", "-", "--format", "csv"], "only once"),
        (["x.csv", "--format", "xml"], "csv, tsv, jsonl"),
        (["https://example.com/x.csv"], "s3://bucket/key"),
        (["s3://bucket"], "object"),
        (["s3://bucket/folder/"], "object"),
        (["."], "is a directory"),
    ],
)
def test_what_is_no_input_is_refused(cli: Cli, arguments: list[str], phrase: str) -> None:
    cli("create", "users", "--columns", "id BIGINT")
    outcome = cli("append", "users", *arguments)
    assert (outcome.code, phrase in outcome.err.replace("\n", " ")) == (2, True), outcome


def test_keys_in_a_file_are_of_the_types_of_the_table(cli: Cli, tmp_path: Path) -> None:
    cli("create", "codes", "--columns", "code VARCHAR NOT NULL", "--primary-key", "code")
    (tmp_path / "codes.csv").write_text("code\n7\n007\n12\n")
    (tmp_path / "keys.csv").write_text("code\n7\n12\n")
    cli("append", "codes", tmp_path / "codes.csv")
    assert cli("delete", "codes", "--keys-file", tmp_path / "keys.csv").code == 0
    assert [row["code"] for row in cli("scan", "codes", "--json").lines()] == ["007"]


def test_a_table_is_created_in_the_commit_of_its_first_rows_or_not_at_all(cli: Cli, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_bytes(CSV)
    bad.write_text("id,name\nthree,x\n")
    assert cli("append", "users", good, bad, "--create").code == 2
    assert cli("tables").code == 3, "there is no database yet"
    assert cli("append", "users", good, "--create").code == 0
    assert [one["version"] for one in cli("history", "--json").lines()] == [1]


@pytest.mark.slow
def test_rows_come_from_s3(ministack: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in endpoint_environment(ministack).items():
        monkeypatch.setenv(name, value)
    s3 = boto3_client("s3", ministack)
    s3.create_bucket(Bucket="cli-inputs")
    s3.put_object(Bucket="cli-inputs", Key="a folder/users é.csv", Body=CSV)
    s3.put_object(Bucket="cli-inputs", Key="users.parquet", Body=in_format("parquet"))
    urls = "s3://cli-inputs/a folder/users é.csv", "s3://cli-inputs/users.parquet"
    assert cli("append", "users", *urls, "--create").code == 0
    assert json.loads(cli("scan", "users", "--count", "--json").out) == {"rows": 4}
    absent = cli("append", "users", "s3://cli-inputs/absent.csv")
    assert (absent.code, "s3://cli-inputs/absent.csv" in absent.err.replace("\n", "")) == (3, True)


def test_a_table_is_dropped_only_by_who_says_so(cli: Cli, tmp_path: Path, program: str) -> None:
    cli("create", "users", "--columns", "id BIGINT")
    asked = piped(program, tmp_path, b"", "drop", "users")
    assert (asked.returncode, b"give --yes" in asked.stderr) == (2, True)
    assert cli("drop", "absent", "--yes").code == 3
    assert cli("drop", "users", "--yes", "--request-id", "r-1").code == 0
    assert cli("drop", "users", "--request-id", "r-1", "--json").lines()[0]["already"] == {"r-1": 2}
    assert cli("tables", "--json").lines() == [[]]
    assert cli("scan", "users", "--version", 1, "--count").out.strip() == "0"


def test_a_delimiter_is_what_the_command_says(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id;name\n1;a,b\n")
    refused = cli("append", "users", tmp_path / "rows.csv", "--create", "--delimiter", ";;")
    assert (refused.code, "delimiter" in refused.err) == (2, True)
    assert cli("append", "users", tmp_path / "rows.csv", "--create", "--delimiter", ";").code == 0
    assert cli("scan", "users", "--json").lines() == [{"id": 1, "name": "a,b"}]


def test_keys_are_of_a_key_that_the_table_has(cli: Cli) -> None:
    cli("create", "users", "--columns", "id BIGINT, name VARCHAR")
    for arguments, phrase in ((["--keys", "1"], "no primary key"), (["--keys", "1", "--on", "nope"], "nope")):
        outcome = cli("delete", "users", *arguments)
        assert (outcome.code, phrase in outcome.err.replace("\n", " ")) == (2, True), outcome
    assert cli("delete", "users", "--keys", "1, 2", "--on", "id").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_ctrl_c_ends_a_command_that_waits_for_standard_input(tmp_path: Path, form: str) -> None:
    dolmen.open(tmp_path / "db").create_table("users", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    told = "import dolmen.cli.inputs as i; real = i._input\n"
    told += "def said(*a, **k):\n    print('reading', flush=True)\n    return real(*a, **k)\ni._input = said\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{told}from dolmen.cli import main; main()", "append", "users", "-", "--format", form],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"DOLMEN_DATABASE": str(tmp_path / "db")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"id,name\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert dolmen.open(tmp_path / "db").table("users").count() == 0
