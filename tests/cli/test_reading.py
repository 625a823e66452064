"""``dolmen scan`` and ``dolmen sql``: on a terminal, into files, into other commands."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.cli.output import SHOWN_ROWS, ends_of
from dolmen.ingest.formats.export import export_file
from dolmen.ingest.formats.formats import detect

Cli = Callable[..., Any]
ROWS = 5_000


@pytest.fixture
def db(tmp_path: Path) -> dolmen.Database:
    database = dolmen.open(tmp_path / "db")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())])
    table = database.create_table("events", schema, primary_key="id")
    for start in range(0, ROWS, 1_000):
        ids = range(start, start + 1_000)
        table.append({"id": ids, "name": [f"user {i}" for i in ids], "v": [None if i % 2 else i / 8 for i in ids]})
    return database


def environment(tmp_path: Path, columns: int = 100) -> dict[str, str]:
    return os.environ | {"DOLMEN_DATABASE": str(tmp_path / "db"), "COLUMNS": str(columns), "TERM": "dumb"}


def on_terminal(program: str, tmp_path: Path, *arguments: str, columns: int = 100) -> str:
    """What a person sees."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([program, *arguments], stdout=theirs, env=environment(tmp_path, columns)) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # Linux says so when nobody writes any more
                break
            seen += part
        os.close(ours)
        assert process.wait(60) == 0
    return seen.decode().replace("\r\n", "\n")


def first_cells(seen: str) -> list[str]:
    return [line.split("│")[1].strip() for line in seen.splitlines() if line.startswith("│")]


ENDS = [str(i) for i in range(SHOWN_ROWS)] + ["…"] + [str(i) for i in range(ROWS - SHOWN_ROWS, ROWS)]
HUNDREDS = [str(i) for i in range(100, 2100, 100)] + ["…"] + [str(i) for i in range(3000, 5000, 100)]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["scan", "events"], ["sql", "SELECT * FROM events ORDER BY id"]])
@pytest.mark.usefixtures("db")
def test_a_terminal_shows_the_first_and_the_last_rows_and_their_number(
    tmp_path: Path, command: list[str], program: str
) -> None:
    seen = on_terminal(program, tmp_path, *command)
    assert first_cells(seen) == ENDS
    assert "5,000 rows: the first and the last 20" in seen
    assert "NULL" in seen


@pytest.mark.slow
@pytest.mark.usefixtures("db")
@pytest.mark.parametrize(
    ("arguments", "cells", "told"),
    [
        (["--where", "id >= 4990"], [str(i) for i in range(4990, 5000)], "10 rows"),
        (["--where", "id = 7"], ["7"], "1 row"),
        (["--where", "id < 0"], [], "0 rows"),
        (["--limit", "60", "--order-by", "id"], [str(i) for i in range(60)], "60 rows"),
        (["--order-by", "-id", "--columns", "id"], ENDS[::-1], "5,000 rows"),
        (["--where", "name LIKE 'user %00'"], HUNDREDS, "49 rows"),
    ],
)
def test_what_was_asked_for_is_shown(
    tmp_path: Path, arguments: list[str], cells: list[str], told: str, program: str
) -> None:
    seen = on_terminal(program, tmp_path, "scan", "events", *arguments)
    assert first_cells(seen) == cells
    assert told in seen.splitlines()[-1]


