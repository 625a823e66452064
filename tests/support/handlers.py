"""Packaged handlers as processes that a test kills; see ``support.handler_server``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from support.packaged import function_environment, function_folder, packaged_python
from support.proxy import Proxy

_SERVER = Path(__file__).with_name("handler_server.py")


@dataclass(frozen=True)
class Ended:
    """The end of an invocation: ``killed`` by the test, or an exit status and the handler's answer."""

    killed: bool
    status: int
    answer: Any


class Handlers:
    """Runs a process for each event, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    def start(cls, function: str, settings: Mapping[str, str], directory: Path) -> Handlers:
        """Imports a packaged function; its files, and its log, are in ``directory``."""
        scratch = directory / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        with (directory / f"{function}.log").open("ab") as log:
            process = subprocess.Popen(
                [*packaged_python(), str(_SERVER)],
                env=function_environment(function, settings, scratch),
                cwd=function_folder(function),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        handlers = cls(process)
        if handlers._line() != "ready":
            handlers.stop()
            raise RuntimeError((directory / f"{function}.log").read_text())
        return handlers

    def invoke(self, event: Any) -> Ended:
        """Runs the handler on an event, and waits for its end."""
        self._begin(event)
        return self._end(killed=False)

    def invoke_and_kill(self, event: Any, proxy: Proxy) -> Ended:
        """Runs the handler on an event, and sends SIGKILL when the proxy holds one of its requests."""
        pid = self._begin(event)
        while not any(request.held for request in proxy.requests()):
            if _has_ended(pid):
                return self._end(killed=False)
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        return self._end(killed=True)

    def _begin(self, event: Any) -> int:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(event) + "\n")
        self._process.stdin.flush()
        pid: int = json.loads(self._line())["pid"]
        return pid

    def _end(self, *, killed: bool) -> Ended:
        told = json.loads(self._line())
        assert (told["status"] == -signal.SIGKILL) == killed, told
        return Ended(killed, told["status"], told["answer"])

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Handlers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _has_ended(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
