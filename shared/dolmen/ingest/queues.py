"""Queues of messages: of SQS, or a directory on one machine in which each message is a file.

SQS limits messages: docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html. A
directory has::

    queue/<name>.json           messages that wait; users may put some there
    queue/.claimed/<id>.<name>  messages that were delivered, until they are done
    dead-letters/*.json         beside the queue: messages that the local pipeline gave up

A message may arrive twice: readers apply it once, by an id in it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct, field

from dolmen.base.runtime import REQUEST, RetryPolicy, Runtime, attempts, cached_property, shared_runtime
from dolmen.base.units import MIB, cut_by_size
from dolmen.errors import AccessDeniedError, Error, InputError, LimitError, NotFoundError, StoreUnavailableError
from dolmen.store.s3.aws_service import AwsService


class OutgoingMessage(Struct, frozen=True):
    """A message to be sent, with printable attributes; the queue holds it back for at most 900 seconds."""

    body: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: int = 0

    @property
    def size(self) -> int:
        """The size that counts against the limits of SQS: bytes of the body, and of the attributes with their types."""
        return len(self.body.encode()) + sum(
            len(name) + len("String") + len(value.encode()) for name, value in self.attributes.items()
        )


class QueueDepth(Struct, frozen=True):
    """The approximate numbers of messages in a queue: to be delivered, delivered but not done, and given up.

    ``dead`` is None if unknown; ``dead_letters`` is their location.
    """

    waiting: int
    under_way: int
    dead: int | None
    dead_letters: str | None


class Queue(Protocol):
    """A queue to send messages to."""

    url: str
    max_bytes: int  # the most bytes of one message, in UTF-8

    def send(self, bodies: Sequence[str]) -> None:
        """Sends messages. Raises LimitError if one is too large, and sends none.

        Raises NotFoundError, AccessDeniedError, StoreUnavailableError; some may be sent; it is safe to send all again.
        """

    def depth(self) -> QueueDepth:
        """Counts the messages: one or two requests."""

    def count_waiting(self) -> int:
        """The approximate number of messages to be delivered: one request. Raises like ``send``."""


def _check_sizes(sizes: list[int], max_bytes: int) -> None:
    if sizes and max(sizes) > max_bytes:
        raise LimitError(f"a message of {max(sizes):,} bytes: at most {max_bytes:,} are allowed")


_NAMESPACE = uuid.UUID("6f0f7c58-5d0a-4c5e-9a3f-2f6b3f0f1d11")
Stamp = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, and size: a file with the same stamp is the same file, unchanged."""


class Letter(Struct):
    """A message on this machine; next delivery at ``due``, in seconds of the runtime's monotonic clock."""

    id: str
    name: str
    body: str
    stamp: Stamp
    tries: int = 0
    due: float = 0.0


class FileWatch:
    """Finds complete files: their stamp is the same in two listings."""

    def __init__(self) -> None:
        self._last: dict[str, Stamp] = {}

    def find_unchanged(self, stamps: dict[str, Stamp]) -> list[str]:
        """Returns the names whose stamps are the same as in the last call."""
        names = [name for name, stamp in stamps.items() if self._last.get(name) == stamp]
        self._last = stamps
        return names


def letter_id(*parts: str) -> str:
    """Makes the id of a letter from texts that identify it: the same after a restart."""
    return str(uuid.uuid5(_NAMESPACE, "\n".join(parts)))


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that it exists whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def list_files(root: Path, *, below: bool = True) -> Iterator[tuple[str, Stamp]]:
    """Lists the files under ``root``, and in its directories if ``below``: relative paths, with ``/``, and stamps.

    Skips names that are not Unicode text: no event can contain them.
    """
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if below and not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            try:
                relative.encode()
                status = os.stat(path)
            except (UnicodeEncodeError, FileNotFoundError):
                continue
            if stat.S_ISREG(status.st_mode) and not name.startswith("."):
                yield relative, (status.st_ino, status.st_mtime_ns, status.st_size)


