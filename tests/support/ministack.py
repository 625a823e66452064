"""A real S3 server for tests: ministack as a process of its own, checked once before it is trusted."""

from __future__ import annotations

import http.client
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What clients are configured with; ministack takes any credentials.
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}

START_SECONDS = 120.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def endpoint_environment(endpoint: str) -> dict[str, str]:
    """The AWS_* variables that make any AWS client of this process talk to ``endpoint``."""
    return {**AWS_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint}


def boto3_client(service: str, endpoint: str, **options: Any) -> Any:
    """A boto3 client of ``service`` at ``endpoint``, whatever the environment says."""
    import boto3

    make: Any = boto3.client  # its stubs want the service's name as a literal
    return make(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="testtest",
        **options,
    )


class EndedError(RuntimeError):
    """The server ended by itself."""


@dataclass
class Ministack:
    """A running server.

    Args:
        endpoint: ``http://127.0.0.1:<port>``, for every service.
        log: the server's output.
    """

    endpoint: str
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, directory: Path, *, command: Sequence[str] = (), **environment: str) -> Ministack:
        """Starts a server whose files all live in ``directory``, and waits until it answers.

        Args:
            command: what runs it; this environment's ``ministack`` by default.
            environment: more variables for it.
        """
        for _ in range(2):
            try:
                return cls._start(directory, free_port(), command, environment)
            except EndedError:  # somebody else may have taken the port between the look and the start
                continue
        return cls._start(directory, free_port(), command, environment)

    @classmethod
    def _start(cls, directory: Path, port: int, command: Sequence[str], environment: Mapping[str, str]) -> Ministack:
        scratch = directory / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        log = directory / "ministack.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DOLMEN_"))}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command or [str(Path(sys.executable).with_name("ministack"))],
                env={
                    **inherited,
                    "BIND_HOST": "127.0.0.1",
                    "GATEWAY_PORT": str(port),
                    "LAMBDA_EXECUTOR": "local",
                    "TMPDIR": str(scratch),
                    **environment,
                },
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its helpers end with it
            )
        server = cls(f"http://127.0.0.1:{port}", log, process)
        try:
            server._wait()
        except BaseException:
            server.stop()
            raise
        return server

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise EndedError(f"ministack ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}")
            try:
                with urllib.request.urlopen(self.endpoint, timeout=2):
                    return
            except urllib.error.HTTPError:
                return  # it answers
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"ministack did not answer in {START_SECONDS} s:\n{self.log.read_text()[-4000:]}")

    def stop(self) -> None:
        """Ends the server and all that it started; the log stays."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.log.parent / "tmp", ignore_errors=True)

    def self_test(self) -> None:
        """Asserts that the emulator keeps the promises that the tests rest on.

        412 for a create of an existing key, 404 for If-Match on an absent one, and compare-and-swap that loses no
        update: 16 threads x 10 increments of one object = 160. Spoken on the wire, without an SDK: that is quick, and
        what is under test here is the emulator alone.
        """
        address = self.endpoint.removeprefix("http://")

        def ask(
            wire: http.client.HTTPConnection, verb: str, path: str, body: str = "", **condition: str
        ) -> tuple[int, str, str]:
            wire.request(
                verb, path, body.encode(), {name.replace("_", "-"): value for name, value in condition.items()}
            )
            with wire.getresponse() as answer:
                return answer.status, answer.getheader("ETag", ""), answer.read().decode()

        wire = http.client.HTTPConnection(address, timeout=60)
        assert ask(wire, "PUT", "/emulator-self-test")[0] == 200
        assert ask(wire, "PUT", "/emulator-self-test/n", "0", If_None_Match="*")[0] == 200
        assert ask(wire, "PUT", "/emulator-self-test/n", "0", If_None_Match="*")[0] == 412
        assert ask(wire, "PUT", "/emulator-self-test/absent", "0", If_Match='"0"')[0] == 404

        def increment() -> None:
            wire = http.client.HTTPConnection(address, timeout=60)
            for _ in range(10):
                for losses in itertools.count():
                    _, etag, body = ask(wire, "GET", "/emulator-self-test/n")
                    status, _, _ = ask(wire, "PUT", "/emulator-self-test/n", str(int(body) + 1), If_Match=etag)
                    if status == 200:
                        break
                    assert status in (409, 412), status
                    time.sleep(random.uniform(0, min(1.0, 0.2 * 2**losses)))

        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(increment) for _ in range(16)]:
                done.result()
        total = ask(wire, "GET", "/emulator-self-test/n")[2]
        assert total == "160", f"the emulator lost updates: 16 threads x 10 increments gave {total}"
