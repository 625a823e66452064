"""Judges recorded transactions by porcupine, which nobody here wrote (see tests/isolation/porcupine/main.go)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "porcupine.sh"

Step = tuple[str, str, Any]
"""("r", key, value), ("w", key, value), ("append", key, element) or ("all", prefix, {rest of the key: value})."""


@dataclass
class RecordedTransaction:
    """A transaction as its process saw it.

    Args:
        process: its process, which waits for one before it begins the next.
        call_ns, return_ns: when it began and ended; no end if nobody knows when it took effect.
        steps: its reads and writes, in order.
        pinned: whether it may have read an older state than that of its call.
    """

    process: str
    call_ns: int
    return_ns: int | None
    steps: Sequence[Step] = field(default_factory=list)
    pinned: bool = False


class Verdict(NamedTuple):
    """The verdict on a history.

    Args:
        result: "serializable", "violation", or "unknown" if time did not suffice.
        left: of a violation, transactions for which the longest order that was found has no place.
    """

    result: str
    left: list[dict[str, Any]]


@cache
def find_porcupine() -> tuple[Path | None, str]:
    """The installed judge, or None and what to do about it."""
    result = subprocess.run([str(SCRIPT), "path"], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return Path(result.stdout.strip()), ""
    return None, " ".join(result.stderr.split())


def judge(history: Sequence[RecordedTransaction], seconds: int = 60) -> Verdict:
    """Judges a history. Where porcupine is not installed the test is skipped.

    Args:
        seconds: how long to search for an order.
    """
    binary, missing = find_porcupine()
    if binary is None:
        pytest.skip(missing)
    told = [
        {"process": one["process"], "call": one["call_ns"], "return": one["return_ns"], "pinned": one["pinned"]}
        | {"steps": one["steps"]}
        for one in map(asdict, history)
    ]
    answer = subprocess.run(
        [str(binary), "-seconds", str(seconds)], input=json.dumps(told), capture_output=True, text=True, check=True
    )
    verdict = json.loads(answer.stdout)
    return Verdict(verdict["result"], verdict["left"])
