"""docs/predicates.md says what the code does."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest

import dolmen
from dolmen.mutation import MAX_REQUEST_BYTES
from dolmen.predicate import limits
from dolmen.predicate.functions import PARTS
from dolmen.predicate.mapping import OPERATORS

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


def _events() -> dolmen.Table:
    table = dolmen.open(f"memory:///{uuid4()}").create_table(
        "events",
        pa.schema(
            [
                ("user_id", pa.int64()),
                ("country", pa.string()),
                ("email", pa.string()),
                ("amount", pa.decimal128(9, 2)),
                ("event_time", pa.timestamp("us", tz="UTC")),
            ]
        ),
    )
    now = datetime.now(UTC)
    table.append(
        pa.Table.from_pylist(
            [
                {"user_id": 42, "country": "de", "email": None, "amount": Decimal("5.00"), "event_time": now},
                {
                    "user_id": 42,
                    "country": "fr",
                    "email": "Ada@example.com",
                    "amount": None,
                    "event_time": now - timedelta(days=4000),
                },
                {
                    "user_id": 43,
                    "country": "fr",
                    "email": "abc",
                    "amount": Decimal("100.00"),
                    "event_time": datetime(2026, 1, 1, 12, tzinfo=UTC),
                },
                {
                    "user_id": 2,
                    "country": "fr",
                    "email": "abc",
                    "amount": Decimal("3.00"),
                    "event_time": datetime(2025, 6, 1, 12, tzinfo=UTC),
                },
            ],
            table.schema,
        )
    )
    return table


@pytest.mark.parametrize(
    ("example", "counts"),
    [("text", [1, 2, 3, 2]), ("parameters", [2, 1, 3, 2]), ("mappings", [1, 1, 1]), ("computed", [1, 0, 2, 2])],
)
def test_every_example_finds_what_it_says(example: str, counts: list[int]) -> None:
    source = re.search(rf"<!-- example: {example} -->\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert source
    table = _events()
    found = []
    for line in source[1].splitlines():
        result = eval(line, {"table": table, "date": date})
        found.append(result if isinstance(result, int) else result.count())
    assert found == counts


def test_every_text_without_parameters_counts_as_in_duckdb() -> None:
    table = _events()
    events = table.to_arrow()
    oracle = duckdb.connect()
    oracle.execute("SET TimeZone = 'UTC'")
    oracle.register("events", events)
    texts = re.findall(r'^table\.count\("([^"]*)"\)$', PAGE, re.MULTILINE)
    assert len(texts) == 8
    for text in texts:
        (expected,) = oracle.execute(f"SELECT count(*) FROM events WHERE {text}").fetchone() or (None,)
        assert table.count(text) == expected, text


def test_the_operators_and_functions_are_those_of_the_code() -> None:
    table = PAGE.partition("<!-- operators -->")[2].partition("\n\nA value")[0]
    named = re.findall(r"`([^`]+)`", "".join(line.split("|")[1] for line in table.splitlines() if "`" in line))
    assert tuple(named) == OPERATORS
    for function in (*PARTS, "lower", "upper"):
        assert f"`{function}(" in PAGE
