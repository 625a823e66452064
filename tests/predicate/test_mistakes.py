"""Mistakes that new users make, and the hint each gets."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dolmen.errors import PredicateError
from dolmen.format.schema import Schema
from dolmen.predicate.parse import parse

SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("price", pa.float64()),
            ("active", pa.bool_()),
            ("day", pa.date32()),
            ("created_at", pa.timestamp("us", tz="UTC")),
            ("seen", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())),
        ]
    )
)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('name = "ada"', "single quotes"),
        ("name = ada", "single quotes"),
        ("name IN (ada, bob)", "single quotes"),
        ("name LIKE ada%", "single quotes"),
        ("name LIKE %ada%", "single quotes"),
        ("name = \u2018ada\u2019", "single quotes"),
        ("name = 'it's'", "quote"),
        ("nmae = 'x'", "'name'"),
        ("Craeted_At = 'x'", "'created_at'"),
        ("id = 'abc'", "int64"),
        ("name = 5", "quotes"),
        ("name = NULL", "write IS NULL"),
        ("id != NULL", "write IS NOT NULL"),
        ("id = None", "write IS NULL"),
        ("id IS 5", r"IS .*NULL"),
        ("id IN 1", r"IN \(1, 2\)"),
        ("id IN ['1']", r"IN \(1, 2\)"),
        ("id BETWEEN 1, 5", "parentheses"),
        ("price = 0,1", "point"),
        ("id IN (SELECT id FROM t)", "subqueries"),
        ("id = (SELECT 1)", "subqueries"),
        ("EXISTS (SELECT 1)", "subqueries"),
        ("id => 1", "write >= or <="),
        ("id =< 1", "write >= or <="),
        ("id = 1 && name = 'x'", "AND and OR"),
        ("id = 1 || name = 'x'", "AND and OR"),
        ("name IN ('a' 'b')", "by commas"),
        ("name = 'a' OR 'b'", "column"),
        ("id = 1 OR 2", "column"),
        ("1 < id < 5", "1 < n AND n < 5"),
        ("active = 1", "TRUE or FALSE"),
        ("active = 'yes'", "TRUE or FALSE"),
        ("created_at > 2025-01-01", "quotes"),
        ("day = 20250101", "quotes"),
        ("created_at > '01.02.2025'", "YYYY-MM-DD"),
        ("created_at > '2025-13-01'", "day"),
        ("created_at > seen", "time zone"),
        ("seen > '2025-01-01T00:00:00Z'", "remove it"),
        ("created_at > now() - 7", "INTERVAL 7 DAY"),
        ("created_at > now() - '7 days'", "INTERVAL 7 DAY"),
        ("day > now()", r"CAST\(now\(\) AS DATE\)"),
        ("name ~ 'a.*'", "LIKE 'a%'"),
        ("id LIKE '4%'", "CAST integers AS VARCHAR"),
        ("reverse(name) = 'a'", "lower, upper"),
        ("sum(id) > 5", "one row"),
        ("WHERE id = 1", "WHERE"),
        ("SELECT * FROM t WHERE id = 1", "WHERE"),
        ("id = 1 LIMIT 5", "WHERE"),
        ("id = 1; name = 'x'", "semicolon"),
        ("t.id = 1", "name alone"),
        ("tags = 'a'", "nested"),
        ("id", "compare"),
        ("id % 2", "compare"),
        ("id = {id}", "parameters"),
        ("id = %s", "parameters"),
        ("id = ?", "parameter"),
        ("price = nan", "write 'nan'"),
    ],
)
def test_a_mistake_gets_a_hint(text: str, hint: str) -> None:
    with pytest.raises(PredicateError, match=hint):
        parse(text, SCHEMA, now_us=0)


def test_nothing_behind_a_semicolon_is_lost() -> None:
    for text in ("id = 1; id = 2", "id = 1;; id = 2", ";id = 1; id = 2", "id = 1 ; TRUE", "TRUE; id = 1"):
        with pytest.raises(PredicateError):
            parse(text, SCHEMA, now_us=0)
    assert parse("id = 1;", SCHEMA, now_us=0) == parse("id = 1 ; ", SCHEMA, now_us=0)


class Unspeakable:
    """Says nothing of itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize("value", [pa.scalar(200_000_000, pa.int32()).cast(pa.date32()), Unspeakable()])
def test_a_value_without_words_is_named_by_its_type(value: object) -> None:
    """A day beyond all of Python's ended in Python's OverflowError."""
    for source in ({"day": value}, {"day": {"<": value}}, {value: 1}):
        with pytest.raises(PredicateError, match=f"<{type(value).__name__} instance at "):
            parse(source, SCHEMA, now_us=0)
