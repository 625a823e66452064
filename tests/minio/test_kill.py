"""``kill -9`` of the S3 server itself while many processes commit: they go on when it is back, and nothing is amiss."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import dolmen
from support.minio import Minio
from support.ministack import endpoint_environment
from support.steadfast import repeat_until_acknowledged
from support.writers import SCHEMA, context, start

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
WRITERS = 6
KILLS = 60 if os.environ.get("DOLMEN_LONG") else 3
BETWEEN = 6
"""The number of commits, by all writers together, between two kills of the server."""


class Ear:
    """What the writers have told so far."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._open = list(pipes)
        self.acknowledged: dict[str, tuple[int, int, int | None]] = {}
        self.troubles: Counter[str] = Counter()

    def listen(self, until: int | None) -> None:
        """Until so many requests are acknowledged, or, for None, all writers have ended."""
        deadline = time.monotonic() + 300
        while self._open and (until is None or len(self.acknowledged) < until):
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} acknowledged: the writers don't go on"
            for pipe in list(self._open):
                while pipe.poll(0.002):
                    said = pipe.recv()  # raises EOFError when the writer died
                    if said is None:
                        self.troubles += pipe.recv()
                        self._open.remove(pipe)
                        break
                    request, version, key, value = said
                    assert request not in self.acknowledged
                    self.acknowledged[request] = version, key, value


def test_a_server_killed_in_the_middle_of_commits_loses_and_doubles_nothing_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    server = Minio(tmp_path)
    for name, value in endpoint_environment(server.endpoint).items():
        monkeypatch.setenv(name, value)
    server.create_bucket("killed")
    url = "s3://killed/some/prefix"
    enough = context.Event()
    try:
        dolmen.open(url).create_table("rows", SCHEMA, primary_key="id")
        pipes = [context.Pipe(duplex=False) for _ in range(WRITERS)]
        for writer, (_, sender) in enumerate(pipes):
            start(repeat_until_acknowledged, url, writer, enough, sender)
            sender.close()
        ear = Ear([receiver for receiver, _ in pipes])
        for _ in range(KILLS):
            # Each writer commits without a pause, so whenever this is, it is in the middle of commits.
            ear.listen(until=len(ear.acknowledged) + BETWEEN)
            time.sleep(dice.uniform(0, 0.05))
            server.kill()
            server.start()
        ear.listen(until=len(ear.acknowledged) + BETWEEN)
        enough.set()
        ear.listen(until=None)
        _check(url, ear)
        print(f"{len(ear.acknowledged)} commits, {KILLS} kills, met with {dict(ear.troubles)}")
    finally:
        enough.set()
        server.kill()


def _check(url: str, ear: Ear) -> None:
    db = dolmen.open(url)
    expected: dict[int, int] = {}
    for _, (_, key, value) in sorted(ear.acknowledged.items(), key=lambda item: item[1][0]):  # by version
        expected.pop(key, None)
        if value is not None:
            expected[key] = value
    found = db.table("rows").scan(["id", "value"]).to_arrow().to_pylist()
    assert sorted((row["id"], row["value"]) for row in found) == sorted(expected.items())
    versions = sorted(version for version, _, _ in ear.acknowledged.values())
    assert versions == list(range(2, len(versions) + 2)), "each request is one version, and no version is another's"
    assert [commit.version for commit in db.history()] == list(range(db.version, 0, -1))
    report = db.verify(deep=True, all_versions=True)
    assert report.ok, report