MAX_FILE_BYTES = 64 * MIB  # the most bytes of one message: the limit of delete requests
_MAX_SHOWN_BYTES = 200


class DirectoryQueue:
    """A queue whose messages are the ``*.json`` files of a directory. Users may put files there, under any name.

    A delivered file is renamed into ``.claimed``. Raises NotFoundError if there is no such directory.
    """

    max_bytes = MAX_FILE_BYTES

    def __init__(self, root: Path, runtime: Runtime) -> None:
        if not root.is_dir():
            raise NotFoundError(
                f"there is no directory {str(root)!r}: start 'dolmen local', which makes one, or name the right one"
            )
        self.url, self.root, self._runtime = str(root), root, runtime
        self._claimed = root / ".claimed"
        self._watch = FileWatch()
        self._is_first_listing = True
        self.has_incomplete = False

    @property
    def dead_letters(self) -> Path:
        """The directory of messages that the local pipeline gave up."""
        return self.root.absolute().parent / "dead-letters"

    def send(self, bodies: Sequence[str]) -> None:
        _check_sizes([len(body.encode()) for body in bodies], self.max_bytes)
        for body in bodies:
            name = f"{self._runtime.clock_us():017d}-{self._runtime.uuid()[:12]}.json"
            write_atomically(self.root / name, body)

    def receive(self) -> Iterator[Letter]:
        """Delivers complete files, and files that an earlier process claimed and did not finish."""
        self._claimed.mkdir(exist_ok=True)
        if self._is_first_listing:
            self._is_first_listing = False
            for path in sorted(self._claimed.glob("*.json")):
                yield _read_letter(path)
        stamps = {name: stamp for name, stamp in list_files(self.root, below=False) if name.endswith(".json")}
        complete = self._watch.find_unchanged(stamps)
        self.has_incomplete = len(complete) < len(stamps)
        for name in complete:
            shown = name if len(name.encode()) <= _MAX_SHOWN_BYTES else "long-name.json"
            claimed = self._claimed / f"{letter_id(name, *map(str, stamps[name]))}.{shown}"
            try:
                os.rename(self.root / name, claimed)
            except FileNotFoundError:
                continue
            yield _read_letter(claimed)

    def acknowledge(self, letter: Letter, *, given_up: bool = False) -> None:
        """Removes a message that is done, or that is now a dead letter."""
        (self._claimed / f"{letter.id}.{letter.name}").unlink(missing_ok=True)

    def count_waiting(self) -> int:
        return sum(1 for _ in self.root.glob("[!.]*.json"))

    def depth(self) -> QueueDepth:
        dead = self.dead_letters
        return QueueDepth(
            self.count_waiting(),
            sum(1 for _ in self._claimed.glob("*.json")),
            sum(1 for _ in dead.glob("delete-*.json")),
            str(dead),
        )

    def find_messages(self) -> Iterator[dict[str, Any]]:
        """Reads the messages that wait or are being handled, as JSON objects; an unreadable one is empty."""
        for path in (*self.root.glob("[!.]*.json"), *self._claimed.glob("*.json")):
            yield _read_object(path)

    def find_dead_letters(self) -> Iterator[dict[str, Any]]:
        """Reads the delete requests that were given up, each with its ``body`` and the ``reason``."""
        for path in sorted(self.dead_letters.glob("delete-*.json")):
            yield _read_object(path)


def _read_letter(claimed: Path) -> Letter:
    id_, _, name = claimed.name.partition(".")
    try:
        body = claimed.read_bytes().decode(errors="replace")
    except OSError as error:
        body = f"the file cannot be read: {error}"  # not a request: it is given up with this text
    return Letter(id_, name, body, (0, 0, 0))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 2 * MAX_FILE_BYTES:
            return {}
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # removed meanwhile, or not JSON, which the function reports
        return {}
    return document if isinstance(document, dict) else {}


