"""Random tables of many writers, inferred and read: each is equal, or refused, or the line says what was assumed."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from support.written_tables import WRITERS, judge

TABLES = 2000 if os.environ.get("DOLMEN_LONG") else 40


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_tables_come_back_or_the_line_says_what_was_assumed(writer: str) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    verdicts = Counter[str]()
    for number in range(TABLES):
        written = WRITERS[writer](random.Random(f"{seed} {writer} {number}"))
        judgement = judge(written)
        assert judgement.verdict != "wrong", (seed, number, written, judgement)
        verdicts[judgement.verdict] += 1
    assert verdicts["equal"] > 0.6 * TABLES, verdicts
