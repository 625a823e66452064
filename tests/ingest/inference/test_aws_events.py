"""Events of AWS are read as a user means them: rows are records where an envelope holds them, else whole events."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest

from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.source_file import ReadOptions
from dolmen.ingest.inference.sniff.json_shape import sniff_json

_TIME = "2025-01-31T13:45:10.123Z"


def _record(source: str, **more: Any) -> dict[str, Any]:
    return {"eventVersion": "1.0", "eventSource": source, "awsRegion": "eu-central-1", **more}


def _event(kind: str, detail: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "0", "id": "6a7e8feb", "detail-type": kind, "source": "aws.ec2", "account": "111122223333",
        "time": _TIME, "region": "us-east-1", "resources": ["arn:aws:ec2:x"], "detail": detail,
    }  # fmt: skip


_S3 = _record(
    "aws:s3",
    eventTime=_TIME,
    s3={"bucket": {"name": "b", "ownerIdentity": {"principalId": "A"}}, "object": {"key": "k", "size": 1024}},
)
_SQS = _record(
    "aws:sqs", messageId="m", body='{"a": [{"b": 1}]}', attributes={"ApproximateReceiveCount": "1"},
    messageAttributes={}, eventSourceARN="arn:aws:sqs:x",
)  # fmt: skip
_SNS = {
    "EventVersion": "1.0", "EventSource": "aws:sns", "EventSubscriptionArn": "arn:aws:sns:x",
    "Sns": {"Type": "Notification", "MessageId": "m", "Message": "hello", "Timestamp": _TIME,
            "MessageAttributes": {"Test": {"Type": "String", "Value": "x"}}},
}  # fmt: skip
_KINESIS = _record(
    "aws:kinesis", eventID="shardId-0:1", kinesis={"partitionKey": "1", "sequenceNumber": "49590338271490256608559692",
                                                   "data": "SGVsbG8=", "approximateArrivalTimestamp": 1545084650.987},
)  # fmt: skip
_DYNAMODB = _record(
    "aws:dynamodb", eventID="1", eventName="INSERT",
    dynamodb={"Keys": {"Id": {"N": "101"}}, "NewImage": {"Message": {"S": "New!"}, "Id": {"N": "101"}}},
)  # fmt: skip
_SES = _record("aws:ses", ses={"mail": {"commonHeaders": {"to": ["a@b"]}, "headers": [{"name": "X", "value": "y"}]}})
_CLOUDFRONT = {"cf": {"config": {"distributionId": "E"}, "request": {"uri": "/", "headers": {"host": [{"key": "H"}]}}}}
_CODECOMMIT = _record("aws:codecommit", codecommit={"references": [{"commit": "c", "ref": "refs/heads/main"}]})
_CLOUDTRAIL = {
    "eventVersion": "1.08", "userIdentity": {"type": "Root", "accountId": "1"}, "eventTime": "2025-01-31T13:45:10Z",
    "eventSource": "ec2.amazonaws.com", "requestParameters": {"instancesSet": {"items": [{"instanceId": "i"}]}},
    "responseElements": None,
}  # fmt: skip
_CONFIG_ITEM = {
    "resourceId": "i", "resourceType": "AWS::EC2::Instance", "tags": {"Name": "x"},
    "relationships": [{"resourceId": "v", "name": "Is attached to"}],
}  # fmt: skip
_FINDING = {
    "schemaVersion": "2.0", "accountId": "1", "region": "us-east-1", "type": "Recon", "severity": 5,
    "resource": {"instanceDetails": {"tags": [{"key": "a", "value": "b"}], "networkInterfaces": [{"ipv6": []}]}},
    "service": {"count": 3, "action": {"portProbeAction": {"portProbeDetails": [{"localPort": 80}]}}},
}  # fmt: skip
_KAFKA_RECORD = {"topic": "t", "partition": 0, "offset": 15, "timestamp": 1545084650987, "value": "SGVsbG8="}

ENVELOPES: dict[str, tuple[dict[str, Any], str]] = {
    "s3": ({"Records": [_S3, _S3]}, "Records"),
    "sqs": ({"Records": [_SQS, _SQS]}, "Records"),
    "sns": ({"Records": [_SNS]}, "Records"),
    "kinesis": ({"Records": [_KINESIS]}, "Records"),
    "kinesis-window": ({"Records": [_KINESIS], "window": {"start": _TIME, "end": _TIME}, "state": {"a": 1},
                        "shardId": "s", "isFinalInvokeForWindow": False}, "Records"),
    "dynamodb": ({"Records": [_DYNAMODB]}, "Records"),
    "ses": ({"Records": [_SES]}, "Records"),
    "cloudfront": ({"Records": [_CLOUDFRONT]}, "Records"),
    "codecommit": ({"Records": [_CODECOMMIT]}, "Records"),
    "cloudtrail": ({"Records": [_CLOUDTRAIL] * 3}, "Records"),
    "config-history": ({"fileVersion": "1.0", "configSnapshotId": "c", "configurationItems": [_CONFIG_ITEM]},
                       "configurationItems"),
    "firehose": ({"invocationId": "i", "deliveryStreamArn": "arn:x", "region": "us-east-1",
                  "records": [{"recordId": "1", "data": "SGVsbG8="}]}, "records"),
    "mq": ({"eventSource": "aws:mq", "eventSourceArn": "arn:x", "messages": [{"messageID": "m", "data": "x"}]},
           "messages"),
    "documentdb": ({"eventSourceArn": "arn:x", "eventSource": "aws:docdb",
                    "events": [{"event": {"operationType": "insert"}}]}, "events"),
    "s3-batch": ({"invocationSchemaVersion": "1.0", "invocationId": "Y", "job": {"id": "f"},
                  "tasks": [{"taskId": "d", "s3Key": "k"}]}, "tasks"),
    "dynamodb-query": ({"Items": [{"Id": {"N": "1"}}], "Count": 1, "ScannedCount": 1}, "Items"),
}  # fmt: skip

ROWS: dict[str, dict[str, Any]] = {
    "eventbridge": _event("EC2 Instance State-change Notification", {"instance-id": "i", "state": "terminated"}),
    "eventbridge-lists": _event("GuardDuty Finding", _FINDING),
    "config-change": _event("Config Configuration Item Change", {"configurationItem": _CONFIG_ITEM}),
    "guardduty": _FINDING,
    "cloudwatch-logs": {"awslogs": {"data": "H4sIAAAAAAAA"}},
    "cloudwatch-logs-unpacked": {
        "messageType": "DATA_MESSAGE", "owner": "1", "logGroup": "g", "logStream": "s", "subscriptionFilters": ["f"],
        "logEvents": [{"id": "1", "timestamp": 1440442987000, "message": "m"}],
    },
    "alb": {"requestContext": {"elb": {"targetGroupArn": "arn:x"}}, "httpMethod": "GET", "path": "/",
            "queryStringParameters": {"q": "1"}, "headers": {"host": "h"}, "body": "", "isBase64Encoded": False},
    "api-gateway": {"resource": "/", "httpMethod": "GET", "headers": None, "multiValueHeaders": {"a": ["b"]},
                    "requestContext": {"accountId": "1", "identity": {"sourceIp": "1.2.3.4"}}, "body": None},
    "http-api": {"version": "2.0", "routeKey": "$default", "cookies": ["a"], "headers": {"a": "b"},
                 "requestContext": {"http": {"method": "POST"}}, "body": "Hello"},
    "cognito": {"version": "1", "triggerSource": "PreSignUp_SignUp", "region": "x", "userName": "u",
                "request": {"userAttributes": {"email": "a@b"}, "session": [{"challengeName": "X"}]}, "response": {}},
    "kafka": {"eventSource": "aws:kafka", "bootstrapServers": "b", "records": {"t-0": [_KAFKA_RECORD]}},
    "codepipeline": {"CodePipeline.job": {"id": "1", "data": {"inputArtifacts": [{"name": "a"}]}}},
    "lex": {"messageVersion": "1.0", "bot": {"name": "b"}, "interpretations": [{"intent": {"name": "x"}}]},
    "s3-test": {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": _TIME, "Bucket": "b"},
    "debezium": {"before": None, "after": {"id": 1, "tags": [{"a": 1}]}, "source": {"lsn": 1}, "op": "c", "ts_ms": 1},
}  # fmt: skip


def _read(data: bytes) -> tuple[pa.Table, str]:
    best = sniff_json(data, whole=True, known={})[0]
    source = SourceFile(lambda: io.BytesIO(data), detect("e.json"), "e.json", ReadOptions(dialect=best.dialect))
    return read(source, None).read_all(), best.dialect.json_rows


def _layouts(event: dict[str, Any]) -> list[bytes]:
    """One event on a line and on several, then three of them without and with delimiters, as Firehose writes them."""
    one = json.dumps(event)
    return [text.encode() for text in (one, json.dumps(event, indent=4), one * 3, f"{one}\n" * 3)]


@pytest.mark.parametrize("name", ENVELOPES)
def test_records_of_an_event_are_rows(name: str) -> None:
    event, path = ENVELOPES[name]
    for data, times in zip(_layouts(event), (1, 1, 3, 3), strict=True):
        table, shape = _read(data)
        assert shape == path
        assert table.num_rows == times * len(event[path])
        assert set(table.column_names) == set(event[path][0])


@pytest.mark.parametrize("name", ROWS)
def test_an_event_without_records_is_a_row(name: str) -> None:
    for data, times in zip(_layouts(ROWS[name]), (1, 1, 3, 3), strict=True):
        table, shape = _read(data)
        assert shape in ("lines", "values")
        assert table.num_rows == times
        assert table.column_names == list(ROWS[name])


def test_debezium_with_schemas_is_read_as_its_payloads() -> None:
    schema = {"type": "struct", "fields": [{"type": "struct", "field": "before", "fields": [{"field": "id"}]}]}
    events = [{"schema": schema, "payload": ROWS["debezium"]}, {"schema": None, "payload": None}]
    table, shape = _read("".join(json.dumps(each) for each in events).encode())
    assert (shape, table.num_rows, table.column_names) == ("payload", 1, list(ROWS["debezium"]))
