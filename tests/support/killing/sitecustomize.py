"""Kills a Spark driver, its JVM too, when a chosen object is about to be put or has been put.

Python imports this at its start, in the driver and in Spark's workers, where this directory is on PYTHONPATH. What it
waits for is told by DOLMEN_TEST_KILL (see ``support.killed_streams``); without that it does nothing.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any


def _install(plan: dict[str, Any]) -> None:
    from dolmen.store.local_store import LocalStore

    put, open_output = LocalStore.put, LocalStore.open_output

    def reached(key: str, when: str) -> None:
        role = "driver" if os.getpid() == int(os.environ["DOLMEN_TEST_DRIVER"]) else "worker"
        if when != plan["when"] or not key.startswith(plan["key"]) or role not in plan["roles"]:
            return
        if key.endswith("/done"):  # of an intent: its batch is committed
            return
        with open(plan["count"], "a") as file:  # of all processes together
            file.write(".")
        if os.path.getsize(plan["count"]) == plan["nth"]:
            os.killpg(int(os.environ["DOLMEN_TEST_DRIVER"]), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def killing_put(self: Any, key: str, *args: Any, **options: Any) -> Any:
        reached(key, "before")
        answer = put(self, key, *args, **options)
        reached(key, "after")
        return answer

    def killing_open(self: Any, key: str, *args: Any, **options: Any) -> Any:
        reached(key, "before")
        return open_output(self, key, *args, **options)

    LocalStore.put, LocalStore.open_output = killing_put, killing_open  # type: ignore[method-assign]


if os.environ.get("DOLMEN_TEST_KILL"):
    _install(json.loads(os.environ["DOLMEN_TEST_KILL"]))
