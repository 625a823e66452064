"""Queues that messages are put into: of SQS, over HTTP, and directories."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import InputError, LimitError, NotFoundError, StoreUnavailableError
from dolmen.ingest.queues import MAX_SQS_BYTES, DirectoryQueue, QueueDepth, SqsQueue, open_queue
from support.ministack import boto3_client, endpoint_environment

_names = itertools.count()


@cache
def client(endpoint: str) -> Any:
    return boto3_client("sqs", endpoint)


def received(endpoint: str, url: str) -> list[str]:
    """All messages of a queue, taken off it."""
    sqs = client(endpoint)
    bodies: list[str] = []
    while found := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        bodies += [message["Body"] for message in found]
        for message in found:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return bodies


@pytest.fixture
def make_queue(ministack: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    for name, value in endpoint_environment(ministack).items():
        monkeypatch.setenv(name, value)

    def make(**attributes: str) -> str:
        made: str = client(ministack).create_queue(QueueName=f"queues-{next(_names)}", Attributes=attributes)[
            "QueueUrl"
        ]
        return made

    return make


def test_messages_arrive_each_once_however_many_there_are(ministack: str, make_queue: Callable[..., str]) -> None:
    url = make_queue()
    bodies = [json.dumps({"n": n, "text": 'ß"<&>\n'}) for n in range(25)]
    open_queue(url).send(bodies)
    assert sorted(received(ministack, url)) == sorted(bodies)
    open_queue(url).send([])
    assert received(ministack, url) == []


def test_large_messages_are_sent_in_requests_that_sqs_takes(ministack: str, make_queue: Callable[..., str]) -> None:
    url = make_queue()
    sizes = [MAX_SQS_BYTES, 1, MAX_SQS_BYTES // 2, MAX_SQS_BYTES // 2, 10, MAX_SQS_BYTES - 5]
    open_queue(url).send(["x" * size for size in sizes])
    assert sorted(map(len, received(ministack, url))) == sorted(sizes)


def test_one_message_too_large_and_none_is_sent(ministack: str, make_queue: Callable[..., str]) -> None:
    url = make_queue()
    with pytest.raises(LimitError, match="1,048,577"):
        open_queue(url).send(["small", "ä" * (MAX_SQS_BYTES // 2) + "x"])
    assert received(ministack, url) == []


def test_a_queue_that_takes_less_says_so(make_queue: Callable[..., str]) -> None:
    with pytest.raises(InputError, match=r"MaximumMessageSize|TooLong|refuses"):
        open_queue(make_queue(MaximumMessageSize="1024")).send(["x" * 2000])


@pytest.mark.slow
def test_the_depth_counts_what_waits_what_is_under_way_and_what_was_given_up(
    ministack: str, make_queue: Callable[..., str]
) -> None:
    dead = make_queue()
    arn = client(ministack).get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    url = make_queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5}))
    open_queue(url).send(["a", "b", "c"])
    open_queue(dead).send(["d", "e"])
    client(ministack).receive_message(QueueUrl=url, MaxNumberOfMessages=1)
    depth = open_queue(url).depth()
    assert (depth.waiting, depth.under_way, depth.dead) == (2, 1, 2)
    assert str(depth.dead_letters).endswith(dead.rpartition("/")[2])
    assert open_queue(dead).depth() == QueueDepth(2, 0, None, None)


def test_a_queue_that_is_not_there_is_named(ministack: str, make_queue: Callable[..., str]) -> None:
    absent = make_queue().rpartition("/")[0] + "/no-such-queue"
    for act in (lambda queue: queue.send(["x"]), lambda queue: queue.depth()):
        with pytest.raises(NotFoundError, match="no-such-queue"):
            act(open_queue(absent))


def test_a_server_that_cannot_be_reached_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in endpoint_environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailableError, match="reached"):
        open_queue("http://127.0.0.1:9/000000000000/queue").send(["x"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "region", "endpoint"),
    [
        ("https://sqs.eu-west-3.amazonaws.com/1/q", "eu-west-3", "https://sqs.eu-west-3.amazonaws.com"),
        ("https://sqs.us-gov-west-1.amazonaws.com/1/q", "us-gov-west-1", "https://sqs.us-gov-west-1.amazonaws.com"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1", "https://sqs.cn-north-1.amazonaws.com.cn"),
        ("https://vpce-1.sqs.eu-west-3.vpce.amazonaws.com/1/q", "eu-west-3", "https://vpce-1.sqs.eu-west-3.vpce.amazonaws.com"),
        ("http://127.0.0.1:4566/1/q", "us-east-1", "http://127.0.0.1:4566"),
        ("http://sqs.ap-south-1.localhost:4566/1/q", "ap-south-1", "http://sqs.ap-south-1.localhost:4566"),
    ],
)  # fmt: skip
def test_region_and_endpoint_are_those_of_the_url(
    url: str, region: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    queue = open_queue(url)
    assert isinstance(queue, SqsQueue)
    assert (queue._service.client.meta.region_name, queue._service.client.meta.endpoint_url) == (region, endpoint)


@pytest.mark.parametrize(
    ("url", "phrase"),
    [
        ("s3://bucket/queue", "not a queue"),
        ("https://sqs.eu-west-3.amazonaws.com/", "not a queue"),
        ("https:///queue", "not a queue"),
        ("https://sqs.eu-west-3.amazonaws.com/1/q.fifo", "FIFO"),
    ],
)
def test_what_names_no_queue_is_refused(url: str, phrase: str) -> None:
    with pytest.raises(InputError, match=phrase):
        open_queue(url)


def test_a_directory_takes_messages_that_the_local_pipeline_delivers_in_order(tmp_path: Path) -> None:
    root = tmp_path / "queue"
    with pytest.raises(NotFoundError, match="dolmen local"):
        open_queue(str(root))
    pipeline = DirectoryQueue(_made(root), Runtime())
    queue = open_queue(root.as_uri())
    bodies = [json.dumps({"n": n}) for n in range(12)]
    queue.send(bodies[:7])
    queue.send(bodies[7:])
    assert queue.depth() == QueueDepth(12, 0, 0, str(tmp_path / "dead-letters"))
    assert list(pipeline.receive()) == [], "only a file that was there before has come to rest"
    letters = list(pipeline.receive())
    assert [letter.body for letter in letters] == bodies
    assert queue.depth().under_way == 12
    for letter in letters[1:]:
        pipeline.acknowledge(letter)
    assert (queue.depth().waiting, queue.depth().under_way) == (0, 1)


def test_a_message_in_a_directory_has_a_limit_and_a_name_of_its_own(tmp_path: Path) -> None:
    stopped = Runtime(clock_us=lambda: 7, random=random.Random(3))
    queue = DirectoryQueue(tmp_path, stopped)
    queue.send(["1", "2"])
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["1", "2"]
    queue.max_bytes = 5
    with pytest.raises(LimitError, match="6 bytes: at most 5"):
        queue.send(["ok", "äöü"])
    assert len(list(tmp_path.iterdir())) == 2


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
