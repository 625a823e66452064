"""Queues of SQS, and the queue that a URL names.

A queue of SQS takes messages of up to a megabyte, ten at a time and a megabyte together
(docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dolmen.base.runtime import REQUEST, RetryPolicy, Runtime, attempts, cached_property, shared_runtime
from dolmen.base.units import MIB
from dolmen.errors import AccessDeniedError, Error, InputError, LimitError, NotFoundError, StoreUnavailableError
from dolmen.ingest.queues.directory_queue import DirectoryQueue
from dolmen.ingest.queues.queue import OutgoingMessage, Queue, QueueDepth, check_sizes
from dolmen.store.s3.aws_service import AwsService

MAX_SQS_BYTES = MIB
"""The most bytes of one message, and of all messages in one request."""
MAX_SQS_BATCH = 10
"""The most messages in one request."""
EXPEDITED_SECONDS = 5
"""An expedited request to SQS takes at most 2 seconds to connect, and 3 for its answer."""

_PATIENT = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 3},
}
_EXPEDITED = {"connect_timeout": 2, "read_timeout": 3, "retries": {"total_max_attempts": 1}}


class SqsQueue:
    """A queue of SQS. Region, endpoint and credentials come from its URL and the ordinary AWS configuration."""

    max_bytes = MAX_SQS_BYTES

    def __init__(self, url: str, runtime: Runtime, *, expedited: bool = False) -> None:
        self.url, self._runtime, self._expedited = url, runtime, expedited

    @cached_property
    def _service(self) -> AwsService:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        region = re.search(r"(?:^|\.)sqs[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.", host)
        is_public = host.endswith((".amazonaws.com", ".amazonaws.com.cn")) and "vpce" not in host
        return AwsService(
            "sqs",
            self.url,
            _EXPEDITED if self._expedited else _PATIENT,
            region=region[1] if region else None,
            default_region="us-east-1",
            endpoint=None if is_public else f"{parts.scheme}://{parts.netloc}",
            translate=self._translate,
        )

    def send(self, bodies: Sequence[str]) -> None:
        self.put([OutgoingMessage(body) for body in bodies])

    def put(self, messages: Sequence[OutgoingMessage]) -> None:
        """Sends messages with their attributes and delays; raises as ``send``."""
        for batch in _batches(messages, self.max_bytes):
            left = {str(number): message for number, message in enumerate(batch)}
            refused: dict[str, Any] = {}
            for _ in attempts(self._runtime, RetryPolicy(2) if self._expedited else REQUEST):
                entries = [_entry(number, message) for number, message in left.items()]
                answer = self._ask("send_message_batch", Entries=entries)
                refused = {entry["Id"]: entry for entry in answer.get("Failed", ())}
                if bad := next((entry for entry in refused.values() if entry.get("SenderFault")), None):
                    raise InputError(f"{self.url} refuses a message: {bad.get('Code')}: {bad.get('Message')}")
                left = {number: left[number] for number in refused}
                if not left:
                    break
            else:
                [last, *_] = refused.values()
                raise StoreUnavailableError(f"{self.url} refuses for the moment: {last.get('Code')}")

    def depth(self) -> QueueDepth:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._ask("get_queue_attributes", AttributeNames=[*names, "RedrivePolicy"])["Attributes"]
        waiting, under_way = (int(found[name]) for name in names)
        if "RedrivePolicy" not in found:
            return QueueDepth(waiting, under_way, None, None)
        *_, account, name = json.loads(found["RedrivePolicy"])["deadLetterTargetArn"].split(":")
        parts = urlsplit(self.url)
        url = f"{parts.scheme}://{parts.netloc}/{account}/{name}"
        try:
            dead = self._ask("get_queue_attributes", QueueUrl=url, AttributeNames=names[:1])["Attributes"][names[0]]
        except (AccessDeniedError, NotFoundError):
            return QueueDepth(waiting, under_way, None, url)
        return QueueDepth(waiting, under_way, int(dead), url)

    def hide(self, receipts: Sequence[str], seconds: int) -> None:
        """Hides messages that were delivered from other receivers, for ``seconds`` from now.

        Raises:
            InputError, NotFoundError, AccessDeniedError, StoreUnavailableError: some may not be hidden.
        """
        self._ask_about("change_message_visibility_batch", receipts, VisibilityTimeout=seconds)

    def remove(self, receipts: Sequence[str]) -> None:
        """Removes messages that were delivered.

        Raises:
            InputError, NotFoundError, AccessDeniedError, StoreUnavailableError: some may come again.
        """
        self._ask_about("delete_message_batch", receipts)

    def waiting(self) -> int:
        name = "ApproximateNumberOfMessages"
        return int(self._ask("get_queue_attributes", AttributeNames=[name])["Attributes"][name])

    def _ask_about(self, operation: str, receipts: Sequence[str], **each: Any) -> None:
        for start in range(0, len(receipts), MAX_SQS_BATCH):
            part = receipts[start : start + MAX_SQS_BATCH]
            entries = [{"Id": str(number), "ReceiptHandle": receipt, **each} for number, receipt in enumerate(part)]
            if refused := self._ask(operation, Entries=entries).get("Failed"):
                raise InputError(f"{self.url} refuses: {refused[0].get('Code')}: {refused[0].get('Message')}")

    def _ask(self, operation: str, **request: Any) -> Any:
        return self._service.ask(operation, **({"QueueUrl": self.url} | request))

    def _translate(self, code: str, text: str) -> Error | None:
        if code.endswith(("NonExistentQueue", "QueueDoesNotExist")):
            return NotFoundError(f"there is no queue {self.url}; the stack's outputs name it")
        if code.endswith("BatchRequestTooLong") or "bytes" in text:
            return LimitError(f"{self.url} takes no messages of this size ({text}): see its MaximumMessageSize")
        return None


def _entry(number: str, message: OutgoingMessage) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": number, "MessageBody": message.body}
    if message.attributes:
        entry["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value} for name, value in message.attributes.items()
        }
    if message.delay_seconds:
        entry["DelaySeconds"] = message.delay_seconds
    return entry


def _batches(messages: Sequence[OutgoingMessage], max_bytes: int) -> Iterator[list[OutgoingMessage]]:
    batch: list[OutgoingMessage] = []
    total = 0
    for message, size in zip(messages, check_sizes([each.size for each in messages], max_bytes), strict=True):
        if batch and (len(batch) == MAX_SQS_BATCH or total + size > max_bytes):
            yield batch
            batch, total = [], 0
        batch.append(message)
        total += size
    if batch:
        yield batch


def open_queue(url: str | os.PathLike[str], runtime: Runtime | None = None, *, expedited: bool = False) -> Queue:
    """The queue that a URL names; asks nothing of the network.

    Args:
        url: of an SQS queue (``https://sqs.<region>.amazonaws.com/<account>/<name>``, or at any other endpoint), or a
            directory.
        expedited: give up on a request after ``EXPEDITED_SECONDS``, without another attempt: for callers that have
            other work to do.

    Raises:
        InputError: the URL is neither, or boto3 is not installed.
        NotFoundError: there is no such directory.
    """
    text, runtime = os.fspath(url), runtime or shared_runtime()
    scheme, separator, rest = text.partition("://")
    if not separator:
        return DirectoryQueue(Path(text).expanduser(), runtime)
    if scheme == "file":
        return DirectoryQueue(Path(rest), runtime)
    parts = urlsplit(text)
    if scheme not in ("https", "http") or not parts.hostname or not parts.path.strip("/"):
        raise InputError(f"{text!r} is no queue: give the URL of one (https://sqs...), or a directory")
    if text.endswith(".fifo"):
        raise InputError(f"{text!r} is a FIFO queue: dolmen's functions take standard ones")
    return SqsQueue(text, runtime, expedited=expedited)
