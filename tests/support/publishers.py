"""Publishers in processes of their own, which a test can let die (``kill -9``) at one of their requests, or race.

This file is both: what tests import, and the program, which imports dolmen once and forks a process for each publisher.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Publishers:
    """The program. The environment says where S3 is. Ask it from one thread."""

    def __init__(self) -> None:
        paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def publish_and_die(self, url: str, request: int, *, after: bool) -> bool:
        """Publishes table ``t`` in a process that dies before or after one of its requests.

        Returns:
            whether it died; False if it made fewer requests, and ended well.
        """
        (status,) = self._ask([{"url": url, "left": request, "after": after, "rows": []}])
        assert status in (0, -signal.SIGKILL), status
        return status != 0

    def race(self, url: str, rows: list[list[int]]) -> None:
        """Publishes in as many processes at once; each appends its rows one by one, and publishes after each."""
        statuses = self._ask([{"url": url, "left": None, "after": False, "rows": own} for own in rows])
        assert statuses == [0] * len(rows)

    def close(self) -> None:
        """Ends the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, works: list[dict[str, Any]]) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(works) + "\n")
        self._process.stdin.flush()
        answer: list[int] = json.loads(self._process.stdout.readline())
        return answer


def _work(work: dict[str, Any]) -> None:
    from dolmen.api.database import Database
    from dolmen.base.runtime import Runtime
    from dolmen.store import open_store
    from support.crashing_store import Countdown, CrashingStore

    runtime = Runtime(threads=1)
    countdown = Countdown(work["left"], after=work["after"], kill=True)
    table = Database(CrashingStore(open_store(work["url"], runtime), countdown), runtime).table("t")
    for row in work["rows"]:
        table.append([{"id": row}])
        table.publish_iceberg()
    if not work["rows"]:
        table.publish_iceberg()


def _run(work: dict[str, Any]) -> int:
    """Starts a process, and returns its id."""
    if process := os.fork():
        return process
    status = 1
    try:
        _work(work)
        status = 0
    finally:
        os._exit(status)


def _serve() -> None:
    import fastavro  # noqa: F401 - imported once, for all processes

    import dolmen.iceberg.publication
    import dolmen.store.s3.bucket_store  # noqa: F401

    for line in sys.stdin:
        processes = [_run(work) for work in json.loads(line)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        sys.stdout.write(json.dumps(statuses) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
