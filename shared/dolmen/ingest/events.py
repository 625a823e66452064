"""What a function is told: events of S3, EventBridge and SQS as messages with the drops they announce.

Understood are, each directly or as the body of an SQS record (and there also inside an SNS notification):

* S3 event notifications, with any number of records. Their keys are URL-encoded, with ``+`` for a space
  (docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html).
* EventBridge's "Object Created" events of ``aws.s3``. Their keys are NOT encoded
  (docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html).
* ``s3:TestEvent``, which S3 sends once when notifications are switched on: announces nothing.

Events other than the creation of an object announce nothing either. Pure: asks nothing of the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from dolmen.errors import InputError

MAX_BODY_BYTES = 1 << 20
"""The largest notification looked at: as large as an SQS message can be."""
MAX_KEY_BYTES = 1024
MAX_TRIES_TOGETHER = 2
"""How often a message may take part in a batch before it is handled alone."""


@dataclass(frozen=True, slots=True)
class Drop:
    """An object that was created in a landing bucket.

    Args:
        bucket, key: where; the key as S3 knows it, not encoded.
        size: in bytes, as the event tells; 0 if it does not.
        etag: without quotes; empty only where there is a version.
        version: the id of the object's version; None in a bucket that keeps none.
        sequencer: orders the events of one key.
    """

    bucket: str
    key: str
    size: int
    etag: str
    version: str | None = None
    sequencer: str | None = None

    @property
    def source(self) -> str:
        """Its URL."""
        return f"s3://{self.bucket}/{self.key}"

    @property
    def id(self) -> str:
        """Under which it is applied exactly once: the same content dropped again is another drop in a bucket with
        versions, and the same one in a bucket without."""
        return f"{self.source}#{self.version or self.etag}"


@dataclass(frozen=True, slots=True)
class Message:
    """What is acknowledged or delivered again as one.

    Args:
        id: the SQS message id; None for an event that came without a queue.
        body: the text of an SQS record, or the event itself.
        tries: how often the queue has delivered it by now, from 1.
    """

    id: str | None
    body: str | Mapping[str, Any]
    tries: int = 1


def messages(event: Any) -> list[Message]:
    """The messages of an invocation: the records of an SQS event, else the event itself as the only one.

    Raises:
        InputError: no event at all, or an SQS record without id or body.
    """
    if not isinstance(event, Mapping):
        raise InputError(f"an event is a JSON object, not {type(event).__name__}")
    records = event.get("Records")
    if not isinstance(records, list) or not any(_is_sqs(record) for record in records):
        return [Message(None, event)]
    return [_sqs_message(record) for record in records]


def isolate(batch: list[Message]) -> Iterator[list[Message]]:
    """The groups in which to handle a batch.

    A message that fails properly fails alone. One that takes the whole process down (by its size, say) fails its
    batch, and would do so until the queue gives all of it up: so what was delivered several times before comes after
    the rest, and each on its own.
    """
    fresh = [message for message in batch if message.tries <= MAX_TRIES_TOGETHER]
    if fresh:
        yield fresh
    for message in batch:
        if message.tries > MAX_TRIES_TOGETHER:
            yield [message]


def drops_of(message: Message) -> tuple[list[Drop], InputError | None]:
    """The drops that a message announces, and what is wrong with the first of its records that cannot be read.

    Good records beside a bad one count: the message then comes again, and they are applied once all the same.
    """
    drops: list[Drop] = []
    try:
        notification = _notification(message.body)
        if notification.get("Event") == "s3:TestEvent":
            return [], None
        if "detail-type" in notification:
            drop = _from_eventbridge(notification)
            return ([drop] if drop else []), None
        records = notification.get("Records")
        if not isinstance(records, list):
            raise InputError("neither a notification of S3 nor an event of EventBridge: it has no list 'Records'")
    except InputError as error:
        return [], error
    first_error: InputError | None = None
    for place, record in enumerate(records, 1):
        try:
            if drop := _from_s3(record):
                drops.append(drop)
        except InputError as error:
            first_error = first_error or InputError(f"record {place}: {error}")
    return drops, first_error


def _is_sqs(record: Any) -> bool:
    return isinstance(record, Mapping) and record.get("eventSource") == "aws:sqs"


def _sqs_message(record: Any) -> Message:
    if not _is_sqs(record) or not isinstance(record.get("messageId"), str) or not isinstance(record.get("body"), str):
        raise InputError("a record of an SQS event without eventSource, messageId or body")
    attributes = record.get("attributes")
    told = attributes.get("ApproximateReceiveCount") if isinstance(attributes, Mapping) else None
    tries = int(told) if isinstance(told, str) and told.isdecimal() else 1
    return Message(record["messageId"], record["body"], tries)


def _notification(body: str | Mapping[str, Any]) -> Mapping[str, Any]:
    document: Any = body
    for _ in range(2):  # SNS wraps once
        if isinstance(document, str):
            document = _json(document)
        if not isinstance(document, Mapping):
            raise InputError(f"a notification is a JSON object, not {type(document).__name__}")
        if document.get("Type") != "Notification" or not isinstance(document.get("Message"), str):
            break
        document = document["Message"]
    if not isinstance(document, Mapping):
        raise InputError("an SNS notification inside another")
    return document


def _json(text: str) -> Any:
    if len(text) > MAX_BODY_BYTES:
        raise InputError(f"a notification of {len(text):,} characters: at most {MAX_BODY_BYTES:,} are read")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None


def _from_s3(record: Any) -> Drop | None:
    record = _member(record, "", Mapping)
    source = record.get("eventSource")
    if not isinstance(source, str) or not source.endswith(":s3"):  # "aws:s3", "minio:s3"
        raise InputError(f"eventSource is {source!r}, not 'aws:s3'")
    name = _member(record, "eventName", str)
    if not name.removeprefix("s3:").startswith("ObjectCreated:"):
        return None
    s3 = _member(record, "s3", Mapping)
    described = _member(s3, "object", Mapping)
    try:
        key = unquote_plus(_member(described, "key", str), errors="strict")
    except UnicodeDecodeError:
        raise InputError(f"key {described['key']!r} is not URL-encoded UTF-8") from None
    return _drop(_member(s3, "bucket", Mapping), described, key, "eTag", "versionId")


def _from_eventbridge(event: Mapping[str, Any]) -> Drop | None:
    if event.get("source") != "aws.s3":
        raise InputError(f"an event of {event.get('source')!r}, not of 'aws.s3'")
    if event["detail-type"] != "Object Created":
        return None
    detail = _member(event, "detail", Mapping)
    described = _member(detail, "object", Mapping)
    return _drop(_member(detail, "bucket", Mapping), described, _member(described, "key", str), "etag", "version-id")


def _drop(bucket: Any, described: Any, key: str, etag_name: str, version_name: str) -> Drop:
    size, etag, version = described.get("size", 0), described.get(etag_name, ""), described.get(version_name)
    sequencer = described.get("sequencer")
    name = _member(bucket, "name", str)
    if not name or "/" in name:
        raise InputError(f"bucket name {name!r}")
    if not key or len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise InputError(f"a key of {len(key)} characters")
    if any("\ud800" <= character <= "\udfff" for character in key):
        raise InputError(f"key {key!r} is not Unicode text")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InputError(f"size {size!r} of {key!r}")
    if not isinstance(etag, str) or not isinstance(version, str | None) or not isinstance(sequencer, str | None):
        raise InputError(f"{etag_name}, {version_name} or sequencer of {key!r} is not text")
    etag = etag.strip('"')
    version = None if version in ("", "null") else version  # "null": written while versioning is suspended
    if not etag and version is None:
        raise InputError(f"{key!r} comes with neither {etag_name} nor {version_name}, so it cannot be told from others")
    return Drop(name, key, size, etag, version, sequencer)


def _member(holder: Any, name: str, kind: type) -> Any:
    value = holder.get(name) if name else holder
    if not isinstance(value, kind):
        wanted = "text" if kind is str else "an object"
        raise InputError(f"{name or 'a record'} is {'missing' if value is None else f'not {wanted}'}")
    return value
