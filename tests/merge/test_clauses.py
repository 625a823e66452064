"""The clauses of merges, as Python and Spark read them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.written import entry_for

import dolmen
from dolmen import Delete, Insert, Update
from dolmen.errors import InputError, SchemaError
from dolmen.transactions.merge.clauses import Clauses


def test_words_mappings_and_lists_are_clauses() -> None:
    values = {"n": "source.n"}
    assert Clauses.of("update", "insert", None) == Clauses((Update(),), (Insert(),), ())
    assert Clauses.of(values, values, "delete") == Clauses((Update(values),), (Insert(values),), (Delete(),))
    listed = [Delete("source.n > 1"), "update"]
    assert Clauses.of(listed, None, [Update(values)]) == Clauses(  # type: ignore[arg-type]
        (Delete("source.n > 1"), Update()), (), (Update(values),)
    )
    found = Clauses.of(listed, "insert", values)  # type: ignore[arg-type]
    assert Clauses.of(found.matched, found.not_matched, found.by_source) == found
    assert (dolmen.Update, dolmen.Delete, dolmen.Insert) == (Update, Delete, Insert)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, None, None), "does nothing"),
        (([], [], []), "does nothing"),
        (("insert", None, None), "when_matched='insert'"),
        ((None, "delete", None), "when_not_matched='delete': give 'insert'"),
        ((None, Update(), None), "when_not_matched=Update"),
        ((None, None, "update"), "columns"),
        ((None, None, Insert()), "when_not_matched_by_source=Insert"),
        ((3, None, None), "when_matched=3"),
        (([Update(), Delete()], None, None), "condition"),
        (({"n": 3}, None, None), "expression=3"),
        (({3: "n"}, None, None), "column=3"),
        ((Update(when=True), None, None), "when=True"),  # type: ignore[arg-type]
        (({}, None, None), "values={}"),
        ((None, Insert({}), None), "when_not_matched: values={}"),
        ((Update(values="n"), None, None), "values='n'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_clause_is_refused(given: tuple[Any, Any, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        Clauses.of(*given)
    assert words in str(caught.value)


def test_kinds_of_merges_are_known() -> None:
    entry = entry_for(pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())]), ["id"])
    upsert = Clauses.of("update", "insert", None)
    assert upsert.is_upsert(entry, ["id"], ["n", "id"])
    assert not upsert.is_upsert(entry, ["n"], ["id", "n"])
    assert not upsert.is_upsert(entry, ["id"], ["id"])
    assert not Clauses.of("update", None, None).is_upsert(entry, ["id"], ["id", "n"])
    assert not Clauses.of(Update(when="TRUE"), "insert", None).is_upsert(entry, ["id"], ["id", "n"])
    assert Clauses.of("delete", None, None).is_delete
    assert not Clauses.of("delete", "insert", None).is_delete
    assert Clauses.of("delete", "insert", None).deletes_all_matched
    assert not Clauses.of(Delete("TRUE"), "insert", None).deletes_all_matched


def test_columns_are_those_of_the_table_and_of_expressions() -> None:
    clauses = Clauses.of({"n": 'source."Extra one" + source.`b``c`'}, "insert", None)
    clauses.check_columns(["n"], ["n", "Extra one", "b`c"])
    with pytest.raises(SchemaError, match="column 'other'"):
        clauses.check_columns(["n"], ["n", "other"])
    with pytest.raises(SchemaError, match=r"column 'n'.*a, b"):
        clauses.check_columns(["a", "b"], [])


def test_the_content_of_clauses_tells_them_apart() -> None:
    different = [
        Clauses.of("update", None, None),
        Clauses.of("update", "insert", None),
        Clauses.of(Update(when="TRUE"), None, None),
        Clauses.of({"n": "1"}, None, None),
        Clauses.of({"n": "2"}, None, None),
        Clauses.of("delete", None, None),
        Clauses.of(None, None, "delete"),
        Clauses.of(None, {"n": "1"}, None),
    ]
    assert len({str(each.content()) for each in different}) == len(different)
    assert (
        Clauses.of({"a": "1", "b": "2"}, None, None).content() == Clauses.of({"a": "1", "b": "2"}, None, None).content()
    )
