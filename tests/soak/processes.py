"""The processes of a soak, as its supervisor sees them: started, killed, stopped, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from soak.world import ROOT, World


class Running:
    """One actor's process, and those that come after it.

    Args:
        name: ``role-number``.
        environment: what leads to the server.
    """

    def __init__(self, world: World, name: str, environment: dict[str, str]) -> None:
        self.name = name
        self._log = Path(world.directory, "logs", f"{name}.log")
        self._log.parent.mkdir(exist_ok=True)
        self._command = [sys.executable, "-m", "soak.actor", name.partition("-")[0], name]
        self._command.append(str(Path(world.directory, "world.json")))
        paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "shared")])
        self._environment = {**os.environ, **environment, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Starts it."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and not been killed or found to have ended."""
        return self._process is not None

    def ended(self) -> int | None:
        """How it ended, if it did so by itself."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        return code

    def kill(self) -> None:
        """SIGKILL, to this process and none of its children."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Any other signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Until it has ended; returns how, None if it has not."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return code

    def kill_child(self) -> bool:
        """SIGKILL to the children alone; whether there was any."""
        if self._process is None:
            return False
        children = psutil.Process(self._process.pid).children()
        for child in children:
            child.kill()
        return bool(children)

    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3_000:] if self._log.exists() else ""
