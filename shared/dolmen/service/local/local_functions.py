"""The Lambda functions on this machine: loaded by path, called with the events that Lambda would give them.

The scheduled functions run in a process of their own, so that ingest need not wait for compaction. The process ends
when its standard input is closed, as it is when the pipeline is killed.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import Error, InputError
from dolmen.ingest.queues import Letter

TIMEOUT_SECONDS = 900

_PACKAGED = Path(__file__).with_name("handlers")
_CHECKOUT = Path(__file__).parents[4] / "functions"
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

LogSink = Callable[[str, int, dict[str, Any]], None]
"""Takes a log record of a function: the text, the level of ``logging``, and the named fields."""


def functions_directory() -> Path:
    """The directory of the functions: ``functions/`` in a checkout, else that of the installed wheel."""
    return _CHECKOUT if _CHECKOUT.is_dir() and not _PACKAGED.is_dir() else _PACKAGED


class DeliveryFailure(Struct, frozen=True):
    """Why a message failed."""

    reason: str
    is_final: bool = False  # it can never be applied, so it is not delivered again
    is_postponed: bool = False  # it was not begun, for lack of time
    is_waiting: bool = False  # it is a drop whose table does not exist


@dataclass(slots=True)
class InvocationContext:
    """The context that Lambda passes to a handler with the event."""

    function_name: str
    aws_request_id: str
    runtime: Runtime
    function_version: str = "$LATEST"
    invoked_function_arn: str = ""
    memory_limit_in_mb: int = 1024
    log_group_name: str = ""
    log_stream_name: str = ""
    began: float = 0.0

    def __post_init__(self) -> None:
        self.invoked_function_arn = f"arn:aws:lambda:local:000000000000:function:{self.function_name}"
        self.began = self.runtime.monotonic()

    def get_remaining_time_in_millis(self) -> int:
        """The time left, as on Lambda. Handlers take no new work after half of it; nothing ends them at 0."""
        return int(max(0.0, TIMEOUT_SECONDS - (self.runtime.monotonic() - self.began)) * 1000)


class LocalFunction:
    """One function, warm: its ``app.py`` is loaded once.

    It calls ``sink`` with its log records, after the invocation or ``at_once`` (``sink`` must not print then).
    """

    def __init__(self, directory: Path, log: Path, sink: LogSink, runtime: Runtime, *, at_once: bool = False) -> None:
        self.name, self._runtime, self._failures = directory.name, runtime, dict[str, DeliveryFailure]()
        self._module = _load(directory / "app.py")
        self._sink, self._log_records = sink, list[tuple[str, int, dict[str, Any]]]()
        self._log = log.open("a")
        self._streams = [
            (handler, _set_stream(handler, self._log))
            for handler in self._module.logger.handlers
            if isinstance(handler, logging.StreamHandler)
        ]
        self._listener = _Listener(sink if at_once else self._note_log)
        self._module.logger.addHandler(self._listener)

    def close(self) -> None:
        self._module.logger.removeHandler(self._listener)
        for handler, stream in self._streams:
            _set_stream(handler, stream)
        self._log.close()

    def deliver(self, letters: Sequence[Letter]) -> dict[str, DeliveryFailure]:
        """Invokes it with a batch. Returns the failures, by message id."""
        event = {"Records": [_record(self.name, letter) for letter in letters]}
        try:
            answer = self.invoke(event)
            failed = [item["itemIdentifier"] for item in answer["batchItemFailures"]]
        except Exception as error:  # noqa: BLE001 - an invocation that raises fails as a whole, whatever it raises
            return {letter.id: DeliveryFailure(f"{type(error).__name__}: {error}") for letter in letters}
        return {id_: self._failures.get(id_, DeliveryFailure("see the functions' log")) for id_ in failed}

    def invoke(self, event: dict[str, Any]) -> Any:
        """Invokes it with an event; returns its answer. Errors of the handler are raised here."""
        self._failures.clear()
        self._log_records.clear()
        context = InvocationContext(f"dolmen-{self.name}", self._runtime.uuid(), self._runtime)
        try:
            with redirect_stdout(self._log):  # where metrics go, too
                return self._module.lambda_handler(event, context)
        finally:
            self._log.flush()
            for record in self._log_records:
                self._sink(*record)

    def _note_log(self, text: str, level: int, fields: dict[str, Any]) -> None:
        id_ = str(fields.get("message_id"))
        if reason := fields.get("reason"):
            reason = f"{fields['error']}: {reason}" if fields.get("error") else str(reason)
            final, waiting = bool(fields.get("final")), text == "drop waiting"
            self._failures[id_] = DeliveryFailure(reason, is_final=final, is_waiting=waiting)
        elif text.endswith(" postponed"):
            self._failures.setdefault(id_, DeliveryFailure(text, is_postponed=True))
        self._log_records.append((text, level, fields))


class _Listener(logging.Handler):
    def __init__(self, sink: LogSink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: value for name, value in vars(record).items() if name not in _ORDINARY}
        self._sink(record.getMessage(), record.levelno, fields)


def _set_stream(handler: logging.StreamHandler[Any], stream: Any) -> Any:
    """Gives a handler another stream; returns its old one, which may be closed."""
    old_stream = handler.stream
    if getattr(old_stream, "closed", False):
        handler.stream = stream
    else:
        handler.setStream(stream)
    return old_stream


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"dolmen_local_{path.parent.name}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"there is no function {path}: install dolmen from its wheel, or name the functions' folder")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"{path} needs {error.name!r}, which is not installed: pip install 'dolmen[aws]'") from error
    return module


def _record(function: str, letter: Letter) -> dict[str, Any]:
    """An SQS message in Lambda's event: docs.aws.amazon.com/lambda/latest/dg/with-sqs.html."""
    return {
        "messageId": letter.id,
        "receiptHandle": letter.id,
        "body": letter.body,
        "attributes": {"ApproximateReceiveCount": str(letter.tries)},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:local:000000000000:{function}",
        "awsRegion": "local",
    }


