"""In whatever order and company files of changes arrive, the greatest sequence of each key holds."""

from __future__ import annotations

import os
import random

import pytest

from support.changes import Feed, cut, history, model

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
HISTORIES = 400 if os.environ.get("DOLMEN_LONG") else 6


@pytest.mark.slow
@pytest.mark.parametrize("number", range(HISTORIES))
def test_any_order_of_arrival_comes_to_the_same_rows(number: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED + number)
    files = cut(rng, history(rng, rng.randrange(1, 60), rng.randrange(1, 12)), rng.randrange(1, 9))
    expected = model(files)
    for _ in range(3):
        feed = Feed(portion_rows=rng.choice([1, 3, 500_000]))
        feed.create()
        arriving = [*files, *rng.choices(files, k=rng.randrange(4))]
        rng.shuffle(arriving)
        while arriving:
            size = rng.randrange(1, 4)
            batch, arriving = arriving[:size], arriving[size:]
            feed.deliver(*batch)
        assert feed.rows() == expected
