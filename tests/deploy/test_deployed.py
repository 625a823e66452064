"""`sam build`, `sam deploy` into an emulated cloud, then everything from outside: files, messages, the clock, the CLI.

See ``support.deployed`` for what of the cloud is real. Both landing shapes are deployed, onto one database: a bucket of
the stack, which notifies the queue, and one that was there before, whose events come by EventBridge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from support.deployed import ARCHITECTURE, SAMCONFIG, Stack, cloud, delete_stack, deploy, package, run_smoke_test, wait
from support.event_builders import notification, s3_record
from support.ministack import boto3_client

pytestmark = pytest.mark.slow

HEAD = "id,user_id,kind\n"
PARAMETERS = {
    "Architecture": ARCHITECTURE,
    "DatabaseBucketName": "deployed-database",
    "LandingBucketName": "deployed-landing",
    "IngestTimeout": "60",
    "IngestConcurrency": "2",
    "DeleteConcurrency": "2",
}
EXISTING = "landing-of-others"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cloud(tmp_path_factory.mktemp("cloud")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def packaged(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(endpoint, tmp_path_factory.mktemp("sam"))


@pytest.fixture(scope="module")
def stack(endpoint: str, packaged: Path) -> Stack:
    """With a table ``events``, and both schedules as often as they can be."""
    often = {"CompactRate": "cron(* * * * ? *)", "GcRate": "cron(* * * * ? *)"}
    stack = deploy(endpoint, packaged, "deployed", PARAMETERS | often)
    columns = "id BIGINT NOT NULL, user_id BIGINT, kind VARCHAR"
    stack.dolmen("create", "events", "--columns", columns, "--primary-key", "id")
    return stack


@pytest.fixture(scope="module")
def other_stack(stack: Stack, packaged: Path) -> Stack:
    """Takes files from a bucket that was there before, into the same database."""
    stack.s3.create_bucket(Bucket=EXISTING)
    events = {"EventBridgeConfiguration": {}}
    stack.s3.put_bucket_notification_configuration(Bucket=EXISTING, NotificationConfiguration=events)
    key = boto3_client("kms", stack.endpoint).create_key()["KeyMetadata"]["Arn"]
    other = {
        "MessagesKmsKeyArn": key,
        "Tracing": "ENABLED",
        "LandingBucketName": EXISTING,
        "CreateLandingBucket": "no",
        "CreateDatabaseBucket": "no",
        "Schedules": "DISABLED",
    }
    return deploy(stack.endpoint, packaged, "other", PARAMETERS | other)


def test_what_is_dropped_and_sent_becomes_rows_and_disappears(stack: Stack) -> None:
    stack.drop("events/first.csv", f"{HEAD}-1,1,a\n-2,2,b\n-3,3,c\n")
    stack.drop("events/Grüße & more, 100%+.jsonl", '{"id": -4, "user_id": 4, "kind": "d"}\n')
    stack.drop("events/bad.csv", f"{HEAD}-5,5,e\noops,6,f\n")
    stack.expect([-4, -3, -2, -1])
    stack.request_deletes([{"table": "events", "where": "user_id = 2"}, {"table": "events", "keys": [-4]}])
    stack.expect([-3, -1])
    scanned = stack.dolmen("scan", "events", "--order-by", "id", "--format", "jsonl").splitlines()
    assert [json.loads(line) for line in scanned] == [
        {"id": -3, "user_id": 3, "kind": "c"},
        {"id": -1, "user_id": 1, "kind": "a"},
    ]
    wait("the reject", lambda: len(rejects(stack)) == 1)
    [report] = rejects(stack)
    assert (report["file"], report["line"], report["column"]) == ("events/bad.csv", 3, "id")


def rejects(stack: Stack) -> list[dict[str, Any]]:
    """The reports of what was rejected."""
    bucket, _, prefix = stack.outputs["RejectedUri"].removeprefix("s3://").partition("/")
    listed = stack.s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())
    reports = [found["Key"] for found in listed if found["Key"].endswith(".error.json")]
    return [json.loads(stack.s3.get_object(Bucket=bucket, Key=key)["Body"].read()) for key in reports]


def test_the_tags_of_the_stack_are_on_what_it_made(stack: Stack) -> None:
    """On the resources that the emulator gives the stack's tags to, as CloudFormation does to all that can have any."""
    tags = dict(tag.split("=") for tag in SAMCONFIG["tags"].split())
    function = boto3_client("lambda", stack.endpoint).get_function(FunctionName=stack.outputs["IngestFunctionName"])
    queue = stack.sqs.list_queue_tags(QueueUrl=stack.outputs["DeleteQueueUrl"])
    [found] = boto3_client("cloudformation", stack.endpoint).describe_stacks(StackName="deployed")["Stacks"]
    assert {tag["Key"]: tag["Value"] for tag in found["Tags"]} == tags
    assert tags.items() <= function["Tags"].items()
    assert tags.items() <= queue["Tags"].items()


