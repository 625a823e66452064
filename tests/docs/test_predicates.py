"""docs/predicates.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from dolmen.mutation import MAX_REQUEST_BYTES
from dolmen.predicate import limits

PAGE = (Path(__file__).parents[2] / "docs" / "predicates.md").read_text()


def test_the_limits_are_those_of_the_code() -> None:
    table = PAGE.partition("<!-- limits -->")[2].partition("\n\n##")[0]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\| ([\d,]+) \|$", table, re.MULTILINE)]
    assert numbers == [
        limits.MAX_TEXT,
        limits.MAX_TOKENS,
        limits.MAX_WORDS,
        limits.MAX_OPERATORS,
        limits.MAX_NESTING,
        limits.MAX_PREFIXES,
        limits.MAX_CONDITIONS,
        limits.MAX_MEMBERS,
        limits.MAX_PATTERN,
        limits.MAX_NUMBER,
        MAX_REQUEST_BYTES,
    ]
