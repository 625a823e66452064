"""The connection to S3: made from the ordinary AWS configuration, shared by the stores of a process."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ResponseStreamingError
from urllib3.exceptions import HTTPError

from dolmen.base.runtime import Instant, Runtime
from dolmen.base.units import SECOND_US
from dolmen.errors import InputError
from dolmen.store.clock import ServerClock
from dolmen.store.s3.failures import hide_credentials
from dolmen.store.s3.reads import ObjectReader

#: Seconds to wait for a connection, and for each answer or part of one; adjustable by these environment variables.
TIMEOUTS = {"connect": ("DOLMEN_S3_CONNECT_TIMEOUT", 5.0), "read": ("DOLMEN_S3_READ_TIMEOUT", 30.0)}


_SENT = "dolmen_sent"
"""The member of a request's context that says when it was sent."""


_creating = threading.Lock()  # making clients from one boto3 session is not thread-safe


@dataclass(frozen=True)
class Connection:
    """A botocore client and its clock.

    Args:
        client: sends each request once. S3Store repeats what may be repeated; botocore would repeat conditional puts
            too, which can then meet their own earlier success and be reported as failures.
        clock: fed with the ``Date`` of every answer, errors included.
        reader: asks for objects as the client would, in less processor time; None leaves them to the client.
    """

    client: Any
    clock: ServerClock
    reader: ObjectReader | None = None

    def send(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request once. Answers and errors are those of boto3's method ``operation``."""
        sender = self.reader if self.reader and operation == "get_object" else self.client
        try:
            answer: dict[str, Any] = getattr(sender, operation)(**request)
        except HTTPError as error:  # the body of an error's answer broke off, which botocore does not translate
            raise ResponseStreamingError(error=error) from error
        return answer


def connect(runtime: Runtime, session: Any = None) -> Connection:
    """A connection by the ordinary AWS configuration: environment, profiles, instance roles.

    The region is us-east-1 when none is configured; an endpoint of one's own (``AWS_ENDPOINT_URL_S3``) is spoken to in
    path style unless the profile says otherwise.

    Args:
        session: a ``boto3.Session`` to take the configuration from; None makes one, and shares the connection
            among stores of the same runtime and environment.
    """
    if session is not None:
        return _make(runtime, session)
    shown = ("AWS_", "DOLMEN_S3_", "DOLMEN_BUCKET_OWNERS", "HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    environment = tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(shown)))
    return _shared(runtime, environment, os.getpid())


@lru_cache(maxsize=16)
def _shared(runtime: Runtime, environment: tuple[tuple[str, str], ...], process: int) -> Connection:
    """The arguments are the cache's key: sockets must not be shared with a forked process."""
    try:
        return _make(runtime, boto3.Session())
    except BotoCoreError as error:  # a profile that does not exist, for one
        hide_credentials(error)
        raise InputError(f"the AWS configuration cannot be used: {error}") from error


def _make(runtime: Runtime, session: Any) -> Connection:
    clock = ServerClock(runtime)
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=_timeout("connect"),
        read_timeout=_timeout("read"),
        max_pool_connections=max(10, 2 * runtime.threads),
        tcp_keepalive=True,
        user_agent_extra="dolmen",
    )
    region = session.region_name or os.environ.get("AWS_REGION") or "us-east-1"
    with _creating:
        try:
            client = session.client("s3", region_name=region, config=config)
        except ValueError as error:
            reason = re.sub(r"\S+@", "***@", str(error))  # as in "Invalid endpoint: user:password@host"
            raise InputError(f"the AWS configuration cannot be used: {reason}") from None
    if owners := bucket_owners(os.environ):
        client.meta.events.register("provide-client-params.s3", partial(_name_owner, owners))
    client.meta.events.register("before-call.s3", lambda **event: _note_sent(clock, event))
    client.meta.events.register("response-received.s3", lambda **event: _observe_answer(clock, event))

    def credentials() -> Any:
        found = session.get_credentials()
        return found and found.get_frozen_credentials()

    return Connection(client, clock, ObjectReader(client, credentials, runtime, partial(_observe, clock)))


def bucket_owners(environment: Mapping[str, str]) -> dict[str, str]:
    """The accounts that own buckets, by bucket: ``DOLMEN_BUCKET_OWNERS=bucket=111122223333,other=444455556666``.

    Raises:
        InputError: a part of it is no bucket and account.
    """
    text = environment.get("DOLMEN_BUCKET_OWNERS", "")
    owners: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        bucket, _, account = part.partition("=")
        if not bucket or not re.fullmatch(r"[0-9]{12}", account):
            raise InputError(f"DOLMEN_BUCKET_OWNERS: {part!r} must be a bucket, =, and the 12 digits of an account")
        owners[bucket] = account
    return owners


def _name_owner(owners: Mapping[str, str], params: dict[str, Any], model: Any, **_event: Any) -> dict[str, Any]:
    """Adds ``ExpectedBucketOwner``: S3 then refuses (403) a bucket of this name that belongs to somebody else."""
    account = owners.get(str(params.get("Bucket")))
    if not account:
        return params
    # what is copied is in the same bucket
    names = {"ExpectedBucketOwner", "ExpectedSourceBucketOwner"} & model.input_shape.members.keys()
    return {**dict.fromkeys(names, account), **params}


def _note_sent(clock: ServerClock, event: Mapping[str, Any]) -> None:
    event["context"][_SENT] = clock.runtime.instant()


def _observe_answer(clock: ServerClock, event: Mapping[str, Any]) -> None:
    if date := (event.get("response_dict") or {}).get("headers", {}).get("Date"):
        _observe(clock, date, event["context"][_SENT])


def _observe(clock: ServerClock, date: str, sent: Instant) -> None:
    clock.observe(_seconds(date) * SECOND_US, vague_us=SECOND_US, sent=sent)


@lru_cache(maxsize=64)
def _seconds(date: str) -> int:
    """Since the epoch; a busy process gets many answers in each second."""
    return int(parsedate_to_datetime(date).timestamp())


def _timeout(kind: str) -> float:
    variable, default = TIMEOUTS[kind]
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"{variable}={text!r} must be a number of seconds greater than 0")
    return seconds
