"""The whole system, in processes that are killed at any moment, the server among them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from soak.run import Soak

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
SECONDS = float(os.environ.get("DOLMEN_SOAK_SECONDS", "9"))
KILLED = ("appender", "upserter", "transactor", "dropper", "pipeline", "schedule", "keeper", "reader", "minio")


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 900)
def test_whatever_is_killed_nothing_is_lost_doubled_halved_or_revived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    environment = dict(os.environ)
    try:
        soak = Soak(tmp_path / "soak", SEED, SECONDS, seconds_between=(0.2, 0.7), grace=2)
        report = soak.run()
    finally:
        os.environ.clear()
        os.environ.update(environment)
    print(report)
    assert not report.violations
    missed = [kind for kind in KILLED if not report.blows[f"kill {kind}"]]
    assert not missed, "each kind of process is killed at least once"
    assert report.operations["appender: append"]
    assert report.operations["reader: check"]
