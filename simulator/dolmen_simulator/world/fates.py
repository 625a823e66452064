"""Requests, their possible fates, and the wire that decides them: the scheduling points of every history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeAlias


class Crash(BaseException):
    """Ends a process. No production code may catch it."""


class Verb(StrEnum):
    """The kinds of requests that S3Store sends."""

    GET = "get"
    HEAD = "head"
    LIST = "list"
    PUT = "put"
    DELETE = "delete"
    CREATE_UPLOAD = "create upload"
    UPLOAD_PART = "upload part"
    COPY_PART = "copy part"
    COMPLETE_UPLOAD = "complete upload"
    ABORT_UPLOAD = "abort upload"

    @property
    def reads(self) -> bool:
        """Whether the request changes nothing."""
        return self in (Verb.GET, Verb.HEAD, Verb.LIST)

    @property
    def conditional(self) -> bool:
        """Whether the request may have a condition, and so be answered with 409."""
        return self in (Verb.PUT, Verb.COMPLETE_UPLOAD)


class Fate(Enum):
    """The fates of a request. Its caller gets a true answer, or none."""

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
    """The distinct fates of a verb. It makes no difference whether a read without an answer took place."""
    if verb.reads:
        return _OF_ALL
    return tuple(fate for fate in Fate if verb.conditional or fate is not Fate.CONFLICT)


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A signed request.

    Args:
        who: the process that sends it.
        verb: its kind.
        key: key of the object; prefix of a list; first key of a delete.
        body: content of a put or of a part.
        if_match: required ETag of the object.
        if_none_match: whether a put requires that there is no object.
        byte_range: range of a get or of a copy: (first, end), end exclusive.
        keys: all keys of a delete.
        start_after: lower bound of a list's keys, exclusive.
        limit: maximum number of keys of a list.
        upload: id of a multipart upload.
        part: number of a part.
        source: key of the object that a part is copied from; ``if_match`` and ``byte_range`` are of this object then.
        parts: numbers and ETags of a completion.
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
    source: str = ""
    parts: tuple[tuple[int, str], ...] = ()

    @property
    def subject(self) -> str:
        """The object or objects of the request, for a trace."""
        return " ".join(self.keys) or (f"{self.key} part {self.part}" if self.part else self.key)


class Refusal(Exception):  # noqa: N818  # an answer like any other
    """An answer of the store that is an error: it has done nothing.

    Args:
        status: HTTP status.
        code: S3's error code.
    """

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status, self.code = status, code

    def __str__(self) -> str:
        return f"{self.status} {self.code}"


Answer: TypeAlias = Mapping[str, Any] | Refusal
"""The store's answer to a request that arrived: a response as boto3 returns it, or a refusal."""


class Wire:
    """Decides the fates of requests. This base class has no faults.

    Simulated clients call it. A request that is to arrive does so right after ``step``, with no other in between.
    """

    def step(self, request: StoreRequest) -> Fate:
        """The scheduling point of a request: lets others run, then returns its fate. May raise Crash."""
        return Fate.OK

    def wait_for_timeout(self, request: StoreRequest) -> None:
        """Lets time pass until the caller gives up waiting for an answer."""

    def deliver_later(self, request: StoreRequest, arrive: Callable[[], object]) -> None:
        """Lets a request arrive later, by calling ``arrive`` within the validity of its signature."""
        arrive()

    def keys_not_removed(self, request: StoreRequest) -> Collection[str]:
        """Keys of a delete that the store fails to remove, which its answer reports."""
        return ()

    def before_removal(self, key: str) -> None:
        """Called before an object is removed."""

    def on_arrival(self, request: StoreRequest, answer: Answer) -> None:
        """Called with the true answer to a request that arrived."""
