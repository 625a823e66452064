"""S3's announcements of dropped files: read from events of S3 and EventBridge, and written as S3 writes them.

These are read, each directly or as the body of an SQS record (and there also inside an SNS notification):

* S3 event notifications, with any number of records. Their keys are URL-encoded, with ``+`` for a space
  (docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html).
* EventBridge's "Object Created" events of ``aws.s3``. Their keys are NOT encoded
  (docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html).

``s3:TestEvent`` and other events announce nothing. Events are not trusted: docs/security.md has the checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from msgspec import Struct

from dolmen.base.units import MIB, since_epoch, utc
from dolmen.errors import InputError, LimitError
from dolmen.ingest.redaction import MessageError, parse_message
from dolmen.store.base import MAX_KEY_BYTES, S3

MAX_BODY_BYTES = MIB  # the largest notification that is read: the maximum size of an SQS message
MAX_TOKEN_LENGTH = 1024  # the maximum length of an ETag, a version id and a sequencer: that of S3's version ids
MAX_SIZE = 1 << 53  # the largest integer that a JSON number holds exactly; no object is as large
DROP_SCHEME = S3  # the scheme of the stores whose notifications are read here: URLs and ids of drops begin with it
DIRECTORY_BUCKET = "local"
"""The bucket's name in the notifications of a directory: the local pipeline and a backfill give a file the same id."""
_TOKEN = re.compile(rf"[!-\"$-~]{{0,{MAX_TOKEN_LENGTH}}}")

_UNKNOWN_TIME = "unknown"
_FIRST_DROPPED = re.compile(rf"-retry-[0-9]+-of-([0-9]{{1,18}}|{_UNKNOWN_TIME})(?:\.[^/]*)?$")


def retry_name(stem: str, ending: str, number: int, dropped_us: int | None) -> str:
    """The name of a reject's retry, counted from 1. It has the time of the first drop, for ``Drop.dropped_us``."""
    return f"{stem}-retry-{number}-of-{_UNKNOWN_TIME if dropped_us is None else dropped_us}{ending}"


class Drop(Struct, frozen=True):
    """An object that was created in a landing bucket."""

    bucket: str
    key: str  # as in S3, not encoded
    size: int  # in bytes, from the event; 0 if the event lacks it
    etag: str  # without quotes; empty only if there is a version
    version: str | None = None  # the id of the object's version, if the bucket keeps versions
    sequencer: str | None = None  # orders the events of one key
    created_us: int | None = None  # when it was created, microseconds since the epoch, if the event says

    @property
    def bucket_url(self) -> str:
        return DROP_SCHEME.bucket_url(self.bucket)

    @property
    def source(self) -> str:
        return f"{self.bucket_url}/{self.key}"

    @property
    def id(self) -> str:
        """The id under which it is applied once. With versions in the bucket, each upload has an id of its own."""
        return f"{self.source}#{self.version or self.etag}"

    @property
    def dropped_us(self) -> int | None:
        """When its rows were first dropped, if known. The name of a retried reject has the time."""
        match = _FIRST_DROPPED.search(self.key)
        if match is None:
            return self.created_us
        return None if match[1] == _UNKNOWN_TIME else min(int(match[1]), self.created_us or int(match[1]))

    @property
    def rejection_id(self) -> str | None:
        """The id under which the rejection of its event is committed: instead of ``id``, never in addition to it.

        None for a drop that a listing found: it has no event, and every listing is a new try.
        """
        return f"{self.id}#{self.sequencer}#rejected" if self.sequencer else None

    @property
    def digest(self) -> str:
        return self.etag or self.id


def read_drops(body: str | Mapping[str, Any] | None) -> tuple[list[Drop], InputError | None]:
    """Reads the drops that a message's body announces; also returns the error of the first record that cannot be read.

    Good records are returned even if others are bad.
    """
    drops: list[Drop] = []
    try:
        notification = _notification(body)
        if notification.get("Event") == "s3:TestEvent":
            return [], None
        if "detail-type" in notification:
            drop = _from_eventbridge(notification)
            return ([drop] if drop else []), None
        records = notification.get("Records")
        if not isinstance(records, list):
            raise MessageError("neither a notification of S3 nor an event of EventBridge: it has no list 'Records'")
    except (MessageError, LimitError) as error:
        return [], error
    first_error: MessageError | None = None
    for number, record in enumerate(records, 1):
        try:
            if drop := _from_s3(record):
                drops.append(drop)
        except MessageError as error:
            first_error = first_error or error.at(f"record {number}")
    return drops, first_error


