"""Properties that say how dropped files are read: what they may be, alone and together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dolmen.errors import InputError, SchemaError
from dolmen.format.dialect import Dialect
from dolmen.format.ingest_properties import INGEST_PROPERTIES, CdcSettings, IngestSettings, check_table_properties
from dolmen.format.schema import Schema

SCHEMA = Schema.from_arrow(
    pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("lsn", pa.string()), ("ratio", pa.float64())])
)
KEY = (SCHEMA.field("id").id,)
CDC = {"ingest_mode": "cdc", "cdc_envelope": "dms", "cdc_sequence": "seq"}
DAY_US = 86_400_000_000


def check(properties: dict[str, Any], primary_key: tuple[int, ...] = KEY) -> dict[str, Any]:
    return check_table_properties(properties, SCHEMA, primary_key)


def test_without_any_the_defaults_hold() -> None:
    assert IngestSettings.read({}) == IngestSettings()
    defaults = {name: known.default for name, known in INGEST_PROPERTIES.items() if known.default is not None}
    assert IngestSettings.read(defaults) == IngestSettings()


def test_each_reaches_its_own_field() -> None:
    read = IngestSettings.read(
        {
            "ingest_format": "csv",
            "ingest_delimiter": "tab",
            "ingest_header": False,
            "ingest_nulls": ",NULL,\\N",
            "ingest_timestamp_format": "epoch_ms",
            "ingest_mode": "upsert",
            "ingest_on_extra": "ignore",
            "ingest_on_bad_row": "quarantine",
            "ingest_max_bad_rows": "7",
            "ingest_landing": "expire",
            "ingest_max_columns": 20_000,
        }
    )
    dialect = Dialect(delimiter="\t", header=False, nulls=("", "NULL", "\\N"), timestamp_formats=("epoch_ms",))
    assert read == IngestSettings("csv", dialect, "upsert", "ignore", "quarantine", 7, "expire", 20_000)


def test_changes_are_read_by_settings_of_their_own() -> None:
    assert IngestSettings.read(CDC).cdc == CdcSettings("dms", "seq", (), "Op", 7 * DAY_US)
    debezium = {**CDC, "cdc_envelope": "debezium", "cdc_sequence_from": "source.file, source.pos", "cdc_memory": "2d"}
    found = IngestSettings.read(debezium).cdc
    assert found == CdcSettings("debezium", "seq", ("source.file", "source.pos"), "Op", 2 * DAY_US)
    assert IngestSettings.read({**CDC, "ingest_mode": "append"}).cdc is None


@pytest.mark.parametrize(
    ("properties", "phrase"),
    [
        ({"ingest_format": "xlsx"}, "csv, tsv, jsonl, parquet, arrow, avro"),
        ({"ingest_delimiter": ""}, "one ASCII character"),
        ({"ingest_delimiter": ";;"}, "one ASCII character"),
        ({"ingest_delimiter": '"'}, "one ASCII character"),
        ({"ingest_delimiter": "\n"}, "one ASCII character"),
        ({"ingest_delimiter": "§"}, "one ASCII character"),
        ({"ingest_header": "yes"}, "true"),
        ({"ingest_header": [True]}, "neither text"),
        ({"ingest_mode": True}, "neither text"),
        ({"ingest_nulls": [1]}, "list"),
        ({"ingest_timestamp_format": "unix"}, "epoch_ms"),
        ({"ingest_mode": "replace"}, "append, upsert, cdc"),
        ({"ingest_on_extra": "add"}, "reject, ignore"),
        ({"ingest_on_bad_row": "skip"}, "reject_file, quarantine"),
        ({"ingest_max_bad_rows": 0}, "from 1"),
        ({"ingest_max_columns": 0}, "from 1"),
        ({"ingest_max_columns": 100_001}, "from 1 to 100,000"),
        ({"ingest_max_columns": "many"}, "from 1 to 100,000"),
        ({"ingest_header": False, "ingest_new_columns": "add"}, "takes the names of new columns from a header"),
        ({"ingest_landing": "delete"}, "keep, tag, expire"),
        ({"ingest_mode": "cdc"}, "needs cdc_envelope"),
        ({"ingest_mode": "cdc", "cdc_envelope": "flat"}, "needs cdc_sequence"),
        ({**CDC, "cdc_envelope": "debezium"}, "source.lsn"),
        ({**CDC, "cdc_sequence_from": "source..lsn"}, "not a path"),
        ({**CDC, "cdc_sequence_from": "a b"}, "not a path"),
        ({**CDC, "cdc_memory": "long"}, "90d"),
        ({"ingest_speed": "high"}, "no property 'ingest_speed'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(properties: dict[str, Any], phrase: str) -> None:
    with pytest.raises(InputError, match=phrase):
        check(properties)


@pytest.mark.parametrize(
    ("properties", "key", "phrase"),
    [
        ({"ingest_mode": "upsert"}, (), "primary key"),
        (CDC, (), "primary key"),
        ({**CDC, "cdc_sequence": "nowhere"}, KEY, "nowhere"),
        ({**CDC, "cdc_sequence": "ratio"}, KEY, "changes"),
        ({**CDC, "cdc_sequence": "id"}, KEY, "primary key"),
        ({**CDC, "cdc_sequence_from": "source.file,source.pos"}, KEY, "string column"),
    ],
)
def test_columns_must_be_there_and_fit(properties: dict[str, Any], key: tuple[int, ...], phrase: str) -> None:
    with pytest.raises(SchemaError, match=phrase):
        check(properties, key)


def test_what_is_set_already_counts() -> None:
    assert check_table_properties({"cdc_memory": "3d"}, SCHEMA, KEY, CDC) == {"cdc_memory": "3d"}
    with pytest.raises(InputError, match="needs cdc_sequence"):
        check_table_properties({"cdc_sequence": None}, SCHEMA, KEY, CDC)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ingest_delimiter", value) for value in ("a", "Z", "0", "-", "+", ".", "\\")),
        *(
            ("ingest_timestamp_format", value)
            for value in ("%Q", "%", "%d", "%H", "%Y%Y", "%%", "%Y-%m-%d" + "x" * 200)
        ),
        ("ingest_nulls", [str(n) for n in range(101)]),
        *(("ingest_nulls", [text]) for text in ("x" * 201, "a\nb", 'a"b', "\0")),
        ("cdc_operation", "o" * 201),
        ("cdc_sequence_from", ["a.b"] * 9),
        ("cdc_sequence_from", "a." * 100 + "b"),
    ],
)
def test_what_no_file_could_be_read_by_is_refused_when_it_is_set_and_left_where_it_stands(
    name: str, value: Any
) -> None:
    with pytest.raises(InputError, match=name):
        check({name: value})
    if name == "ingest_delimiter":
        assert IngestSettings.read({name: value}).dialect.delimiter == value


@pytest.mark.parametrize("delimiter", [";", "|", " ", "\x01", "_", "tab"])
def test_delimiters_that_separate_values_are_taken(delimiter: str) -> None:
    properties = {"ingest_delimiter": delimiter}
    check(properties)
    assert IngestSettings.read(properties).dialect.delimiter == delimiter.replace("tab", "\t")
