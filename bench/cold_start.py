"""``python -m bench.cold_start``: processor time of each function from its start to the end of its first event.

Each is a new process on a real S3 server (MinIO, or ministack where that is not installed). Beside it runs one that
imports pyarrow and boto3, and makes a client of S3. All take turns; the least of the rounds is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa

import dolmen
from bench.peers.actors import ROOT
from bench.peers.servers import BUCKET, s3_server
from dolmen.base.runtime import Runtime
from dolmen.store import open_store
from dolmen.store.base import Stored

URL = f"s3://{BUCKET}/database"
SCHEMA = pa.schema([("id", pa.int64()), ("user_id", pa.int64()), ("kind", pa.string())])
FUNCTIONS = ("ingest", "delete", "compact", "gc")

_BEGIN = """
import json, sys, time
class NoPandas:  # pyarrow imports it if it is installed, and functions have none
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
parts, last = {}, 0.0
def end(part):
    global last
    now = time.process_time()
    parts[part], last = now - last, now
end("Python")
"""
_PYARROW = """
import pyarrow
end("pyarrow")
"""
_CLIENT = """
import boto3
end("boto3")
boto3.client("s3")
end("client")
"""
_LIBRARIES = """
import botocore.session
end("botocore")
import aws_lambda_powertools.metrics
end("Powertools")
"""
_HANDLER = """
sys.path.insert(0, sys.argv[1])
import app
end("handler")
"""
_FIRST_EVENT = """
class Context:
    function_name, memory_limit_in_mb, aws_request_id = "dolmen", 1769, "first"
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:dolmen"
    def get_remaining_time_in_millis(self):
        return 900_000
answer = app.lambda_handler(json.loads(sys.argv[2]), Context())
assert not answer.get("batchItemFailures"), answer
end("first event")
"""
_END = """
print(json.dumps(parts))
"""
PROCESSES = {
    "whole": [_HANDLER, _FIRST_EVENT],
    "by part": [
        _PYARROW,
        _LIBRARIES,
        _HANDLER,
        'app._open(app.FunctionSettings.of(__import__("os").environ))\nend("opened with a client")\n',
        _FIRST_EVENT,
    ],
}


def floor() -> dict[str, float]:
    """Seconds of a process that makes a client of S3, by part."""
    return _run([_PYARROW, _CLIENT], [])


def function(name: str, kind: str, round_: int) -> dict[str, float]:
    """Seconds of a process that handles one event, by part."""
    return _run(PROCESSES[kind], [str(ROOT / "functions" / name), json.dumps(_event(name, f"{kind}-{round_}"))])


def _run(program: list[str], arguments: list[str]) -> dict[str, float]:
    command = [sys.executable, "-c", "".join([_BEGIN, *program, _END]), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _event(name: str, id_: str) -> Any:
    """An event that makes a commit, or of the scheduled functions an ordinary one."""
    if name in ("compact", "gc"):
        return {}
    body = _drop(id_) if name == "ingest" else {"table": "events", "where": {"user_id": 7}}
    record = {"messageId": id_, "receiptHandle": id_, "body": json.dumps(body), "messageAttributes": {}}
    source = {"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:queue"}
    return {"Records": [{**record, **source, "awsRegion": "us-east-1", "attributes": {"ApproximateReceiveCount": "1"}}]}


def _drop(id_: str) -> dict[str, Any]:
    """Drops a file of 1,000 rows of CSV, and returns the notification of it."""
    rows = "".join(f"{number},{number % 10},click\n" for number in range(1_000))
    key, body = f"landing/events/{id_}.csv", f"id,user_id,kind\n{rows}".encode()
    outcome = open_store(f"s3://{BUCKET}", Runtime()).put(key, body)
    assert isinstance(outcome, Stored)
    about = {"key": quote_plus(key, safe="/"), "size": len(body), "eTag": outcome.etag.strip('"'), "sequencer": "01"}
    record = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}
    return {"Records": [{**record, "s3": {"bucket": {"name": BUCKET}, "object": about}}]}


def main() -> None:
    """Prints a table of Markdown."""
    options = argparse.ArgumentParser(prog="python -m bench.cold_start", description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--functions", nargs="+", default=FUNCTIONS, choices=FUNCTIONS)
    chosen = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dolmen-bench-") as folder,
        s3_server(Path(folder) / "s3") as (server, where),
    ):
        os.environ |= {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_DEFAULT_REGION": server.region,
            "DOLMEN_DATABASE": URL,
            "DOLMEN_LANDING_URL": f"s3://{BUCKET}",
            "POWERTOOLS_LOG_LEVEL": "CRITICAL",
            "POWERTOOLS_METRICS_DISABLED": "false",
        }
        dolmen.open(URL).create_table("events", SCHEMA, primary_key="id").append(pa.table({"id": [-1]}))
        found = defaultdict[tuple[str, str], list[dict[str, float]]](list)
        for round_ in range(chosen.rounds):
            found["pyarrow and boto3", "whole"].append(floor())
            for name in chosen.functions:
                for kind in sorted(PROCESSES, reverse=bool(round_ % 2)):  # the first has more to maintain
                    found[name, kind].append(function(name, kind, round_))
    wholes = {name: min(sum(each.values()) for each in some) for (name, kind), some in found.items() if kind == "whole"}
    print(f"Seconds of processor time, the least of {chosen.rounds} rounds, on {where}:\n")
    print("| process | whole | of pyarrow and boto3 | by part |\n|---|---|---|---|")
    for name, whole in wholes.items():
        rounds = found[name, "by part"] or found[name, "whole"]
        parts = {part: min(each[part] for each in rounds) for part in rounds[0]}
        shown = ", ".join(f"{part} {seconds:.3f}" for part, seconds in parts.items())
        print(f"| {name} | {whole:.3f} | {whole / wholes['pyarrow and boto3']:.2f} | {shown} |")


if __name__ == "__main__":
    main()
