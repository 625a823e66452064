"""`sam local` as docs/minio.md writes it: up to the container engine, and where there is one, through it on MinIO."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.config import Config

from dolmen import Database
from dolmen.api.database import open as open_database
from support.built import ROOT, built_stack, find_sam
from support.deployed import ARCHITECTURE, wait
from support.functions import SCHEMA
from support.minio import Minio
from support.ministack import boto3_client, endpoint_environment, free_port
from support.samples import EVENTS, sample
from support.template import TEMPLATE

NO_ENGINE = "requires a container runtime"
"""Of SAM's own sentence where there is no container engine."""

CONFIGURATION = tomllib.loads((ROOT / "samconfig.toml").read_text())
ENVIRONMENTS = [name for name in CONFIGURATION if name != "version"]
DRAWN = (
    ENVIRONMENTS
    if os.environ.get("DOLMEN_LONG")
    else [random.Random(os.environ["DOLMEN_TEST_SEED"]).choice(ENVIRONMENTS)]
)
"""The environments that are tried; one by default, as they differ in a few parameters."""

PAGE = (ROOT / "docs" / "minio.md").read_text()
[INVOKE] = re.findall(r"^ *(invoke\(\) \{\n.*?\n *\})\n", PAGE, re.DOTALL | re.MULTILINE)
CALLS = re.findall(r"^ *invoke (\w+) ([\w-]+)$", PAGE, re.MULTILINE)
FUNCTIONS = [name for name, made in TEMPLATE["Resources"].items() if made["Type"] == "AWS::Serverless::Function"]


class SamLocal:
    """The page's commands in one environment of samconfig.toml, on a template, with a MinIO for the functions."""

    def __init__(self, minio: Minio, folder: Path, environment: str, template: Path) -> None:
        self._options = f"--config-env {environment} --config-file {ROOT / 'samconfig.toml'} --template {template}"
        self._variables = folder / "local-env.json"
        server = f"host.docker.internal:{urlsplit(minio.endpoint).port}"
        self._variables.write_text((EVENTS / "local-env.json").read_text().replace("host.docker.internal:9000", server))
        self.environment = {
            **os.environ,
            **endpoint_environment(minio.endpoint),
            "SAM_CLI_TELEMETRY": "0",
            "__SAM_CLI_APP_DIR": str(folder),
        }

    def command(self, text: str) -> str:
        """A command of the page with this template and these variables, for this machine's processor."""
        text = re.sub(r"\S*\bsam (local [\w-]+|list \w+)", rf"{find_sam()} \1 {self._options}", text)
        text = text.replace("--env-vars events/local-env.json", f"--env-vars {self._variables}")
        return text.replace("--parameter-overrides ", f"--parameter-overrides Architecture={ARCHITECTURE} ")

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the page in the shell, to its end."""
        command = ["bash", "-c", self.command(text)]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)

    def start(self, text: str, log: Path) -> subprocess.Popen[bytes]:
        """Starts a command of the page that runs until it is ended."""
        with log.open("wb") as output:
            command = ["bash", "-c", f"exec {self.command(text)}"]
            return subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=output, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """A MinIO that a container reaches, with the buckets of the page."""
    minio = Minio(tmp_path_factory.mktemp("minio"), interface="0.0.0.0")
    try:
        for bucket in ("dolmen-local", "my-landing-bucket"):
            minio.create_bucket(bucket)
        yield minio
    finally:
        minio.kill()


@pytest.fixture
def database(server: Minio, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The page's database with its table, and its file in the landing bucket."""
    for name, value in endpoint_environment(server.endpoint).items():
        monkeypatch.setenv(name, value)
    s3 = boto3_client("s3", server.endpoint)
    key = "landing/events/2026/11/plain.csv"
    s3.put_object(Bucket="my-landing-bucket", Key=key, Body=(EVENTS / key).read_bytes())
    found = open_database("s3://dolmen-local/dolmen")
    found.create_table("events", SCHEMA, primary_key="id")
    yield found
    for info in s3.list_objects_v2(Bucket="dolmen-local").get("Contents", ()):
        s3.delete_object(Bucket="dolmen-local", Key=info["Key"])


