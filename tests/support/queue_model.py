"""A model of an SQS queue and Lambda's pollers: events in order of time, without waiting.

The function is the real one, over a real database: what it decides is what is tried. What the model knows of SQS and
Lambda: a delivered message is hidden for the visibility time-out; one that was delivered too often goes to the
dead-letter queue instead; a batch is invoked when it is full or its window is over; what the answer does not name is
deleted; an invocation that takes longer than the time-out, or dies, answers nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from dolmen.ingest.announcements import Drop
from dolmen.ingest.landing import Landing
from dolmen.ingest.queues import OutgoingMessage
from support.functions import World, use_queues
from support.template import PARAMETERS, TEMPLATE


class Died(BaseException):
    """Ends the process without running any error handler."""


@dataclass
class Lambda:
    """The template's defaults for a function and its queue."""

    timeout: int
    batch_size: int
    window: int
    concurrency: int
    visibility: int
    max_receives: int

    @classmethod
    def of_template(cls, function: str) -> Lambda:
        def default(name: str) -> int:
            return int(PARAMETERS[f"{function}{name}"]["Default"])

        visibility = TEMPLATE["Mappings"]["VisibilityTimeout"][str(default("Timeout"))]["Seconds"]
        queue = TEMPLATE["Resources"][f"{function}Queue"]["Properties"]
        return cls(
            default("Timeout"),
            default("BatchSize"),
            default("WindowSeconds"),
            default("Concurrency"),
            visibility,
            queue["RedrivePolicy"]["maxReceiveCount"],
        )


@dataclass
class Stored:
    """A message in the queue."""

    id: str
    body: str
    attributes: dict[str, str]
    sent: float
    visible: float
    receives: int = 0


@dataclass
class ModelQueue:
    """A queue, with the calls of functions and of Lambda."""

    clock: Callable[[], float]
    visibility: float
    max_receives: int
    dead: ModelQueue | None = None
    messages: dict[str, Stored] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    def put(self, messages: Sequence[OutgoingMessage]) -> None:
        for each in messages:
            id_ = f"m{next(self._ids)}"
            now = self.clock()
            self.messages[id_] = Stored(id_, each.body, dict(each.attributes), now, now + each.delay_seconds)

    def hide(self, receipts: Sequence[str], seconds: int) -> None:
        for receipt in receipts:
            self.messages[receipt].visible = self.clock() + seconds

    def remove(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            del self.messages[receipt]

    def receive(self, now: float, most: int) -> list[Stored]:
        """Delivers visible messages; those delivered too often become dead letters."""
        batch: list[Stored] = []
        for stored in sorted(self.messages.values(), key=lambda one: one.visible):
            if stored.visible > now or len(batch) == most:
                break
            if stored.receives >= self.max_receives:
                assert self.dead is not None
                self.dead.messages[stored.id] = self.messages.pop(stored.id)
                continue
            stored.receives += 1
            stored.visible = now + self.visibility
            batch.append(stored)
        return batch

    def next_visible(self) -> float:
        return min((stored.visible for stored in self.messages.values()), default=float("inf"))


def record_of(stored: Stored) -> dict[str, Any]:
    """The record of a message in Lambda's event."""
    return {
        "messageId": stored.id,
        "receiptHandle": stored.id,
        "body": stored.body,
        "attributes": {
            "ApproximateReceiveCount": str(stored.receives),
            "SentTimestamp": str(int(stored.sent * 1000)),
        },
        "messageAttributes": {
            name: {"stringValue": value, "dataType": "String"} for name, value in stored.attributes.items()
        },
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:queue",
        "awsRegion": "us-east-1",
    }


@dataclass
class Pipeline:
    """The ingest function behind its queue.

    Args:
        world: the function and its database.
        megabytes_per_second: speed of reading a file.
        killers: names of files that end the process that reads them.
        sends_anew: whether the function knows its queues, and so sends messages again.
    """

    world: World
    megabytes_per_second: float = 30.0
    killers: frozenset[str] = frozenset()
    sends_anew: bool = True
    now: float = 0.0
    invocations: int = 0
    deaths: int = 0
    began: float = 0.0

    def __post_init__(self) -> None:
        self.settings = Lambda.of_template("Ingest")
        self.dead = ModelQueue(lambda: self.now, 0, 0)
        visibility, receives = self.settings.visibility, self.settings.max_receives
        self.queue = ModelQueue(lambda: self.now, visibility, receives, self.dead)

    def run(self) -> None:
        """Runs until the queue is empty."""
        use_queues(self.world.functions["ingest"], lambda _: (self.queue, self.dead) if self.sends_anew else None)
        free = [0.0] * self.settings.concurrency
        with self._reading_takes_time():
            while self.queue.messages:
                poller = min(range(len(free)), key=free.__getitem__)
                now = max(free[poller], self.queue.next_visible())
                batch = self.queue.receive(now, self.settings.batch_size)
                if batch and len(batch) < self.settings.batch_size:
                    now += self.settings.window
                    batch += self.queue.receive(now, self.settings.batch_size - len(batch))
                if batch:
                    free[poller] = self._invoke(batch, now)

    def dead_files(self) -> set[str]:
        """The names of the files whose messages are dead letters."""
        return {
            record["s3"]["object"]["key"].rpartition("/")[2]
            for stored in self.dead.messages.values()
            for record in json.loads(stored.body)["Records"]
        }

    def get_remaining_time_in_millis(self) -> int:
        return int((self.settings.timeout - (self.now - self.began)) * 1000)

    def _invoke(self, batch: list[Stored], now: float) -> float:
        self.began = self.now = now
        self.invocations += 1
        context: Any = self.world.context
        with mock.patch.object(context, "get_remaining_time_in_millis", self.get_remaining_time_in_millis):
            answer = None
            with suppress(Died):
                event = {"Records": [record_of(stored) for stored in batch]}
                answer = self.world.functions["ingest"].lambda_handler(event, context)
                self._pass(1.0)  # for the commit
        if answer is None:
            self.deaths += 1
            return min(self.now, self.began + self.settings.timeout)
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        for stored in batch:
            if stored.id not in failed:
                self.queue.messages.pop(stored.id, None)
        return self.now

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        if self.now - self.began > self.settings.timeout:
            raise Died

    @contextmanager
    def _reading_takes_time(self) -> Any:
        opened = Landing.open

        def open_slowly(landing: Landing, drop: Drop) -> Any:
            self._pass(drop.size / self.megabytes_per_second / 1e6)
            if drop.key.rpartition("/")[2] in self.killers:
                raise Died
            return opened(landing, drop)

        with mock.patch.object(Landing, "open", open_slowly):
            yield
