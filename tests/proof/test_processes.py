"""Many processes on one database, a store that fails them, and processes killed at every stage of a commit."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

import dolmen
from support.proxy import Proxy
from support.writers import SCHEMA, context, mixed_commits, persistent, start, two_tables

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
LONG = bool(os.environ.get("DOLMEN_LONG"))
PROCESSES = 16 if LONG else 5
COMMITS = {"local": 25, "s3": 25, "minio": 10} if LONG else dict.fromkeys(("local", "s3", "minio"), 5)
"""Commits of each process, in multiples of five. MinIO syncs every object, and its directories, before it answers."""


def prepared(url: str) -> dolmen.Database:
    db = dolmen.open(url)
    db.create_table("rows", SCHEMA, primary_key="id")
    db.create_table("log", SCHEMA)
    return db


@pytest.mark.parametrize(
    "place", ["s3", *(pytest.param(place, marks=pytest.mark.slow) for place in ("local", "minio"))]
)
def test_processes_lose_nothing_double_nothing_and_see_no_error(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    any_url = str(tmp_path / "db") if place == "local" else request.getfixturevalue(f"{place}_url")
    commits = COMMITS[place]
    db = prepared(any_url)
    pipes = [context.Pipe(duplex=False) for _ in range(PROCESSES)]
    running = [start(mixed_commits, any_url, n, commits, sender) for n, (_, sender) in enumerate(pipes)]
    told = [_answer(receiver, process) for (receiver, _), process in zip(pipes, running, strict=True)]
    expected = {id_: value for mine, _, _ in told for id_, value in mine.items()}
    found = db.table("rows").scan(["id", "value"]).to_arrow().to_pylist()
    assert sorted((row["id"], row["value"]) for row in found) == sorted(expected.items())
    versions = [version for _, made, _ in told for version in made]
    assert sorted(versions) == list(range(3, 3 + PROCESSES * commits)), "each commit is one version"
    assert [commit.version for commit in db.history()] == list(range(db.version, 0, -1))
    assert sum(logged for _, _, logged in told) == db.table("log").count() == PROCESSES * commits // 5


def _answer(receiver: Connection, process: ForkServerProcess) -> tuple[dict[int, int], list[int], int]:
    while not receiver.poll(0.1):
        assert process.exitcode in (None, 0), "a writer died: see its traceback above"
    answer: tuple[dict[int, int], list[int], int] = receiver.recv()
    process.join(30)
    return answer


SURE_FAULTS = 40
FAULTS = ("lose", "503", "503-after", "409", "reset", "timeout", "timeout-after", "duplicate", "late", "delay")


@pytest.mark.slow
def test_a_store_that_fails_loses_doubles_and_hides_nothing(
    s3_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    monkeypatch.setenv("DOLMEN_S3_READ_TIMEOUT", "1")
    prepared(s3_url)
    writers, commits = 6, 10
    for place in range(SURE_FAULTS):  # 60 commits are 180 PUTs at least: these happen, whoever is fast or slow
        proxy.rule(FAULTS[place % len(FAULTS)], method="PUT", nth=1 + 3 * place, seconds=0.2)
    proxy.rule(*FAULTS, method="PUT", times=None, probability=0.05, seed=SEED, seconds=0.2)
    proxy.rule("lose", "503", "cut", method="GET", times=None, probability=0.05, seed=SEED)
    pipes = [context.Pipe(duplex=False) for _ in range(writers)]
    running = [start(persistent, s3_url, n, commits, sender) for n, (_, sender) in enumerate(pipes)]
    told = [_answer(receiver, process) for (receiver, _), process in zip(pipes, running, strict=True)]  # type: ignore[misc]
    faults = Counter(request.fault for request in proxy.requests() if request.fault)
    proxy.reset()
    db = dolmen.open(s3_url)
    acknowledged = {id_: version for found, _ in told for id_, version in found.items()}  # type: ignore[attr-defined]
    print(dict(faults), [troubles for _, troubles in told])  # type: ignore[misc]
    assert len(acknowledged) == writers * commits, "every request is acknowledged in the end"
    ids = sorted(db.table("rows").to_arrow()["id"].to_pylist())
    assert ids == sorted(int(id_.removeprefix("r")) for id_ in acknowledged), "each is there exactly once"
    for id_, version in acknowledged.items():
        number = int(id_.removeprefix("r"))
        assert db.at(version=version).table("rows").count(f"id = {number}") == 1
        assert db.at(version=version - 1).table("rows").count(f"id = {number}") == 0, "by that version, not before"
    assert sum(faults.values()) >= SURE_FAULTS
    assert faults.keys() >= set(FAULTS), "every kind of fault happened"


#: (fault of the proxy, key it is held at, how many kills, how many in the long mode, whether the commit has landed)
STAGES = [
    ("timeout", "_latest_manifest", 2, 25, False),  # between manifest and pointer
    ("timeout-after", "_latest_manifest", 2, 25, True),  # the pointer landed, and nobody was told
    ("timeout", "/manifest/", 1, 10, False),
    ("timeout-after", "/manifest/", 1, 10, False),
    ("timeout", "/data/log/", 1, 8, False),
    ("timeout-after", "/data/rows/", 1, 8, False),
    ("timeout", ".del", 1, 7, False),
    ("timeout-after", ".del", 1, 7, False),
]


@pytest.mark.slow
def test_a_writer_killed_at_every_stage_leaves_whole_commits_only(
    s3_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_S3_READ_TIMEOUT", "60")
    db = prepared(s3_url)
    landed: list[int] = []
    number = 0
    for fault, key, some, all_, lands in STAGES:
        for _ in range(all_ if LONG else some):
            number += 1
            proxy.rule(fault, method="PUT", key=key)
            _kill_when_held(s3_url, number, proxy)
            if lands:
                landed.append(number)
            number += 1
            two_tables(s3_url, number)  # the next writer does not find the dead one in its way
            landed.append(number)
    found = sorted(db.table("rows").scan(["id"]).to_arrow()["id"].to_pylist())
    expected = {number * 10 + i for number in landed for i in (0, 1)} - {number * 10 - 10 for number in landed}
    assert found == sorted(expected)
    assert sorted(db.table("log").scan(["id"]).to_arrow()["id"].to_pylist()) == landed


def _kill_when_held(url: str, number: int, proxy: Proxy) -> None:
    process = start(two_tables, url, number)
    deadline = time.monotonic() + 60
    while not any(request.held for request in proxy.requests()):
        assert time.monotonic() < deadline, "the request that was to be held never came"
        assert process.exitcode is None, "the writer ended before it was killed"
        time.sleep(0.01)
    process.kill()
    process.join(30)
    proxy.reset()
