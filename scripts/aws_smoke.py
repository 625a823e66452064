"""Deploys a stack of its own into an AWS account, drops a file, deletes a row, and takes everything down again.

    make build
    .venv/bin/python scripts/aws_smoke.py --stack dolmen-smoke-1

It takes credentials and region from the ordinary AWS configuration, and touches nothing but what it made: the stack,
its two buckets, which are named after it, and its layers. docs/releasing.md says what a role needs for that.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

ROOT = Path(__file__).resolve().parents[1]
PREFIX = "dolmen-smoke-"
WAIT_SECONDS = 300.0
ROWS = "id,user_id\n1,42\n2,7\n3,42\n"


@dataclass(frozen=True)
class Smoke:
    """A stack of that name, and the buckets that go with it.

    Attributes:
        stack: begins with ``dolmen-smoke-``, so that a wrong name can hit no other stack.
        template: what `make build` made.
        architecture: of the functions: ``arm64`` or ``x86_64``.
    """

    stack: str
    template: Path
    architecture: str

    @property
    def account(self) -> str:
        return str(client("sts").get_caller_identity()["Account"])

    @property
    def database_bucket(self) -> str:
        return f"{self.stack}-{self.account}-database"

    @property
    def landing_bucket(self) -> str:
        return f"{self.stack}-{self.account}-landing"

    def deploy(self) -> None:
        """Runs `sam deploy`."""
        parameters = {
            "DatabaseBucketName": self.database_bucket,
            "LandingBucketName": self.landing_bucket,
            "Architecture": self.architecture,
            "Schedules": "DISABLED",  # nothing may run beside what is checked
        }
        sam = ROOT / ".venv-sam" / "bin" / "sam"
        command = [str(sam), "deploy", "--template-file", str(self.template), "--stack-name", self.stack]
        options = ["--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset", "--resolve-s3", "--no-progressbar"]
        overrides = [f"{name}={value}" for name, value in parameters.items()]
        region = boto3.session.Session().region_name
        if region is None:
            sys.exit("no region: set AWS_REGION and AWS_DEFAULT_REGION")
        subprocess.run(
            [*command, *options, "--region", region, "--parameter-overrides", *overrides],
            env={**os.environ, "SAM_CLI_TELEMETRY": "0"},
            cwd=self.template.parent,
            check=True,
        )

    def check(self) -> None:
        """Drops a file and deletes rows as a user does, and fails if either has no effect."""
        outputs = self.outputs()
        database = outputs["DatabaseUri"]
        columns = ("--columns", "id BIGINT NOT NULL, user_id BIGINT", "--primary-key", "id")
        dolmen(database, "create", "events", *columns)
        bucket, _, prefix = outputs["LandingUri"].removeprefix("s3://").partition("/")
        client("s3").put_object(Bucket=bucket, Key=f"{prefix}events/smoke.csv", Body=ROWS.encode())
        wait_for_rows(database, 3)
        request = ("--where", "user_id = 42", "--request-id", "smoke", "--queue", outputs["DeleteQueueUrl"])
        dolmen(database, "request-delete", "events", *request)
        dolmen(database, "request-status", "smoke", "--wait", str(WAIT_SECONDS))
        wait_for_rows(database, 1)
        dolmen(database, "verify")

    def outputs(self) -> dict[str, str]:
        """The stack's outputs."""
        [found] = client("cloudformation").describe_stacks(StackName=self.stack)["Stacks"]
        return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", ())}

    def tear_down(self) -> None:
        """Deletes everything that was made. Something that no longer exists is not an error."""
        cloudformation = client("cloudformation")
        layers = self._layers()
        cloudformation.delete_stack(StackName=self.stack)
        waiting = {"Delay": 5, "MaxAttempts": 240}
        cloudformation.get_waiter("stack_delete_complete").wait(StackName=self.stack, WaiterConfig=waiting)
        for bucket in (self.landing_bucket, self.database_bucket):
            delete_bucket(bucket)
        for layer in layers:  # the template keeps the layers of deleted stacks
            name, _, version = layer.removeprefix("arn:").split(":", 5)[5].rpartition(":")
            client("lambda").delete_layer_version(LayerName=name, VersionNumber=int(version))
        print(f"{self.stack} is gone, with its buckets and layers")

    def _layers(self) -> list[str]:
        try:
            resources = client("cloudformation").describe_stack_resources(StackName=self.stack)["StackResources"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ValidationError":  # there is no such stack
                return []
            raise
        return [
            resource["PhysicalResourceId"]
            for resource in resources
            if resource["ResourceType"] == "AWS::Lambda::LayerVersion" and "PhysicalResourceId" in resource
        ]


def client(service: str) -> Any:
    """A client of the account that the environment names."""
    make: Any = boto3.client  # its stubs want the service's name as a literal
    return make(service)


def delete_bucket(bucket: str) -> None:
    """Deletes a bucket, every version of every object in it first."""
    s3 = client("s3")
    try:
        s3.head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
            return
        raise
    s3.delete_bucket_policy(Bucket=bucket)  # the database's policy forbids deleting the pointer
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
        if objects:
            done = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
            if failed := done.get("Errors"):
                raise RuntimeError(
                    f"{len(failed)} objects of {bucket} were not deleted, the first: {failed[0]['Code']}"
                )
    s3.delete_bucket(Bucket=bucket)


def wait_for_rows(database: str, rows: int) -> None:
    """Waits until the table has so many rows."""
    end = time.monotonic() + WAIT_SECONDS
    while (found := int(dolmen(database, "scan", "events", "--count").strip().replace(",", ""))) != rows:
        if time.monotonic() > end:
            raise RuntimeError(f"the table has {found} rows after {WAIT_SECONDS:.0f} s, and should have {rows}")
        time.sleep(3)
    print(f"{rows} rows, as expected")


def dolmen(database: str, *arguments: str) -> str:
    """Runs the command line on the database, and returns what it prints."""
    command = [str(Path(sys.executable).with_name("dolmen")), *arguments]
    environment = {**os.environ, "DOLMEN_DATABASE": database}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"dolmen {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def stack_name(text: str) -> str:
    """Checks a name: buckets are named after the stack, and a role may be allowed to touch no other."""
    if not re.fullmatch(rf"{PREFIX}[a-z0-9-]{{1,20}}", text):
        raise argparse.ArgumentTypeError(f"{PREFIX} and up to 20 lower-case letters, digits and hyphens")
    return text


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", type=stack_name, required=True, help=f"its name: {PREFIX}...")
    template = ROOT / ".aws-sam" / "build" / "template.yaml"
    parser.add_argument("--template", type=Path, default=template, help="the built template; default: of make build")
    parser.add_argument("--architecture", choices=["arm64", "x86_64"], default="arm64", help="of the functions")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--keep", action="store_true", help="leave the stack, to look at it")
    what.add_argument("--tear-down", action="store_true", help="only delete what an earlier run left")
    given = parser.parse_args()
    smoke = Smoke(given.stack, given.template, given.architecture)
    if given.tear_down:
        smoke.tear_down()
        return
    try:
        smoke.deploy()
        smoke.check()
    finally:
        if not given.keep:
            smoke.tear_down()
    print("the smoke test passed")


if __name__ == "__main__":
    main()