def test_a_key_that_is_named_encrypts_the_queues(stack: Stack, other_stack: Stack) -> None:
    """It encrypts the topic and the logs too, but the emulator does not show that."""
    key = other_stack.parameters["MessagesKmsKeyArn"]
    for made, expected in ((stack, None), (other_stack, key)):
        for queue in ("IngestQueueUrl", "DeleteQueueUrl", "IngestDeadLettersUrl", "GcDeadLettersUrl"):
            asked = made.sqs.get_queue_attributes(QueueUrl=made.outputs[queue], AttributeNames=["All"])["Attributes"]
            assert asked.get("KmsMasterKeyId") == expected


def test_200_drops_and_500_deletes_at_once_are_applied_once_each_and_not_again_when_redelivered(stack: Stack) -> None:
    others = [n for n in stack.ids() if n < 0]
    stack.drop("events/base.csv", HEAD + "".join(f"{n},{n},x\n" for n in range(1000)))
    stack.expect([*others, *range(1000)])
    rows = rows_added(stack)
    deletes = [{"table": "events", "keys": [n], "request_id": f"delete-{n}"} for n in range(250)]
    deletes += [{"table": "events", "where": {"user_id": n}, "request_id": f"delete-{n}"} for n in range(250, 500)]
    files = {f"events/many/{n}.csv": f"{HEAD}{1000 + 2 * n},1,x\n{1001 + 2 * n},2,x\n" for n in range(200)}
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(stack.drop, path, body) for path, body in files.items()]
        sent += [pool.submit(stack.request_deletes, deletes[n : n + 50]) for n in range(0, 500, 50)]
        for done in sent:
            done.result()
    stack.expect([*others, *range(500, 1400)])
    assert rows_added(stack) - rows == 400

    stack.drop("events/revived.csv", HEAD + "".join(f"{n},{n},y\n" for n in range(500)))  # what was deleted comes anew
    stack.expect([*others, *range(1400)])
    committed = applied(stack)
    again = [notification(record) for record in records(stack, "landing/events/many/")]
    assert len(again) == 200
    stack.send("IngestQueueUrl", again)
    stack.request_deletes(deletes)
    stack.expect([*others, *range(1400)])
    assert applied(stack) == committed
    assert [stack.waiting(queue) for queue in ("IngestDeadLettersUrl", "DeleteDeadLettersUrl")] == [0, 0]


def rows_added(stack: Stack) -> int:
    """What ingest added all in all, as the history has it."""
    return sum(commit.get("rows_added", 0) for commit in applied(stack))


def applied(stack: Stack) -> list[dict[str, Any]]:
    """The commits of both functions; background work may go on meanwhile."""
    return [commit for commit in stack.history() if commit["operation"] in ("ingest", "delete")]


def records(stack: Stack, prefix: str) -> list[dict[str, Any]]:
    """The records of S3's notifications, of all that was dropped there."""
    bucket = stack.parameters["LandingBucketName"]
    listed = stack.s3.list_object_versions(Bucket=bucket, Prefix=prefix)["Versions"]
    return [
        s3_record(found["Key"], found["ETag"], bucket=bucket, size=found["Size"], versionId=found["VersionId"])
        for found in listed
    ]


def test_poison_reaches_the_dead_letters_and_what_came_with_it_is_applied(stack: Stack) -> None:
    """With a visibility of two seconds, set on the deployed queues: that of the template takes half an hour."""
    queues = {"IngestQueueUrl": "IngestDeadLettersUrl", "DeleteQueueUrl": "DeleteDeadLettersUrl"}
    asked = {"AttributeNames": ["VisibilityTimeout"]}
    told = {
        queue: stack.sqs.get_queue_attributes(QueueUrl=stack.outputs[queue], **asked)["Attributes"] for queue in queues
    }
    poison = {
        "IngestQueueUrl": ["no json", json.dumps({"Records": [{"eventSource": "aws:s3"}]})],
        "DeleteQueueUrl": [
            json.dumps({"table": "nowhere", "keys": [1]}),
            json.dumps({"table": "events", "where": "user_id ="}),
            json.dumps({"table": "events"}),
        ],
    }
    for queue in queues:
        stack.sqs.set_queue_attributes(QueueUrl=stack.outputs[queue], Attributes={"VisibilityTimeout": "2"})
    try:
        rows = stack.ids()
        stack.drop("events/with-poison.csv", f"{HEAD}-10,1,x\n")
        stack.send("IngestQueueUrl", poison["IngestQueueUrl"])
        stack.request_deletes([*poison["DeleteQueueUrl"], {"table": "events", "keys": [rows[0]]}])
        stack.expect([*rows[1:], -10])
    finally:
        for queue, attributes in told.items():
            stack.sqs.set_queue_attributes(QueueUrl=stack.outputs[queue], Attributes=attributes)
    for queue, letters in queues.items():
        assert sorted(stack.bodies(letters, len(poison[queue]))) == sorted(poison[queue])


