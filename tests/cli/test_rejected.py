"""``dolmen rejected``: what could not be ingested, why, and back into the landing place with it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from dolmen.ingest.batch import MAX_TABLE_TRIES
from dolmen.store import open_store
from dolmen.store.local_store import LocalStore
from support.functions import World

Cli = Callable[..., Any]
HEAD = "id,user_id,kind\n"


@pytest.fixture
def cli(cli: Cli, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command; what the function has logged by then is no part of its output."""

    def run(*arguments: object) -> Any:
        capsys.readouterr()
        return cli(*arguments)

    return run


@pytest.fixture
def world(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The ingest function over a directory, and the command beside it."""
    bucket = tmp_path / "bucket"
    for name in ("DOLMEN_LANDING_PREFIX", "DOLMEN_REJECTED_URL", "DOLMEN_AUTO_CREATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOLMEN_LANDING_URL", bucket.as_uri())
    world = World(LocalStore(bucket), str(tmp_path / "db"))
    world.create()
    yield world
    world.close()


def keys(cli: Cli, *options: object) -> list[str]:
    return [one["key"] for one in cli("rejected", "ls", *options, "--json").lines()]


def deliver(world: World, url: str) -> None:
    """Tells the function of a file that was put into the landing place."""
    path = url.removeprefix(f"{world.landing.url}/landing/")
    body = world.landing.get(f"landing/{path}").body
    assert world.ingest(world.drop(path, body)) == []


def test_rejects_are_listed_newest_first_with_place_and_reason(world: World, cli: Cli) -> None:
    world.create("users", pa.schema([("id", pa.int64())]))
    for path, body in (("events/a.csv", f"{HEAD}x,1,x\n"), ("users/b.jsonl", "{\n"), ("events/c.pdf", "PK")):
        world.ingest(world.drop(path, body))
    listed = cli("rejected", "ls")
    assert listed.code == 0
    assert "line 2, column id" in listed.out
    assert "format" in listed.out
    assert "3 in file://" in listed.out
    assert [key.split("-")[0] for key in keys(cli)] == ["events/c", "users/b", "events/a"]
    assert [key.split("-")[0] for key in keys(cli, "users")] == ["users/b"]
    assert [key.split("-")[0] for key in keys(cli, "--limit", 1)] == ["events/c"]
    assert "--limit" in cli("rejected", "ls", "--limit", 1).out
    assert keys(cli, "--rejected", world.landing.url + "/nothing") == []


def test_a_reject_is_shown_with_its_report_and_its_first_lines(world: World, cli: Cli) -> None:
    body = gzip.compress(f"{HEAD}x,1,[bold]\n".encode() + b"2,2,x\n" * 50)
    world.ingest(world.drop("events/a.csv.gz", body))
    [key] = keys(cli)
    digest = key.removesuffix(".csv.gz")[-8:]
    for name in (key, f"{key}.error.json", f"{world.landing.url}/rejected/{key}", digest):
        shown = cli("rejected", "show", name, "--lines", 2)
        assert shown.code == 0
        assert "s3://drops/landing/events/a.csv.gz" in shown.out
        assert "x,1,[bold]" in shown.out
        assert "2,2,x" not in shown.out
    facts = json.loads(cli("rejected", "show", digest, "--json").out)
    assert facts["report"]["line"] == 2
    assert facts["head"][:2] == ["id,user_id,kind", "x,1,[bold]"]
    assert len(facts["head"]) == 10


def test_control_characters_of_a_file_do_not_reach_the_terminal(world: World, cli: Cli) -> None:
    world.database.table("events").set(ingest_on_bad_row="quarantine")
    world.ingest(world.drop("events/a.tsv", "id\tkind\nx\t\x1b[2Jgone\n"))
    world.ingest(world.drop("events/b.jsonl.", '{"id": "\x1b[2J"}\n'))
    for key in keys(cli):
        assert "\x1b" not in cli("rejected", "show", key).out


def test_a_reject_that_is_not_there_is_said_to_be(world: World, cli: Cli) -> None:
    for name in ("events/a-12345678.csv", "12345678"):
        outcome = cli("rejected", "show", name)
        assert outcome.code == 3
        assert "12345678" in outcome.err
    assert cli("rejected", "retry", "12345678").code == 3


@pytest.mark.parametrize("dropped", ["events/2026/a b.csv.gz", "events/x-12345678.csv", "events/no_ending"])
def test_a_reject_is_found_by_every_name_that_logs_print(world: World, cli: Cli, dropped: str) -> None:
    world.ingest(world.drop(dropped, b"nothing"), world.drop("events/other.csv", "id\nx\n"))
    key = next(each for each in keys(cli) if "other" not in each)
    rejected, landing = f"{world.landing.url}/rejected", f"{world.landing.url}/landing"
    names = [key, f"{rejected}/{key}", f"{rejected}/{key}.error.json", f"rejected/{key}", f"s3://elsewhere/{key}"]
    names += [dropped, f"landing/{dropped}", f"{landing}/{dropped}", f"{landing}/{quote(dropped)}"]
    for name in names:
        shown = cli("rejected", "show", name, "--json")
        assert (shown.code, json.loads(shown.out).get("key", shown.out)) == (0, key), name
    assert cli("rejected", "show", dropped[1:]).code == 3


def test_a_name_of_several_rejects_is_not_guessed(world: World, cli: Cli) -> None:
    world.ingest(world.drop("events/a.csv", f"{HEAD}x,1,x\n"))
    world.ingest(world.drop("events/a.csv", f"{HEAD}y,1,x\n"))
    first, second = sorted(keys(cli))
    outcome = cli("rejected", "show", "events/a.csv")
    assert outcome.code == 2
    assert first in outcome.err
    assert second in outcome.err


def test_the_copy_of_a_damaged_file_is_shown_as_far_as_it_goes(world: World, cli: Cli) -> None:
    world.ingest(world.drop("events/a.csv.gz", b"no gzip"), world.drop("events/b.parquet", b"no parquet"))
    for key in keys(cli):
        shown = cli("rejected", "show", key)
        assert shown.code == 0
        assert "events/" in shown.out


def test_a_file_that_is_put_back_is_ingested_once_its_table_is_there(world: World, cli: Cli) -> None:
    world.ingest(world.drop("later/2026/a.csv", "id\n1\n"), tries=MAX_TABLE_TRIES)
    [key] = keys(cli)
    world.create("later", pa.schema([("id", pa.int64())]))
    done = json.loads(cli("rejected", "retry", key, "--json").out)
    assert done["as"] == f"{world.landing.url}/landing/{key.removesuffix('.csv')}-retry-1-of-unknown.csv"
    deliver(world, done["as"])
    assert world.ids("later") == [1]
    assert keys(cli) == []
    assert keys(cli, "--all") == [key]
    assert "put back" in cli("rejected", "ls", "--all").out
    assert done["as"] in cli("rejected", "show", key).out


def test_putting_back_twice_takes_force_and_another_name(world: World, cli: Cli) -> None:
    world.ingest(world.drop("events/a.csv", f"{HEAD}x,1,x\n"))
    [key] = keys(cli)
    assert cli("rejected", "retry", key).code == 0
    again = cli("rejected", "retry", key)
    assert again.code == 2
    assert "--force" in again.err
    assert cli("rejected", "retry", key, "--force").code == 0
    dropped = [info.key for info in world.landing.list("landing/") if "retry" in info.key]
    assert [name.partition("-retry-")[2] for name in dropped] == ["1-of-unknown.csv", "2-of-unknown.csv"]
    assert len(json.loads(world.landing.get(f"rejected/{key}.retried.json").body)) == 2


@pytest.mark.parametrize("body", [b'[{"at": ', b"7", b"[[]]", b"\xff"])
def test_what_was_noted_of_a_retry_and_is_damaged_is_named(world: World, cli: Cli, body: bytes) -> None:
    world.ingest(world.drop("events/a.csv", f"{HEAD}x,1,x\n"))
    [key] = keys(cli)
    world.landing.put(f"rejected/{key}.retried.json", body)
    for command in (("show",), ("retry", "--force")):
        outcome = cli("rejected", *command, key)
        assert outcome.code == 7
        assert f"{key}.retried.json" in outcome.err
    assert not [info.key for info in world.landing.list("landing/") if "retry" in info.key]


def test_a_retry_that_died_before_it_was_noted_makes_no_second_file(world: World, cli: Cli) -> None:
    world.ingest(world.drop("events/a.csv", f"{HEAD}x,1,x\n"))
    world.database.table("events").set(ingest_on_bad_row="quarantine")
    world.ingest(world.drop("events/b.csv", f"{HEAD}x,1,x\n1,1,x\n"))
    for key in keys(cli):
        first = json.loads(cli("rejected", "retry", key, "--json").out)
        world.landing.delete([f"rejected/{key}.retried.json"])
        assert json.loads(cli("rejected", "retry", key, "--json").out) == first
    assert sum("retry" in info.key for info in world.landing.list("landing/")) == 2


@pytest.mark.parametrize(
    ("name", "head", "bad"),
    [("a.csv.gz", HEAD, "two,2,x"), ("a.tsv", "id\tkind\n", "two\tx"), ("a.jsonl", "", '{"id": "two"}')],
)
def test_rows_that_are_put_back_are_a_file_of_their_own_under_their_header(
    world: World, cli: Cli, name: str, head: str, bad: str
) -> None:
    """The table's column becomes text, which is what the rows were written for."""
    world.database.table("events").set(ingest_on_bad_row="quarantine")
    good = bad.replace('"two"', "1").replace("two", "1")
    body = f"{head}{good}\n{bad}\n".encode()
    world.ingest(world.drop(f"events/{name}", gzip.compress(body) if name.endswith(".gz") else body))
    assert world.ids() == [1]
    [key] = keys(cli)
    assert bad in cli("rejected", "show", key).out
    assert "(1 row of a file)" in cli("rejected", "ls").out
    world.database.drop_table("events")
    world.create(schema=pa.schema([("id", pa.string()), ("user_id", pa.int64()), ("kind", pa.string())]))
    done = json.loads(cli("rejected", "retry", "--table", "events", "--json").out)
    assert (done["rows"], done["left"]) == (1, 0)
    deliver(world, done["as"])
    assert world.ids() == ["two"]


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16be", "windows-1252"])
def test_rows_are_put_back_in_the_dialect_of_their_file(world: World, cli: Cli, encoding: str, header: bool) -> None:
    settings = {"delimiter": ";", "quote": "'", "escape": "\\", "comment": "#", "skip_lines": 2, "ragged": "fill"}
    settings |= {"trim": True}
    told = {f"ingest_{name}": value for name, value in {**settings, "encoding": encoding, "header": header}.items()}
    world.database.table("events").set(ingest_on_bad_row="quarantine", **told)
    lines = ["A report", "of May", *["#", "id;user_id;kind"] * header]
    lines += ["1;1;x", "two ; 2;  'it\\'s;\n#ä' ", "three;3;a\\;b", "4;4;'x'y", "5;x\\"]
    codec = {"utf-16": "utf-16", "utf-16be": "utf-16-be", "windows-1252": "cp1252"}[encoding]
    world.ingest(world.drop("events/a.csv", "\r\n".join(lines).encode(codec)))
    assert world.ids() == [1]
    world.database.drop_table("events")
    world.create(schema=pa.schema([("id", pa.string()), ("user_id", pa.string()), ("kind", pa.string())]))
    world.database.table("events").set(ingest_on_bad_row="quarantine", **told)
    done = json.loads(cli("rejected", "retry", "--table", "events", "--json").out)
    assert (done["rows"], done["left"]) == (3, 1), "an escape at the end would swallow the row after it"
    deliver(world, done["as"])
    rows = [(row["id"], row["user_id"], row["kind"]) for row in world.rows()]
    assert sorted(rows) == [("three", "3", "a;b"), ("two", "2", "it's;\n#ä")]
    assert "text follows a closing quote" in cli("rejected", "ls").out


@pytest.mark.parametrize("path", ["Records", "detail.items", "$.values"])
def test_rows_of_json_are_put_back_where_the_path_leads(world: World, cli: Cli, path: str) -> None:
    world.database.table("events").set(ingest_on_bad_row="quarantine", ingest_json_rows=path)
    body = '[{"id": 1}, {"id": "two", "kind": "]}"}, 3]'
    for name in reversed(path.removeprefix("$.").split(".")):
        body = f'{{"{name}": {body}}}'
    world.ingest(world.drop("events/a.json", body))
    assert world.ids() == [1]
    world.database.drop_table("events")
    world.create(schema=pa.schema([("id", pa.string()), ("user_id", pa.int64()), ("kind", pa.string())]))
    world.database.table("events").set(ingest_on_bad_row="quarantine", ingest_json_rows=path)
    done = json.loads(cli("rejected", "retry", "--table", "events", "--json").out)
    assert (done["rows"], done["left"]) == (2, 0)
    deliver(world, done["as"])
    assert [(row["id"], row["kind"]) for row in world.rows()] == [("two", "]}")], "3 is no object"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "cp1252"])