def ids(database: Database) -> list[int]:
    database.refresh()
    found: list[int] = sorted(database.table("events").to_arrow()["id"].to_pylist())
    return found


def check_result(database: Database, event: str, payload: Any) -> None:
    """Checks an invocation of the page by what it returned and what it left."""
    if event.startswith(("compact", "gc")):
        assert payload == {"finished": True, "version": database.refresh()}
    else:
        assert payload == {"batchItemFailures": []}
    assert ids(database) == ([1, 2] if event.startswith("ingest") else [2])


def check_calls(local: SamLocal, database: Database, calls: list[tuple[str, str]]) -> None:
    """Runs calls of the page, in its order; without a container engine each must get as far as asking for one."""
    for function, event in calls:
        done = local.run(f"{INVOKE}\ninvoke {function} {event}")
        if NO_ENGINE not in done.stderr:
            assert done.returncode == 0, f"{function}:\n{done.stdout}\n{done.stderr}"
            check_result(database, event, json.loads(done.stdout.splitlines()[-1]))


def test_the_page_invokes_every_function_and_nothing_but_it() -> None:
    assert sorted(function for function, _ in CALLS) == sorted(FUNCTIONS)


@pytest.mark.slow
def test_a_call_of_the_page_gets_as_far_as_the_container_engine(server: Minio, tmp_path: Path) -> None:
    """One call, on the template before a build, and away from any engine: SAM asks for one first."""
    local = SamLocal(server, tmp_path, "default", ROOT / "template.yaml")
    local.environment["DOCKER_HOST"] = "tcp://127.0.0.1:1"
    done = local.run(f"{INVOKE}\ninvoke IngestFunction ingest-s3")
    assert done.returncode == 0 or NO_ENGINE in done.stderr, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("environment", DRAWN)
def test_all_calls_of_the_page_work_in_each_environment(
    server: Minio, database: Database, tmp_path: Path, environment: str
) -> None:
    check_calls(SamLocal(server, tmp_path, environment, built_stack() / "template.yaml"), database, CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("environment", DRAWN)
def test_start_lambda_serves_the_calls_of_the_page_in_each_environment(
    server: Minio, database: Database, tmp_path: Path, environment: str
) -> None:
    local = SamLocal(server, tmp_path, environment, built_stack() / "template.yaml")
    port, log = free_port(), tmp_path / "start-lambda.log"
    options = INVOKE.partition("--env-vars")[2].partition("}")[0].replace("\\\n", " ")
    process = local.start(f"sam local start-lambda --port {port} --env-vars{options}", log)

    def is_ready() -> bool:
        with closing(socket.socket()) as probe:
            return process.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait("sam local start-lambda", is_ready)
        if process.poll() is not None:
            assert NO_ENGINE in log.read_text()
            return
        patient = Config(read_timeout=600, retries={"max_attempts": 0})  # the first call fetches the container's image
        client = boto3_client("lambda", f"http://127.0.0.1:{port}", config=patient)
        for function, event in CALLS:
            answer = client.invoke(FunctionName=function, Payload=json.dumps(sample(event)))
            check_result(database, event, json.loads(answer["Payload"].read()))
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_sam_lists_every_resource(server: Minio, tmp_path: Path) -> None:
    local = SamLocal(server, tmp_path, "default", ROOT / "template.yaml")
    done = local.run("sam list resources --output json --region us-east-1")
    assert done.returncode == 0, done.stdout + done.stderr
    listed = {resource["LogicalResourceId"] for resource in json.loads(done.stdout)}
    layers = {name for name, made in TEMPLATE["Resources"].items() if made["Type"] == "AWS::Serverless::LayerVersion"}
    assert TEMPLATE["Resources"].keys() - layers <= listed  # SAM adds a digest to the name of a layer
