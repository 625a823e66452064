"""What a request is, what may become of it, and who decides: the scheduling points of every simulated history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeAlias


class Crash(BaseException):
    """The process dies here. No production code may catch it."""


class Verb(StrEnum):
    """What is asked of the store; each request of S3Store is one of these."""

    GET = "get"
    HEAD = "head"
    LIST = "list"
    PUT = "put"
    DELETE = "delete"
    CREATE_UPLOAD = "create upload"
    UPLOAD_PART = "upload part"
    COMPLETE_UPLOAD = "complete upload"
    ABORT_UPLOAD = "abort upload"

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self in (Verb.GET, Verb.HEAD, Verb.LIST)

    @property
    def conditional(self) -> bool:
        """Whether it lands or not by a condition, which may be answered with 409."""
        return self in (Verb.PUT, Verb.COMPLETE_UPLOAD)


class Fate(Enum):
    """What becomes of one request. The caller is told the truth, or nothing."""

    OK = "ok"
    CRASH_BEFORE = "the caller dies, and it never leaves"
    CRASH_AFTER = "the caller dies, and it arrives"
    REQUEST_LOST = "it never arrives, and no answer comes"
    RESPONSE_LOST = "it arrives, and no answer comes"
    LATE = "no answer comes, and it arrives later"
    DOUBLED = "it arrives twice; the second is answered"
    DOUBLED_LATER = "it is answered, and arrives once more later"
    THROTTLED = "503, and nothing has happened"
    THROTTLED_AFTER = "500, and it has happened all the same"
    CONFLICT = "409: another request was under way, and nothing has happened"
    UNREACHABLE = "no connection"


_OF_ALL = (Fate.OK, Fate.CRASH_BEFORE, Fate.REQUEST_LOST, Fate.THROTTLED, Fate.UNREACHABLE)


def fates_of(verb: Verb) -> tuple[Fate, ...]:
    """All fates of a verb that differ: it makes no difference whether a read that nobody hears of took place."""
    if verb.reads:
        return _OF_ALL
    return tuple(fate for fate in Fate if verb.conditional or fate is not Fate.CONFLICT)


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """One request, as it was signed.

    Args:
        who: the process that sends it.
        verb: what it asks.
        key: the object; the prefix of a list, the first key of a delete.
        body: of a put, or of a part.
        if_match: answer only if the object has this ETag.
        if_none_match: put only if there is no object.
        byte_range: of a get: (first, end), end exclusive.
        keys: of a delete: all of them.
        start_after: of a list: only greater keys.
        limit: of a list: so many at most.
        upload: id of a multipart upload.
        part: number of a part.
        parts: of a completion: numbers and ETags.
    """

    who: str
    verb: Verb
    key: str
    body: bytes = b""
    if_match: str | None = None
    if_none_match: bool = False
    byte_range: tuple[int, int] | None = None
    keys: tuple[str, ...] = ()
    start_after: str = ""
    limit: int = 0
    upload: str = ""
    part: int = 0
    parts: tuple[tuple[int, str], ...] = ()

    @property
    def subject(self) -> str:
        """What it is about, for a trace."""
        return " ".join(self.keys) or (f"{self.key} part {self.part}" if self.part else self.key)


class Refusal(Exception):  # noqa: N818  # an answer like any other
    """The store's answer is an error: it has done nothing.

    Args:
        status: of HTTP.
        code: S3's word for it.
    """

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status, self.code = status, code

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


Answer: TypeAlias = Mapping[str, Any] | Refusal
"""What the store did with a request that has arrived: a response as boto3 gives it, or why it did nothing."""


class Wire:
    """Who decides what becomes of requests: here nothing is ever wrong. All others are made of it.

    Simulated clients call it. A request that is to arrive does so right after ``step``, with nobody else in between.
    """

    def step(self, request: StoreRequest) -> Fate:
        """The scheduling point of a request: lets others come in, then says what becomes of it. May raise Crash."""
        return Fate.OK

    def wait_for_timeout(self, request: StoreRequest) -> None:
        """Lets the time go by until the caller gives up waiting for an answer."""

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        """Has a request arrive later, by calling ``arrive`` within the time for which S3 takes a signature."""
        arrive()

    def keys_not_removed(self, request: StoreRequest) -> Collection[str]:
        """Keys of a delete that the store fails to remove, and says so if it is heard."""
        return ()

    def before_removal(self, key: str) -> None:
        """An object is about to be removed."""

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        """What truly became of a request that has arrived."""
