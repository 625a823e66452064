"""An EMR Serverless for tests, over HTTP: moto as a process of its own; see ``run_emr_serverless``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.ministack import boto3_client, free_port

ROLE = "arn:aws:iam::123456789012:role/jobs"
_START_SECONDS = 120


@dataclass(frozen=True)
class StartedRun:
    """A run with its arguments, under moto's names."""

    id: str
    state: str
    request: dict[str, Any]

    @property
    def arguments(self) -> list[str]:
        """Arguments of the script."""
        found: list[str] = self.request["job_driver"]["sparkSubmit"]["entryPointArguments"]
        return found


class EmrServerlessServer:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: str) -> None:
        self.process, self.endpoint = process, endpoint

    @classmethod
    def start(cls, directory: Path) -> EmrServerlessServer:
        """Starts a server, and waits until it answers."""
        port = free_port()
        with (directory / "emr-serverless.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("run_emr_serverless.py")), str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
            )
        server = cls(process, f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            try:
                server.runs()
                return server
            except urllib.error.URLError:
                time.sleep(0.05)
        server.stop()
        raise RuntimeError((directory / "emr-serverless.log").read_text())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def application(self, name: str) -> str:
        """Makes an application; returns its id."""
        client = boto3_client("emr-serverless", self.endpoint)
        made = client.create_application(name=name, releaseLabel="emr-7.9.0", type="SPARK")
        return str(made["applicationId"])

    def runs(self, application: str | None = None) -> list[StartedRun]:
        """All runs of one or all applications, oldest first."""
        found = [StartedRun(**run) for run in self._tell("runs", None)]
        return [run for run in found if application is None or run.request["application_id"] == application]

    def set_state(self, run: str, state: str) -> None:
        """Sets the state of a run."""
        self._tell("state", {"id": run, "state": state})

    def backdate(self, seconds: float) -> None:
        """Makes all runs older."""
        self._tell("backdate", {"seconds": seconds})

    def hide(self, *runs: str) -> None:
        """Hides only these runs from listings, as if those lagged behind."""
        self._tell("hide", {"ids": runs})

    def _tell(self, path: str, body: Any) -> Any:
        request = urllib.request.Request(f"{self.endpoint}/test/{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())
