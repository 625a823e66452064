"""Many writers on one database, each committing as fast as it can: the pointer is hot, and nobody notices."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection

import pytest

import dolmen
from dolmen import Database
from dolmen.base.runtime import shared_runtime
from dolmen.store import open_store
from dolmen_simulator.counting import CountingStore
from support.writers import SCHEMA, context, rows, start

LONG = bool(os.environ.get("DOLMEN_LONG"))
PROCESSES, THREADS = (8, 8) if LONG else (2, 8)
WRITERS = PROCESSES * THREADS
COMMITS = 100 if LONG else 2
"""Commits of each writer."""


def eight_writers(url: str, first: int, commits: int, results: Connection) -> None:
    """Threads that append, each through a handle of its own. Sends (ids by version, pointers tried, requests).

    Only errors that the caller of ``append`` sees end in ``surfaced``; none is expected.
    """
    found: dict[int, int] = {}
    tried: list[int] = []
    surfaced: list[str] = []
    requests = Counter[str]()

    def write(writer: int) -> None:
        store = CountingStore(open_store(url))
        table = Database(store, shared_runtime()).table("rows")
        for step in range(commits):
            id_ = writer * 1_000 + step
            try:
                commit = table.append(rows(id_, writer=writer, value=step))
            except dolmen.Error as error:
                surfaced.append(f"{id_}: {error!r}")
                continue
            found[commit.version] = id_
            tried.append(commit.attempts)
        requests.update(PUT=store.puts, GET=store.gets, HEAD=store.heads, LIST=store.lists)

    threads = [threading.Thread(target=write, args=(first + place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.send((found, tried, surfaced, requests))


@pytest.mark.slow
@pytest.mark.timeout(3_600 if COMMITS > 10 else 600)
def test_many_writers_lose_nothing_and_see_no_error(minio_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    db = dolmen.open(minio_url)
    db.create_table("rows", SCHEMA)
    pipes = [context.Pipe(duplex=False) for _ in range(PROCESSES)]
    began = time.monotonic()
    running = [
        start(eight_writers, minio_url, place * THREADS, COMMITS, sender) for place, (_, sender) in enumerate(pipes)
    ]
    by_version: dict[int, int] = {}
    tried: list[int] = []
    surfaced: list[str] = []
    requests = Counter[str]()
    for process, (receiver, sender) in zip(running, pipes, strict=True):
        sender.close()  # so that a process that dies ends the wait
        theirs, attempts, errors, counts = receiver.recv()
        by_version |= theirs
        tried += attempts
        surfaced += errors
        requests += counts
        process.join(30)
    seconds = time.monotonic() - began
    with capsys.disabled():
        print(
            f"\n{WRITERS} writers x {COMMITS} commits on MinIO: {seconds:.1f} s, {len(tried) / seconds:.1f} commits/s, "
            f"{sum(tried) - len(tried):,} attempts lost, at most {max(tried)} for one commit, "
            f"{requests.total():,} requests {dict(requests)}"
        )
    assert not surfaced
    assert len(by_version) == WRITERS * COMMITS
    assert sorted(by_version) == list(range(2, 2 + WRITERS * COMMITS)), "each commit is one version"
    assert sorted(db.table("rows").scan(["id"]).to_arrow()["id"].to_pylist()) == sorted(by_version.values())
    assert [commit.version for commit in db.history()] == list(range(db.version, 0, -1))
    for version in list(by_version)[:: max(1, len(by_version) // (50 if COMMITS > 10 else 12))]:
        assert db.at(version).table("rows").count() == version - 1
        assert db.at(version).table("rows").count(f"id = {by_version[version]}") == 1
        assert db.at(version - 1).table("rows").count(f"id = {by_version[version]}") == 0
    assert db.verify(all_versions=True).ok
