"""docs/predicates.md says what the code does."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import get_args
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
import sqlglot

import dolmen
from dolmen.commit.uploads import MAX_REQUEST_BYTES
from dolmen.format.schema import Schema
from dolmen.predicate import ast, constants
from dolmen.predicate import parse as parsing
from dolmen.predicate.ast import Call, Predicate, children, terms_of
from dolmen.predicate.domains import NAMES, Function
from dolmen.predicate.evaluate import evaluate
from dolmen.predicate.mapping_reader import OPERATORS
from dolmen.predicate.parse import parse
from dolmen.predicate.tree_reader import _ARITHMETIC, _CASTS, _COMPARISONS, _CONDITIONS, _cast_target
from support.particular_values import ROWS, cases
from support.second_reader import load_reader

PAGE = (Path(__file__).parents[2] / "docs" / "predicates.md").read_text()


def test_the_limits_are_those_of_the_code() -> None:
    table = PAGE.partition("<!-- limits -->")[2].partition("\n\n##")[0]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"\| ([\d,]+) \|$", table, re.MULTILINE)]
    assert numbers == [
        parsing.MAX_TEXT,
        parsing.MAX_TOKENS,
        parsing.MAX_WORDS,
        parsing.MAX_OPERATORS,
        parsing.MAX_NESTING,
        parsing.MAX_PREFIXES,
        ast.MAX_CONDITIONS,
        ast.MAX_MEMBERS,
        ast.MAX_PATTERN,
        constants.MAX_NUMBER,
        MAX_REQUEST_BYTES,
    ]


SCHEMA = pa.schema(
    [
        ("user_id", pa.int64()),
        ("country", pa.string()),
        ("email", pa.string()),
        ("amount", pa.decimal128(9, 2)),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("active", pa.bool_()),
        ("score", pa.float64()),
        ("birthday", pa.date32()),
        ("opens", pa.time64("us")),
        ("started", pa.timestamp("us")),
        ("raw", pa.binary()),
        (
            "address",
            pa.struct(
                [
                    ("zip", pa.string()),
                    ("city", pa.string()),
                    ("geo", pa.struct([("lat", pa.float64())])),
                    ("phones", pa.list_(pa.string())),
                ]
            ),
        ),
        ("tags", pa.list_(pa.string())),
    ]
)


def _events() -> dolmen.Table:
    table = dolmen.open(f"memory:///{uuid4()}").create_table("events", SCHEMA)
    now = datetime.now(UTC)
    columns = {
        "user_id": [42, 42, 43, 2],
        "country": ["de", "fr", "fr", "fr"],
        "email": [None, "Ada@example.com", "abc", "abc"],
        "amount": [Decimal("5.00"), None, Decimal("100.00"), Decimal("3.00")],
        "event_time": [
            now,
            now - timedelta(days=4000),
            datetime(2026, 1, 1, 12, tzinfo=UTC),
            datetime(2025, 6, 1, 12, tzinfo=UTC),
        ],
        "active": [True, False, None, True],
        "score": [0.5, float("nan"), 1.5, None],
        "birthday": [date(1990, 2, 28), date(2000, 1, 1), None, date(1985, 12, 31)],
        "opens": [time(8), time(12, 30), None, time(9)],
        "started": [datetime(2026, 1, 1, 8, 30), None, datetime(2026, 1, 2, 9), datetime(1999, 12, 31)],
        "raw": [b"\xaab", b"", None, b"a"],
        "address": [
            {"zip": "10115", "city": "Berlin", "geo": {"lat": 52.53}, "phones": ["030", None]},
            {"zip": "10117", "city": None, "geo": None},
            None,
            {"zip": None, "city": "Paris", "geo": {"lat": None}, "phones": ["01"]},
        ],
        "tags": [["new"], ["old", "new"], None, ["new", None]],
    }
    table.append(pa.table(columns, table.schema))
    return table


def _texts() -> list[str]:
    """Every predicate of the page that has no parameters: in examples, and in tables of examples."""
    texts = re.findall(r'^table\.count\("([^"]*)"\)$', PAGE, re.MULTILINE)
    for table in re.findall(r"<!-- run -->\n\n(.*?)\n\n", PAGE, re.DOTALL):
        for line in table.splitlines()[2:]:
            texts += re.findall(r"`([^`]+)`", line.split("|")[2])
    return texts


@pytest.mark.parametrize(
    ("example", "counts"),
    [
        ("text", [1, 2, 3, 2]),
        ("parameters", [2, 1, 3, 2]),
        ("mappings", [1, 1, 1]),
        ("fields", [1, 1, 2]),
        ("computed", [1, 0, 2, 2, 1]),
        ("expressions", [1, 3]),
        ("conditions", [2, 4, "positions"]),
    ],
)
def test_every_example_finds_what_it_says(example: str, counts: list[int | str]) -> None:
    source = re.search(rf"<!-- example: {example} -->\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert source
    table = _events()
    found, names = [], {"table": table, "date": date}
    for line in source[1].splitlines():
        if line.startswith("import "):
            exec(line, names)
        elif line:
            result = eval(line, names)
            found.append(result if isinstance(result, (int, str)) else result.count())
    assert found == counts


@pytest.mark.slow
def test_every_text_without_parameters_counts_as_in_duckdb() -> None:
    table = _events()
    events = table.to_arrow()
    oracle = duckdb.connect()
    oracle.execute("SET TimeZone = 'UTC'")
    oracle.register("events", events)
    texts = _texts()
    assert len(texts) > 90
    for text in texts:
        (expected,) = oracle.execute(f"SELECT count(*) FROM events WHERE {text}").fetchone() or (None,)
        assert table.count(text) == expected, text
        assert expected or text.startswith("user_id % 16 = 3"), f"{text} finds no row"


def test_particular_values_are_what_the_page_says_on_every_engine() -> None:
    schema, oracle, reader = Schema.from_arrow(ROWS.schema), duckdb.connect(), load_reader()
    oracle.register("rows", ROWS)
    oracle.execute("SET error_on_division_by_zero = false")
    arrays = {field.id: ROWS[field.name] for field in schema.fields}
    assert len(cases()) > 40
    for text, row, expected in cases():
        p = parse(text, schema, now_us=0)
        (in_duckdb,) = oracle.execute(f"SELECT ({text}) FROM rows WHERE row = {row}").fetchone() or ("no row",)
        values = {
            id_: (reader.from_arrow(array.combine_chunks())[row], str(array.type)) for id_, array in arrays.items()
        }
        by_reader = reader.truth(ast.to_builtins(p), values)
        assert (evaluate(p, arrays, 3)[row].as_py(), in_duckdb, by_reader) == (expected,) * 3, text


def test_every_construct_of_the_grammar_has_an_example() -> None:
    schema = Schema.from_arrow(SCHEMA)
    constructs, calls = set(), set()
    for text in _texts():
        constructs |= {node.key for node in sqlglot.parse_one(text, dialect="duckdb").walk()}
        calls |= _calls(parse(text, schema, now_us=0))
    known = {
        *_CONDITIONS,
        *_COMPARISONS,
        *_ARITHMETIC,
        "cast",
        "trycast",
        "extract",
        "interval",
        "coalesce",
        "isnan",
        "arraycontains",
    }
    assert known <= constructs, known - constructs
    assert calls == set(get_args(Function))


def _calls(p: Predicate) -> set[str]:
    """The functions that are called in a predicate."""
    found = {term.function for term in terms_of(p) if isinstance(term, Call)}
    return found.union(*map(_calls, children(p)))


def test_the_types_of_casts_are_those_of_the_code() -> None:
    listed = PAGE.partition("<!-- types -->")[2].partition("\n\n##")[0]
    names = set(re.findall(r"\b[A-Z]{3,}\b", listed))
    assert names == {*_CASTS, "DECIMAL"} - {"TIMESTAMPNTZ"}
    for name in names - {"DECIMAL"}:
        assert dolmen_cast(name) == _CASTS[name]


def dolmen_cast(name: str) -> pa.DataType:
    """The type that a cast to a name gives."""
    tree = sqlglot.parse_one(f"CAST(NULL AS {name})", dialect="duckdb")
    return _cast_target(tree)


def test_the_operators_and_functions_are_those_of_the_code() -> None:
    table = PAGE.partition("<!-- operators -->")[2].partition("\n\nA value")[0]
    named = re.findall(r"`([^`]+)`", "".join(line.split("|")[1] for line in table.splitlines() if "`" in line))
    assert tuple(named) == OPERATORS
    for function in (*NAMES, "coalesce", "isnan", "starts_with", "ends_with", "contains", "list_contains"):
        assert f"`{function}(" in PAGE
