"""``kill -9`` of a process with a buffered writer: what was acknowledged is there, and each request exactly once."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

import dolmen
from support.killed_writer import ROWS, SCHEMA, write_until_killed
from support.minio import Minio
from support.ministack import endpoint_environment
from support.writers import context, start

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
REQUESTS = 400 if os.environ.get("DOLMEN_LONG") else 60
KILLS = 40 if os.environ.get("DOLMEN_LONG") else 4


def test_a_killed_writer_loses_nothing_acknowledged_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(SEED)
    server = Minio(tmp_path)
    for name, value in endpoint_environment(server.endpoint).items():
        monkeypatch.setenv(name, value)
    server.create_bucket("killed")
    url = "s3://killed/writer"
    try:
        table = dolmen.open(url).create_table("rows", SCHEMA)
        waiting, kills = list(range(REQUESTS)), 0
        while waiting:
            receiver, sender = context.Pipe(duplex=False)
            process = start(write_until_killed, url, waiting, sender)
            sender.close()
            until = dice.randrange(1, 12) if kills < KILLS else None
            acknowledged = list[int]()
            deadline = time.monotonic() + 240
            while until is None or len(acknowledged) < until:
                assert time.monotonic() < deadline, f"{len(acknowledged)} acknowledged: the writer does not go on"
                if not receiver.poll(1):
                    continue
                if (number := receiver.recv()) is None:
                    break
                acknowledged.append(number)
            if until is not None:
                time.sleep(dice.uniform(0, 0.05))
                process.kill()
                kills += 1
            process.join()
            while receiver.poll(0):
                try:
                    number = receiver.recv()
                except EOFError:
                    break
                acknowledged += [] if number is None else [number]
            found = Counter(table.scan(["request"]).to_arrow()["request"].to_pylist())
            assert set(found.values()) <= {ROWS}
            assert {f"r{number}" for number in acknowledged} <= found.keys()
            waiting = [number for number in waiting if number not in set(acknowledged)]
        assert sorted(table.scan(["id"]).to_arrow()["id"].to_pylist()) == list(range(REQUESTS * ROWS))
        assert kills == KILLS
        assert dolmen.open(url).verify(deep=True, all_versions=True).ok
    finally:
        server.kill()