EVENTS: Mapping[str, dict[str, Any]] = {"compact": {}, "gc": {}}
"""The events that the functions get: the same as from the schedules in template.yaml."""

_FIRST_SECONDS = 10.0
_CLOSING_SECONDS = 30.0
_MAX_WAIT_SECONDS = 600.0

ScheduledLogSink = Callable[[str, str, int, dict[str, Any]], None]
"""Takes a log record of a function: the function's name, the text, the level of ``logging``, and the named fields."""


class Schedule:
    """The process that calls the functions, as the pipeline sees it; ``poll`` calls ``sink`` with their log records.

    ``seconds`` are, by function, the pause from the end of one call to the beginning of the next.
    """

    def __init__(
        self, functions: Path, log: Path, seconds: Mapping[str, float], sink: ScheduledLogSink, runtime: Runtime
    ) -> None:
        source = f"from {__name__} import main; main()"
        self._command = [sys.executable, "-c", source, str(functions), str(log), json.dumps(dict(seconds))]
        self._sink, self._runtime = sink, runtime
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._starts = 0
        self._start_at = runtime.monotonic() if seconds else math.inf

    def __enter__(self) -> Self:
        return self

    def poll(self) -> None:
        """Passes on new log records, without waiting. Restarts a dead process, after a pause."""
        if self._process is None:
            if self._runtime.monotonic() >= self._start_at:
                self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
                assert self._process.stdout is not None
                os.set_blocking(self._process.stdout.fileno(), False)
            return
        assert self._process.stdout is not None
        ended = self._process.poll()
        *lines, self._read = (self._read + (self._process.stdout.read() or b"")).split(b"\n")
        for line in lines:
            self._sink(*json.loads(line))
        if ended is not None:
            self._close()
            self._starts += 1
            wait_seconds = min(2.0**self._starts, _MAX_WAIT_SECONDS)
            self._start_at = self._runtime.monotonic() + wait_seconds
            self._sink("schedule", "ended", logging.ERROR, {"exit_code": ended, "again_in_seconds": wait_seconds})

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        process, self._process, self._read = self._process, None, b""
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.terminate()  # at any point: what is not committed is an orphan
        try:
            process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def serve(functions: Path, log: Path, seconds: Mapping[str, float], runtime: Runtime) -> None:
    """Calls the functions in turn until standard input ends; writes their log records to standard output as JSON."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # the functions' own standard output goes to the log

    def call(name: str) -> None:
        def write_record(text: str, level: int, fields: dict[str, Any]) -> None:
            fields.pop("exc_info", None)
            output.write(json.dumps([name, text, level, fields], default=str) + "\n")
            output.flush()

        try:
            loaded[name] = loaded.get(name) or LocalFunction(functions / name, log, write_record, runtime, at_once=True)
            loaded[name].invoke(EVENTS[name])
        except Exception as error:  # noqa: BLE001 - an invocation may fail for any reason; the next one continues
            reason = str(error) if isinstance(error, (Error, RuntimeError)) else f"{type(error).__name__}: {error}"
            write_record("round failed", logging.ERROR, {"reason": reason})

    loaded: dict[str, LocalFunction] = {}
    due = {name: runtime.monotonic() + min(every, _FIRST_SECONDS) for name, every in seconds.items()}
    while True:
        name = min(due, key=lambda name: due[name])
        wait = max(0.0, due[name] - runtime.monotonic())
        if select.select([sys.stdin], [], [], wait)[0]:
            return
        call(name)
        due[name] = runtime.monotonic() + seconds[name]


def main() -> None:
    """Calls the scheduled functions for the pipeline. Arguments: the functions, their log, and the seconds as JSON."""
    try:
        serve(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), shared_runtime())
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)  # the pipeline has ended, and no process reads the output
