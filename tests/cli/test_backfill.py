"""``dolmen backfill``: what is there already is announced, or ingested here, and each file only once."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dolmen
from dolmen.base.records import replace
from dolmen.base.runtime import shared_runtime
from dolmen.errors import AccessDeniedError, StoreUnavailableError
from dolmen.ingest.announcements import DIRECTORY_BUCKET, Drop, read_drops
from dolmen.ingest.drops import announce_files
from dolmen.ingest.drops.announce_files import MAX_MESSAGE_BYTES, DropSource, announce
from dolmen.ingest.drops.ingest_drops import ingest_drops
from dolmen.ingest.landing import Landing
from dolmen.ingest.queues import DirectoryQueue
from support.local_once import local_once
from support.ministack import boto3_client, endpoint_environment
from support.proxy import Proxy

Cli = Callable[..., Any]
HEADER = "id,name\n"
ODD = "landing/events/Grüße & more, 100%+ (1).csv"

_names = itertools.count()


@cache
def client(service: str, endpoint: str) -> Any:
    return boto3_client(service, endpoint)


@pytest.fixture
def bucket(ministack: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in endpoint_environment(ministack).items():
        monkeypatch.setenv(name, value)
    name = f"backfill-{next(_names)}"
    client("s3", ministack).create_bucket(Bucket=name)
    return name


@pytest.fixture
def put(ministack: str, bucket: str) -> Callable[..., None]:
    def put(key: str, row: int = 0) -> None:
        client("s3", ministack).put_object(Bucket=bucket, Key=key, Body=f"{HEADER}{row},x\n".encode() if row else b"")

    return put


@pytest.fixture
def queue(ministack: str, bucket: str) -> str:
    made = client("sqs", ministack).create_queue(QueueName=f"{bucket}-queue")
    return str(made["QueueUrl"])


def taken(endpoint: str, url: str) -> list[str]:
    """All messages of a queue, taken off it."""
    sqs, bodies = client("sqs", endpoint), []
    while found := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        bodies += [message["Body"] for message in found]
        for message in found:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return bodies


def announced(bodies: list[str]) -> list[Drop]:
    found: list[Drop] = []
    for body in bodies:
        drops, error = read_drops(body)
        assert error is None
        found += drops
    return sorted(found, key=lambda drop: drop.key)


@pytest.mark.slow
@pytest.mark.parametrize("versioned", [False, True])
def test_a_bucket_is_announced_by_the_ids_that_its_own_events_have(
    cli: Cli, ministack: str, bucket: str, put: Callable[..., None], queue: str, versioned: bool
) -> None:
    """Its own events: the server sends them to another queue, for the same objects."""
    s3, sqs = client("s3", ministack), client("sqs", ministack)
    put("landing/events/before.csv", 9)  # in a bucket that keeps versions this one has none all the same
    if versioned:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    live = sqs.create_queue(QueueName=f"{bucket}-live")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=live, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=events)
    keys = [ODD, "landing/events/2024/a.csv", "landing/users/b.csv"]
    for row, key in enumerate(keys, 1):
        put(key, row)
    newest = {drop.key: drop for drop in announced(taken(ministack, live))}
    put(keys[1], 7)
    newest |= {drop.key: drop for drop in announced(taken(ministack, live))}
    put("landing/events/deleted.csv", 4)
    s3.delete_object(Bucket=bucket, Key="landing/events/deleted.csv")
    for key in ("landing/", "landing/events/", "landing/events/_tmp/c.csv", "landing/events/.d.csv", "landing/e.csv"):
        put(key)
    put("elsewhere/events/f.csv", 5)
    put("rejected/events/g.csv", 6)

    told = json.loads(cli("backfill", f"s3://{bucket}/landing", "--queue", queue, "--json").out)
    assert (told["files"], told["skipped"], told["position"]) == (4, 5, "landing/users/b.csv")
    assert told["tables"] == {"events": {"files": 3, "bytes": 36}, "users": {"files": 1, "bytes": 12}}
    drops = {drop.key: drop for drop in announced(taken(ministack, queue))}
    assert sorted(drops) == sorted(["landing/events/before.csv", *keys])
    assert {key: drop.id for key, drop in drops.items() if key in newest} == {k: d.id for k, d in newest.items()}
    assert {key: drop.size for key, drop in drops.items() if key in newest} == {k: d.size for k, d in newest.items()}
    assert all((drop.version is not None) is versioned for key, drop in drops.items() if key in newest)
    assert drops["landing/events/before.csv"].version is None


def test_backfilled_repeated_and_live_events_ingest_each_file_once(
    cli: Cli, ministack: str, bucket: str, put: Callable[..., None], queue: str
) -> None:
    for row in range(1, 6):
        put(f"landing/events/{row}.csv", row)
    db = dolmen.open(f"s3://{bucket}/database")
    landing = Landing(db.url, runtime=shared_runtime())
    statuses = []
    for _ in range(2):
        assert cli("backfill", f"s3://{bucket}", "--queue", queue, "-d", db.url).code == 0
        drops = announced(taken(ministack, queue))
        statuses.append({outcome.status for outcome in ingest_drops(db, landing, drops, auto_create=True).outcomes})
    assert statuses == [{"ingested"}, {"duplicate"}]
    done = cli("backfill", f"s3://{bucket}/landing", "--here", "-d", db.url, "--json")
    assert (done.code, json.loads(done.out)["duplicate"]) == (0, 5), "nor does a backfill without a queue"
    assert sorted(db.table("events").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_tables_folders_and_prefixes_narrow_what_is_announced(
    cli: Cli, ministack: str, bucket: str, put: Callable[..., None], queue: str
) -> None:
    for key in ("a/1.csv", "a/2/1.csv", "a/2/2.csv", "a_b/1.csv", "ab/1.csv", "b/2.csv"):
        put(f"landing/{key}", 1)

    def found(url: str, *options: str) -> list[str]:
        assert cli("backfill", f"s3://{bucket}{url}", "--queue", queue, *options).code == 0
        return [drop.key.removeprefix("landing/") for drop in announced(taken(ministack, queue))]

    assert len(found("")) == len(found("/")) == len(found("/landing/")) == 6
    assert found("/landing/a") == ["a/1.csv", "a/2/1.csv", "a/2/2.csv"]
    assert found("/landing/a*") == ["a/1.csv", "a/2/1.csv", "a/2/2.csv", "a_b/1.csv", "ab/1.csv"]
    assert found("/landing/a/2") == ["a/2/1.csv", "a/2/2.csv"]
    assert found("", "--table", "b", "--table", "a_b") == ["a_b/1.csv", "b/2.csv"]
    assert found("/landing/a/2", "--table", "a") == ["a/2/1.csv", "a/2/2.csv"]
    assert found("/landing/a/2", "--table", "b") == []
    assert found("/landing", "--start-after", "landing/a/2/1.csv") == ["a/2/2.csv", "a_b/1.csv", "ab/1.csv", "b/2.csv"]
    dry = cli("backfill", f"s3://{bucket}/landing", "--dry-run")
    assert (dry.code, "6 files" in dry.out) == (0, True)
    assert taken(ministack, queue) == []
    refused = cli("backfill", f"s3://{bucket}/elsewhere", "--queue", queue)
    assert (refused.code, "--landing-prefix" in refused.err) == (2, True)


def test_more_objects_than_a_page_are_announced_once_each_in_messages_of_a_few(
    cli: Cli, ministack: str, bucket: str, put: Callable[..., None], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dolmen.store.s3 import bucket_store as s3_versions

    monkeypatch.setattr(s3_versions, "LIST_PAGE", 7)
    s3 = client("s3", ministack)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for _ in range(2):
        for row in range(15):
            put(f"landing/events/{row:02}.csv", 1)
    told = json.loads(cli("backfill", f"s3://{bucket}/landing", "--queue", queue, "--records", 4, "--json").out)
    assert (told["files"], told["messages"]) == (15, 4)
    bodies = taken(ministack, queue)
    assert sorted(len(json.loads(body)["Records"]) for body in bodies) == [3, 4, 4, 4]
    assert [drop.key[-6:-4] for drop in announced(bodies)] == [f"{row:02}" for row in range(15)]


def test_messages_hold_few_files_few_bytes_of_text_and_little_data() -> None:
    small = [Drop("bucket", f"landing/e/{n}.csv", 10, "e") for n in range(45)]
    assert [len(packet.drops) for packet in announce(small)] == [20, 20, 5]
    large = [Drop("bucket", f"landing/e/{n}.csv", size << 20, "e") for n, size in enumerate((100, 1, 40, 40, 64, 1))]
    assert [[d.size >> 20 for d in packet.drops] for packet in announce(large)] == [[100], [1, 40], [40], [64], [1]]
    long = [Drop("bucket", "landing/e/" + "ü" * 500 + f"{n}.csv", 10, "e" * 40, "v" * 900) for n in range(300)]
    packed = list(announce(long, max_records=1000))
    assert max(len(packet.body.encode()) for packet in packed) <= MAX_MESSAGE_BYTES
    assert len(packed) > 2
    assert announced([packet.body for packet in packed]) == sorted(long, key=lambda drop: drop.key)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    root = tmp_path / "landing"
    for row, name in enumerate(["events/1.csv", "events/2025/2.csv", "users/3.csv"], 1):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEADER}{row},x\n")
    (root / "stray.csv").write_text(HEADER)
    (root / "events" / ".partial.csv").write_text(HEADER)
    return root


def test_a_directory_is_ingested_here_and_only_once(cli: Cli, landing: Path, tmp_path: Path) -> None:
    done = cli("backfill", landing, "--auto-create")
    assert (done.code, "3 ingested; 3 rows" in done.out, "2 skipped" in done.out) == (0, True, True), done
    again = json.loads(cli("backfill", landing, "--auto-create", "--json").out)
    assert (again["duplicate"], again["rows"]) == (3, 0)
    db = dolmen.open(str(tmp_path / "db"))
    assert [db.table(name).count() for name in db.tables()] == [2, 1]


@pytest.mark.slow
def test_symbolic_links_bring_nothing_in_from_outside(cli: Cli, landing: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_text("id,name\n666,secret\n")
    for link, target in (
        ("events/file.csv", outside / "secret.csv"),
        ("events/relative.csv", Path("../../outside/secret.csv")),
        ("events/folder", outside),
        ("linked", outside),
        ("events/chain.csv", Path("file.csv")),
        ("events/gone.csv", outside / "gone.csv"),
    ):
        (landing / link).symlink_to(target)
    real = next(file for file in (landing / "events").glob("*.csv") if not file.is_symlink())
    (landing / "events" / "inside.csv").symlink_to(real.name)
    entrance = tmp_path / "entrance"
    entrance.symlink_to(landing)  # the place itself may be a link: whoever names it has said so
    done = json.loads(cli("backfill", entrance, "--auto-create", "--json").out)
    assert (done["ingested"], done.get("rejected", 0)) == (4, 0), done
    drop = Drop(DIRECTORY_BUCKET, "events/file.csv", 1, "0")
    for key in ("events/file.csv", "events/folder/secret.csv", "linked/secret.csv", "../outside/secret.csv"):
        assert announce_files.DropSource.of(str(landing)).landing.path_of(replace(drop, key=key)) is None
    db = dolmen.open(str(tmp_path / "db"))
    assert "secret" not in str([db.table(name).scan().to_arrow().to_pylist() for name in db.tables()])
    assert not list(tmp_path.rglob("*.error.json"))
    assert "drop ingested" not in local_once(tmp_path, tmp_path / "db")


@pytest.mark.slow
def test_the_local_pipeline_and_a_backfill_know_a_file_by_the_same_id(cli: Cli, landing: Path, tmp_path: Path) -> None:
    (landing / "stray.csv").unlink()
    assert cli("backfill", landing, "--auto-create", "--table", "events").code == 0
    statuses = local_once(tmp_path, tmp_path / "db")
    assert (statuses.count("drop duplicate"), statuses.count("drop ingested")) == (2, 1)
    assert json.loads(cli("backfill", landing, "--json").out)["duplicate"] == 3


def test_what_is_rejected_or_fails_is_said_and_has_an_exit_code(cli: Cli, landing: Path, tmp_path: Path) -> None:
    refused = cli("backfill", landing)
    assert (refused.code, "3 rejected" in refused.out) == (2, True), refused
    assert "no table 'users'" in " ".join(refused.err.split())
    assert len(list((tmp_path / "rejected").rglob("*.error.json"))) == 3
    done = cli("backfill", landing, "--auto-create")
    assert (done.code, "3 ingested" in done.out) == (0, True), "a reject is not final for a backfill: it is asked for"
    (landing / "events" / "4.csv").write_text("id,name\nx,y\n")
    mixed = json.loads(cli("backfill", landing, "--json").out)
    assert (mixed["duplicate"], mixed["rejected"]) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "phrase"),
    [
        (["LANDING", "--queue", "somewhere"], 2, "ingest"),
        (["s3://bucket/landing"], 2, "--queue"),
        (["s3://bucket/landing", "--here", "--queue", "q"], 2, "either --here or --queue"),
        (["s3:///landing", "--queue", "q"], 2, "s3://bucket/prefix"),
        (["gs://bucket/landing", "--queue", "q"], 2, "s3://bucket/prefix"),
        (["absent", "--dry-run"], 3, "no directory"),
        (["ROOT", "--dry-run"], 2, "give that one"),
        (["LANDING", "--table", "Bad Name"], 2, "Bad Name"),
    ],
)
def test_what_cannot_be_done_says_what_to_give(
    cli: Cli, landing: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, phrase: str
) -> None:
    monkeypatch.delenv("DOLMEN_INGEST_QUEUE", raising=False)
    places = {"LANDING": landing, "ROOT": landing.parent}
    outcome = cli("backfill", *[places.get(argument, argument) for argument in arguments])
    assert (outcome.code, phrase in " ".join(outcome.err.split())) == (code, True), outcome


def test_a_run_that_breaks_off_says_where_to_go_on_and_no_file_is_missed(
    cli: Cli, bucket: str, put: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in range(25):
        put(f"landing/events/it's {row:02}.csv", 1)
    (tmp_path / "queue").mkdir()
    send, dead = DirectoryQueue.send, [True]

    def breaks_off(self: DirectoryQueue, bodies: Any) -> None:
        """Fails for the second ten; the third may be under way already."""
        if dead and any("12.csv" in body for body in bodies):
            raise StoreUnavailableError("the line is dead")
        send(self, bodies)

    monkeypatch.setattr(DirectoryQueue, "send", breaks_off)
    arguments = ("backfill", f"s3://{bucket}/landing", "--queue", tmp_path / "queue", "--records", "1")
    broken = cli(*arguments)
    assert broken.code == 4
    assert """--start-after 'landing/events/it'"'"'s 09.csv'""" in broken.err
    dead.clear()
    assert cli(*arguments, "--start-after", "landing/events/it's 09.csv").code == 0
    found = announced([path.read_text() for path in (tmp_path / "queue").glob("*.json")])
    assert sorted({drop.key[-6:-4] for drop in found}) == [f"{row:02}" for row in range(25)]


@pytest.mark.slow
def test_an_interrupted_run_says_where_to_go_on(landing: Path, tmp_path: Path) -> None:
    """By Ctrl-C, between the first hundred files and the rest."""
    for n in range(120):
        shutil.copy(landing / "events" / "1.csv", landing / "events" / f"n{n:03}.csv")
    script = (
        "import os, signal, dolmen.cli.drops as b; whole = b.ingest_with_retries\n"
        "def once(*a, **k):\n"
        "    b.ingest_with_retries = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return whole(*a, **k)\n"
        "b.ingest_with_retries = once\n"
        "from dolmen.cli import main; main()"
    )
    command = [sys.executable, "-c", script, "backfill", str(landing), "-d", str(tmp_path / "db"), "--auto-create"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ})
    assert done.returncode in (130, -signal.SIGINT), done
    assert "--start-after events/n097.csv" in done.stderr


def test_objects_of_the_database_and_rejects_are_no_drops(landing: Path) -> None:
    for name in ("db/data/events/1.csv", "rejects/events/2.csv"):
        (landing / name).parent.mkdir(parents=True)
        (landing / name).write_text(HEADER)
    source = DropSource.of(str(landing), database=str(landing / "db"), rejected_url=(landing / "rejects").as_uri())
    found = [drop.key for drop in source.drops() if drop]
    assert found == ["events/1.csv", "events/2025/2.csv", "users/3.csv"]


def test_a_listing_is_never_held_whole(landing: Path) -> None:
    source = DropSource.of(str(landing))
    drops = source.drops()
    first = next(drop for drop in drops if drop is not None)
    (landing / "users" / "3.csv").rename(landing / "users" / "4.csv")
    rest = [drop.key for drop in drops if drop is not None]
    assert (first.key, rest) == ("events/1.csv", ["events/2025/2.csv", "users/4.csv"])


def in_a_bucket(endpoint: str, url: str) -> DropSource:
    """A landing place with two files in it."""
    bucket = url.split("/")[2]
    for name in ("1", "2"):
        client("s3", endpoint).put_object(Bucket=bucket, Key=f"landing/events/{name}.csv", Body=b"id\n1\n")
    return DropSource.of(f"s3://{bucket}/landing")


def test_a_server_that_knows_no_versions_is_listed_as_it_is(s3_endpoint: str, s3_url: str, proxy: Proxy) -> None:
    source = in_a_bucket(s3_endpoint, s3_url)
    proxy.rule(
        "answer",
        method="GET",
        query="versions",
        times=None,
        status=501,
        body="<Error><Code>NotImplemented</Code></Error>",
    )
    drops = [drop for drop in source.drops("landing/events/1.csv") if drop]
    assert [(drop.key, drop.version, bool(drop.etag)) for drop in drops] == [("landing/events/2.csv", None, True)]


def test_a_listing_that_is_refused_names_the_right_that_is_missing(s3_endpoint: str, s3_url: str, proxy: Proxy) -> None:
    source = in_a_bucket(s3_endpoint, s3_url)
    proxy.rule("forbid", method="GET", query="versions", times=None)
    with pytest.raises(AccessDeniedError, match="s3:ListBucketVersions"):
        list(source.drops())


def test_a_listing_goes_on_after_a_fault_on_the_way(s3_endpoint: str, s3_url: str, proxy: Proxy) -> None:
    source = in_a_bucket(s3_endpoint, s3_url)
    proxy.rule("503", "reset", method="GET", query="versions", times=2)
    assert len(list(source.drops())) == 2
