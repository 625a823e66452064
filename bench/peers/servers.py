"""Servers that a run starts and ends: S3, the proxy in front of it, and PostgreSQL where it is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.actors import ROOT
from bench.peers.peer import S3
from bench.peers.storage import s3_filesystem

BUCKET = "bench-peers"
FIRST_BYTE_SECONDS = 0.03
BYTES_PER_SECOND = 90e6
"""S3 as we assume it: time to the first byte, and bytes a second on one connection."""

REMOTE = {"s3": (0.0, 0.0), "s3 slow": (FIRST_BYTE_SECONDS, BYTES_PER_SECOND)}
"""Places on S3: seconds to the first byte, and bytes a second on each connection (0: as fast as it goes)."""


@contextmanager
def s3_server(directory: Path) -> Iterator[tuple[S3, str]]:
    """Starts MinIO if it is installed, else ministack, with a bucket; yields it and what it is."""
    minio = subprocess.run([str(ROOT / "scripts" / "minio.sh"), "path"], capture_output=True, text=True, check=False)
    port = _free_port()
    found = S3(f"http://127.0.0.1:{port}")
    directory.mkdir(parents=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))}
    if minio.returncode == 0:
        name = "MinIO"
        command = [minio.stdout.strip(), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(directory / "data")]
        keys = {"MINIO_ROOT_USER": found.access_key, "MINIO_ROOT_PASSWORD": found.secret_key}
        environment = inherited | keys | {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
        (directory / "data" / BUCKET).mkdir(parents=True)  # on a single folder, a bucket is one in it
    else:
        name = "ministack"
        command = [str(Path(sys.executable).with_name("ministack"))]
        environment = inherited | {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "TMPDIR": str(directory)}
    with _process(command, environment, directory / "log"):
        _await_port(port)
        if name == "ministack":
            s3_filesystem(found).create_dir(BUCKET)
        yield found, name


@contextmanager
def proxy(upstream: S3, seconds: float, rate: float) -> Iterator[S3]:
    """Starts the proxy; yields the server as it is seen through it."""
    command = [sys.executable, "-m", "bench.peers.proxy", upstream.endpoint, str(seconds), str(rate)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield S3(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.wait()


@contextmanager
def postgres(directory: Path) -> Iterator[str | None]:
    """Starts PostgreSQL on a socket in the directory; yields its address, or None where it is not installed.

    PostgreSQL refuses to run as root, who lets ``nobody`` run it.
    """
    binaries = _postgres_binaries()
    if binaries is None:
        yield None
        return
    directory.mkdir(parents=True)
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        os.chown(directory, pwd.getpwnam(user).pw_uid, -1)
    data, port = directory / "data", _free_port()
    initdb = [str(binaries / "initdb"), "--username", "bench", "--auth", "trust", "--no-sync", str(data)]
    subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=directory)
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", "", "-h", "127.0.0.1"]
    with _process(command, dict(os.environ), directory.with_name("postgres.log"), user):
        _await_port(port)
        yield f"host=127.0.0.1 port={port} user=bench"


def make_database(address: str, name: str) -> str:
    """Makes a database on the server; returns its address."""
    binaries = _postgres_binaries()
    assert binaries is not None
    pairs = dict(pair.split("=", 1) for pair in address.split())
    command = [str(binaries / "createdb"), "-h", pairs["host"], "-p", pairs["port"], "-U", pairs["user"], name]
    for attempt in range(50):  # it takes connections before it serves them
        if subprocess.run(command, capture_output=attempt < 49, check=attempt == 49).returncode == 0:
            break
        time.sleep(0.1)
    return f"dbname={name} {address}"


def _postgres_binaries() -> Path | None:
    found = shutil.which("postgres")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((each for each in candidates if all((each / n).exists() for n in ("initdb", "createdb"))), None)


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path, user: str | None = None) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, cwd=log.parent if user is None else "/", user=user
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no server answers on port {port}")
