# ruff: noqa: E501
"""Events for the ingest function that announce no file to ingest, as data: each with what becomes of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from dolmen.ingest.announcements import MAX_BODY_BYTES
from support.event_builders import created, notification, s3_record

Outcome = Literal["failed", "ignored", "rejected", "superseded"]


@dataclass(frozen=True)
class MalformedEvent:
    """A message's body and what becomes of it.

    Args:
        name: unique; which fault it has.
        body: JSON text, or what it is made from.
        outcome: ``failed``: delivered again, and a dead letter in the end; ``ignored``: announces nothing;
            ``rejected`` and ``superseded``: it announces a file, and that became of the file.
        reason: text that the error must contain; empty where there is none.
        read: whether its records can be read: a fault that only the store or the landing place finds.
    """

    name: str
    body: Any
    outcome: Outcome
    reason: str = ""
    read: bool = False

    @property
    def text(self) -> str:
        return self.body if isinstance(self.body, str) else json.dumps(self.body)


def _record(**members: Any) -> dict[str, Any]:
    """A notification whose object has these members; None takes one away."""
    record = s3_record("landing/events/a.csv", "e")
    described = record["s3"]["object"] | members
    record["s3"]["object"] = {name: value for name, value in described.items() if value is not None}
    return notification(record)


def _with(path: str, value: Any) -> dict[str, Any]:
    """A notification with another value in a place; ``...`` takes the member away."""
    record = holder = s3_record("landing/events/a.csv", "e")
    *folders, name = path.split(".")
    for folder in folders:
        holder = holder[folder]
    holder[name] = value
    if value is ...:
        del holder[name]
    return notification(record)


def _bridged(**members: Any) -> dict[str, Any]:
    return {**created("landing/events/a.csv", "e"), **members}


def _detailed(**members: Any) -> dict[str, Any]:
    event = created("landing/events/a.csv", "e")
    event["detail"] |= members
    return event


def _sns(message: Any, **members: Any) -> dict[str, Any]:
    return {"Type": "Notification", "Message": message if isinstance(message, str) else json.dumps(message), **members}


def _doubled(name: str) -> str:
    """A notification in whose text a member stands twice."""
    text = json.dumps(_record())
    assert f'"{name}": ' in text
    return text.replace(f'"{name}": ', f'"{name}": "x", "{name}": ', 1)


def _failed(name: str, body: Any, reason: str) -> MalformedEvent:
    return MalformedEvent(name, body, "failed", reason)


def _place(name: str, key: str, outcome: Outcome, reason: str = "") -> MalformedEvent:
    """An event that can be read, about a key that cannot be ingested."""
    return MalformedEvent(name, _record(key=key), outcome, reason, read=True)


def _ignored(name: str, body: Any) -> MalformedEvent:
    return MalformedEvent(name, body, "ignored", read=True)


MALFORMED_EVENTS = [
    # no JSON, or no object
    _failed("empty", "", "not JSON"),
    _failed("blank", " \n", "not JSON"),
    _failed("an open brace", "{", "not JSON"),
    _failed("a word", "hello", "not JSON"),
    _failed("truncated", json.dumps(_record())[:-10], "not JSON"),
    _failed("two documents", json.dumps(_record()) * 2, "not JSON"),
    _failed("single quotes", str(_record()), "not JSON"),
    _failed("XML", "<Notification><Records/></Notification>", "not JSON"),
    _failed("a byte order mark", "\ufeff" + json.dumps(_record()), "not JSON"),
    _failed("NUL in front", "\0" + json.dumps(_record()), "not JSON"),
    _failed("a raw control character", json.dumps(_record()).replace("a.csv", "a\n.csv"), "not JSON"),
    _failed("open brackets without end", "[" * 100_000, "nested"),
    _failed("nested", '{"Records":' * 50_000 + "0" + "}" * 50_000, "nested"),
    _failed("a number of 5,000 digits", '{"Records": [' + "9" * 5000 + "]}", "digits"),
    _failed("an array", [], "not list"),
    _failed("an array of events", [_record()], "not list"),
    _failed("a number", "7", "not int"),
    _failed("null", "null", "not NoneType"),
    _failed("true", "true", "not bool"),
    _failed("a URL", '"s3://drops/landing/events/a.csv"', "not str"),
    _failed("JSON inside text twice", json.dumps(json.dumps(json.dumps(_record()))), "not str"),
    _failed("too large", " " * (MAX_BODY_BYTES + 1), "at most"),
    _failed("a member twice", _doubled("key"), "twice"),
    _failed("bucket twice", _doubled("name"), "twice"),
    _failed("Records twice", '{"Records": [], "Records": []}', "twice"),
    # of another kind
    _failed("an empty object", {}, "no list 'Records'"),
    _failed("another object", {"hello": "world"}, "no list 'Records'"),
    _failed("a delete request", {"table": "events", "where": "TRUE"}, "no list 'Records'"),
    _failed("records in lower case", {"records": _record()["Records"]}, "no list 'Records'"),
    _failed("records an object", {"Records": {}}, "no list 'Records'"),
    _failed("records text", {"Records": "[]"}, "no list 'Records'"),
    _failed("records null", {"Records": None}, "no list 'Records'"),
    _failed("a record that is text", {"Records": ["x"]}, "record 1"),
    _failed("a record that is null", {"Records": [None]}, "record 1"),
    _failed("a record in a list", {"Records": [_record()["Records"]]}, "record 1"),
    _failed("an empty record", {"Records": [{}]}, "record 1: eventSource is None"),
    _failed("another source", {"Records": [{"eventSource": "aws:sns"}]}, "eventSource is 'aws:sns'"),
    _failed("a source that only looks so", _with("eventSource", "aws:s3.evil"), "eventSource is 'aws:s3.evil'"),
    _failed("a source that is a number", _with("eventSource", 7), "eventSource is 7"),
    _failed("no source", _with("eventSource", ...), "eventSource is None"),
    _failed("no event name", _with("eventName", ...), "eventName"),
    _failed("an event name that is a list", _with("eventName", ["ObjectCreated:Put"]), "eventName"),
    _failed("no s3", _with("s3", ...), "s3"),
    _failed("s3 text", _with("s3", "x"), "s3"),
    _failed("no object", _with("s3.object", ...), "object"),
    _failed("object a list", _with("s3.object", []), "object"),
    _failed("no bucket", _with("s3.bucket", ...), "bucket"),
    _failed("bucket text", _with("s3.bucket", "drops"), "bucket"),
    _failed("no bucket name", _with("s3.bucket.name", ...), "name"),
    # bucket names
    _failed("bucket name empty", _with("s3.bucket.name", ""), "bucket name ''"),
    _failed("bucket name a number", _with("s3.bucket.name", 7), "name"),
    _failed("bucket name a path", _with("s3.bucket.name", "a/b"), "bucket name 'a/b'"),
    _failed("bucket name going up", _with("s3.bucket.name", ".."), "bucket name '..'"),
    _failed("bucket name with a query", _with("s3.bucket.name", "drops?x=1"), "bucket name"),
    _failed("bucket name with a host", _with("s3.bucket.name", "drops@evil.example"), "bucket name"),
    _failed("bucket name with a newline", _with("s3.bucket.name", "drops\n"), "bucket name"),
    _failed("bucket name with NUL", _with("s3.bucket.name", "drops\0"), "bucket name"),
    _failed("bucket name an ARN", _with("s3.bucket.name", "arn:aws:s3:us-east-1:123456789012:accesspoint/x"), "bucket name"),
    _failed("bucket name in full-width letters", _with("s3.bucket.name", "ｄｒｏｐｓ"), "bucket name"),
    _failed("bucket name too short", _with("s3.bucket.name", "ab"), "bucket name"),
    _failed("bucket name too long", _with("s3.bucket.name", "b" * 256), "bucket name"),
    # keys that are none
    _failed("no key", _record(key=None), "key"),
    _failed("key empty", _record(key=""), "0"),
    _failed("key a number", _record(key=7), "key"),
    _failed("key a list", _record(key=["landing/events/a.csv"]), "key"),
    _failed("key too long", _record(key="x" * 1025), "1025"),
    _failed("key too long in UTF-8", _record(key="landing/events/" + "%E6%97%A5" * 340), "355"),
    _failed("key not UTF-8", _record(key="landing/events/%FF%FE.csv"), "not URL-encoded UTF-8"),
    _failed("key in overlong UTF-8", _record(key="landing/events/%C0%AE%C0%AE/a.csv"), "not URL-encoded UTF-8"),
    _failed("key with an encoded surrogate", _record(key="landing/events/%ED%A0%80.csv"), "not URL-encoded UTF-8"),
    _failed("key with half a pair", _record(key="landing/events/\ud800.csv"), "not Unicode"),
    # sizes, ETags, versions, sequencers
    _failed("size text", _record(size="12"), "size '12'"),
    _failed("size negative", _record(size=-1), "size -1"),
    _failed("size true", _record(size=True), "size True"),
    _failed("size a fraction", _record(size=1.5), "size 1.5"),
    _failed("size NaN", _record(size=float("nan")), "size nan"),
    _failed("size absurd", _record(size=10**30), "size 1000"),
    _failed("no ETag", _record(eTag=None), "neither eTag nor versionId"),
    _failed("ETag of quotes alone", _record(eTag='""'), "neither eTag nor versionId"),
    _failed("ETag a number", _record(eTag=5), "text"),
    _failed("ETag too long", _record(eTag="e" * 1025), "text"),
    _failed("ETag with a newline", _record(eTag="e\r\nX-Injected: 1"), "text"),
    _failed("ETag like another file's id", _record(eTag="e#f"), "text"),
    _failed("version a number", _record(versionId=5), "text"),
    _failed("version with a space", _record(versionId="v 1"), "text"),
    _failed("version like another file's id", _record(versionId="v#w"), "text"),
    _failed("sequencer a list", _record(sequencer=[]), "text"),
    _failed("sequencer with NUL", _record(sequencer="0\0"), "text"),
    # EventBridge
    _failed("EventBridge of another service", _bridged(source="aws.ec2"), "'aws.ec2'"),
    _failed("EventBridge without source", {"detail-type": "Object Created"}, "None"),
    _failed("EventBridge of a type that is a list", _bridged(**{"detail-type": ["Object Created"]}), "detail-type"),
    _failed("EventBridge of no type", _bridged(**{"detail-type": None}), "detail-type"),
    _failed("EventBridge without detail", {"source": "aws.s3", "detail-type": "Object Created"}, "detail"),
    _failed("EventBridge with detail as text", _bridged(detail=json.dumps(created("k", "e")["detail"])), "detail"),
    _failed("EventBridge without object", _detailed(object=None), "object"),
    _failed("EventBridge without bucket", _detailed(bucket=None), "bucket"),
    _failed("EventBridge without key", _detailed(object={"etag": "e"}), "key"),
    _failed("EventBridge without ETag", created("k", ""), "neither etag nor version-id"),
    _failed("EventBridge with a version that is a number", created("k", "e", **{"version-id": 1}), "text"),
    _failed("EventBridge with a bucket that is a path", created("k", "e", bucket="../other"), "bucket name"),
    _failed("an archive's replay of a schedule", _bridged(source="aws.scheduler"), "'aws.scheduler'"),
    # SNS
    _failed("SNS around nothing", _sns("?"), "not JSON"),
    _failed("SNS around an empty text", _sns(""), "not JSON"),
    _failed("SNS around an array", _sns([]), "not list"),
    _failed("SNS around SNS", _sns(_sns({})), "inside another"),
    _failed("SNS around SNS around a notification", _sns(_sns(_record())), "inside another"),
    _failed("SNS with a message that is an object", {"Type": "Notification", "Message": _record()}, "no list 'Records'"),
    _failed("SNS asking for a subscription", {"Type": "SubscriptionConfirmation", "SubscribeURL": "https://x"}, "no list 'Records'"),
    _failed("SNS around a bad record", _sns(_record(size=-1)), "record 1: size -1"),
    # places that cannot be ingested: the event is sound, the key is not
    _place("up from the landing prefix", "landing/../database/_latest_manifest", "ignored"),
    _place("up from a table", "landing/events/../users/a.csv", "ignored"),
    _place("up, encoded", "landing/%2e%2e/users/a.csv", "ignored"),
    _place("up, encoded in full", "landing%2F..%2Fusers%2Fa.csv", "ignored"),
    _place("up, encoded twice", "landing/%252e%252e/users/a.csv", "superseded"),
    _place("this directory", "landing/./events/a.csv", "ignored"),
    _place("a prefix that only begins alike", "landing-zone/events/a.csv", "ignored"),
    _place("the prefix in capitals", "LANDING/events/a.csv", "ignored"),
    _place("a leading slash", "/landing/events/a.csv", "ignored"),
    _place("no file", "landing/events/", "ignored"),
    _place("the rejects", "rejected/events/a.csv", "ignored"),
    _place("a temporary name", "landing/events/_temporary/0/a.csv", "ignored"),
    _place("an empty part before the table", "landing//events/a.csv", "failed", "empty"),
    _place("an empty part after the table", "landing/events//a.csv", "failed", "empty"),
    _place("NUL in a name", "landing/events/a%00.csv", "rejected"),
    _place("a backslash", "landing/events/..%5C..%5Cusers%5Ca.csv", "ignored"),
    _place("a backslash in a name", "landing/events/a%5Cb.csv", "rejected"),
    _place("nothing of that name", "landing/events/absent.csv", "superseded"),
    _place("a control character in a name", "landing/events/a%1B%5B31m.csv", "superseded"),
    _place("another normal form of a name", "landing/events/cafe%CC%81.csv", "superseded"),
    _place("a table in capitals", "landing/Events/absent.csv", "superseded"),
    _place("a table in full-width letters", "landing/%EF%BD%85vents/absent.csv", "superseded"),
    _place("a table with a quote", "landing/events';--/absent.csv", "superseded"),
    _place("a table with a newline", "landing/events%0A/absent.csv", "superseded"),
    _place("no table at all", "landing/absent.csv", "superseded"),
    # nothing to do
    _ignored("no records", {"Records": []}),
    _ignored("S3's test event", {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "drops"}),
    _ignored("a removal", _with("eventName", "ObjectRemoved:Delete")),
    _ignored("a tag", _with("eventName", "ObjectTagging:Put")),
    _ignored("a restore", _with("eventName", "s3:ObjectRestore:Completed")),
    _ignored("an event name of nobody", _with("eventName", "ObjectCreated")),
    _ignored("EventBridge of a deletion", _bridged(**{"detail-type": "Object Deleted"})),
    _ignored("EventBridge of a storage class", _bridged(**{"detail-type": "Object Storage Class Changed"})),
]  # fmt: skip
