"""Whatever lists file formats or compressions takes them from one table, and every format has its reader."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from dolmen.cli.output import destination
from dolmen.format.ingest_properties import (
    COMPRESSIONS,
    ENDINGS,
    FORMATS,
    INGEST_PROPERTIES,
    Compression,
    FileKind,
    format_names,
    kind_of,
)
from dolmen.ingest.formats.formats import READERS, Format, detect

ROOT = Path(__file__).resolve().parents[2]


def test_every_format_has_a_reader_and_a_name_in_the_types() -> None:
    assert set(READERS) == set(FORMATS) == set(get_args(FileKind))
    assert set(COMPRESSIONS.values()) == set(get_args(Compression))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_with_an_ending_is_of_its_format_whatever_it_is_compressed_with(ending: str) -> None:
    assert detect(f"a{ending}") == Format(ENDINGS[ending])
    for outer, compression in COMPRESSIONS.items():
        assert detect(f"folder/A{ending}{outer}".upper()) == Format(ENDINGS[ending], compression)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_can_ask_for_every_format(kind: FileKind) -> None:
    assert INGEST_PROPERTIES["ingest_format"].parse(kind) == kind
    assert kind_of(kind) == kind
    assert [kind_of(alias) for alias in FORMATS[kind].aliases] == [kind] * len(FORMATS[kind].aliases)


def test_names_are_listed_as_a_sentence_has_them() -> None:
    assert format_names() == "csv, tsv, jsonl, parquet, arrow, avro, orc or excel"
    assert kind_of("xls") is None


@pytest.mark.parametrize("kind", [known.kind for known in FORMATS.values() if known.is_written])
def test_the_command_line_writes_every_format_that_is_written(kind: FileKind, tmp_path: Path) -> None:
    assert destination(tmp_path / f"a{FORMATS[kind].endings[0]}", None, as_json=False) == Format(kind)


def test_docs_name_every_ending_and_every_format() -> None:
    ingest, configuration = ((ROOT / "docs" / name).read_text() for name in ("ingest.md", "configuration.md"))
    assert [ending for ending in (*ENDINGS, *COMPRESSIONS) if f"`{ending}`" not in ingest] == []
    assert [kind for kind in FORMATS if f"`{kind}`" not in ingest or f"`{kind}`" not in configuration] == []
