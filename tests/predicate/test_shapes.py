"""Texts of a shape that was parsed before mean what they mean when they are parsed alone."""

from __future__ import annotations

import os
import random
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import Error, PredicateError
from dolmen.format.schema import Schema
from dolmen.predicate.ast import Predicate
from dolmen.predicate.parse import _parse_template, parse, parse_shape

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "20262"))

SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("n", pa.int64()),
            ("tiny", pa.int8()),
            ("name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("d", pa.float64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("flag", pa.bool_()),
            ("order", pa.int8()),
            ("interval", pa.int8()),
            ("date", pa.string()),
        ]
    )
)


def _told(text: str) -> Predicate | tuple[type[Error], str]:
    try:
        return parse(text, SCHEMA, now_us=0)
    except Error as error:
        return type(error), str(error)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that sqlglot has parsed from here on."""
    from sqlglot.parser import Parser

    _parse_template.cache_clear()
    texts: list[str] = []
    original = Parser.parse_into

    def note(self: Any, expression: Any, tokens: Any, sql: str | None = None) -> Any:
        texts.append(sql or "")
        return original(self, expression, tokens, sql)

    monkeypatch.setattr(Parser, "parse_into", note)
    return texts


@pytest.mark.slow
def test_thousands_of_texts_of_one_shape_are_parsed_once(parsed: list[str]) -> None:
    found = {parse(f"n = {value} AND name = 'user {value}'", SCHEMA, now_us=0) for value in range(3_000)}
    assert len(found) == 3_000
    assert [text for text in parsed if "AND" in text] == ["n = 1000 AND name = '1001'"]


@pytest.mark.slow
def test_texts_of_any_shape_mean_what_they_mean_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"DOLMEN_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    names = [
        "n",
        "tiny",
        "name",
        "price",
        "d",
        "at",
        "day",
        "flag",
        "order",
        "interval",
        "date",
        "NAME",
        "nobody",
        "not",
    ]
    names += ["null", "true", "e", "x", "current_date"]
    literals = [
        "0",
        "1",
        "1",
        "127",
        "128",
        "00012",
        "1.50",
        "0.1",
        "999999999999999999",
        "9" * 19,
        "1e5",
        "-1",
        "1.",
        "1_0",
    ]
    literals += [
        "'a'",
        "''",
        "'a''b'",
        "'1'",
        "'x = 5'",
        "'1 AND n = 2'",
        "'2020-01-01'",
        "'-- a'",
        "'/* a'",
        "'é漢😀'",
    ]
    literals += ["'a\\b'", "'\n'", "'; n = 1'", "NULL", "n", "'2020-01-01 00:00:00Z'", "E'a'", "'{{x}}'", "'$1'", "?"]
    operators = ["=", "<>", "!=", "<", "<=", ">", ">=", " = ", "  >=\n", "==", "=>"]
    joints = [" AND ", " or ", "\nAnd\t", " OR NOT ", " ", "AND", ";"]
    seen = accepted = 0
    for _ in range(1_500):
        text = ""
        for number in range(dice.choice([1, 1, 2, 3, 5])):
            joint = dice.choices(joints, [8, 8, 4, 1, 1, 1, 1])[0] if number else ""
            text += f"{joint}{dice.choice(names)}{dice.choice(operators)}{dice.choice(literals)}"
        found = _told(text)
        seen += parse_shape(text) is not None
        accepted += not isinstance(found, tuple)
        with monkeypatch.context() as patched:
            patched.setattr(sys.modules["dolmen.predicate.parse"], "parse_shape", lambda _text: None)
            assert _told(text) == found, text
    assert seen > 150, "few of them have a shape"
    assert accepted > 50, "hardly any means anything"


@pytest.mark.parametrize(
    "text",
    [
        "n = 1 -- AND n = 2",
        "n = 1 /* */ AND n = 2",
        "n = 1; n = 2",
        "name = 'it''s'",
        "name = 'a' 'b'",
        '"n" = 1',
        "n = 1AND n = 2",
        "n = 1 AND",
        "n = 12345678901234567890",
        "(n = 1)",
        "n IN (1, 2)",
        "n = 1 AND " * 200 + "n = 1",
        "",
    ],
)
def test_other_texts_have_no_shape(text: str) -> None:
    assert parse_shape(text) is None


def test_halves_of_surrogate_pairs_are_refused_in_any_shape() -> None:
    parse("name = 'a'", SCHEMA, now_us=0)
    with pytest.raises(PredicateError, match="surrogate"):
        parse("name = '\ud800'", SCHEMA, now_us=0)


def test_an_error_tells_the_position_in_its_own_text() -> None:
    parse("n = 1 AND tiny = 3", SCHEMA, now_us=0)
    with pytest.raises(PredicateError) as caught:
        parse("n = 100000 AND nobody = 3", SCHEMA, now_us=0)
    alone = caught.value.position
    assert alone == "n = 100000 AND nobody = 3".index("nobody")


@pytest.mark.slow
def test_threads_share_shapes() -> None:
    _parse_template.cache_clear()
    wrong: list[str] = []

    def work(thread: int) -> None:
        for value in range(200):
            text = f"n = {thread * 1_000 + value} OR name = 't{thread}v{value}'"
            mapping = parse(("n = ? OR name = ?", [thread * 1_000 + value, f"t{thread}v{value}"]), SCHEMA, now_us=0)
            if parse(text, SCHEMA, now_us=0) != mapping:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