def test_a_bucket_that_was_there_before_lands_by_eventbridge(stack: Stack, other_stack: Stack) -> None:
    rows = stack.ids()
    other_stack.s3.put_object(Bucket=EXISTING, Key="elsewhere/events/a.csv", Body=f"{HEAD}-22,1,x\n".encode())
    other_stack.drop("events/first.csv", f"{HEAD}-20,1,x\n")
    other_stack.drop("events/Grüße & more, 100%+.jsonl", '{"id": -21, "user_id": 4, "kind": "d"}\n')
    other_stack.drop("events/bad.csv", "oops\n1\n")
    other_stack.expect([*rows, -20, -21])
    wait("the reject", lambda: len(rejects(other_stack)) == 1)
    assert rejects(other_stack)[0]["file"] == "events/bad.csv"


def test_the_schedules_compact_and_collect_and_change_no_row(stack: Stack) -> None:
    rows = stack.ids()
    for n in range(8):  # as many small files as pay to be made one
        stack.drop(f"events/late/{n}.csv", f"{HEAD}{-100 - n},1,x\n")
        rows.append(-100 - n)
    stack.expect(rows)

    def done() -> bool:
        collected = any('"collected"' in line for line in stack.logged("GcFunctionName"))
        return collected and any(commit["operation"] == "compact" for commit in stack.history())

    wait("both schedules", done, between=1)
    stack.expect(rows)
    assert [stack.waiting(queue) for queue in ("CompactDeadLettersUrl", "GcDeadLettersUrl")] == [0, 0]
    stack.dolmen("verify")


def test_the_smoke_test_passes_and_leaves_nothing_behind(endpoint: str, packaged: Path) -> None:
    """scripts/aws_smoke.py, which the workflow of that name runs in a user's account."""
    stack = "dolmen-smoke-1"
    done = run_smoke_test(endpoint, packaged, stack)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the smoke test passed" in done.stdout
    buckets = boto3_client("s3", endpoint).list_buckets()["Buckets"]
    assert [bucket["Name"] for bucket in buckets if bucket["Name"].startswith(stack)] == []
    with pytest.raises(ClientError, match="does not exist"):
        boto3_client("cloudformation", endpoint).describe_stacks(StackName=stack)
    again = run_smoke_test(endpoint, packaged, stack, "--tear-down")
    assert again.returncode == 0, again.stderr
    refused = run_smoke_test(endpoint, packaged, "production", "--tear-down")
    assert refused.returncode == 2


def test_a_new_stack_takes_over_the_buckets_that_an_old_one_left(stack: Stack, packaged: Path) -> None:
    """As docs/operations.md says: what was dropped between the two stacks is not lost, nor ingested twice.

    It comes last: the stack of the other tests is deleted.
    """
    stack.drop("events/before.csv", f"{HEAD}-1000,1,a\n")
    wait("the row", lambda: -1000 in stack.ids(), between=1)
    rows = stack.ids()
    delete_stack(stack.endpoint, "deployed")

    landing = PARAMETERS["LandingBucketName"]
    events = {"EventBridgeConfiguration": {}}
    stack.s3.put_bucket_notification_configuration(Bucket=landing, NotificationConfiguration=events)
    stack.drop("events/meanwhile.csv", f"{HEAD}-1001,2,b\n")
    kept = {"CreateDatabaseBucket": "no", "CreateLandingBucket": "no", "Schedules": "DISABLED"}
    new = deploy(stack.endpoint, packaged, "new", PARAMETERS | kept)
    assert new.ids() == rows
    # Before the next drop: this cloud's EventBridge leaves out a file's version, which S3's names, and so its id.
    new.dolmen("backfill", new.outputs["LandingUri"], "--queue", new.outputs["IngestQueueUrl"])
    new.expect([*rows, -1001])
    new.drop("events/late.csv", f"{HEAD}-1002,3,c\n")
    new.expect([*rows, -1001, -1002])
