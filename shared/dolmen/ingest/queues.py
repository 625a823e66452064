"""Queues that messages are put into: of SQS, or a directory on one machine.

An SQS queue takes messages of up to a megabyte, ten at a time and a megabyte together
(docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html). One may arrive twice, and
one whose sending seemed to fail may arrive all the same: what reads them applies each once, by an id inside.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from dolmen.errors import AccessDeniedError, Error, InputError, LimitError, NotFoundError, StoreUnavailableError
from dolmen.runtime import Runtime, shared_runtime
from dolmen.store.backoff import attempts

MAX_SQS_BYTES = 1 << 20
"""Of one message, and of all in one request."""
MAX_SQS_BATCH = 10
MAX_FILE_BYTES = 64 << 20
"""Of one message in a directory: what is read of a delete request."""
HURRIED_SECONDS = 5
"""A hurried request to SQS takes at most 2 seconds to connect, and 3 for its answer."""

_PATIENT = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"mode": "standard", "total_max_attempts": 3},
}
_HURRIED = {"connect_timeout": 2, "read_timeout": 3, "retries": {"total_max_attempts": 1}}


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message on its way into a queue.

    Args:
        attributes: beside the body, by name: printable text.
        delay_seconds: for so long nobody gets it; at most 900.
    """

    body: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: int = 0

    @property
    def size(self) -> int:
        """What counts against the limits of SQS: bytes of the body, and of the attributes with their types."""
        return len(self.body.encode()) + sum(
            len(name) + len("String") + len(value.encode()) for name, value in self.attributes.items()
        )


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many messages there are, approximately.

    Args:
        waiting: to be delivered.
        under_way: delivered, and neither done nor given up.
        dead: given up; None if that is not known.
        dead_letters: where those are.
    """

    waiting: int
    under_way: int
    dead: int | None
    dead_letters: str | None


class Queue(Protocol):
    """Takes messages."""

    url: str
    max_bytes: int
    """Of one message, in UTF-8."""

    def send(self, bodies: Sequence[str]) -> None:
        """Puts messages in.

        Raises:
            LimitError: one is too large; none was sent.
            NotFoundError, AccessDeniedError, StoreUnavailableError: some may have been sent. Sent again, they do no
                harm.
        """

    def depth(self) -> QueueDepth:
        """How many messages there are."""

    def waiting(self) -> int:
        """How many there are to be delivered, approximately: one request.

        Raises:
            NotFoundError, AccessDeniedError, StoreUnavailableError: it cannot be told.
        """


def open_queue(url: str | os.PathLike[str], runtime: Runtime | None = None, *, hurried: bool = False) -> Queue:
    """The queue that a URL names; asks nothing of the network.

    Args:
        url: of an SQS queue (``https://sqs.<region>.amazonaws.com/<account>/<name>``, or at any other endpoint), or a
            directory.
        hurried: give up on a request after ``HURRIED_SECONDS``, without another attempt: for callers whose real work
            is something else.

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
    return SqsQueue(text, runtime, hurried=hurried)


class SqsQueue:
    """A queue of SQS. Region, endpoint and credentials come from its URL and the ordinary AWS configuration."""

    max_bytes = MAX_SQS_BYTES

    def __init__(self, url: str, runtime: Runtime, *, hurried: bool = False) -> None:
        self.url, self._runtime, self._hurried = url, runtime, hurried

    @cached_property
    def _client(self) -> Any:
        try:
            import boto3  # an extra, and slow to import
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ModuleNotFoundError as error:
            raise InputError("a queue of SQS needs boto3: pip install 'dolmen[aws]'") from error
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        told = re.search(r"(?:^|\.)sqs[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.", host)
        endpoint = None if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) and "vpce" not in host else parts
        try:
            session = boto3.Session()
            region = told[1] if told else session.region_name or os.environ.get("AWS_REGION") or "us-east-1"
            return session.client(
                "sqs",
                region_name=region,
                endpoint_url=f"{endpoint.scheme}://{endpoint.netloc}" if endpoint else None,
                config=Config(**(_HURRIED if self._hurried else _PATIENT), user_agent_extra="dolmen"),
            )
        except (BotoCoreError, ValueError) as error:
            from dolmen.store.s3.errors import hide_credentials

            hide_credentials(error)
            raise InputError(f"the AWS configuration cannot be used: {error}") from error

    def send(self, bodies: Sequence[str]) -> None:
        self.put([OutgoingMessage(body) for body in bodies])

    def put(self, messages: Sequence[OutgoingMessage]) -> None:
        """As ``send``, with what else a message has."""
        for batch in _batches(messages, self.max_bytes):
            left = {str(place): message for place, message in enumerate(batch)}
            refused: dict[str, Any] = {}
            for _ in attempts(self._runtime, 2 if self._hurried else 6):
                entries = [_entry(place, message) for place, message in left.items()]
                answer = self._ask("send_message_batch", Entries=entries)
                refused = {entry["Id"]: entry for entry in answer.get("Failed", ())}
                if fault := next((entry for entry in refused.values() if entry.get("SenderFault")), None):
                    raise InputError(f"{self.url} refuses a message: {fault.get('Code')}: {fault.get('Message')}")
                left = {place: left[place] for place in refused}
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
        """Lets nobody else get messages that were delivered, for so long from now.

        Raises:
            InputError, NotFoundError, AccessDeniedError, StoreUnavailableError: some come when they would have come.
        """
        self._ask_about("change_message_visibility_batch", receipts, VisibilityTimeout=seconds)

    def remove(self, receipts: Sequence[str]) -> None:
        """Takes messages that were delivered off the queue.

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
            entries = [{"Id": str(place), "ReceiptHandle": receipt, **each} for place, receipt in enumerate(part)]
            if refused := self._ask(operation, Entries=entries).get("Failed"):
                raise InputError(f"{self.url} refuses: {refused[0].get('Code')}: {refused[0].get('Message')}")

    def _ask(self, operation: str, **request: Any) -> Any:
        client = self._client
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        from dolmen.store.s3.errors import describe

        try:
            return getattr(client, operation)(**({"QueueUrl": self.url} | request))
        except NoCredentialsError as error:
            raise AccessDeniedError(f"no AWS credentials for {self.url}: run 'aws configure', or set AWS_*") from error
        except BotoCoreError as error:
            raise StoreUnavailableError(f"{self.url} cannot be reached: {describe(error)}") from error
        except ClientError as error:
            raise self._translated(error) from error

    def _translated(self, error: Any) -> Error:
        told, status = error.response.get("Error", {}), error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
        code, text = str(told.get("Code", "")), f"{told.get('Code')}: {told.get('Message')}"
        if code.endswith(("NonExistentQueue", "QueueDoesNotExist")):
            return NotFoundError(f"there is no queue {self.url}; the stack's outputs name it")
        if code.endswith("BatchRequestTooLong") or "bytes" in str(told.get("Message", "")):
            return LimitError(f"{self.url} takes no messages of this size ({text}): see its MaximumMessageSize")
        if status in (401, 403) or "AccessDenied" in code:
            return AccessDeniedError(f"{self.url}: {text}")
        if status >= 500 or "Throttl" in code:
            return StoreUnavailableError(f"{self.url} refuses for the moment: {text}")
        return InputError(f"{self.url} refuses: {text}")


class DirectoryQueue:
    """A directory in which messages are ``*.json`` files, as the local pipeline reads them."""

    max_bytes = MAX_FILE_BYTES

    def __init__(self, root: Path, runtime: Runtime) -> None:
        if not root.is_dir():
            raise NotFoundError(
                f"there is no directory {str(root)!r}: start 'dolmen local', which makes one, or say where"
            )
        self.url, self.root, self._runtime = str(root), root, runtime

    @property
    def dead_letters(self) -> Path:
        """Where the local pipeline puts messages that it gave up."""
        return self.root.absolute().parent / "dead-letters"

    def send(self, bodies: Sequence[str]) -> None:
        _check_sizes([len(body.encode()) for body in bodies], self.max_bytes)
        for body in bodies:
            name = f"{self._runtime.clock_us():017d}-{self._runtime.uuid()[:12]}.json"
            partial = self.root / f".{name}.partial"
            with partial.open("w", encoding="utf-8") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(self.root / name)

    def waiting(self) -> int:
        return sum(1 for _ in self.root.glob("[!.]*.json"))

    def depth(self) -> QueueDepth:
        dead = self.dead_letters
        return QueueDepth(
            self.waiting(),
            sum(1 for _ in (self.root / ".claimed").glob("*.json")),
            sum(1 for _ in dead.glob("delete-*.json")),
            str(dead),
        )


def _entry(place: str, message: OutgoingMessage) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": place, "MessageBody": message.body}
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
    for message, size in zip(messages, _check_sizes([each.size for each in messages], max_bytes), strict=True):
        if batch and (len(batch) == MAX_SQS_BATCH or total + size > max_bytes):
            yield batch
            batch, total = [], 0
        batch.append(message)
        total += size
    if batch:
        yield batch


def _check_sizes(sizes: list[int], max_bytes: int) -> list[int]:
    if sizes and max(sizes) > max_bytes:
        raise LimitError(f"a message of {max(sizes):,} bytes, where {max_bytes:,} are allowed")
    return sizes
