"""What is said of an error about a request: what is wrong, in the words of dolmen, and no value of the request."""

from __future__ import annotations

from typing import Any

import pytest

from dolmen.errors import Error, InputError, PredicateError, RowError, SchemaError
from dolmen.ingest.redaction import RequestContent, reason_for_log

NAMES = frozenset({"events", "id", "user_id", "kind"})


def reason(text: str, document: Any) -> str:
    return reason_for_log(InputError(text), RequestContent(document, NAMES))


@pytest.mark.parametrize(
    ("text", "document", "said"),
    [
        ("no column 'idd'; did you mean 'id'?", "idd = 7", "no column 'idd'; did you mean 'id'?"),
        ("no column 'Ann Lee'; there are: id, kind", 'kind = "Ann Lee"', "no column …; there are: id, kind"),
        ("no column 'Wayne'; did you mean 'kind'?", "Wayne = 1", "no column …; did you mean 'kind'?"),
        ("'one' is not a value of type int64", {"id": "one"}, "… is not a value of type int64"),
        ("'Johannes Seba... is no value", {"kind": "Johannes Sebastian"}, "…"),
        ("can't read it: near Johannes", "kind = 'Johannes", "can't read it: near …"),
        ("near Johann", "kind = 'Johannes", "near …"),  # shortened
        ("7,391,846,205 is out of bounds", {"id": 7391846205}, "… is out of bounds"),
        ("0.50 has too many digits", {"id": "x"}, "0.50 has too many digits"),
        ("at most 38 digits are allowed", "id = 1", "at most 38 digits are allowed"),
        ("key 4711 does not fit id int64", [4711], "key … does not fit id int64"),
        ("99.99 is no whole number", [99.99], "… is no whole number"),
        ("-99.99 is no whole number", [[-99.99, 1]], "-… is no whole number"),
        ("1.5 is no whole number", [1.5], "… is no whole number"),
        ("1.50 is no whole number", ["1.5"], "… is no whole number"),
        ("1e-07 is no whole number", [1e-07], "… is no whole number"),
        ("1e+22 is out of bounds", [1e22], "… is out of bounds"),
        ("7,391 is out of bounds", {"id": 7391}, "… is out of bounds"),
        ("10:30 is out of bounds", "at = '10:30'", "… is out of bounds"),
        ("after x\\nAnnabel it ends", ["x\nAnnabel"], "after … it ends"),
        ("IS is followed by NULL", "id IS 5", "IS is followed by NULL"),
    ],
)
def test_what_is_quoted_of_a_request_is_hidden_and_the_rest_is_said(text: str, document: Any, said: str) -> None:
    assert reason(text, document) == said


@pytest.mark.parametrize("error", [InputError("x"), SchemaError("x"), PredicateError("x"), RowError("x")])
def test_without_the_request_nothing_of_the_text_is_said_and_no_documentation_either(error: Error) -> None:
    told = reason_for_log(error)
    assert "x" not in told.split()
    assert (type(error).__doc__ or "").partition("\n")[0] not in told


def test_a_request_that_is_too_long_to_tell_is_not_quoted() -> None:
    document = [f"name {n}" for n in range(20_000)]
    assert reason("'name 7' is wrong", document) == "the request is malformed, or does not fit the table"
