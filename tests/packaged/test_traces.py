"""What the packaged functions send to X-Ray: nothing unless the stack traces, and then no value of the data.

AWS's emulator hands on no trace, so the handlers are called here as Lambda calls them, with its variables.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dolmen import Database
from support.built import FUNCTIONS, run_as_deployed
from support.event_builders import sqs_event
from support.landing import drop
from support.ministack import endpoint_environment
from support.packaged import function_folder

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, sys
from types import SimpleNamespace
os.environ.update(json.loads(sys.argv[1]))
import app
context = SimpleNamespace(function_name="f", memory_limit_in_mb=1769, invoked_function_arn="arn", aws_request_id="1")
context.get_remaining_time_in_millis = lambda: 60_000
for event in json.loads(sys.argv[2]):
    try:
        app.lambda_handler(event, context)
    except RuntimeError as error:
        print(error)
print("imported" if "aws_xray_sdk" in sys.modules else "not imported")
"""


class Daemon:
    """A daemon of X-Ray, which Lambda runs beside a function: keeps what it is sent."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def received(self) -> list[dict[str, Any]]:
        """The segments sent since the last call. A handler has sent them when it returns."""
        found = []
        while True:
            try:
                _, _, document = self._socket.recv(1 << 16).partition(b"\n")
            except BlockingIOError:
                return found
            found.append(json.loads(document))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with closing(Daemon()) as daemon:
        yield daemon


def run(function: str, events: list[Any], endpoint: str, url: str, daemon: Daemon, *, traced: bool) -> str:
    """Calls a packaged function's handler; returns what it prints."""
    variables = {
        **endpoint_environment(endpoint),
        "DOLMEN_DATABASE": url,
        "LAMBDA_TASK_ROOT": "/var/task",
        "_X_AMZN_TRACE_ID": "Root=1-67891233-abcdef012345678912345678;Parent=53995c3f42cd8ad8;Sampled=1",
        "AWS_XRAY_DAEMON_ADDRESS": daemon.address,
        "POWERTOOLS_TRACE_DISABLED": str(not traced).lower(),
    }
    arguments = json.dumps(variables), json.dumps(events)
    done = run_as_deployed(PROGRAM, *arguments, before=[function_folder(function)])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_traced_function_sends_its_requests_and_no_value_of_the_data(
    database: Database, daemon: Daemon, s3_endpoint: str, s3_url: str
) -> None:
    good = drop(s3_endpoint, s3_url, "good.csv", "id,user_id,kind\n771,1,secretvalue\n")
    bad = drop(s3_endpoint, s3_url, "bad.csv", "id,user_id,kind\nsecretnumber,1,x\n")
    where, wrong = {"table": "events", "where": "kind = 'secretvalue'"}, {"table": "events", "keys": ["secretnumber"]}
    events: dict[str, list[Any]] = {
        "ingest": [good, bad],
        "delete": [sqs_event([where, wrong]), wrong],
        "compact": [{}],
        "gc": [{}],
    }
    for function in FUNCTIONS:
        printed = run(function, events[function], s3_endpoint, s3_url, daemon, traced=True)
        assert printed.endswith("\nimported\n")
        segments = daemon.received()
        handlers = [segment for segment in segments if segment["name"] == "## lambda_handler"]
        assert [handler["annotations"]["Service"] for handler in handlers] == [function] * len(events[function])
        assert {name for segment in segments for name in segment.get("annotations", ())} == {"ColdStart", "Service"}
        assert "s3" in {segment["name"] for segment in segments}
        assert "secret" not in json.dumps(segments)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_is_not_traced_sends_nothing_and_does_not_import_the_sdk_of_x_ray(
    database: Database, daemon: Daemon, s3_endpoint: str, s3_url: str, function: str
) -> None:
    events: list[Any] = [{"table": "events", "keys": [1]} if function == "delete" else {}]
    printed = run(function, events, s3_endpoint, s3_url, daemon, traced=False)
    assert printed.endswith("\nnot imported\n")
    assert daemon.received() == []
