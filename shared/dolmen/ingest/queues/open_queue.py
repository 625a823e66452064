"""The queue that a URL names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import InputError
from dolmen.ingest.queues.directory_queue import DirectoryQueue
from dolmen.ingest.queues.queue import Queue
from dolmen.ingest.queues.sqs import SqsQueue


def open_queue(url: str | os.PathLike[str], runtime: Runtime | None = None, *, hurried: bool = False) -> Queue:
    """The queue that a URL names; asks nothing of the network.

    Args:
        url: of an SQS queue (``https://sqs.<region>.amazonaws.com/<account>/<name>``, or at any other endpoint), or a
            directory.
        hurried: give up on a request after ``HURRIED_SECONDS``, without another attempt: for callers that have other
            work to do.

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
