"""The stores of benchmarks: a directory, or an S3 server started for the run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pyarrow.fs as pafs


class Local:
    """A fresh directory per database."""

    name = "local directory"
    append_rounds = 9

    def __init__(self, root: Path) -> None:
        self._root = root

    def fresh(self) -> str:
        """The URL of a database that is not there yet."""
        return str(self._root / uuid.uuid4().hex)

    def remove(self, url: str) -> None:
        """Removes a database."""
        shutil.rmtree(url, ignore_errors=True)

    def pointer(self, url: str, body: bytes | None = None) -> bytes:
        """Reads the pointer, or sets it back to ``body``, past the protocol: so that each scenario starts alike."""
        path = Path(url) / "_latest_manifest"
        if body is not None:
            path.write_bytes(body)
        return path.read_bytes()

    def filesystem(self, url: str) -> tuple[pafs.FileSystem, str]:
        """pyarrow's filesystem and path for the same files."""
        return pafs.LocalFileSystem(), url


class Ministack:
    """A bucket of a ministack server (HTTP S3 on this machine)."""

    name = "ministack (S3 over HTTP on this machine)"
    append_rounds = 3  # the server is one Python process, which takes a minute for an upload of 12M rows
    _BUCKET = "bench"

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._s3 = boto3.client("s3")
        self._s3.create_bucket(Bucket=self._BUCKET)

    def fresh(self) -> str:
        return f"s3://{self._BUCKET}/{uuid.uuid4().hex}"

    def remove(self, url: str) -> None:
        prefix = url.split("/", 3)[3] + "/"
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._BUCKET, Prefix=prefix):
            for entry in page.get("Contents", []):
                self._s3.delete_object(Bucket=self._BUCKET, Key=entry["Key"])

    def pointer(self, url: str, body: bytes | None = None) -> bytes:
        place = {"Bucket": self._BUCKET, "Key": url.split("/", 3)[3] + "/_latest_manifest"}
        if body is not None:
            self._s3.put_object(**place, Body=body)
        return bytes(self._s3.get_object(**place)["Body"].read())

    def filesystem(self, url: str) -> tuple[pafs.FileSystem, str]:
        filesystem = pafs.S3FileSystem(
            access_key="test",
            secret_key="test",
            region="us-east-1",
            scheme="http",
            endpoint_override=self._endpoint.removeprefix("http://"),
            request_timeout=60,
            connect_timeout=10,
        )
        return filesystem, url.removeprefix("s3://")


@contextmanager
def place(name: str) -> Iterator[Local | Ministack]:
    """Sets a place up, and takes it down again."""
    with tempfile.TemporaryDirectory(prefix="dolmen-bench-") as root:
        if name == "local":
            yield Local(Path(root))
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = os.environ | {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "TMPDIR": root}
        command = str(Path(sys.executable).with_name("ministack"))
        with (Path(root) / "log").open("wb") as log:
            server = subprocess.Popen([command], env=environment, stdout=log, stderr=log, cwd=root)
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield Ministack(f"http://127.0.0.1:{port}")
        finally:
            server.kill()
            server.wait()
