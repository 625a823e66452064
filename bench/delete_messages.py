"""Delete messages folded into commits: batches as SQS hands them out, through the function's own handler."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

import dolmen
from bench.measure import seconds
from bench.places import Local, Ministack

BATCH = 1_000
"""Messages of a batch: as template.yaml has it."""

#: Target, in messages per second.
TARGET = 2_000

_HANDLER = Path(__file__).parents[1] / "functions" / "delete" / "app.py"
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user_id", pa.int64()), ("kind", pa.string())])
_DATABASE = "DOLMEN_DATABASE"


@dataclass(frozen=True)
class Rate:
    """How fast one kind of message is folded: the median over batches."""

    name: str
    per_second: float


#: The deletes that messages request, by name; ``n`` is new for each.
KINDS = {
    "where, one user each": lambda n: {"table": "events", "where": {"user_id": n}},
    "where as SQL text": lambda n: {"table": "events", "where": f"user_id = {n} AND kind = 'view'"},
    "keys, one each": lambda n: {"table": "events", "keys": [n]},
}


def delete_messages(where: Local | Ministack, rounds: int) -> Iterator[Rate]:
    """Rates of all kinds, each in a database of its own."""
    rows = BATCH * (rounds + 1)
    table = pa.table({"id": range(rows + 1), "user_id": range(rows + 1), "kind": ["view"] * (rows + 1)}, _SCHEMA)
    for name, ask in KINDS.items():
        url = where.fresh()
        dolmen.open(url).create_table("events", _SCHEMA, primary_key="id").append(table)
        batches = [_batch(ask, range(first, first + BATCH)) for first in range(0, rows, BATCH)]
        with _told(url), contextlib.redirect_stdout(io.StringIO()):  # a line is logged for each message
            handler = _handler()
            took = [seconds(partial(_fold, handler, batch)) for batch in batches][1:]  # the first warms up
        assert dolmen.open(url).table("events").count() == 1, "each message deleted its row"
        where.remove(url)
        yield Rate(name, BATCH / statistics.median(took))


def _fold(handler: ModuleType, batch: dict[str, Any]) -> None:
    answer = handler.lambda_handler(batch, _Context())
    assert answer == {"batchItemFailures": []}, answer


def _batch(ask: Callable[[int], dict[str, Any]], numbers: Iterable[int]) -> dict[str, Any]:
    return {
        "Records": [
            {
                "messageId": f"message-{n}",
                "body": json.dumps({**ask(n), "request_id": f"request-{n}"}),
                "attributes": {"ApproximateReceiveCount": "1"},
                "eventSource": "aws:sqs",
            }
            for n in numbers
        ]
    }


class _Context:
    function_name = "delete"
    memory_limit_in_mb = 1769
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:delete"
    aws_request_id = "invocation"

    def get_remaining_time_in_millis(self) -> int:
        return 900_000


def _handler() -> ModuleType:
    """The function in a container of its own."""
    spec = importlib.util.spec_from_file_location("bench_delete_function", _HANDLER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """The environment that points the function at the database."""
    os.environ[_DATABASE] = url
    try:
        yield
    finally:
        del os.environ[_DATABASE]
