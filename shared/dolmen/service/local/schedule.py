"""The scheduled functions on this machine: called every so often, in a process of their own.

A process, because a round of compaction keeps a processor busy for minutes and ingest must not wait for it. It ends by
itself when the pipeline does, even one that was killed: it notices that its standard input is closed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from dolmen.base.runtime import Runtime
from dolmen.errors import Error
from dolmen.service.local.functions import LocalFunction

EVENTS: Mapping[str, dict[str, Any]] = {"compact": {}, "gc": {}}
"""The events that the functions get: the same as from the schedules in template.yaml."""

_FIRST_SECONDS = 10.0
_CLOSING_SECONDS = 30.0
_MAX_WAIT_SECONDS = 600.0

Tell = Callable[[str, str, int, dict[str, Any]], None]
"""Takes what a function logs: its name, the text, the level of ``logging``, and the named facts."""


class Schedule:
    """The process that calls the functions, as the pipeline sees it.

    Args:
        functions: the project's ``functions/``.
        log: the file that the functions' log goes to.
        seconds: by function, how long to wait from the end of one call to the beginning of the next.
        tell: called by ``poll`` with all that they log.
    """

    def __init__(self, functions: Path, log: Path, seconds: Mapping[str, float], tell: Tell, runtime: Runtime) -> None:
        self._command = [sys.executable, "-m", __package__, str(functions), str(log), json.dumps(dict(seconds))]
        self._tell, self._runtime = tell, runtime
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._starts = 0
        self._start_at = runtime.monotonic() if seconds else math.inf

    def __enter__(self) -> Self:
        return self

    def poll(self) -> None:
        """Passes on what was logged since the last call, without waiting. Restarts a dead process, after a pause."""
        if self._process is None:
            if self._runtime.monotonic() >= self._start_at:
                self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
                assert self._process.stdout is not None
                os.set_blocking(self._process.stdout.fileno(), False)
            return
        assert self._process.stdout is not None
        ended = self._process.poll()
        *lines, self._read = (self._read + (self._process.stdout.read() or b"")).split(b"\n")
        for line in lines:
            self._tell(*json.loads(line))
        if ended is not None:
            self._close()
            self._starts += 1
            wait_seconds = min(2.0**self._starts, _MAX_WAIT_SECONDS)
            self._start_at = self._runtime.monotonic() + wait_seconds
            self._tell("schedule", "ended", logging.ERROR, {"exit_code": ended, "again_in_seconds": wait_seconds})

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        process, self._process, self._read = self._process, None, b""
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.terminate()  # at any point: what is not committed is an orphan
        try:
            process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def serve(functions: Path, log: Path, seconds: Mapping[str, float], runtime: Runtime) -> None:
    """Calls the functions in turn until standard input ends; writes what they log to standard output, as JSON lines."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # the functions' own standard output goes to the log

    def call(name: str) -> None:
        def tell(text: str, level: int, facts: dict[str, Any]) -> None:
            facts.pop("exc_info", None)
            output.write(json.dumps([name, text, level, facts], default=str) + "\n")
            output.flush()

        try:
            loaded[name] = loaded.get(name) or LocalFunction(functions / name, log, tell, runtime, at_once=True)
            loaded[name].invoke(EVENTS[name])
        except Exception as error:  # noqa: BLE001 - an invocation that fails, for whatever reason; the next one goes on
            reason = str(error) if isinstance(error, (Error, RuntimeError)) else f"{type(error).__name__}: {error}"
            tell("round failed", logging.ERROR, {"reason": reason})

    loaded: dict[str, LocalFunction] = {}
    due = {name: runtime.monotonic() + min(every, _FIRST_SECONDS) for name, every in seconds.items()}
    while True:
        name = min(due, key=lambda name: due[name])
        wait = max(0.0, due[name] - runtime.monotonic())
        if select.select([sys.stdin], [], [], wait)[0]:
            return
        call(name)
        due[name] = runtime.monotonic() + seconds[name]
