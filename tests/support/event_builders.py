"""Events as AWS sends them, for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote_plus


def s3_record(key: str, etag: str, *, bucket: str = "drops", size: int = 1, **extra: Any) -> dict[str, Any]:
    """One record of an S3 notification; ``extra`` goes into its object."""
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": bucket},
            "object": {"key": quote_plus(key, safe="/"), "size": size, "eTag": etag.strip('"'), **extra},
        },
    }


def notification(*records: dict[str, Any]) -> dict[str, Any]:
    """A notification of S3."""
    return {"Records": list(records)}


def created(key: str, etag: str, *, bucket: str = "drops", **extra: Any) -> dict[str, Any]:
    """EventBridge's "Object Created"; ``extra`` goes into its object."""
    described = {"key": key, "size": 1, "etag": etag.strip('"'), **extra}
    detail = {"bucket": {"name": bucket}, "object": described}
    return {"version": "0", "source": "aws.s3", "detail-type": "Object Created", "detail": detail}


def sqs_event(bodies: Sequence[Any], ids: Sequence[str] | None = None, *, tries: int = 1) -> dict[str, Any]:
    """An SQS batch with these bodies (JSON, or text as it is)."""
    return {
        "Records": [
            {
                "messageId": id_,
                "receiptHandle": id_,
                "body": body if isinstance(body, str) else json.dumps(body),
                "attributes": {"ApproximateReceiveCount": str(tries)},
                "messageAttributes": {},
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:queue",
                "awsRegion": "us-east-1",
            }
            for id_, body in zip(ids or [f"message-{n}" for n in range(len(bodies))], bodies, strict=True)
        ]
    }
