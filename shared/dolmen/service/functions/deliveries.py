"""Sends messages that a function cannot acknowledge back to their queue, or gives them up, one by one.

SQS counts the deliveries of a message, whatever their outcome, and gives the message up after too many. So a message
that is only postponed must not be delivered again: the function sends a copy, and acknowledges the old message. The
attributes of the copy keep its history. docs/ingest.md ("Retries") says when each kind of message comes again.

If a message is delivered a second time, its function died, or Lambda had no free function to start. Such a message is
isolated: all other messages of its batch are sent again BEFORE a group of ten isolated messages is begun. If it is
delivered once more, it is handled alone, and after ``MAX_CRASHES`` crashes it is given up.

A message that is given up is sent to the dead-letter queue, with the reason as an attribute. A message that cannot be
sent, because SQS does not answer, is reported to Lambda as failed, and comes again after its visibility time-out. If
the function dies between sending a copy and acknowledging the old message, both are delivered: they have one id, and
are applied once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dolmen.api.database import Database
from dolmen.commit.head import context_of
from dolmen.errors import Error
from dolmen.ingest.batch import (
    CRASHES_ATTRIBUTE,
    FAILURES_ATTRIBUTE,
    ID_ATTRIBUTE,
    SENT_ATTRIBUTE,
    WAITS_ATTRIBUTE,
    Message,
    isolate,
)
from dolmen.ingest.queues import EXPEDITED_SECONDS, MAX_SQS_BATCH, MAX_SQS_BYTES, OutgoingMessage
from dolmen.ingest.redaction import error_fields
from dolmen.service.functions.function_settings import DeliveryQueues, Invocation

if TYPE_CHECKING:  # it imports all of maintenance
    from dolmen.maintenance.round import Measures

MAX_FAILURES = 16  # a message is given up when it has failed this often
MAX_CRASHES = 4  # a message is given up when the function has died this often with it
ISOLATED_TOGETHER = 10  # the most messages that are handled together after their first crash
READ_BYTES_PER_SECOND = 30_000_000  # about the speed at which a function of one processor ingests dropped files
FIRST_WAIT_SECONDS = 30  # the delay of a message after its first failure. It doubles with each further one.
MAX_WAIT_SECONDS = 900  # the longest that SQS delays a message
REASON_ATTRIBUTE = "dolmen.reason"  # attribute of a dead letter: why it was given up

_MARGIN_SECONDS = 30
_MAX_REASON = 1000


Fields = Mapping[str, Any]  # the fields of an error in a log: see ``error_fields``

BatchResponse = dict[str, list[dict[str, str]]]  # the response that names to Lambda the messages to deliver again


class HalfTimeDeadline:
    """A deadline after half of the remaining time; the other half is for finishing the work and for the commit.

    The first call returns False, whatever the time: each invocation begins at least one piece of work.
    """

    def __init__(self, remaining_ms: Callable[[], int]) -> None:
        self._remaining_ms, self._half_ms, self._has_begun = remaining_ms, remaining_ms() / 2, False

    @property
    def seconds(self) -> float:
        """The length of that half."""
        return self._half_ms / 1000

    def __call__(self) -> bool:
        has_begun, self._has_begun = self._has_begun, True
        return has_begun and self._remaining_ms() < self._half_ms


class Deliveries:
    """The messages of one invocation, and the decisions on unfinished ones.

    Without ``queues``, unfinished messages are reported to Lambda, and crashes are not detected.
    """

    def __init__(
        self, batch: Sequence[Message], queues: DeliveryQueues | None, database: Database, invocation: Invocation
    ) -> None:
        self._batch, self._queues = list(batch), queues
        self._invocation, self._remaining_seconds = invocation, invocation.remaining_seconds
        self._context = context_of(database)
        self._now_us = self._context.runtime.clock_us()
        self._indexes = {id(message): index for index, message in enumerate(self._batch)}
        self._postponed: set[int] = set()
        self._waits: dict[int, Fields] = {}
        self._errors: dict[int, Fields] = {}
        self._refusals: dict[int, Fields] = {}
        self._sent: set[int] = set()
        self.counts = Counter({"Messages": len(batch), "QueueErrors": 0, "MessagesPostponed": 0, "MessagesGivenUp": 0})
        self.queue_error: Error | None = None
        self.given_up: list[tuple[Message, Fields]] = []

    def groups(self) -> Iterator[list[Message]]:
        """Yields the groups in which to handle the batch; messages in no group go back to the queue."""
        isolated = [message for message in self._batch if message.crashes] if self._queues is not None else []
        if not isolated:
            yield from isolate(self._batch)
            return
        for message in isolated:
            if message.crashes >= MAX_CRASHES:
                reason = f"the function died {message.crashes} times that it took this message"
                self.note_refusal(message, {"error": "CrashError", "reason": reason})
        # One group in this invocation: the messages with the fewest crashes.
        isolated = [message for message in isolated if message.crashes < MAX_CRASHES]
        least = min((message.crashes for message in isolated), default=0)
        together = ISOLATED_TOGETHER if least <= 1 else 1
        group = [message for message in isolated if message.crashes == least][:together]
        group_ids = set(map(id, group))
        refused = self._refusals.keys()
        others = [each for each in self._batch if id(each) not in group_ids and self._index(each) not in refused]
        if not group:
            yield from isolate(others)
            return
        # The others go back to the queue first: the group may kill the function.
        for message in others:
            self.note_postponed(message)
        self._send()
        # Messages that cannot be sent are handled here: before the group if they never crashed, otherwise after it.
        stuck = [message for message in others if self._index(message) not in self._sent]
        for message in stuck:
            self._postponed.discard(self._index(message))
        yield from isolate([message for message in stuck if not message.crashes])
        self._remove_others_and_hide(group, [message for message in others if self._index(message) in self._sent])
        yield group
        yield from isolate([message for message in stuck if message.crashes])

    def note_postponed(self, message: Message) -> None:
        """Records that a message, or a part of it, was not begun."""
        self._postponed.add(self._index(message))

    def note_wait(self, message: Message, fields: Fields) -> None:
        """Records that a message, or a part of it, waits for a table."""
        self._waits.setdefault(self._index(message), fields)

    def note_failure(self, message: Message, fields: Fields) -> None:
        """Records that a message, or a part of it, failed temporarily."""
        self._errors.setdefault(self._index(message), fields)

    def note_refusal(self, message: Message, fields: Fields) -> None:
        """Records that a message, or a part of it, can never be applied."""
        self._refusals.setdefault(self._index(message), fields)

    def send_back_excess(self, sizes: Sequence[tuple[Message, int]], seconds: float) -> list[Message]:
        """Sends messages again that could hardly be begun in time, so that other functions can take them.

        The first message always stays, whatever its size.

        Args:
            sizes: messages in the order of the work, each with the bytes to read for it.
            seconds: the time in which new work is begun.

        Returns:
            The messages that were sent again; none without SQS, or if SQS does not answer.
        """
        if self._queues is None:
            return []
        bytes_of = Counter[int]()
        for message, size in sizes:
            bytes_of[self._index(message)] += size
        room, bytes_before = seconds * READ_BYTES_PER_SECOND, 0
        excess: set[int] = set()
        for index, size in bytes_of.items():
            if bytes_before and bytes_before >= room:
                excess.add(index)
            bytes_before += size
        if not excess:
            return []
        self._postponed |= excess
        self._send()
        self._postponed -= excess - self._sent
        sent = [self._batch[index] for index in sorted(excess & self._sent)]
        self._remove(sent)
        return sent

    def finish(self) -> BatchResponse:
        """Sends messages again and gives others up, logs that, and names the rest to Lambda, which redelivers them."""
        self._send()
        logger = self._invocation.logger
        for message, fields in self.given_up:
            logger.error("message given up", message_id=message.id, **fields)
        if self.queue_error is not None:
            then = "unfinished messages wait for their time-out"
            logger.error("queue not reached", **error_fields(self.queue_error), then=then)
        unsent = [self._batch[index] for index in self._unfinished_indexes() if index not in self._sent]
        return {"batchItemFailures": [{"itemIdentifier": message.answer_id} for message in unsent if message.answer_id]}

    def report(self, done: str, *, lags: Sequence[float] = ()) -> None:
        """Reports the counts, the longest lag, the age of the oldest unfinished message, and the manifest's size.

        Raises RuntimeError if an event that came without a queue is not ``done``, so that Lambda tries it again.
        """
        unfinished = self._unfinished_indexes()
        sent_us = [self._batch[index].sent_us for index in unfinished]
        ages = [max(0, self._now_us - time_us) / 1e6 for time_us in sent_us if time_us is not None]
        measures: Measures = {
            name: ("Bytes" if name.startswith("Bytes") else "Count", count) for name, count in self.counts.items()
        }
        for name, seconds in ("IngestLagSeconds", lags), ("OldestUndoneSeconds", ages):
            if seconds:
                measures[name] = ("Seconds", max(seconds))
        self._invocation.report(measures | {"ManifestBytes": ("Bytes", self._context.head.manifest_bytes)})
        for index in unfinished:
            if self._batch[index].answer_id is None:
                fields = self._errors.get(index) or self._waits.get(index) or self._refusals.get(index)
                reason = fields["reason"] if fields else "there was too little time to begin it"
                raise RuntimeError(f"not {done}: {reason}")

    def _send(self) -> None:
        """Sends unfinished messages back, or to the dead letters, as long as there is time and SQS answers."""
        if self._queues is None:
            return
        back: list[tuple[int, OutgoingMessage]] = []
        dead: list[tuple[int, OutgoingMessage]] = []
        for index in self._unfinished_indexes():
            message = self._batch[index]
            if index in self._sent or message.answer_id is None or message.body is None:
                continue
            error, refusal = self._errors.get(index), self._refusals.get(index)
            if error is not None and message.failures + 1 >= MAX_FAILURES:
                dead.append((index, _dead_letter(message, error)))
            elif error is None and refusal is not None and index not in self._waits and index not in self._postponed:
                dead.append((index, _dead_letter(message, refusal)))
            else:
                failures = message.failures + (error is not None)
                waits = message.waits + (error is None and index in self._waits)
                back.append((index, _copy(message, failures=failures, waits=waits)))
        for queue, letters in zip(self._queues, (back, dead), strict=True):
            sendable = [(index, letter) for index, letter in letters if letter.size <= MAX_SQS_BYTES]
            for start in range(0, len(sendable), MAX_SQS_BATCH):
                part = sendable[start : start + MAX_SQS_BATCH]
                if self._remaining_seconds() < 3 * EXPEDITED_SECONDS:
                    return
                if not self._call(queue.put, [letter for _, letter in part]):
                    return
                indexes = [index for index, _ in part]
                self._sent.update(indexes)
                if letters is dead:
                    self.counts["MessagesGivenUp"] += len(part)
                    self.given_up += [(self._batch[i], self._errors.get(i) or self._refusals[i]) for i in indexes]
                else:
                    uncounted = set(indexes) - self._errors.keys() - self._waits.keys()
                    self.counts["MessagesPostponed"] += len(uncounted)

    def _remove_others_and_hide(self, group: Sequence[Message], sent: Sequence[Message]) -> None:
        """Removes sent messages, and hides the group, which may kill the function, until after the function's time."""
        self._remove(sent)
        if self._queues is not None:
            receipts = [message.receipt for message in group if message.receipt is not None]
            self._call(self._queues[0].hide, receipts, round(self._remaining_seconds()) + _MARGIN_SECONDS)

    def _remove(self, sent: Sequence[Message]) -> None:
        """Removes messages that were sent again, before the function answers."""
        receipts = [message.receipt for message in sent if message.receipt is not None]
        if self._queues is not None and receipts:
            self._call(self._queues[0].remove, receipts)

    def _call(self, verb: Callable[..., None], *arguments: Any) -> bool:
        """Calls SQS, unless a call has failed before; returns whether it answered."""
        if self.queue_error is not None:
            return False
        try:
            verb(*arguments)
        except Error as error:
            self.counts["QueueErrors"] += 1
            self.queue_error = error
            return False
        return True

    def _unfinished_indexes(self) -> list[int]:
        return sorted(self._postponed | self._waits.keys() | self._errors.keys() | self._refusals.keys())

    def _index(self, message: Message) -> int:
        return self._indexes[id(message)]


def _copy(message: Message, *, failures: int, waits: int) -> OutgoingMessage:
    """A copy of a message with new counts. If one has risen, the copy is delayed, longer for higher counts."""
    risen_count = failures if failures > message.failures else waits if waits > message.waits else 0
    delay = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS << min(risen_count - 1, 10)) if risen_count else 0
    counts = {
        SENT_ATTRIBUTE: message.sent_us or 0,
        FAILURES_ATTRIBUTE: failures,
        CRASHES_ATTRIBUTE: message.crashes,
        WAITS_ATTRIBUTE: waits,
    }
    attributes = {name: str(count) for name, count in counts.items() if count}
    return OutgoingMessage(_text(message), {ID_ATTRIBUTE: str(message.id)} | attributes, delay)


def _dead_letter(message: Message, fields: Fields) -> OutgoingMessage:
    reason = f"{fields['error']}: {fields['reason']}"[:_MAX_REASON]
    printable = "".join(character if character.isprintable() else " " for character in reason)
    return OutgoingMessage(_text(message), {ID_ATTRIBUTE: str(message.id), REASON_ATTRIBUTE: printable})


def _text(message: Message) -> str:
    return message.body if isinstance(message.body, str) else json.dumps(message.body)
