"""Dialects as properties: what they may be, alone and together, and that a dialect comes back from its properties."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import fields

import dolmen
from dolmen.errors import InputError
from dolmen.format.dialect import DIALECT_PROPERTIES, STRICT, Dialect

OTHER = Dialect(
    encoding="windows-1252",
    delimiter="\t",
    quote="'",
    escape="\\",
    comment="//",
    skip_lines=3,
    header=False,
    names="number",
    ragged="fill",
    trim=True,
    nulls=("", "n/a"),
    decimal=",",
    thousands=" ",
    booleans=(("yes", "no"), ("Y", "N")),
    timestamp_formats=("%d/%m/%Y", "%b %d, %Y %H:%M"),
    json_rows="detail.items",
    sheet="Sheet, 2",
)


def test_a_dialect_comes_back_from_its_properties() -> None:
    assert all(getattr(OTHER, each.name) != getattr(STRICT, each.name) for each in fields(Dialect))
    assert Dialect.of(OTHER.properties()) == OTHER
    assert OTHER.properties().keys() == DIALECT_PROPERTIES.keys()
    assert STRICT.properties() == {}
    assert Dialect.of({}) == STRICT
    assert Dialect.of(Dialect(quote=None).properties()) == Dialect(quote=None)
    assert Dialect.of(Dialect(delimiter=" ").properties()) == Dialect(delimiter=" ")


@pytest.mark.parametrize(
    ("name", "value", "phrase"),
    [
        ("ingest_encoding", "ebcdic", "utf-16"),
        ("ingest_quote", "''", "one ASCII character"),
        ("ingest_escape", "\n", "one ASCII character"),
        ("ingest_comment", "# ", "8 ASCII characters"),
        ("ingest_comment", "", "8 ASCII characters"),
        ("ingest_trim", "yes", "true"),
        ("ingest_skip_lines", -1, "number of lines"),
        ("ingest_skip_lines", "1_000", "number of lines"),
        ("ingest_names", "guess", "number"),
        ("ingest_ragged", "drop", "fill"),
        ("ingest_decimal", ";", "one of"),
        ("ingest_thousands", "x", "space"),
        ("ingest_booleans", "yes", "yes/no"),
        ("ingest_booleans", "yes/YES", "yes/no"),
        ("ingest_booleans", "yes/no,no/nein", "each text once"),
        ("ingest_timestamp_format", "[1]", "pattern"),
        ("ingest_timestamp_format", "[", "JSON list"),
        ("ingest_timestamp_format", ["%d/%m/%Y", "epoch_s"], "pattern"),
        ("ingest_json_rows", "a b", "path"),
        ("ingest_json_rows", "$", "path"),
        ("ingest_sheet", "", "sheet"),
    ],
)
def test_what_a_dialect_cannot_be_is_refused_with_what_it_can(name: str, value: Any, phrase: str) -> None:
    with pytest.raises(InputError, match=phrase) as caught:
        Dialect.of({name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"delimiter": ";", "quote": ";"}, "delimiter quote"),
        ({"delimiter": "'", "quote": "'"}, "delimiter quote"),
        ({"delimiter": "|", "escape": "|"}, "delimiter escape"),
        ({"delimiter": "#", "comment": "#"}, "delimiter comment"),
        ({"comment": '"x'}, "quote comment"),
        ({"escape": "#", "comment": "#"}, "escape comment"),
        ({"quote": ","}, "quote delimiter"),  # which separates the fields of CSV
        ({"escape": ","}, "escape delimiter"),
        ({"comment": ","}, "comment delimiter"),
        ({"quote": "tab"}, "quote delimiter"),
        ({"decimal": ",", "thousands": ","}, "decimal thousands"),
        ({"thousands": "."}, "decimal thousands"),
        ({"delimiter": ",", "decimal": ",", "quote": "none"}, "delimiter decimal"),
        ({"delimiter": "space", "thousands": "space", "quote": "none"}, "delimiter thousands"),
        ({"booleans": "false/true"}, "booleans"),
        ({"booleans": "NA/yes", "nulls": "NA"}, "booleans nulls"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(InputError) as caught:
        Dialect.of({f"ingest_{name}": value for name, value in settings.items()})
    assert all(f"ingest_{name}" in str(caught.value) for name in names.split())
    with pytest.raises(InputError):
        dolmen.infer(io.BytesIO(b"a,b\n1,2\n"), format="csv", **settings)


@pytest.mark.parametrize(
    "dialect",
    [
        Dialect(delimiter=",", decimal=","),
        Dialect(delimiter=" ", thousands=" "),
        Dialect(quote="\\", escape="\\"),
        Dialect(delimiter="\t", quote=","),
        Dialect(delimiter="\x1f", comment="//"),
        Dialect(booleans=(("true", "x"), ("1", "2"))),
    ],
)
def test_signs_that_quotes_keep_apart_are_allowed(dialect: Dialect) -> None:
    assert Dialect.of(dialect.properties()) == dialect


def test_a_path_may_be_written_as_jsonpath() -> None:
    assert Dialect.of({"ingest_json_rows": "$.detail.items[*]"}).json_rows == "detail.items"
