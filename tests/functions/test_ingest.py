"""The ingest function."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from dolmen import Transaction
from dolmen.commit.head import context_of
from dolmen.ingest.batch import MAX_TABLE_TRIES
from support.event_builders import created, notification, s3_record, sqs_event
from support.functions import World
from support.ministack import boto3_client

HEAD = "id,user_id,kind\n"


def test_a_batch_becomes_one_commit_over_several_tables(world: World) -> None:
    world.create()
    world.create("users", pa.schema([("id", pa.int64())]))
    records = [
        world.drop("events/a.csv", f"{HEAD}1,1,x\n"),
        world.drop("users/2026/11/a.jsonl", '{"id": 7}\n{"id": 8}\n'),
        world.drop("events/b.tsv", "kind\tid\tuser_id\nx\t2\t2\n"),
    ]
    assert world.ingest(*records) == []
    assert world.ids() == [1, 2]
    assert world.ids("users") == [7, 8]
    newest = world.database.history()[0]
    assert (newest.operation, newest.rows, newest.version) == ("ingest", 4, 3)


def test_poison_is_rejected_and_the_rest_of_its_batch_goes_in(world: World) -> None:
    world.create()
    records = [
        world.drop("events/1.csv", f"{HEAD}1,1,x\n"),
        world.drop("events/2.csv", f"{HEAD}2,2,x\nthree,3,x\n"),
        world.drop("nowhere/3.csv", f"{HEAD}3,3,x\n"),
        world.drop("events/4.pdf", "PK"),
        world.drop("loose.csv", f"{HEAD}5,5,x\n"),
        world.drop("Events/6.csv", f"{HEAD}6,6,x\n"),
        world.drop("events/7.csv", f"{HEAD}7,7,x\n"),
    ]
    assert world.ingest(*records) == ["message-2"]
    assert world.ids() == [1, 7]
    assert world.versions("ingest") == 1
    assert "nowhere/3.csv" not in {report["file"] for report in world.rejects().values()}
    assert world.ingest(records[2], tries=MAX_TABLE_TRIES) == []
    reports = {report["file"]: report for report in world.rejects().values()}
    assert {name: (report["line"], report["column"]) for name, report in reports.items()} == {
        "events/2.csv": (3, "id"),
        "nowhere/3.csv": (None, None),
        "events/4.pdf": (None, None),
        "loose.csv": (None, None),
        "Events/6.csv": (None, None),
    }
    assert "no table 'nowhere'" in reports["nowhere/3.csv"]["reason"]
    assert "format" in reports["events/4.pdf"]["reason"]
    assert "landing/<table>/" in reports["loose.csv"]["reason"]
    assert "table name 'Events'" in reports["Events/6.csv"]["reason"]


def test_a_renamed_table_is_dropped_for_under_its_new_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create()
    before = world.drop("events/1.csv", f"{HEAD}1,1,x\n")
    assert world.ingest(before) == []
    world.database.rename_table("events", "log")
    late = world.drop("events/2.csv", f"{HEAD}2,2,x\n")
    assert world.ingest(before, late, world.drop("log/3.csv", f"{HEAD}3,3,x\n"), tries=MAX_TABLE_TRIES) == []
    assert world.ids("log") == [1, 3]
    [report] = world.rejects().values()
    assert (report["file"], "no table 'events'" in report["reason"]) == ("events/2.csv", True)
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    assert world.ingest(before, world.drop("events/4.csv", f"{HEAD}4,4,x\n")) == []
    assert (world.ids("log"), world.ids()) == ([1, 3], [4])


def test_a_report_says_all_that_is_needed_to_act(world: World) -> None:
    world.create()
    record = world.drop("events/2026/bad.csv", f"{HEAD}1,1,x\n\n2,2\n")
    world.ingest(record)
    [(copy, report)] = world.rejects().items()
    digest = copy.removeprefix("events/2026/bad-").removesuffix(".csv")
    assert len(digest) == 8
    assert world.landing.get(f"rejected/{copy}").body == f"{HEAD}1,1,x\n\n2,2\n".encode()
    assert report["file"] == "events/2026/bad.csv"
    assert report["line"] == 4
    assert report["reason"]
    assert report["error"] == "RowError"
    assert report["source"] == "s3://drops/landing/events/2026/bad.csv"
    assert report["etag"] == record["s3"]["object"]["eTag"]
    assert report["copy"] == copy
    assert report["database"] == {"url": world.database.url, "version": 2}, "the version that rejects it"
    assert report["rejected_at"].endswith("+00:00")


def test_a_malformed_message_fails_alone(world: World) -> None:
    world.create()
    good = notification(world.drop("events/a.csv", f"{HEAD}1,1,x\n"))
    broken = notification(world.drop("events/b.csv", f"{HEAD}2,2,x\n"), {"eventSource": "aws:s3"})
    assert world.invoke("ingest", sqs_event(["{", good, broken, {"hello": 1}])) == [
        "message-0",
        "message-2",
        "message-3",
    ]
    assert world.ids() == [1, 2]
    assert [facts["message_id"] for facts in world.log_entries("message malformed")] == [
        "message-0",
        "message-2",
        "message-3",
    ]


def test_an_event_without_a_queue_raises_when_it_fails(world: World) -> None:
    world.create()
    record = world.drop("events/a.csv", f"{HEAD}1,1,x\n")
    assert world.invoke("ingest", notification(record)) == []
    assert world.ids() == [1]
    with pytest.raises(RuntimeError, match="eventName is missing"):
        world.invoke("ingest", notification({"eventSource": "aws:s3"}))


def test_an_object_overwritten_before_it_was_read_is_left_to_its_own_event(s3_world: World) -> None:
    world = s3_world
    world.create()
    first = world.drop("events/a.csv", f"{HEAD}1,1,x\n", sequencer="01")
    second = world.drop("events/a.csv", f"{HEAD}2,2,x\n", sequencer="02")
    assert world.ingest(first) == []
    assert world.ids() == []
    assert len(world.log_entries("drop superseded")) == 1
    assert world.ingest(second, first) == []
    assert world.ids() == [2]
    assert world.rejects() == {}


def test_an_object_that_was_removed_is_reported_and_acknowledged(world: World) -> None:
    world.create()
    record = world.drop("events/a.csv", f"{HEAD}1,1,x\n")
    world.landing.delete(["landing/events/a.csv"])
    assert world.ingest(record) == []
    assert [facts["error"] for facts in world.log_entries("drop superseded")] == ["ObjectNotFoundError"]
    assert world.versions("ingest") == 0


def test_every_version_of_an_object_is_read_as_it_was(ministack: str, s3_world: World) -> None:
    world, s3 = s3_world, boto3_client("s3", ministack)
    s3.put_bucket_versioning(Bucket=world.bucket, VersioningConfiguration={"Status": "Enabled"})
    world.create()
    records = []
    for n in (1, 2, 2):  # the same content again is another version, and another drop
        put = s3.put_object(Bucket=world.bucket, Key="landing/events/a.csv", Body=f"{HEAD}{n},{n},x\n".encode())
        key, version = "landing/events/a.csv", put["VersionId"]
        records.append(s3_record(key, put["ETag"], bucket=world.bucket, versionId=version, sequencer=version))
    assert world.ingest(records[2], records[0]) == []
    assert world.ingest(records[0], records[1]) == []
    assert world.ids() == [1, 2, 2]


def test_keys_with_any_characters_are_found(s3_world: World) -> None:
    s3_world.create()
    names = ["a b", "a+b", "100%", "%41", "日本", "a&b=c", "ä/ö", "~!@#$^*()", "'\""]
    records = [s3_world.drop(f"events/{name}.csv", f"{HEAD}{n},1,x\n") for n, name in enumerate(names)]
    assert s3_world.ingest(*records) == []
    assert s3_world.ids() == list(range(len(names)))


def test_objects_that_are_no_drops_are_acknowledged_and_left(world: World) -> None:
    world.create()
    keys = ["rejected/events/a.csv", "landing/events/_SUCCESS", "landing/events/", "else/where.csv"]
    assert world.ingest(*(s3_record(key, "e", bucket=world.bucket) for key in keys)) == []
    assert len(world.log_entries("drop ignored")) == 4
    assert world.versions("ingest") == 0


def test_a_file_without_rows_is_applied_too(world: World) -> None:
    world.create()
    record = world.drop("events/a.csv", HEAD)
    assert world.ingest(record) == []
    assert world.ingest(record) == []
    assert world.ids() == []
    assert [facts["version"] for facts in world.log_entries("drop duplicate")] == [2]


def test_a_missing_table_is_created_with_types_from_the_whole_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    body = "id,price\n" + "1,2\n" * 1000 + "2,2.5\n"
    assert world.ingest(world.drop("new/a.csv", body), world.drop("new/b.csv", "price,id\n7,3\n")) == []
    assert world.database.table("new").schema.field("price").type == pa.float64()
    assert world.database.table("new").count() == 1002
    assert [commit.operation for commit in world.database.history()] == ["ingest"]


def test_two_who_create_a_table_at_once_agree_on_its_columns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find no table; the one who is second to commit it reads its file by what the first committed."""
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    ours = world.drop("new/ours.csv", "a,b\n1,2\n")
    theirs = world.drop("new/theirs.csv", "b,a\n20,10\n")
    original = Transaction.create_table

    def theirs_first(self, *args, **options):  # type: ignore[no-untyped-def]
        with pytest.MonkeyPatch.context() as undone:
            undone.setattr(Transaction, "create_table", original)
            mine = world.functions["ingest"]
            world.restart()
            assert world.ingest(theirs) == []
            world.functions["ingest"] = mine
        return original(self, *args, **options)

    monkeypatch.setattr(Transaction, "create_table", theirs_first)
    assert world.ingest(ours) == []
    assert world.rows("new") == [{"b": 2, "a": 1}, {"b": 20, "a": 10}]
    assert [commit.operation for commit in world.database.history()] == ["ingest", "ingest"]
    assert world.ingest(ours, theirs) == []
    assert len(world.rows("new")) == 2
    assert len(world.log_entries("drop duplicate")) == 2


