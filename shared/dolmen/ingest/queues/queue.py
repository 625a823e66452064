"""The interface of all queues: sends messages, and counts those that wait.

A message may arrive twice, and one whose sending seemed to fail may arrive all the same: readers apply each once, by an
id inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dolmen.errors import LimitError


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to be sent.

    Args:
        attributes: beside the body, by name: printable text.
        delay_seconds: how long the queue holds it back; at most 900.
    """

    body: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: int = 0

    @property
    def size(self) -> int:
        """The size that counts against the limits of SQS: bytes of the body, and of the attributes with their types."""
        return len(self.body.encode()) + sum(
            len(name) + len("String") + len(value.encode()) for name, value in self.attributes.items()
        )


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The approximate numbers of messages in a queue.

    Args:
        waiting: messages to be delivered.
        under_way: messages that were delivered, and are neither done nor given up.
        dead: messages that were given up; None if that is not known.
        dead_letters: where those are.
    """

    waiting: int
    under_way: int
    dead: int | None
    dead_letters: str | None


class Queue(Protocol):
    """A queue that takes messages."""

    url: str
    max_bytes: int
    """The most bytes of one message, in UTF-8."""

    def send(self, bodies: Sequence[str]) -> None:
        """Sends messages.

        Raises:
            LimitError: a message is too large; none was sent.
            NotFoundError, AccessDeniedError, StoreUnavailableError: some may have been sent. Sent again, they do no
                harm.
        """

    def depth(self) -> QueueDepth:
        """Counts the messages: one or two requests."""

    def waiting(self) -> int:
        """The approximate number of messages to be delivered: one request.

        Raises:
            NotFoundError, AccessDeniedError, StoreUnavailableError: the number is not known.
        """


def check_sizes(sizes: list[int], max_bytes: int) -> list[int]:
    """Returns the sizes of messages in bytes. Raises LimitError: one is larger than ``max_bytes``."""
    if sizes and max(sizes) > max_bytes:
        raise LimitError(f"a message of {max(sizes):,} bytes, where {max_bytes:,} are allowed")
    return sizes
