"""Runs a function's handler in processes that can be killed, one fork per event of a process that has imported it.

``python handler_server.py`` with a function's environment imports ``app`` and says so with a line on standard output.
Then each line of standard input is an event; answered are two lines, ``{"pid": ...}`` when the process runs, and
``{"status": ..., "answer": ...}`` when it has ended. What the handlers print goes to standard error. Knows nothing but
the standard library and the function, as this runs where only the layers are.

A fork is as cold as a container's first invocation but for the imports (those that a handler makes as it goes too, once
one of them came to its end): the clients, the database and the cache are made by the handler.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from contextlib import suppress
from typing import Any


class Context:
    """Lambda's context of a handler."""

    function_name = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
    memory_limit_in_mb = 1024
    invoked_function_arn = f"arn:aws:lambda:us-east-1:123456789012:function:{function_name}"
    aws_request_id = "00000000-0000-0000-0000-000000000000"

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int(1000 * (self._end - time.monotonic())))


def handle(handler: Any, event: Any, result: int) -> int:
    """Runs the handler, and writes its answer into the pipe ``result``; returns the exit status."""
    try:
        answer = handler(event, Context(900))
    except Exception:  # noqa: BLE001 - printed, and told by the status
        traceback.print_exc()
        return 1
    with os.fdopen(result, "w") as pipe:
        json.dump({"answer": answer, "imported": list(sys.modules)}, pipe)
    return 0


def main() -> None:
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the handler prints is not for whoever started this
    import app  # type: ignore[import-not-found]

    print("ready", file=told)
    for line in sys.stdin:
        event = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = handle(app.lambda_handler, event, writing)
            sys.stdout.flush()
            os._exit(status)
        os.close(writing)
        print(json.dumps({"pid": pid}), file=told)
        with os.fdopen(reading) as answer:
            text = answer.read()
        _, status = os.waitpid(pid, 0)
        ended = json.loads(text) if status == 0 else {"answer": None, "imported": []}
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), "answer": ended["answer"]}), file=told)
        for name in ended["imported"]:  # the next ones need not
            with suppress(ImportError):
                importlib.import_module(name)


if __name__ == "__main__":
    main()
