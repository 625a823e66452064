"""What is forgotten never brings a deleted row back, however late files are."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from support.aging import DAY_US
from support.changes import Change, Feed, File, cut, history, model

SEED = int(os.environ.get("DOLMEN_TEST_SEED", random.SystemRandom().randrange(2**32)))
HISTORIES = 200 if os.environ.get("DOLMEN_LONG") else 8
MEMORY_US = 7 * DAY_US


def sequences(feed: Feed) -> Any:
    return feed.place.db._context.head.refresh().manifest.table("t").sequences


@pytest.mark.slow
@pytest.mark.parametrize("number", range(HISTORIES))
def test_rows_are_what_the_greatest_sequences_of_all_but_stragglers_say(number: int) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(SEED + number)
    files = cut(rng, history(rng, rng.randrange(20, 80), rng.randrange(2, 9)), rng.randrange(6, 16))
    late = rng.choices(files, k=8)
    arriving = [File(f"{place} {file.id}", file.changes) for place, file in enumerate([*files, *late])]
    if number % 2:
        rng.shuffle(arriving)
    feed = Feed(quarantine=True)
    feed.create()
    stragglers = 0
    accepted, was = [], [(feed.place.now_us, 0)]
    for file in arriving:
        before = sequences(feed)
        feed.deliver(file)
        refused = {file.changes[bad.row - 1].key for bad in feed.bad if bad.row is not None}
        forgotten = before.forgotten_through if before else None
        stragglers += len(feed.bad)
        for bad in feed.bad:
            assert "straggler" in bad.reason
            assert bad.row is not None
            assert forgotten is not None
            assert file.changes[bad.row - 1].seq <= forgotten
        accepted.append(File(file.id, tuple(change for change in file.changes if change.key not in refused)))
        assert feed.rows() == model(accepted)
        after = sequences(feed)
        if after:
            old = max((greatest for at, greatest in was if at <= feed.place.now_us - MEMORY_US), default=0)
            assert (after.forgotten_through or 0) <= old, "what was deleted less than seven days ago is remembered"
            was.append((feed.place.now_us, after.greatest))
        feed.place.now_us += rng.choice([0, DAY_US // 3, DAY_US, 3 * DAY_US])
    for last in (10**6, 2 * 10**6):
        feed.place.now_us += 20 * DAY_US
        feed.deliver(File(f"last {last}", (Change(0, last, "last"),)))
    assert sequences(feed).forgotten_through == 10**6
    assert feed.place.db.table("t__deleted").count() == 0
    print(f"{stragglers} stragglers")
