"""What is read of events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dolmen.errors import InputError
from dolmen.ingest.announcements import Drop, read_drops, write_notification, write_record
from dolmen.ingest.batch import Message, isolate, read_messages
from dolmen.ingest.landing import Landing
from support.event_builders import created, notification, s3_record, sqs_event


def drops(event: Any) -> list[Drop]:
    found = []
    for message in read_messages(event):
        announced, error = read_drops(message.body)
        assert error is None
        found += announced
    return found


@pytest.mark.parametrize(
    ("encoded", "key"),
    [
        ("landing/events/a+b.csv", "landing/events/a b.csv"),
        ("landing/events/a%2Bb.csv", "landing/events/a+b.csv"),
        ("landing/events/100%25.csv", "landing/events/100%.csv"),
        ("landing/events/%E6%97%A5%E6%9C%AC.csv", "landing/events/日本.csv"),
        ("landing/events/a%2Fb.csv", "landing/events/a/b.csv"),
        ("landing/events/%2525.csv", "landing/events/%25.csv"),
    ],
)
def test_keys_of_s3_notifications_are_decoded_once(encoded: str, key: str) -> None:
    record = s3_record("x", "e")
    record["s3"]["object"]["key"] = encoded
    assert [drop.key for drop in drops(notification(record))] == [key]


def test_keys_of_eventbridge_are_taken_as_they_are() -> None:
    key = "landing/events/a+b%20c 日本.csv"
    assert [drop.key for drop in drops(created(key, "e"))] == [key]
    assert [drop.key for drop in drops(sqs_event([created(key, "e")]))] == [key]


def test_all_ways_of_wrapping_announce_the_same_drop() -> None:
    record = s3_record("landing/events/a b.csv", "abc", size=7, sequencer="01", versionId="v1")
    plain = notification(record)
    sns = {"Type": "Notification", "Message": json.dumps(plain)}
    eventbridge = created("landing/events/a b.csv", '"abc"', sequencer="01", size=7, **{"version-id": "v1"})
    expected = [Drop("drops", "landing/events/a b.csv", 7, "abc", "v1", "01")]
    for event in (plain, eventbridge, sns, sqs_event([plain]), sqs_event([sns]), sqs_event([eventbridge])):
        assert drops(event) == expected


def test_a_test_event_announces_nothing() -> None:
    test_event = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "drops"}
    assert drops(test_event) == []
    assert drops(sqs_event([test_event, notification(s3_record("landing/events/a.csv", "e"))])) != []


def test_several_records_of_one_message_are_all_announced() -> None:
    records = [s3_record(f"landing/events/{n}.csv", str(n)) for n in range(1, 4)]
    assert [drop.etag for drop in drops(sqs_event([notification(*records)]))] == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["ObjectRemoved:Delete", "ObjectTagging:Put", "s3:ObjectRestore:Post", "TestEvent"])
def test_other_events_of_s3_announce_nothing(name: str) -> None:
    assert drops(notification({**s3_record("landing/events/a.csv", "e"), "eventName": name})) == []
    assert drops({**created("landing/events/a.csv", "e"), "detail-type": "Object Deleted"}) == []


def test_servers_that_write_s3_before_the_event_name_are_understood() -> None:
    record = {**s3_record("landing/events/a.csv", "e"), "eventSource": "minio:s3", "eventName": "s3:ObjectCreated:Put"}
    assert len(drops(notification(record))) == 1


def test_a_bad_record_fails_its_message_but_not_the_records_beside_it() -> None:
    bad = s3_record("landing/events/b.csv", "e")
    bad["s3"]["object"]["key"] = "%FF"
    [message] = read_messages(sqs_event([notification(s3_record("landing/events/a.csv", "e"), bad)]))
    announced, error = read_drops(message.body)
    assert [drop.key for drop in announced] == ["landing/events/a.csv"]
    assert "record 2" in str(error)
    assert "UTF-8" in str(error)


def test_ids_tell_versions_apart_and_otherwise_contents() -> None:
    assert Drop("b", "k", 1, "e").id == "s3://b/k#e"
    assert Drop("b", "k", 1, "e", "v1").id != Drop("b", "k", 1, "e", "v2").id


def test_the_version_null_of_a_suspended_bucket_is_no_version() -> None:
    [drop] = drops(notification(s3_record("landing/events/a.csv", "e", versionId="null")))
    assert drop.version is None


def test_messages_that_came_often_are_handled_alone_after_the_rest() -> None:
    batch = [Message("a", "", 3), Message("b", "", 1), Message("c", "", 2), Message("d", "", 9)]
    assert [[message.id for message in group] for group in isolate(batch)] == [["b", "c"], ["a"], ["d"]]


def test_an_event_that_is_no_event_is_refused() -> None:
    for event in ("text", None, 7, [], [sqs_event([])]):
        with pytest.raises(InputError):
            read_messages(event)


def test_a_record_of_a_queue_that_is_none_fails_alone() -> None:
    good = sqs_event([notification(s3_record("landing/events/a.csv", "e"))])["Records"][0]
    nameless, bodiless, foreign = ({**good} for _ in range(3))
    del nameless["messageId"], bodiless["body"]
    foreign["eventSource"] = "aws:sns"
    found = read_messages({"Records": [good, nameless, bodiless, foreign, "x", {**good, "body": 7}]})
    assert [message.id for message in found] == ["message-0", None, "message-0", "message-0", None, "message-0"]
    assert [len(read_drops(message.body)[0]) for message in found] == [1, 1, 0, 0, 0, 0]
    assert [read_drops(message.body)[1] is None for message in found] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("told", "tries"), [("3", 3), ("", 1), ("-1", 1), ("1e3", 1), ("²", 1), ("9" * 5000, 1), (7, 1), (None, 1)]
)
def test_how_often_a_message_came_is_a_small_number_or_not_known(told: Any, tries: int) -> None:
    event = sqs_event(["{}"])
    event["Records"][0]["attributes"]["ApproximateReceiveCount"] = told
    assert [message.tries for message in read_messages(event)] == [tries]


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("landing/events/a.csv", "events/a.csv"),
        ("landing/events/2026/11/a.csv", "events/2026/11/a.csv"),
        ("landing/_events/a.csv", "_events/a.csv"),
        ("landing/a.csv", "a.csv"),
        ("other/events/a.csv", None),
        ("landing", None),
        ("landing/", None),
        ("landing/events/", None),
        ("landing/events/_SUCCESS", None),
        ("landing/events/_temporary/0/part-0.parquet", None),
        ("landing/events/.a.csv.partial", None),
        ("landing/.hidden/a.csv", None),
        ("rejected/events/a.csv", None),
    ],
)
def test_only_finished_files_under_the_landing_prefix_are_drops(key: str, path: str | None) -> None:
    place = Landing("s3://drops/database").path_of(Drop("drops", key, 1, "e"))
    assert (place and place.path) == path


@pytest.mark.parametrize(
    "key", ["database/data/events/x.parquet", "database/manifest/v1.json", "rejected/events/a.csv"]
)
def test_the_database_and_the_rejects_never_trigger_themselves(key: str) -> None:
    whole_bucket = Landing("s3://drops/database", prefix="")
    assert whole_bucket.path_of(Drop("drops", key, 1, "e")) is None
    assert whole_bucket.path_of(Drop("another", key.replace("rejected", "landed"), 1, "e")) is not None
    with_percent = Landing("s3://drops/data%20base", prefix="")  # keys of S3 are not encoded in URLs
    assert with_percent.path_of(Drop("drops", "data%20base/x.csv", 1, "e")) is None
    assert with_percent.path_of(Drop("drops", "data base/x.csv", 1, "e")) is not None


@pytest.mark.parametrize("path", ["a.csv", "Events/a.csv", "ev-ents/a.csv", f"{'x' * 65}/a.csv"])
def test_a_file_outside_a_tables_directory_has_no_table(path: str) -> None:
    place = Landing("s3://drops/database").path_of(Drop("drops", f"landing/{path}", 1, "e"))
    assert place is not None
    with pytest.raises(InputError):
        _ = place.table


@pytest.mark.parametrize(
    "drop",
    [
        Drop("bucket", "landing/events/a b+ü.csv", 7, "e"),
        Drop("bucket", "landing/events/a.csv", 0, "e", "version", "00AB"),
        Drop("bucket", "landing/events/a.csv", 7, "e", sequencer="01", created_us=1_700_000_000_123_456),
    ],
)
def test_a_notification_that_is_written_announces_the_drop_it_was_written_of(drop: Drop) -> None:
    [message] = read_messages(sqs_event([json.loads(write_notification([write_record(drop), write_record(drop)]))]))
    assert read_drops(message.body) == ([drop, drop], None)
