"""Many processes that insert the same keys on a real server: each key is there once, and each loser knows which."""

from __future__ import annotations

import os
import random
import time
from multiprocessing.connection import Connection

import pytest

import dolmen
from dolmen.errors import DuplicateKeyError
from support.writers import SCHEMA, context, rows, start

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))
LONG = bool(os.environ.get("DOLMEN_LONG"))
PROCESSES = 64 if LONG else 8
INSERTS = 10 if LONG else 5
"""Inserts of each process."""
KEYS = 3 * PROCESSES * INSERTS
"""Each insert has three of so many keys, so that many are wanted by several."""


def insert_overlapping_keys(url: str, writer: int, results: Connection) -> None:
    """Inserts random keys. Sends the inserts that succeeded, with their versions, and the keys that were refused.

    It catches no other error: each one is a failure.
    """
    rng = random.Random(f"{SEED} {writer}")
    table = dolmen.open(url).table("rows")
    inserted: dict[int, list[int]] = {}
    refused: list[tuple[list[int], list[int]]] = []
    for step in range(INSERTS):
        ids = rng.sample(range(KEYS), 3)
        try:
            commit = table.insert(rows(*ids, writer=writer, value=step))
        except DuplicateKeyError as error:
            refused.append((ids, [key for (key,) in error.keys]))  # type: ignore[misc]
            continue
        inserted[commit.version] = ids
    results.send((inserted, refused))


@pytest.mark.slow
@pytest.mark.parametrize("index", [False, True], ids=["", "indexed"])
@pytest.mark.timeout(3_600 if LONG else 600)
def test_processes_that_insert_the_same_keys_add_each_once(
    minio_url: str, index: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    db = dolmen.open(minio_url)
    table = db.create_table("rows", SCHEMA, primary_key="id", properties={"index": index})
    pipes = [context.Pipe(duplex=False) for _ in range(PROCESSES)]
    began = time.monotonic()
    running = [start(insert_overlapping_keys, minio_url, n, sender) for n, (_, sender) in enumerate(pipes)]
    told = []
    for process, (receiver, sender) in zip(running, pipes, strict=True):
        sender.close()  # so that a process that dies ends the wait
        while not receiver.poll(0.2):  # meanwhile the files of winners are compacted and indexed
            db.maintain()
        told.append(receiver.recv())
        process.join(30)
    seconds = time.monotonic() - began
    winners = {version: ids for inserted, _ in told for version, ids in inserted.items()}
    losers = [loser for _, refused in told for loser in refused]
    with capsys.disabled():
        print(
            f"\n{PROCESSES} processes x {INSERTS} inserts on MinIO{', indexed' if index else ''}: {seconds:.1f} s, "
            f"{len(winners)} inserted, {len(losers)} refused"
        )
    assert len(winners) + len(losers) == PROCESSES * INSERTS
    assert losers
    expected = sorted(id_ for ids in winners.values() for id_ in ids)
    assert len(set(expected)) == len(expected), "no two inserts of one key succeeded"
    assert sorted(table.scan(["id"]).to_arrow()["id"].to_pylist()) == expected, "none is lost, none is double"
    assert all(named and set(named) <= set(ids) & set(expected) for ids, named in losers), "each is told which keys"
    for version, ids in list(winners.items())[:: 1 + len(winners) // 10]:
        assert db.at(version).table("rows").get_many(ids).num_rows == 3
        assert db.at(version - 1).table("rows").get_many(ids).num_rows == 0
    assert db.verify(all_versions=True).ok