def test_a_file_for_a_new_table_that_cannot_be_read_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    assert world.ingest(world.drop("new/a.csv", "id,name\n1,2\n3,4,5\n")) == []
    [report] = world.rejects().values()
    assert "3 fields" in report["reason"]
    assert world.database.tables() == []


def test_a_function_that_runs_out_of_time_commits_what_it_has(world: World) -> None:
    world.create()
    records = [world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n") for n in range(3)]
    world.context.remaining_ms = [1000, 600, 400]
    assert world.ingest(*records) == ["message-2"]
    assert world.ids() == [0, 1]
    world.context.remaining_ms = [1000]
    assert world.ingest(*records) == []
    assert world.ids() == [0, 1, 2]


def test_a_message_that_may_have_taken_the_function_down_is_handled_alone(world: World) -> None:
    world.create()
    records = [world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n") for n in range(3)]
    event = sqs_event([notification(record) for record in records])
    event["Records"][0]["attributes"]["ApproximateReceiveCount"] = "3"
    assert world.invoke("ingest", event) == []
    assert [commit.rows for commit in world.database.history() if commit.operation == "ingest"] == [1, 2]


def test_logs_and_metrics_tell_numbers_and_places_and_no_values(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.create()
    world.ingest(
        world.drop("events/a.csv", f"{HEAD}1,1,secret\n2,2,secret\n"), world.drop("events/b.csv", f"{HEAD}1,hush,x\n")
    )
    output = capsys.readouterr().out
    assert "secret" not in output
    assert "hush" not in output
    [metrics] = [line for line in map(json.loads, output.splitlines()) if "Messages" in line]
    assert metrics["RowsIngested"] == [2.0]
    assert metrics["FilesIngested"] == [1.0]
    assert metrics["FilesRejected"] == [1.0]
    assert metrics["CommitAttempts"] == [1.0]
    assert metrics["ManifestBytes"][0] > 500
    assert world.log_entries("drop rejected")[0]["column"] == "user_id"
    assert world.log_entries("drop rejected")[0]["line"] == 2


def test_notifications_of_a_real_server_arrive_as_rows(ministack: str, s3_world: World) -> None:
    """S3 -> SQS -> the function, and S3 -> EventBridge -> SQS -> the function, with what the server really sends."""
    world = s3_world
    world.create()
    s3, sqs, rules = (boto3_client(name, ministack) for name in ("s3", "sqs", "events"))
    queues = {name: sqs.create_queue(QueueName=f"{world.bucket}-{name}")["QueueUrl"] for name in ("direct", "bridge")}
    arns = {
        name: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for name, url in queues.items()
    }
    pattern = {"source": ["aws.s3"], "detail": {"bucket": {"name": [world.bucket]}}}
    rules.put_rule(Name=world.bucket, EventPattern=json.dumps(pattern))
    rules.put_targets(Rule=world.bucket, Targets=[{"Id": "queue", "Arn": arns["bridge"]}])
    s3.put_bucket_notification_configuration(
        Bucket=world.bucket,
        NotificationConfiguration={
            "QueueConfigurations": [{"QueueArn": arns["direct"], "Events": ["s3:ObjectCreated:*"]}],
            "EventBridgeConfiguration": {},
        },
    )
    world.drop("events/a + b 日本 100%.csv", f"{HEAD}1,1,x\n")
    for url in queues.values():
        bodies: list[str] = []
        while not any("landing" in body for body in bodies):
            answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
            assert answer.get("Messages"), bodies
            bodies += [message["Body"] for message in answer["Messages"]]
        assert world.invoke("ingest", sqs_event(bodies)) == []
        assert world.ids() == [1]
    rules.remove_targets(Rule=world.bucket, Ids=["queue"])
    rules.delete_rule(Name=world.bucket)
    for url in queues.values():
        sqs.delete_queue(QueueUrl=url)


def test_eventbridge_and_s3_name_one_drop(world: World) -> None:
    world.create()
    record = world.drop("events/a b.csv", f"{HEAD}1,1,x\n")
    event = created("landing/events/a b.csv", record["s3"]["object"]["eTag"], bucket=world.bucket, sequencer="01")
    assert world.invoke("ingest", event) == []
    assert world.ingest(record) == []
    assert world.ids() == [1]


def test_metrics_tell_bytes_rows_and_how_late_they_are(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.create()
    world.database.table("events").set(ingest_mode="upsert")
    body = f"{HEAD}1,1,x\n2,2,x\n"
    early, late = (world.drop(f"events/{name}.csv", body) for name in "ab")
    now_us = context_of(world.database).runtime.clock_us()
    for record, seconds in ((early, 3600), (late, 7200)):
        created_at = datetime.fromtimestamp(now_us / 1e6 - seconds, UTC)
        record["eventTime"] = created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    unreadable = {**world.drop("events/c.csv", body), "eventTime": "yesterday"}
    assert world.ingest(early, late, unreadable) == []
    [metrics] = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "Messages" in line]
    assert metrics["BytesIngested"] == [3.0 * len(body)]
    assert metrics["RowsUpserted"] == [6.0]
    assert metrics["LandingTagsFailed"] == [0.0]
    assert 7200 <= metrics["IngestLagSeconds"][0] < 7200 + 600
