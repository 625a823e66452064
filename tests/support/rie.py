"""AWS's Runtime Interface Emulator, which runs a packaged function as Lambda does, invoked over HTTP.

    with Emulator.start("ingest", {"DOLMEN_DATABASE": url}, directory) as ingest:
        answer = ingest.invoke(event)

Real are the emulator (AWS's binary, which keeps the time-out and starts the function anew after it), AWS's runtime
client, the Python of template.yaml, the function and both layers. Not real: memory is not limited and CPU not shared.
"""

from __future__ import annotations

import http.client
import json
import platform
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import psutil

from support.built import ROOT
from support.ministack import EndedError, free_port
from support.packaged import function_environment, function_folder, packaged_python

_PATH = "/2015-03-31/functions/function/invocations"
START_SECONDS = 60.0


def emulator_binary() -> Path:
    """The emulator's binary, which comes with the SAM command line."""
    machine = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]
    [binary] = (ROOT / ".venv-sam").glob(f"lib/python3*/site-packages/samcli/local/rapid/aws-lambda-rie-{machine}")
    return binary


@dataclass(frozen=True)
class Answer:
    """The result of an invocation: ``payload`` as JSON, or as text if it is none; ``error`` is the failure."""

    payload: Any
    error: str | None


@dataclass
class Emulator:
    """A running function; ``stop`` it, or use it as a context."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, function: str, settings: Mapping[str, str], directory: Path, *, timeout: int = 60) -> Emulator:
        """Starts a function with these environment variables; its files are in ``directory``.

        Args:
            timeout: seconds an invocation may take.
        """
        for _ in range(2):
            try:
                return cls._start(function, settings, directory, timeout)
            except EndedError:  # somebody else may have taken a port between the look and the start
                continue
        return cls._start(function, settings, directory, timeout)

    @classmethod
    def _start(cls, function: str, settings: Mapping[str, str], directory: Path, timeout: int) -> Emulator:
        scratch = directory / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        log = directory / f"{function}.log"
        runtime, outside = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        binary = emulator_binary()
        binary.chmod(binary.stat().st_mode | 0o100)  # wheels lose it
        with log.open("ab") as output:
            process = subprocess.Popen(
                [
                    str(binary),
                    *("--runtime-api-address", runtime, "--runtime-interface-emulator-address", outside),
                    *packaged_python(),
                    *("-m", "awslambdaric", "app.lambda_handler"),
                ],
                env={
                    **function_environment(function, settings, scratch),
                    "AWS_LAMBDA_FUNCTION_TIMEOUT": str(timeout),
                },
                cwd=function_folder(function),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        emulator = cls(outside, log, process)
        try:
            emulator._wait()
        except BaseException:
            emulator.stop()
            raise
        return emulator

    def _wait(self) -> None:
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise EndedError(f"the emulator ended with {self.process.returncode}:\n{self.log.read_text()}")
            with closing(socket.socket()) as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"the emulator did not listen in {START_SECONDS} s:\n{self.log.read_text()}")

    def invoke(self, event: Any) -> Answer:
        """Invokes the function once (it takes one at a time) and waits for its answer."""
        with closing(http.client.HTTPConnection(self.address, timeout=300)) as wire:
            wire.request("POST", _PATH, json.dumps(event).encode(), {"Content-Type": "application/json"})
            text = wire.getresponse().read().decode()
        try:
            payload = json.loads(text)
        except ValueError:
            return Answer(text, text)
        failed = isinstance(payload, dict) and "errorMessage" in payload
        return Answer(payload, f"{payload.get('errorType')}: {payload['errorMessage']}" if failed else None)

    def logged(self) -> list[dict[str, Any]]:
        """The function's log entries in JSON."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """Ends the emulator and its function, which the emulator puts into a process group of its own."""
        for process in (*self.functions(), self.process):
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.process.wait()

    def peak_mb(self) -> float:
        """Peak resident memory of the function's process."""
        [process] = self.functions()
        status = Path(f"/proc/{process.pid}/status").read_text()
        [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(peak) / 1024

    def functions(self) -> list[psutil.Process]:
        """The processes that the emulator started."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def __enter__(self) -> Emulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Start(Protocol):
    """Starts a function for a test."""

    def __call__(self, function: str, *, timeout: int = 60, **settings: str) -> Emulator: ...
