"""Counts the files of the package that an append, a delete request and a scan enter: what a reader has to open.

    .venv/bin/python scripts/files_entered.py             counts
    .venv/bin/python scripts/files_entered.py --names     and the files

Each operation runs twice, on two databases. The second run counts, so that imports do not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'shared' / 'dolmen'}{os.sep}"


class Tracer:
    """Notes the files of the package in which a function is called, in the thread that makes it or in later ones."""

    def __init__(self) -> None:
        self._entered: set[str] = set()
        threading.setprofile(self._note)  # pools keep their threads, so before the first one starts
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._entered.add(frame.f_code.co_filename[len(PACKAGE) :])

    def files_entered(self, run: Callable[[], Any]) -> list[str]:
        """The files that a call enters, sorted."""
        self._entered.clear()
        run()
        return sorted(self._entered)


def operations(directory: Path) -> dict[str, Callable[[], Any]]:
    """The operations on a new database, to be run in this order."""
    import dolmen

    url = str(directory / "database")
    rows = pa.table({"id": pa.array(range(1_000), pa.int64()), "name": [f"name {i}" for i in range(1_000)]})
    table = dolmen.open(url).create_table("events", rows.schema, primary_key=["id"])
    request = {"table": "events", "where": "name = 'name 7'", "request_id": "one"}
    records = [{"messageId": "one", "eventSource": "aws:sqs", "body": json.dumps(request), "attributes": {}}]
    context = SimpleNamespace(
        function_name="delete",
        memory_limit_in_mb=1_024,
        invoked_function_arn="arn:aws:lambda:eu-central-1:1:function:delete",
        aws_request_id="invocation",
        get_remaining_time_in_millis=lambda: 60_000,
    )

    def delete() -> None:
        os.environ["DOLMEN_DATABASE"] = url
        handler = _delete_function()
        failed = handler.lambda_handler({"Records": records}, context)["batchItemFailures"]
        assert not failed, failed

    def scan() -> None:
        assert dolmen.open(url).table("events").scan(where="id < 100").to_arrow().num_rows == 99

    return {"append": lambda: table.append(rows), "delete request": delete, "scan": scan}


def _delete_function() -> Any:
    name = "dolmen_delete_function"
    if name not in sys.modules:
        os.environ.setdefault("POWERTOOLS_TRACE_DISABLED", "true")
        spec = importlib.util.spec_from_file_location(name, ROOT / "functions" / "delete" / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        module.logger.setLevel("CRITICAL")
        module.metrics.provider.flush_metrics = lambda *_, **__: None
    return sys.modules[name]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="list the files, too")
    given = parser.parse_args()
    tracer = Tracer()
    with tempfile.TemporaryDirectory(prefix="dolmen-files-") as directory:
        for run in operations(Path(directory) / "first").values():
            run()
        for name, run in operations(Path(directory) / "second").items():
            files = tracer.files_entered(run)
            print(f"{name}: {len(files)} files")
            if given.names:
                print("".join(f"    {file}\n" for file in files), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
