"""The Lambda functions in a test: loaded as Lambda loads them, over a bucket or a directory."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.service.functions.function_settings import DeliveryQueues, FunctionResources, FunctionSettings
from dolmen.store import open_store
from dolmen.store.base import ObjectStore, Stored
from support.event_builders import notification, s3_record, sqs_event

FUNCTIONS = Path(__file__).parents[2] / "functions"
SCHEMA = pa.schema([("id", pa.int64()), ("user_id", pa.int64()), ("kind", pa.string())])
_RUNTIME = Runtime()
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@dataclass
class Context:
    """Lambda's context of a handler; returns the ``remaining_ms`` in turn, and then the last one again."""

    function_name: str = "dolmen"
    memory_limit_in_mb: int = 1024
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:dolmen"
    aws_request_id: str = "invocation-1"
    remaining_ms: list[int] = field(default_factory=lambda: [900_000])

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms.pop(0) if len(self.remaining_ms) > 1 else self.remaining_ms[0]


class Listener(logging.Handler):
    """Keeps a function's log entries: text and named fields."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        facts = {name: value for name, value in vars(record).items() if name not in _ORDINARY}
        self.entries.append({"text": record.getMessage(), **facts})


def load(name: str) -> ModuleType:
    """Loads ``functions/<name>/app.py`` as in a new container."""
    spec = importlib.util.spec_from_file_location(f"test_function_{name}", FUNCTIONS / name / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use_queues(module: Any, replace: Callable[[DeliveryQueues | None], Any]) -> None:
    """Makes a loaded function use other queues of drops instead of its own."""
    opened = module._open

    @cache
    def open_with_queues(settings: FunctionSettings) -> FunctionResources:
        resources: FunctionResources = opened(settings)
        resources.queues = replace(resources.queues)
        return resources

    module._open = open_with_queues


class World:
    """A database, a landing place and the functions.

    Args:
        landing: the landing bucket, or the directory that stands for it.
        database_url: URL of the database.
        bucket: name of the landing bucket in events.
    """

    def __init__(self, landing: ObjectStore, database_url: str, bucket: str = "drops") -> None:
        self.landing, self.url, self.bucket = landing, database_url, bucket
        self._store = open_store(database_url, _RUNTIME)
        self.listener = Listener()
        self.context = Context()
        self.restart()

    def restart(self) -> None:
        """New containers for all functions."""
        self.functions = {name: load(name) for name in ("ingest", "delete", "compact", "gc")}
        for module in self.functions.values():
            module.logger.addHandler(self.listener)

    def close(self) -> None:
        for module in self.functions.values():
            module.logger.removeHandler(self.listener)

    @property
    def database(self) -> Database:
        """The database, opened with empty caches."""
        return Database(self._store, _RUNTIME)

    def create(self, name: str = "events", schema: pa.Schema = SCHEMA, primary_key: str | None = "id") -> None:
        self.database.create_table(name, schema, primary_key=primary_key)

    def drop(self, path: str, body: bytes | str, *, sequencer: str = "01") -> dict[str, Any]:
        """Puts a file under ``landing/`` and returns the record that S3 would send."""
        key = f"landing/{path}"
        content = body.encode() if isinstance(body, str) else body
        outcome = self.landing.put(key, content)
        if not isinstance(outcome, Stored):  # as users do, over what was there
            outcome = self.landing.put(key, content, if_match=self.landing.head(key).etag)
        assert isinstance(outcome, Stored)
        return s3_record(key, outcome.etag, bucket=self.bucket, size=len(content), sequencer=sequencer)

    def ingest(self, *records: dict[str, Any], tries: int = 1) -> list[str]:
        """Delivers records, each in a message of its own (``message-0``, ...); returns the ids that failed."""
        return self.invoke("ingest", sqs_event([notification(record) for record in records], tries=tries))

    def delete(self, *bodies: Any, ids: list[str] | None = None, tries: int = 1) -> list[str]:
        """Delivers delete messages; returns the ids that failed."""
        return self.invoke("delete", sqs_event(bodies, ids, tries=tries))

    def invoke(self, function: str, event: Any) -> list[str]:
        answer = self.functions[function].lambda_handler(event, self.context)
        assert set(answer) == {"batchItemFailures"}
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    def call(self, function: str, event: Any = None, *, remaining_ms: list[int] | None = None) -> dict[str, Any]:
        """Calls a scheduled function; returns its answer."""
        self.context.remaining_ms = remaining_ms or [900_000]
        answer: dict[str, Any] = self.functions[function].lambda_handler({} if event is None else event, self.context)
        return answer

    def rows(self, table: str = "events") -> list[dict[str, Any]]:
        """All rows, sorted."""
        found: list[dict[str, Any]] = self.database.table(table).to_arrow().to_pylist()
        return sorted(found, key=lambda row: [str(value) for value in row.values()])

    def ids(self, table: str = "events") -> list[int]:
        return sorted(row["id"] for row in self.rows(table))

    def versions(self, operation: str) -> int:
        """Number of commits of one operation."""
        return sum(commit.operation == operation for commit in self.database.history())

    def rejects(self) -> dict[str, dict[str, Any]]:
        """The reports of rejects, by key of the copy below ``rejected/``; asserts that each copy exists."""
        keys = [info.key for info in self.landing.list("rejected/")]
        reports = {
            key.removesuffix(".error.json").removeprefix("rejected/"): json.loads(self.landing.get(key).body)
            for key in keys
            if key.endswith(".error.json")
        }
        copies = {key.removeprefix("rejected/") for key in keys if not key.endswith(".error.json")}
        whole = {key for key in copies - reports.keys() if f"{key.partition('.rows.')[0]}.rows.jsonl" in reports}
        assert copies - whole == reports.keys(), copies ^ reports.keys()
        return reports

    def log_entries(self, text: str) -> list[dict[str, Any]]:
        """The fields of the log entries with this text."""
        return [facts for facts in self.listener.entries if facts["text"] == text]
