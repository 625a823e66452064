"""Attempts: the one way to repeat what failed, and the limit of each thing that is repeated, with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dolmen.base.runtime import Runtime


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often something is attempted, and how long the pauses between are.

    Args:
        tries: the most attempts, the first one included.
        base_seconds: the longest pause before the second attempt is twice this; it doubles with each attempt. 0 = no
            pause: for conflicts in which each loss means that another writer succeeded.
        cap_seconds: no pause is longer.
    """

    tries: int
    base_seconds: float = 0.05
    cap_seconds: float = 2.0


class Attempt(NamedTuple):
    """One attempt. ``number`` counts from 0; after the one that ``is_last`` its error is final."""

    number: int
    is_last: bool


REQUEST = RetryPolicy(6)
"""A small object or message. A throttled or unreachable server has up to 3 seconds to recover."""
READ = RetryPolicy(8)
"""A GET or HEAD on S3. It is harmless to repeat, and a scan that fails loses all that it has read."""
POINTER_PUT = RetryPolicy(8)
"""A PUT of the pointer that certainly did not land. A failure repeats the whole commit, so more attempts pay."""
POINTER_READ = RetryPolicy(3, base_seconds=0)
"""A GET of the pointer, then of its manifest. Garbage collection may delete the manifest in between, which takes longer
than a retention: twice is already improbable, so a third time is damage."""
TRANSACTION = RetryPolicy(100)
"""A user's function in ``Database.run``. A hundred conflicts are starvation, not bad luck."""
WRITER_BATCH = RetryPolicy(11, base_seconds=0)
"""A batch of ``Writer``. Each repetition needs another writer's conflicting commit or applied request."""
AUTOCOMMIT = RetryPolicy(10, base_seconds=0)
"""A single statement. Each repetition needs a change of the table's columns or a new erasure."""
INGEST_BATCH = RetryPolicy(5, base_seconds=0)
"""A batch of requests, built again when its base is no longer the newest version. The queue delivers it again."""
CURSOR_OPENING = RetryPolicy(10)
"""The first opening of a cursor, while another process makes or removes it."""
NEW_COLUMNS = RetryPolicy(20)
"""Adding a DataFrame's new columns. Many Spark jobs may start together and add the same ones."""
FENCE = RetryPolicy(10)
"""Moving the fence. Only another collection, or a change of tags or settings, conflicts with it."""
RECEIPT = RetryPolicy(10)
"""Replacing an erasure's receipt, to which several functions may add at once."""
EXPIRY = RetryPolicy(5, base_seconds=0)
"""Expiring rows by ``ttl``. A table was dropped, or its setting changed, since it was read."""
PUBLICATION = RetryPolicy(20)
"""Publishing a table. Each repetition needs another publisher that was faster, or a version that expired."""
GLUE_REGISTRATION = RetryPolicy(20)
"""Registering a publication in Glue. Each repetition needs another registration in the meantime."""
PUBLICATION_CHECK = RetryPolicy(5, base_seconds=0)
"""Verifying the newest publication. A finding counts only if no other publication replaced it during the check."""
DIRECTORY = RetryPolicy(100, base_seconds=0)
"""Creating a file in a directory. Another process may remove the empty directory before the file is in it."""


def attempts(runtime: Runtime, policy: RetryPolicy = REQUEST) -> Iterator[Attempt]:
    """Yields attempts, and sleeps a jittered, doubling, capped time between them.

    The jitter is "full": uniform between nothing and the cap of that attempt, which spreads competing writers best
    (aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter).
    """
    for number in range(policy.tries):
        if number and policy.base_seconds:
            runtime.sleep(runtime.random.uniform(0, min(policy.cap_seconds, policy.base_seconds * 2**number)))
        yield Attempt(number, number == policy.tries - 1)
