"""Waiting between attempts."""

from __future__ import annotations

from collections.abc import Iterator

from dolmen.base.runtime import Runtime


def attempts(
    runtime: Runtime, limit: int = 6, *, base_seconds: float = 0.05, cap_seconds: float = 2.0
) -> Iterator[int]:
    """Counts attempts from 0 to ``limit`` - 1, and sleeps a jittered, doubling, capped time between them.

    The jitter is "full": uniform between nothing and the cap of that attempt, which spreads competing writers best
    (aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter).
    """
    for attempt in range(limit):
        if attempt:
            runtime.sleep(runtime.random.uniform(0, min(cap_seconds, base_seconds * 2**attempt)))
        yield attempt