def write_notification(records: Iterable[str]) -> str:
    """Writes one notification of S3 with these records from ``write_record``."""
    return '{"Records":[' + ",".join(records) + "]}"


def write_record(drop: Drop) -> str:
    """The record of a notification by which S3 announces a drop, as JSON text; ``read_drops`` reads the same drop."""
    details: dict[str, object] = {"key": quote_plus(drop.key, safe="/"), "size": drop.size, "eTag": drop.etag}
    if drop.version is not None:
        details["versionId"] = drop.version
    if drop.sequencer is not None:
        details["sequencer"] = drop.sequencer
    bucket = {"name": drop.bucket, "arn": f"arn:aws:s3:::{drop.bucket}"}
    record: dict[str, object] = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"s3SchemaVersion": "1.0", "bucket": bucket, "object": details},
    }
    if drop.created_us is not None:
        record["eventTime"] = utc(drop.created_us).isoformat()
    return json.dumps(record, separators=(",", ":"))


def _notification(body: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if body is None:
        raise MessageError("a record of an SQS event without eventSource or body")
    document: Any = body
    for _ in range(2):  # SNS wraps once
        if isinstance(document, str):
            document = parse_message(document, MAX_BODY_BYTES)
        if not isinstance(document, Mapping):
            raise MessageError(f"a notification is a JSON object, not {type(document).__name__}")
        if document.get("Type") != "Notification" or not isinstance(document.get("Message"), str):
            break
        document = document["Message"]
    if not isinstance(document, Mapping):
        raise MessageError("an SNS notification inside another")
    return document


def _from_s3(record: Any) -> Drop | None:
    record = _member(record, "", Mapping)
    source = record.get("eventSource")
    if not isinstance(source, str) or not source.endswith(":s3"):  # "aws:s3", "minio:s3"
        raise MessageError("eventSource is {}, not 'aws:s3'", source)
    name = _member(record, "eventName", str)
    if not name.removeprefix("s3:").startswith("ObjectCreated:"):
        return None
    s3 = _member(record, "s3", Mapping)
    details = _member(s3, "object", Mapping)
    try:
        key = unquote_plus(_member(details, "key", str), errors="strict")
    except UnicodeDecodeError:
        raise MessageError("key {} is not URL-encoded UTF-8", details["key"]) from None
    return _drop(_member(s3, "bucket", Mapping), details, key, "eTag", "versionId", record.get("eventTime"))


def _from_eventbridge(event: Mapping[str, Any]) -> Drop | None:
    if event.get("source") != "aws.s3":
        raise MessageError("an event of {}, not of 'aws.s3'", event.get("source"))
    if _member(event, "detail-type", str) != "Object Created":
        return None
    detail = _member(event, "detail", Mapping)
    details = _member(detail, "object", Mapping)
    bucket, key = _member(detail, "bucket", Mapping), _member(details, "key", str)
    return _drop(bucket, details, key, "etag", "version-id", event.get("time"))


def _drop(bucket: Any, details: Any, key: str, etag_name: str, version_name: str, time: Any) -> Drop:
    size, etag, version = details.get("size", 0), details.get(etag_name, ""), details.get(version_name)
    sequencer = details.get("sequencer")
    name = _member(bucket, "name", str)
    if not DROP_SCHEME.is_bucket(name):
        raise MessageError("bucket name {}", name)
    if not key or len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise MessageError(f"a key of {len(key)} characters")
    if any("\ud800" <= character <= "\udfff" for character in key):
        raise MessageError("key {} is not Unicode text", key)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_SIZE:
        raise MessageError("size {} of key {}", size, key)
    for token in (etag, version, sequencer):
        if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise MessageError(f"{etag_name}, {version_name} or sequencer of key {{}} is not text as S3 writes it", key)
    etag = (etag or "").strip('"')
    version = None if version in ("", "null") else version  # "null": written while versioning is suspended
    if not etag and version is None:
        raise MessageError(f"key {{}} comes with neither {etag_name} nor {version_name}: it cannot be identified", key)
    return Drop(name, key, size, etag, version, sequencer, _microseconds(time))


def _microseconds(time: Any) -> int | None:
    """Parses a time as AWS writes it; None if it is malformed: it only measures how late an event is."""
    try:
        moment = datetime.fromisoformat(time)
    except (TypeError, ValueError):
        return None
    return None if moment.tzinfo is None else since_epoch(moment)


def _member(holder: Any, name: str, kind: type) -> Any:
    value = holder.get(name) if name else holder
    if not isinstance(value, kind):
        expected = "text" if kind is str else "an object"
        raise MessageError(f"{name or 'a record'} is {'missing' if value is None else f'not {expected}'}")
    return value