MAX_SQS_BYTES = MIB  # the most bytes of one message, and of all messages in one request
MAX_SQS_BATCH = 10  # the most messages in one request
EXPEDITED_SECONDS = 5  # an expedited request to SQS takes at most 2 seconds to connect, and 3 for its response

_PATIENT = {"connect_timeout": 5, "read_timeout": 20, "retries": {"mode": "standard", "total_max_attempts": 3}}
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
            unsent = {str(number): message for number, message in enumerate(batch)}
            refused: dict[str, Any] = {}
            for _ in attempts(self._runtime, RetryPolicy(2) if self._expedited else REQUEST):
                entries = [_entry(number, message) for number, message in unsent.items()]
                response = self._ask("send_message_batch", Entries=entries)
                refused = {entry["Id"]: entry for entry in response.get("Failed", ())}
                if bad := next((entry for entry in refused.values() if entry.get("SenderFault")), None):
                    raise InputError(f"{self.url} refuses a message: {bad.get('Code')}: {bad.get('Message')}")
                unsent = {number: unsent[number] for number in refused}
                if not unsent:
                    break
            else:
                [last, *_] = refused.values()
                raise StoreUnavailableError(f"{self.url} refuses for the moment: {last.get('Code')}")

    def depth(self) -> QueueDepth:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = self._ask("get_queue_attributes", AttributeNames=[*names, "RedrivePolicy"])["Attributes"]
        waiting, under_way = (int(attributes[name]) for name in names)
        if "RedrivePolicy" not in attributes:
            return QueueDepth(waiting, under_way, None, None)
        *_, account, name = json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].split(":")
        parts = urlsplit(self.url)
        url = f"{parts.scheme}://{parts.netloc}/{account}/{name}"
        try:
            dead = self._ask("get_queue_attributes", QueueUrl=url, AttributeNames=names[:1])["Attributes"][names[0]]
        except (AccessDeniedError, NotFoundError):
            return QueueDepth(waiting, under_way, None, url)
        return QueueDepth(waiting, under_way, int(dead), url)

    def hide(self, receipts: Sequence[str], seconds: int) -> None:
        """Hides messages that were delivered from other receivers, for ``seconds`` from now. Raises as ``send``."""
        self._change("change_message_visibility_batch", receipts, VisibilityTimeout=seconds)

    def remove(self, receipts: Sequence[str]) -> None:
        """Removes messages that were delivered. Raises as ``send``: some may come again."""
        self._change("delete_message_batch", receipts)

    def count_waiting(self) -> int:
        name = "ApproximateNumberOfMessages"
        return int(self._ask("get_queue_attributes", AttributeNames=[name])["Attributes"][name])

    def _change(self, operation: str, receipts: Sequence[str], **each: Any) -> None:
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


def _batches(messages: Sequence[OutgoingMessage], max_bytes: int) -> Iterator[Sequence[OutgoingMessage]]:
    _check_sizes([each.size for each in messages], max_bytes)
    return cut_by_size(messages, lambda message: message.size, max_bytes, MAX_SQS_BATCH)


def open_queue(url: str | os.PathLike[str], runtime: Runtime | None = None, *, expedited: bool = False) -> Queue:
    """Returns the queue of a URL, without a request. Raises InputError, NotFoundError.

    Args:
        url: ``https://sqs.<region>.amazonaws.com/<account>/<name>``, or at any other endpoint, or a directory.
        expedited: give up on a request after ``EXPEDITED_SECONDS``, without another attempt.
    """
    text, runtime = os.fspath(url), runtime or shared_runtime()
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return DirectoryQueue(Path(rest) if separator else Path(text).expanduser(), runtime)
    parts = urlsplit(text)
    if scheme not in ("https", "http") or not parts.hostname or not parts.path.strip("/"):
        raise InputError(f"{text!r} is not a queue: give the URL of one (https://sqs...), or a directory")
    if text.endswith(".fifo"):
        raise InputError(f"{text!r} is a FIFO queue: dolmen's functions need a standard one")
    return SqsQueue(text, runtime, expedited=expedited)