def test_a_file_in_another_encoding_is_shown_as_text(world: World, cli: Cli, encoding: str) -> None:
    world.ingest(world.drop("events/a.csv", "id,user_id,kind\nx,1,Käse\n".encode(encoding)))
    (key,) = keys(cli)
    assert cli("rejected", "show", key, "--json").lines()[0]["head"] == ["id,user_id,kind", "x,1,Käse"]


def test_a_row_with_an_open_quote_would_swallow_others_and_is_left(world: World, cli: Cli) -> None:
    world.database.table("events").set(ingest_on_bad_row="quarantine")
    key = "events/a-12345678.rows.jsonl"
    report = {
        "file": "events/a.csv",
        "format": "csv",
        "header": {"text": "id,user_id,kind"},
        "landing": f"{world.landing.url}/landing",
    }
    texts = ['1,1,"open', "2,2,x", None, '3,3,"a ""b"""']
    world.landing.put(f"rejected/{key}", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    world.landing.put(f"rejected/{key}.error.json", json.dumps(report).encode())
    done = json.loads(cli("rejected", "retry", "12345678", "--json").out)
    assert (done["rows"], done["left"]) == (2, 2)
    deliver(world, done["as"])
    assert [(row["id"], row["kind"]) for row in world.rows()] == [(2, "x"), (3, 'a "b"')]


def test_a_file_that_was_dropped_for_no_table_needs_one(world: World, cli: Cli) -> None:
    world.ingest(world.drop("loose.csv", f"{HEAD}1,1,x\n"))
    [key] = keys(cli)
    refused = cli("rejected", "retry", key)
    assert refused.code == 2
    assert "--to-table" in refused.err
    done = json.loads(cli("rejected", "retry", key, "--to-table", "events", "--json").out)
    deliver(world, done["as"])
    assert world.ids() == [1]


def test_it_works_on_a_bucket(s3_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3_url.removeprefix("s3://").partition("/")[0]
    for name in ("DOLMEN_LANDING_URL", "DOLMEN_LANDING_PREFIX", "DOLMEN_REJECTED_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOLMEN_DATABASE", s3_url)
    world = World(open_store(f"s3://{bucket}"), s3_url, bucket)
    world.create()
    world.database.table("events").set(ingest_on_bad_row="quarantine", ingest_max_bad_rows=1)
    for name, body in (("a", f"{HEAD}x,1,x\n1,1,x\n"), ("b", f"{HEAD}x,1,x\ny,1,x\n")):
        assert world.ingest(world.drop(f"events/{name}.csv", body)) == []
    place = ("--rejected", f"s3://{bucket}/rejected")
    [whole] = [key for key in keys(cli, *place) if key.endswith(".csv")]
    [rows] = [key for key in keys(cli, *place) if key.endswith(".rows.jsonl")]
    for key, body in ((whole, f"{HEAD}x,1,x\ny,1,x\n"), (rows, f"{HEAD}x,1,x\n")):
        done = json.loads(cli("rejected", "retry", key, *place, "--json").out)
        assert done["as"].startswith(f"s3://{bucket}/landing/events/")
        assert world.landing.get(done["as"].removeprefix(f"s3://{bucket}/")).body == body.encode()
    assert keys(cli, *place) == []
    world.close()


def test_without_a_place_it_asks_for_one(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOLMEN_LANDING_URL", "DOLMEN_REJECTED_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    outcome = cli("rejected", "ls")
    assert outcome.code == 2
    assert "--rejected" in outcome.err
    (tmp_path / ".local" / "rejected").mkdir(parents=True)
    assert cli("rejected", "ls").code == 0


def test_a_file_too_large_to_be_copied_is_listed_shown_and_put_back_from_where_it_lies(
    world: World, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", "20")
    world.ingest(world.drop("events/large.csv", f"{HEAD}1,2,three\n"))
    listed = cli("rejected", "ls")
    assert "26 bytes" in listed.out
    [found] = [json.loads(line) for line in cli("rejected", "ls", "--json").out.splitlines()]
    assert (found["size"], found["report"]["copy"]) == (None, None)
    shown = cli("rejected", "show", found["key"])
    assert "1,2,three" in shown.out
    put_back = cli("rejected", "retry", found["key"], "--json")
    again = json.loads(put_back.out)["as"].rpartition("/landing/")[2]
    assert world.landing.get(f"landing/{again}").body == f"{HEAD}1,2,three\n".encode()
    world.drop("events/large.csv", f"{HEAD}1,2,other\n")
    assert "was overwritten" in cli("rejected", "show", found["key"]).out
    done = cli("rejected", "retry", found["key"], "--force")
    assert (done.code, "was overwritten" in done.err) == (4, True)
