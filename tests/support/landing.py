"""Files for the functions, and the events that announce them."""

from __future__ import annotations

from typing import Any

from support.event_builders import notification, s3_record, sqs_event
from support.ministack import boto3_client


def drop(endpoint: str, url: str, name: str, body: str) -> dict[str, Any]:
    """Puts a file into the database's bucket, and returns the event that announces it."""
    bucket = url.removeprefix("s3://").partition("/")[0]
    key = f"landing/events/{name}"
    put = boto3_client("s3", endpoint).put_object(Bucket=bucket, Key=key, Body=body.encode())
    return sqs_event([notification(s3_record(key, put["ETag"], bucket=bucket, size=len(body), sequencer="01"))])
