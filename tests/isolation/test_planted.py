"""The judge of histories rejects each anomaly, planted by hand, and accepts what isolation allows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.porcupine import RecordedTransaction, Step, judge


def transaction(process: str, call: int, end: int | None, *steps: Step, pinned: bool = False) -> RecordedTransaction:
    return RecordedTransaction(process, call, end, steps, pinned)


START = transaction("s", 0, 1, ("w", "x", 0), ("w", "y", 0))

ANOMALIES: dict[str, Sequence[RecordedTransaction]] = {
    "dirty read: of a transaction that was refused": [
        START,
        transaction("a", 2, 9, ("r", "x", 7)),
    ],
    "intermediate read": [
        START,
        transaction("a", 2, 9, ("w", "x", 1), ("w", "x", 2)),
        transaction("b", 3, 8, ("r", "x", 1)),
    ],
    "dirty write: of two transactions each holds one half": [
        START,
        transaction("a", 2, 5, ("w", "x", "a"), ("w", "y", "a")),
        transaction("b", 2, 5, ("w", "x", "b"), ("w", "y", "b")),
        transaction("c", 6, 7, ("r", "x", "a"), ("r", "y", "b")),
    ],
    "lost update": [
        START,
        transaction("a", 2, 9, ("r", "x", 0), ("w", "x", "a")),
        transaction("b", 3, 8, ("r", "x", 0), ("w", "x", "b")),
    ],
    "write skew": [
        START,
        transaction("a", 2, 9, ("r", "x", 0), ("r", "y", 0), ("w", "x", 1)),
        transaction("b", 3, 8, ("r", "x", 0), ("r", "y", 0), ("w", "y", 1)),
    ],
    "phantom": [
        transaction("a", 2, 9, ("all", "t/", {}), ("w", "t/1", 1)),
        transaction("b", 3, 8, ("all", "t/", {}), ("w", "t/2", 1)),
    ],
    "read skew": [
        START,
        transaction("a", 2, 5, ("w", "x", 1), ("w", "y", 1)),
        transaction("b", 3, 9, ("r", "x", 0), ("r", "y", 1)),
    ],
    "read skew of a pinned read": [
        START,
        transaction("a", 2, 5, ("w", "x", 1), ("w", "y", 1)),
        transaction("b", 6, 9, ("r", "x", 0), ("r", "y", 1), pinned=True),
    ],
    "long fork": [
        START,
        transaction("a", 2, 20, ("w", "x", 1)),
        transaction("b", 2, 20, ("w", "y", 1)),
        transaction("c", 3, 19, ("r", "x", 1), ("r", "y", 0)),
        transaction("d", 3, 19, ("r", "x", 0), ("r", "y", 1)),
    ],
    "stale read after a commit": [
        START,
        transaction("a", 2, 3, ("w", "x", 1)),
        transaction("b", 4, 5, ("r", "x", 0)),
    ],
    "a read went back": [
        START,
        transaction("a", 2, 20, ("w", "x", 1)),
        transaction("b", 3, 4, ("r", "x", 1)),
        transaction("b", 5, 6, ("r", "x", 0)),
    ],
    "a pinned read went back in its process": [
        START,
        transaction("a", 2, 3, ("w", "x", 1)),
        transaction("b", 4, 5, ("r", "x", 1), pinned=True),
        transaction("b", 6, 7, ("r", "x", 0), pinned=True),
    ],
    "a commit was lost": [
        transaction("a", 0, 1, ("append", "l", 1)),
        transaction("b", 2, 3, ("append", "l", 2)),
        transaction("c", 4, 5, ("r", "l", [2])),
    ],
    "a commit was applied twice": [
        transaction("a", 0, 1, ("append", "l", 1)),
        transaction("c", 4, 5, ("r", "l", [1, 1])),
    ],
    "a deleted row came back": [
        START,
        transaction("a", 2, 3, ("w", "x", None)),
        transaction("b", 4, 5, ("r", "x", None)),
        transaction("b", 6, 7, ("r", "x", 0)),
    ],
}

ALLOWED: dict[str, Sequence[RecordedTransaction]] = {
    "a pinned read of an old state": [
        START,
        transaction("a", 2, 3, ("w", "x", 1), ("w", "y", 1)),
        transaction("b", 4, 5, ("r", "x", 0), ("r", "y", 0), pinned=True),
        transaction("b", 6, 7, ("r", "x", 1), ("r", "y", 1), pinned=True),
    ],
    "either order of what overlaps": [
        START,
        transaction("a", 2, 9, ("r", "x", 0), ("w", "x", 1)),
        transaction("b", 3, 8, ("r", "x", 1), ("w", "y", 1)),
        transaction("c", 10, 11, ("all", "", {"x": 1, "y": 1})),
    ],
    "an outcome that stayed unknown took effect late": [
        START,
        transaction("a", 2, None, ("append", "l", 1)),
        transaction("b", 4, 5, ("r", "l", None)),
        transaction("b", 6, 7, ("r", "l", [1])),
    ],
    "its own writes": [
        START,
        transaction("a", 2, 3, ("r", "x", 0), ("w", "x", 1), ("r", "x", 1), ("append", "l", 1), ("r", "l", [1])),
    ],
}


@pytest.mark.parametrize("name", ANOMALIES)
def test_an_anomaly_is_rejected(name: str) -> None:
    verdict = judge(ANOMALIES[name])
    assert verdict.result == "violation"
    assert verdict.left


@pytest.mark.parametrize("name", ALLOWED)
def test_what_isolation_allows_is_accepted(name: str) -> None:
    assert judge(ALLOWED[name]) == ("serializable", [])
