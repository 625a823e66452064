"""MinIO, a real S3 server, as a process that a test can kill and start again on the same directory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from functools import cache
from pathlib import Path

import pytest

from support.ministack import AWS_ENVIRONMENT, START_SECONDS, EndedError, boto3_client, free_port

SCRIPT = Path(__file__).parents[2] / "scripts" / "minio.sh"


@cache
def find_minio() -> tuple[Path | None, str]:
    """The installed server, or None and what to do about it."""
    result = subprocess.run([str(SCRIPT), "path"], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return Path(result.stdout.strip()), ""
    return None, " ".join(result.stderr.split())


class Minio:
    """A server on a directory, which outlives it. Where MinIO is not installed the test is skipped.

    Args:
        directory: where it keeps its objects; its log stands beside them.
        interface: the address that it listens on. A container reaches it on 0.0.0.0 only.
    """

    def __init__(self, directory: Path, *, interface: str = "127.0.0.1") -> None:
        binary, missing = find_minio()
        if binary is None:
            pytest.skip(missing)
        self._interface = interface
        self._binary, self._directory, self._log = binary, directory / "data", directory / "minio.log"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        for _ in range(3):
            self._port = free_port()
            self.endpoint = f"http://127.0.0.1:{self._port}"
            try:
                self.start()
            except EndedError:  # somebody else may have taken the port between the look and the start
                continue
            return
        raise RuntimeError(f"MinIO does not start:\n{self._log.read_text()[-4000:]}")

    def start(self) -> None:
        """Starts it, on the port that it had, and waits until it takes requests."""
        assert self._process is None
        address = f"{self._interface}:{self._port}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(self._binary), "server", "--quiet", "--address", address, str(self._directory)],
                env={
                    **inherited,
                    "MINIO_ROOT_USER": AWS_ENVIRONMENT["AWS_ACCESS_KEY_ID"],
                    "MINIO_ROOT_PASSWORD": AWS_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
                    "MINIO_BROWSER": "off",
                    "MINIO_UPDATE": "off",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait(self._process)
        except BaseException:
            self.kill()
            raise

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise EndedError(f"MinIO ended with {process.returncode}:\n{self._log.read_text()[-4000:]}")
            try:
                with urllib.request.urlopen(f"{self.endpoint}/minio/health/cluster", timeout=2):
                    return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"MinIO did not answer in {START_SECONDS} s:\n{self._log.read_text()[-4000:]}")

    def kill(self) -> None:
        """``kill -9``: whatever it is doing, it does no more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections, and answers nobody until ``go_on``."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def create_bucket(self, name: str) -> None:
        """Creates a bucket."""
        boto3_client("s3", self.endpoint).create_bucket(Bucket=name)