def test_the_last_rows_are_read_from_the_last_file_alone(
    cli: Cli, tmp_path: Path, db: dolmen.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 5 files, the first and the last are read; the rows of all are counted from the manifest."""
    paths = [path for path in (tmp_path / "db" / "data").rglob("*.parquet") if path.is_file()]
    files = sorted(paths, key=lambda path: pq.read_table(path, columns=["id"])["id"][0].as_py())
    for path in files[1:4]:
        path.unlink()
    assert "5,000 rows" in cli("scan", "events", "--format", "table").out


def test_a_stream_is_held_in_parts_no_longer_than_what_is_shown() -> None:
    taken = 0

    def batches() -> Any:
        nonlocal taken
        for start in range(0, 200_000, 1_000):
            taken += 1
            yield pa.record_batch({"id": range(start, start + 1_000), "text": ["x" * 1_000] * 1_000})

    before = pa.total_allocated_bytes()
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    ends = ends_of(pa.RecordBatchReader.from_batches(schema, batches()), None)
    assert (ends.rows, taken) == (200_000, 200)
    assert ends.first["id"].to_pylist() == list(range(20))
    assert ends.last["id"].to_pylist() == list(range(199_980, 200_000))
    assert pa.total_allocated_bytes() - before < 4 << 20, "two batches of 200 are held at most"


@pytest.mark.parametrize("rows", [0, 1, 19, 20, 39, 40, 41, 59, 60, 61, 100])
@pytest.mark.parametrize("batch", [1, 7, 40, 1000])
def test_the_ends_of_a_stream_are_all_of_it_up_to_twice_what_is_shown(rows: int, batch: int) -> None:
    table = pa.table({"id": pa.array(range(rows), pa.int64())})
    ends = ends_of(pa.RecordBatchReader.from_batches(table.schema, table.to_batches(batch)), None)
    shown = ends.first["id"].to_pylist(), ends.last["id"].to_pylist()
    everything = list(range(rows))
    assert shown == ((everything, []) if rows <= 40 else (everything[:20], everything[-20:]))
    assert ends.rows == rows


def test_many_columns_are_counted_and_awkward_text_is_harmless(tmp_path: Path, program: str) -> None:
    names = [f"column_{i}" for i in range(60)]
    table = dolmen.open(tmp_path / "db").create_table("wide", pa.schema([(name, pa.string()) for name in names]))
    table.append({name: ["\x1b[31mred\nline" + "x" * 200] for name in names})
    seen = on_terminal(program, tmp_path, "scan", "wide")
    assert max(map(len, seen.splitlines())) <= 100
    assert "columns do not fit here" in seen
    assert "\x1b[31mred" not in seen
    assert len(first_cells(seen)) == 1


def test_times_that_python_has_no_words_for_are_shown(cli: Cli, tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("day", pa.date32())])
    table = dolmen.open(tmp_path / "db").create_table("times", schema)
    table.append(
        pa.table({"at": pa.array([2**62], schema.types[0]), "day": pa.array([2**31 - 1], pa.int32()).cast("date32")})
    )
    assert cli("scan", "times", "--format", "table").code == 0
    refused = cli("scan", "times", "--format", "csv")
    assert (refused.code, "arrow" in refused.err.replace("\n", " ")) == (2, True)


@pytest.mark.slow
@pytest.mark.usefixtures("db")
@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet", "rows.arrow", "rows.csv.gz"])
@pytest.mark.parametrize("command", ["scan", "sql"])
def test_both_commands_write_files_that_append_reads(cli: Cli, tmp_path: Path, command: str, name: str) -> None:
    file = tmp_path / name
    query = ["events"] if command == "scan" else ["SELECT * FROM events"]
    written = cli(command, *query, "-o", file)
    assert (written.code, written.out, written.err) == (0, "", "5,000 rows\n")
    assert cli("append", "events", file).code == 0
    twice = cli("sql", "SELECT count(*) n, count(v) v, sum(id)::BIGINT ids FROM events", "--json").lines()
    assert twice == [{"n": 2 * ROWS, "v": ROWS, "ids": ROWS * (ROWS - 1)}]


@pytest.mark.usefixtures("db")
def test_machines_are_told_what_was_written(cli: Cli, tmp_path: Path) -> None:
    told = cli("sql", "SELECT 1 AS one", "-o", tmp_path / "x.csv", "--json").lines()
    assert told == [{"rows": 1, "output": str(tmp_path / "x.csv")}]
    assert (tmp_path / "x.csv").read_text() == "one\n1\n"


@pytest.mark.usefixtures("db")
@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["-o", "x.avro"], "Avro"),
        (["-o", "x.pdf"], "format"),
        (["-o", "x.xlsx"], "not written"),
        (["-o", "x.csv", "--format", "table"], "--format table"),
        (["-o", "s3://bucket/x.csv"], "local file"),
        (["-o", "."], "."),
        (["-o", "absent/x.csv"], "no directory"),
        (["--format", "xml"], "table, csv"),
    ],
)
def test_a_wrong_output_is_refused_and_nothing_is_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], phrase: str
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for command in (["scan", "events"], ["sql", "SELECT 1 AS one"]):
        outcome = cli(*command, *arguments)
        assert (outcome.code, phrase in outcome.err.replace("\n", " ")) == (2, True), outcome
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("db")
def test_a_pipe_gets_csv_and_other_formats_on_request(tmp_path: Path, program: str) -> None:
    def piped(*arguments: str) -> bytes:
        return subprocess.run(
            [program, "scan", "events", "--where", "id < 2", *arguments],
            env=environment(tmp_path),
            capture_output=True,
            check=True,
        ).stdout

    assert piped() == b'id,name,v\n0,"user 0",0\n1,"user 1",\n'
    assert piped("--format", "json") == b'{"id":0,"name":"user 0","v":0}\n{"id":1,"name":"user 1","v":null}\n'
    assert pa.ipc.open_stream(piped("--format", "arrow")).read_all()["id"].to_pylist() == [0, 1]
    assert pq.read_table(pa.BufferReader(piped("--format", "parquet")))["id"].to_pylist() == [0, 1]
    assert piped("--format", "table").count(b"user") == 2


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["scan events", "scan events --format table --limit 1000", "history --json"])
def test_a_reader_that_has_seen_enough_ends_the_command_quietly(
    tmp_path: Path, db: dolmen.Database, arguments: str
) -> None:
    ids = range(ROWS, 100_000)  # with the others, many times what fits into a pipe
    db.table("events").append({"id": ids, "name": ["user"] * len(ids), "v": [0.5] * len(ids)})
    command = f"{sys.executable} -c 'from dolmen.cli import main; main()' {arguments} | head -c 20 > /dev/null"
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in ("141", "0"), "0 where all fits into the pipe"
    if arguments == "scan events":
        assert done.stdout.strip() == "141"


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    table = pa.table({"id": [1]})
    assert export_file(table.to_reader(), Path("/dev/null"), detect("x.csv")) == 1
    assert Path("/dev/null").is_char_device()
    (tmp_path / "real.csv").write_text("")
    (tmp_path / "link.csv").symlink_to("real.csv")
    export_file(table.to_reader(), tmp_path / "link.csv", detect("x.csv"))
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "id\n1\n"


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version").out == f"dolmen {version('dolmen')}\n"


@pytest.mark.usefixtures("db")
def test_a_plan_is_shown_as_it_is_laid_out(cli: Cli) -> None:
    shown = cli("sql", "EXPLAIN SELECT id FROM events WHERE id > 3")
    assert (shown.code, shown.err) == (0, "")
    assert len(shown.out.splitlines()) > 5
    assert "explain_key" not in shown.out
    assert cli("sql", "EXPLAIN SELECT id FROM events", "--format", "csv").out.startswith("explain_key,explain_value\n")


def test_get_reads_the_row_with_a_key(cli: Cli, db: dolmen.Database) -> None:
    assert cli("get", "events", "17", "--columns", "id,name", "--format", "csv").out.splitlines() == [
        "id,name",
        '17,"user 17"',
    ]
    db.table("events").set(index=True)
    db.maintain()
    assert '"user 17"' in cli("get", "events", "17", "--format", "csv").out
    assert "entries" in cli("show", "events").out
    assert "5,000 entries for 5,000 rows" in cli("stats").out
    assert "each column" in cli("get", "events", "17", "18").err
    assert "does not fit" in cli("get", "events", "x").err
    db.table("events").append([{"id": 5_000, "name": "new"}])
    assert "5,000 entries for 5,001 rows of 1 table, 1 to come" in cli("stats").out
    assert json.loads(cli("show", "events", "--json").out)["index"]["lag_rows"] == 1


@pytest.mark.usefixtures("db")
def test_get_of_a_key_that_no_row_has_prints_nothing_but_the_reason(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "row.csv"
    for form in ((), ("--json",), ("--format", "csv"), ("--output", str(file))):
        told = cli("get", "events", "5000", *form)
        assert told.code == 3
        reason, other = (told.out, told.err) if "--json" in form else (told.err, told.out)
        assert ("5000" in reason, other) == (True, "")
    assert not file.exists()
