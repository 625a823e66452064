"""The stored form: readable JSON, the same bytes for the same predicate, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen.errors import PredicateError
from dolmen.format.schema import Schema
from dolmen.predicate.ast import columns, from_builtins, from_json, to_builtins, to_json
from dolmen.predicate.parse import parse

SCHEMA = Schema.from_arrow(
    pa.schema(
        [
            ("n", pa.int64()),
            ("d", pa.float64()),
            ("name", pa.string()),
            ("c", pa.decimal128(9, 2)),
            ("raw", pa.binary()),
        ]
    )
)
EXAMPLE = {
    "kind": "compare",
    "op": "<",
    "left": {"kind": "column", "id": 1, "type": "int64"},
    "right": {"kind": "literal", "type": "int64", "value": 5},
}


def test_a_predicate_is_stored_as_plain_json() -> None:
    p = parse("n < 5", SCHEMA, now_us=0)
    assert to_builtins(p) == EXAMPLE
    assert json.loads(to_json(p)) == EXAMPLE
    assert from_builtins(EXAMPLE) == p


@pytest.mark.parametrize(
    "text",
    [
        "n < 9223372036854775807 AND d = 'nan' OR NOT name LIKE 'a!%' ESCAPE '!'",
        "d IN (1, 'inf', '-inf', 'nan', NULL)",
        "c = 1.005 OR c IN (1, 2.5)",
        "raw = '\\xff'",
        "name ILIKE 'ä' OR name IS NULL OR TRUE AND NULL",
        "n > d",
    ],
)
def test_json_gives_the_same_predicate_again(text: str) -> None:
    p = parse(text, SCHEMA, now_us=0)
    assert from_json(to_json(p)) == p
    assert from_builtins(json.loads(json.dumps(to_builtins(p), allow_nan=False))) == p
    assert to_json(from_json(to_json(p))) == to_json(p)


def test_equal_meaning_gives_equal_bytes() -> None:
    texts = ["n IN (3, 1, 2)", "n IN (1, 2, 2, 3.0)", "N in (0x3, 1, 2)".replace("0x3", "3")]
    assert len({to_json(parse(text, SCHEMA, now_us=0)) for text in texts}) == 1
    assert to_json(parse("c = 1", SCHEMA, now_us=0)) == to_json(parse("c = 1.0", SCHEMA, now_us=0))


def test_columns_are_all_that_must_be_read() -> None:
    assert columns(parse("n = 1 OR NOT (d > 2 AND name IS NULL)", SCHEMA, now_us=0)) == {1, 2, 3}
    assert columns(parse("n > d", SCHEMA, now_us=0)) == {1, 2}
    assert columns(parse("TRUE", SCHEMA, now_us=0)) == frozenset()


def _with(**changes: Any) -> dict[str, Any]:
    return {**EXAMPLE, **changes}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"kind": "regexp"},
        _with(op="~"),
        _with(left={"kind": "column", "id": 1, "type": "int65"}),
        _with(right={"kind": "literal", "type": "int64", "value": "5"}),
        _with(right={"kind": "literal", "type": "int64", "value": None}),
        _with(right={"kind": "literal", "type": "decimal128(3, 1)", "value": "x"}),
        {"kind": "and", "args": [EXAMPLE, {}]},
        {"kind": "in", "column": EXAMPLE["left"], "type": "int64", "values": []},
        {"kind": "in", "column": EXAMPLE["left"], "type": "int64", "values": [1, None]},
    ],
)
def test_what_is_no_predicate_is_refused(document: Any) -> None:
    with pytest.raises(PredicateError, match="predicate"):
        from_builtins(document)
    with pytest.raises(PredicateError, match="predicate"):
        from_json(msgspec.json.encode(document))


def test_json_that_is_damaged_or_bottomless_is_refused() -> None:
    with pytest.raises(PredicateError):
        from_json(b"{")
    with pytest.raises(PredicateError):
        from_json(b'{"kind":"not","arg":' * 5000 + b"{}" + b"}" * 5000)
