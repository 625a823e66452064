"""template.yaml: the buckets, who may write how into them, and the way from a drop to the ingest queue."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.template import DATABASE, KEY, LANDING, arn, as_list, deployed, references, sub

ROOT = Path(__file__).resolve().parents[2]
BUCKETS = ["DatabaseBucket", "LandingBucket"]
MADE = deployed()
TAKEN = deployed(CreateDatabaseBucket="no", CreateLandingBucket="no")


def rules(bucket: str) -> dict[str, dict[str, Any]]:
    return {rule["Id"]: rule for rule in MADE.properties(bucket)["LifecycleConfiguration"]["Rules"]}


def policy(bucket: str) -> dict[str, dict[str, Any]]:
    found = MADE.properties(f"{bucket}Policy")
    assert found["Bucket"] == {"Ref": bucket}
    return {statement["Sid"]: statement for statement in found["PolicyDocument"]["Statement"]}


def test_there_are_no_other_buckets() -> None:
    assert MADE.of_type("AWS::S3::Bucket") == BUCKETS


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_is_private_and_survives_its_stack(bucket: str) -> None:
    assert MADE.properties(bucket)["BucketName"] == {"Ref": f"{bucket}Name"}
    assert MADE.resources[bucket]["DeletionPolicy"] == MADE.resources[bucket]["UpdateReplacePolicy"] == "Retain"
    block = MADE.properties(bucket)["PublicAccessBlockConfiguration"]
    assert block == dict.fromkeys(
        ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True
    )
    assert MADE.properties(bucket)["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]


@pytest.mark.parametrize(
    ("bucket", "parameter"), [("DatabaseBucket", "DatabaseKmsKeyArn"), ("LandingBucket", "LandingKmsKeyArn")]
)
def test_a_bucket_is_encrypted_by_s3_or_by_the_key_that_is_named(bucket: str, parameter: str) -> None:
    def encryption(**parameters: str) -> dict[str, Any]:
        (rule,) = deployed(**parameters).properties(bucket)["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        return dict(rule)

    assert encryption() == {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    assert encryption(**{parameter: KEY}) == {
        "ServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": {"Ref": parameter}},
        "BucketKeyEnabled": True,
    }


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_aborts_unfinished_uploads(bucket: str) -> None:
    assert rules(bucket)["abort-unfinished-uploads"] == {
        "Id": "abort-unfinished-uploads",
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }


def test_nothing_of_the_database_ever_expires() -> None:
    assert set(rules("DatabaseBucket")) == {"abort-unfinished-uploads"}
    assert "VersioningConfiguration" not in MADE.properties("DatabaseBucket")


def test_of_the_drops_only_what_is_tagged_so_expires_and_then_its_old_versions() -> None:
    found = rules("LandingBucket")
    assert set(found) == {"abort-unfinished-uploads", "expire-what-was-ingested", "expire-old-versions"}
    assert found["expire-what-was-ingested"] == {
        "Id": "expire-what-was-ingested",
        "Status": "Enabled",
        "Prefix": {"Ref": "LandingPrefix"},
        "TagFilters": [{"Key": "dolmen-landing", "Value": "expire"}],
        "ExpirationInDays": {"Ref": "LandingExpireDays"},
    }
    assert found["expire-old-versions"] == {
        "Id": "expire-old-versions",
        "Status": "Enabled",
        "NoncurrentVersionExpiration": {"NoncurrentDays": {"Ref": "LandingOverwrittenDays"}},
        "ExpiredObjectDeleteMarker": True,
    }


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_is_reached_by_tls_only(bucket: str) -> None:
    assert policy(bucket)["OnlyTls"] == {
        "Sid": "OnlyTls",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn(bucket), sub(f"${{{bucket}.Arn}}/*")],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


POINTERS = sub("${DatabaseBucket.Arn}/*/_latest_manifest")
HINTS = sub("${DatabaseBucket.Arn}/*/iceberg/*/metadata/version-hint.text")
RECEIPTS = sub("${DatabaseBucket.Arn}/*/receipt/*")


def test_hardly_anything_in_the_database_is_replaced_and_only_by_who_has_seen_it() -> None:
    # Keys under one operator must all hold. Starting an upload in parts, and its parts, create no object
    # (s3:ObjectCreationOperation is false for them) and take no condition.
    denied = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject"}
    creating = {"s3:ObjectCreationOperation": "true"}
    found = policy("DatabaseBucket")
    assert found["OnlyNewObjects"] == denied | {
        "Sid": "OnlyNewObjects",
        "NotResource": [POINTERS, HINTS, RECEIPTS],
        "Condition": {"Null": {"s3:if-none-match": "true"}, "Bool": creating},
    }
    assert found["OnlyComparedPointers"] == denied | {
        "Sid": "OnlyComparedPointers",
        "Resource": [POINTERS, HINTS, RECEIPTS],
        "Condition": {"Null": {"s3:if-none-match": "true", "s3:if-match": "true"}, "Bool": creating},
    }


def test_nobody_deletes_a_pointer() -> None:
    assert policy("DatabaseBucket")["NobodyDeletesPointers"] == {
        "Sid": "NobodyDeletesPointers",
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"],
        "Resource": POINTERS,
    }
    rules = {"OnlyTls", "OnlyNewObjects", "OnlyComparedPointers", "NobodyDeletesPointers"}
    assert set(policy("DatabaseBucket")) == rules


def test_the_statements_for_a_bucket_of_others_are_those_of_the_stack() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    (block,) = re.findall(r"^```json\n(\[.*?)^```", page, re.DOTALL | re.MULTILINE)
    own = json.dumps([statement for sid, statement in policy("DatabaseBucket").items() if sid != "OnlyTls"])
    for resource in (POINTERS, HINTS, RECEIPTS):
        (text,) = resource.values()
        own = own.replace(
            json.dumps(resource), json.dumps(text.replace("${DatabaseBucket.Arn}", "arn:aws:s3:::BUCKET"))
        )
    assert json.loads(block) == json.loads(own)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_buckets_policy_survives_its_stack_as_the_bucket_does(bucket: str) -> None:
    made = MADE.resources[f"{bucket}Policy"]
    assert made["DeletionPolicy"] == made["UpdateReplacePolicy"] == "Retain"


def test_every_request_names_the_accounts_that_own_the_buckets() -> None:
    def owners(**parameters: str) -> dict[str, Any]:
        text, named = deployed(**parameters).functions["Environment"]["Variables"]["DOLMEN_BUCKET_OWNERS"]["Fn::Sub"]
        assert text == "${DatabaseBucketName}=${DatabaseOwner},${LandingBucketName}=${LandingOwner}"
        return dict(named)

    own = {"Ref": "AWS::AccountId"}
    assert owners() == {"DatabaseOwner": own, "LandingOwner": own}
    given = owners(DatabaseBucketOwner="111122223333", LandingBucketOwner="444455556666")
    assert given == {"DatabaseOwner": {"Ref": "DatabaseBucketOwner"}, "LandingOwner": {"Ref": "LandingBucketOwner"}}


def test_a_drop_needs_no_condition() -> None:
    assert set(policy("LandingBucket")) == {"OnlyTls"}


# ---- from the landing bucket to the queue ---------------------------------------------------------------------------


def test_drops_are_announced_to_the_ingest_queue_and_rejects_are_not() -> None:
    (announcement,) = MADE.properties("LandingBucket")["NotificationConfiguration"]["QueueConfigurations"]
    assert announcement["Event"] == "s3:ObjectCreated:*"
    assert announcement["Queue"] == arn("IngestQueue")
    (rule,) = announcement["Filter"]["S3Key"]["Rules"]
    assert rule == {"Name": "prefix", "Value": {"Ref": "LandingPrefix"}}
    environment = MADE.functions["Environment"]["Variables"]
    assert environment["DOLMEN_LANDING_PREFIX"] == {"Ref": "LandingPrefix"}
    assert environment["DOLMEN_REJECTED_URL"] == sub("s3://${LandingBucketName}/rejected")


def test_an_announced_version_can_still_be_read_after_it_was_overwritten() -> None:
    assert MADE.properties("LandingBucket")["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "s3:GetObjectVersion" in MADE.allowed("IngestRole")["ReadDrops"]


def senders(stack: Any, queue: str) -> list[dict[str, Any]]:
    found = stack.properties(f"{queue}Policy")
    assert found["Queues"] == [{"Ref": queue}]
    allowing = [one for one in found["PolicyDocument"]["Statement"] if one["Effect"] == "Allow"]
    for statement in allowing:
        assert as_list(statement["Action"]) == ["sqs:SendMessage"]
        assert statement["Resource"] == arn(queue)
    return allowing


def test_the_queue_admits_the_landing_bucket_of_this_account_before_the_bucket_asks() -> None:
    assert MADE.resources["LandingBucket"]["DependsOn"] == "IngestQueuePolicy"
    assert "LandingBucket" not in set(references(MADE.resources["IngestQueuePolicy"]))
    (allow,) = senders(MADE, "IngestQueue")
    assert allow["Principal"] == {"Service": "s3.amazonaws.com"}
    assert allow["Condition"] == {
        "ArnEquals": {"aws:SourceArn": sub(LANDING)},
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
    }
    assert senders(MADE, "IngestDeadLetters") == []


def test_buckets_that_exist_already_are_not_made_and_their_policies_are_left_alone() -> None:
    assert not set(TAKEN.resources) & {*BUCKETS, "DatabaseBucketPolicy", "LandingBucketPolicy"}
    assert TAKEN.functions["Environment"] == MADE.functions["Environment"]
    assert TAKEN.resources["IngestRole"] == MADE.resources["IngestRole"]


def test_drops_into_a_bucket_that_exists_already_come_by_a_rule() -> None:
    assert "LandingRule" not in MADE.resources
    rule = TAKEN.properties("LandingRule")
    assert rule["State"] == "ENABLED"
    assert rule["EventPattern"] == {
        "source": ["aws.s3"],
        "detail-type": ["Object Created"],
        "detail": {
            "bucket": {"name": [{"Ref": "LandingBucketName"}]},
            "object": {"key": [{"prefix": {"Ref": "LandingPrefix"}}]},
        },
    }
    (target,) = rule["Targets"]
    assert target["Arn"] == arn("IngestQueue")
    assert target["DeadLetterConfig"] == {"Arn": arn("IngestDeadLetters")}
    assert "InputTransformer" not in target  # the function takes the event as it is


@pytest.mark.parametrize("queue", ["IngestQueue", "IngestDeadLetters"])
def test_the_queues_admit_that_rule_and_nobody_else(queue: str) -> None:
    (allow,) = senders(TAKEN, queue)
    assert allow["Principal"] == {"Service": "events.amazonaws.com"}
    assert allow["Condition"] == {"ArnEquals": {"aws:SourceArn": arn("LandingRule")}}


def test_the_database_is_where_the_functions_are_told() -> None:
    for stack in (MADE, TAKEN):
        variables = stack.functions["Environment"]["Variables"]
        assert variables["DOLMEN_DATABASE"] == sub("s3://${DatabaseBucketName}/${DatabasePrefix}")
        assert stack.resources_of("GcRole", "Commit") == [sub(f"{DATABASE}/${{DatabasePrefix}}/*")]
