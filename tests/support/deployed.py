"""Stacks in a local cloud: `sam deploy` of the build, and the interface of a stack's users.

Real are SAM, the template, the packages, S3's and EventBridge's notifications, queues with visibility and dead letters,
event source mappings, schedules, and the functions: on the template's Python, with nothing but their layers. Not real:
batching windows and large batches (one holds what is there, ten at most), IAM, limits of memory and of speed, alarms.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import dolmen
from dolmen.base.runtime import cached_property
from support.built import LAYERS, ROOT, built_stack, find_sam, runtime_python
from support.ministack import Ministack, boto3_client, endpoint_environment

WAIT_SECONDS = 180.0

ARCHITECTURE = "arm64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
"""Architecture of this machine, on which the functions run."""

SAMCONFIG: dict[str, Any] = tomllib.loads((ROOT / "samconfig.toml").read_text())["local"]["deploy"]["parameters"]
"""How samconfig.toml deploys into an emulator."""


@contextmanager
def cloud(directory: Path) -> Iterator[str]:
    """Runs a ministack to deploy into, with all its files in ``directory``; yields its endpoint."""
    [translator] = (ROOT / ".venv-sam").glob("lib/python3*/site-packages")
    runner = str(Path(__file__).with_name("run_ministack.py"))
    server = Ministack.start(
        directory,
        command=[sys.executable, runner, runtime_python(), str(translator)],
        PYTHONPATH="",  # or the functions would find what the tests find
        PYTHONNOUSERSITE="1",
        IOT_MTLS_ENABLED="0",  # it would listen on a port that is the same for all
    )
    try:
        yield server.endpoint
    finally:
        server.stop()


def package(endpoint: str, directory: Path) -> Path:
    """Runs `sam package`, which uploads the build. Returns the template with the uploads.

    The template is JSON, which SAM reads much faster than YAML. Layers are zip files without compression: compressing
    them takes longer than a deployment, and each process of a function unpacks them anew. The layer of the other
    architecture is empty, as nothing runs on it.
    """
    template = yaml.load((built_stack() / "template.yaml").read_text(), yaml.CSafeLoader)
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::Serverless::LayerVersion":
            properties["ContentUri"] = str(_zip_layer(properties["ContentUri"], directory))
        elif "CodeUri" in properties:
            properties["CodeUri"] = str((built_stack() / properties["CodeUri"]).resolve())
    zipped, packaged = directory / "zipped.json", directory / "packaged.json"
    zipped.write_text(json.dumps(template))
    files = ("--template-file", str(zipped), "--output-template-file", str(packaged), "--use-json")
    _sam(endpoint, directory, "package", *files)
    for archive in directory.glob("*.zip"):
        archive.unlink()
    return packaged


def deploy(endpoint: str, packaged: Path, stack: str, parameters: Mapping[str, str]) -> Stack:
    """Runs `sam deploy` on a package, and returns the stack."""
    overrides = [f"{name}={value!r}" for name, value in parameters.items()]
    where = ("--template-file", str(packaged), "--stack-name", stack)
    how = ("--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset", "--tags", SAMCONFIG["tags"])
    _sam(endpoint, packaged.parent, "deploy", *where, *how, "--parameter-overrides", *overrides)
    found = boto3_client("cloudformation", endpoint).describe_stacks(StackName=stack)["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", ())}
    return Stack(endpoint, dict(parameters), outputs)


def run_smoke_test(endpoint: str, packaged: Path, stack: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs scripts/aws_smoke.py on a package: zipping and uploading the build once more would take most of its time."""
    command = [sys.executable, str(ROOT / "scripts" / "aws_smoke.py"), "--stack", stack]
    return subprocess.run(
        [*command, "--template", str(packaged), "--architecture", ARCHITECTURE, *arguments],
        env={**os.environ, **endpoint_environment(endpoint), "__SAM_CLI_APP_DIR": str(packaged.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def delete_stack(endpoint: str, stack: str) -> None:
    """Deletes a stack, and waits for its end. Buckets stay."""
    client = boto3_client("cloudformation", endpoint)
    client.delete_stack(StackName=stack)
    client.get_waiter("stack_delete_complete").wait(StackName=stack, WaiterConfig={"Delay": 1, "MaxAttempts": 120})


def _zip_layer(layer: str, directory: Path) -> Path:
    folder, archive = built_stack() / layer, directory / f"{layer}.zip"
    runs_here = layer not in LAYERS.values() or layer == LAYERS[ARCHITECTURE]
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")) if runs_here else ():
            file.write(path, path.relative_to(folder))
    return archive


def _sam(endpoint: str, directory: Path, command: str, *arguments: str) -> None:
    """Runs the SAM command line; raises RuntimeError with its output when it fails."""
    done = subprocess.run(
        [find_sam(), command, *arguments, "--region", "us-east-1", "--resolve-s3", "--no-progressbar"],
        env={
            **os.environ,
            **endpoint_environment(endpoint),
            "SAM_CLI_TELEMETRY": "0",
            "__SAM_CLI_APP_DIR": str(directory),
        },
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"sam {command}: {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")


@dataclass
class Stack:
    """A deployed stack, from outside: buckets, queues, and the command line on the database."""

    endpoint: str
    parameters: dict[str, str]
    outputs: dict[str, str]

    @cached_property
    def s3(self) -> Any:
        return boto3_client("s3", self.endpoint)

    @cached_property
    def sqs(self) -> Any:
        return boto3_client("sqs", self.endpoint)

    # ---- what a user does ----

    def drop(self, path: str, body: str) -> None:
        """PUTs a file to the landing place."""
        bucket, _, prefix = self.outputs["LandingUri"].removeprefix("s3://").partition("/")
        self.s3.put_object(Bucket=bucket, Key=f"{prefix}{path}", Body=body.encode())

    def request_deletes(self, bodies: Iterable[Any]) -> None:
        """Sends messages to the delete queue."""
        self.send("DeleteQueueUrl", bodies)

    def send(self, queue: str, bodies: Iterable[Any]) -> None:
        """Sends messages to the queue of this output; a body is JSON, or text as it is."""
        texts = (body if isinstance(body, str) else json.dumps(body) for body in bodies)
        for some in _tens(texts):
            entries = [{"Id": str(n), "MessageBody": text} for n, text in enumerate(some)]
            sent = self.sqs.send_message_batch(QueueUrl=self.outputs[queue], Entries=entries)
            assert not sent.get("Failed"), sent

    def dolmen(self, *arguments: str) -> str:
        """Runs the command line on the stack's database."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("dolmen")), *arguments],
            env={
                **os.environ,
                **endpoint_environment(self.endpoint),
                "DOLMEN_DATABASE": self.outputs["DatabaseUri"],
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # ---- what a user sees ----

    def rows(self, table: str = "events") -> list[dict[str, Any]]:
        """All rows. They are asked for again and again, so no process is started for that."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in endpoint_environment(self.endpoint).items():
                patch.setenv(name, value)
            found: list[dict[str, Any]] = dolmen.open(self.outputs["DatabaseUri"]).table(table).to_arrow().to_pylist()
            return found

    def ids(self, table: str = "events") -> list[int]:
        return sorted(row["id"] for row in self.rows(table))

    def history(self) -> list[dict[str, Any]]:
        """Every commit, oldest first, by `dolmen history`."""
        told = self.dolmen("history", "--limit", "100000", "--json").splitlines()
        return [json.loads(line) for line in told][::-1]

    def waiting(self, queue: str) -> int:
        """Number of messages in the queue of this output, with those in progress."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self.sqs.get_queue_attributes(QueueUrl=self.outputs[queue], AttributeNames=names)["Attributes"]
        return sum(int(told[name]) for name in names)

    def bodies(self, queue: str, count: int) -> list[str]:
        """The bodies of the first ``count`` messages in the queue of this output."""
        found: dict[str, str] = {}

        def look() -> bool:
            got = self.sqs.receive_message(QueueUrl=self.outputs[queue], MaxNumberOfMessages=10, VisibilityTimeout=0)
            found.update({message["MessageId"]: message["Body"] for message in got.get("Messages", ())})
            return len(found) >= count

        wait(f"{count} messages in {queue}", look)
        return list(found.values())

    def expect(self, ids: Iterable[int], table: str = "events") -> None:
        """Waits until the table holds exactly the rows with these ids. An empty queue is no sign of that: notifications
        come a moment after the PUT."""
        wanted = sorted(ids)
        found: list[int] = []

        def there() -> bool:
            nonlocal found
            self.settle()
            found = self.ids(table)
            return found == wanted

        try:
            wait("the rows", there, between=1)
        except TimeoutError:
            raise AssertionError(f"{table} holds {found}, not {wanted}") from None

    def settle(self) -> None:
        """Waits until all messages in the queues are handled."""
        for queue in ("IngestQueueUrl", "DeleteQueueUrl"):
            wait(f"an empty {queue}", partial(self._empty, queue))

    def _empty(self, queue: str) -> bool:
        return self.waiting(queue) == 0

    def logged(self, function: str) -> list[str]:
        """The lines that a function wrote to CloudWatch Logs; ``function`` is the output with its name."""
        name = self.outputs[function]
        about = boto3_client("lambda", self.endpoint).get_function_configuration(FunctionName=name)
        told = boto3_client("logs", self.endpoint).filter_log_events(logGroupName=about["LoggingConfig"]["LogGroup"])
        return [event["message"] for event in told["events"]]


def wait(what: str, until: Callable[[], bool], *, between: float = 0.25) -> None:
    """Waits until a condition holds. Raises TimeoutError with the condition's description."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(between)


def _tens(items: Iterable[str]) -> Iterator[Sequence[str]]:
    some: list[str] = []
    for item in items:
        some.append(item)
        if len(some) == 10:
            yield some
            some = []
    if some:
        yield some
