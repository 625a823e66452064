"""Every module that treats the kinds of column types differently knows every kind in the table of types."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

from dolmen.errors import SchemaError
from dolmen.format.schema import stored_type, type_from_json
from dolmen.format.types import TYPES, ColumnType, type_of

ROOT = Path(__file__).resolve().parents[2]

MAPPINGS = {
    "dolmen.format.types:FROM_JSON": "plain",
    "dolmen.predicate.domains:Domain": "domain",
    "dolmen.rows.scan.key_codes:WORDS": "codes",
    "dolmen.rows.scan.engines.polars_expressions:LITERALS": "polars",
    "dolmen.ingest.formats.cells:PARSERS": "text",
    "dolmen.ingest.formats.export:WRITERS": "text",
    "dolmen.ingest.formats.export:JSON_WRITERS": "json",
    "dolmen.ingest.formats.delimited.csv_reader:NATIVE": "text",
}
"""Which column of the table each mapping is keyed by."""

ELSEWHERE = {"dolmen.ingest.formats.cells:PARSERS": {"json"}}
"""Kinds that a mapping leaves to another module on purpose."""

PARAMETRIC = {
    "dolmen.format.schema:STORABLE": "stored",
    "dolmen.spark.frame_types:PARAMETRIC": "spark",
}
"""Mappings keyed by the types themselves, of those without a value in this column."""

WITHOUT = {"dolmen.spark.frame_types:PARAMETRIC": {"time"}}
"""Types that a place refuses."""


def missing_kinds(types: Iterable[ColumnType]) -> list[str]:
    """What is missing where for these types, a line for each."""
    lines = []
    types = list(types)
    for place, column in MAPPINGS.items():
        mapping = known(place)
        for one in types:
            kind = getattr(one, column)
            if kind is not None and kind not in mapping and kind not in ELSEWHERE.get(place, ()):
                lines.append(f"type {one.name}: {place} lacks {column} kind {kind!r}")
    for place, column in PARAMETRIC.items():
        mapping = known(place)
        lines += [
            f"type {one.name} has no {column!r}: {place} lacks the type"
            for one in types
            if getattr(one, column) is None and one not in mapping and one.name not in WITHOUT.get(place, ())
        ]
    return lines


def known(place: str) -> Iterable[object]:
    """The keys of a mapping, or the names of an enumeration."""
    module, name = place.split(":")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        return list(TYPES)
    return found.__members__ if isinstance(found, type) else found  # type: ignore[attr-defined, no-any-return]


def test_every_mapping_knows_every_kind_of_column_type() -> None:
    assert missing_kinds(TYPES) == []


@pytest.mark.parametrize("known_type", [one for one in TYPES if one.stored is not None], ids=lambda one: str(one.name))
def test_a_type_is_found_by_its_stored_form_and_its_name(known_type: ColumnType) -> None:
    assert type_of(known_type.stored) is known_type
    assert stored_type(known_type.stored) == known_type.stored
    assert type_from_json(str(known_type.stored)) == known_type.stored


def test_names_of_types_are_unique() -> None:
    for names in (
        [one.name for one in TYPES],
        [token for one in TYPES for token in (*one.sql_tokens, *one.sql_aliases)],
        [read[:2] for one in TYPES for read in one.avro],
        [one.sql for one in TYPES if one.sql],
    ):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "arrow_type", [pa.null(), pa.float16(), pa.duration("us"), pa.month_day_nano_interval()], ids=str
)
def test_types_that_are_not_stored_are_no_column_types(arrow_type: pa.DataType) -> None:
    assert type_of(arrow_type) is None
    with pytest.raises(SchemaError):
        stored_type(arrow_type)


def test_docs_of_declarations_list_every_type_that_can_be_declared() -> None:
    text = (ROOT / "docs" / "tables.md").read_text()
    assert [one.sql for one in TYPES if one.sql and f"`{one.sql}`" not in text] == []


def test_the_format_lists_every_stored_type() -> None:
    _, _, listed = (ROOT / "docs" / "format.md").read_text().partition("\nTypes: `bool`, `int8` to `int64`, `uint8` to")
    others = [one for one in TYPES if one.stored is not None and "int" not in str(one.stored) and one.name != "bool"]
    assert listed
    assert [one.name for one in others if f"`{one.stored}`" not in listed[:300]] == []
