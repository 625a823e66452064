"""Text whose type is inferred gives itself back: random columns, in every format, with every setting, by every door."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from cli.conftest import Cli
from dolmen.format.dialect import Dialect
from dolmen.ingest.formats.formats import ReadOptions, SourceFile, detect, read
from support.inferred_text import (
    COMPRESSED,
    NULLS,
    TIME_FORMATS,
    TextColumn,
    as_delimited,
    as_json_lines,
    as_typed,
    check_column,
    random_columns,
)

COLUMNS, ROWS = 80, 7
FILES = 250 if os.environ.get("DOLMEN_LONG") else 2
"""Of each door: 100,000 columns in the long mode."""


class Case:
    """A file of random columns.

    Args:
        settings: whether its table may have settings.
    """

    def __init__(self, chance: random.Random, path: Path, table: str, *, settings: bool, kinds: str = "") -> None:
        self.time_format: str | tuple[str, ...] | None = chance.choice(TIME_FORMATS) if settings else None
        self.nulls = chance.choice(NULLS) if settings else ("",)
        self.inferred_nulls: tuple[str, ...] = ()
        kind = chance.choice((kinds or "csv tsv jsonl csv tsv jsonl parquet arrow avro").split())
        self.cells, self.table = kind in ("csv", "tsv"), table
        self.columns = random_columns(chance, COLUMNS, ROWS, json_numbers=kind == "jsonl")
        if self.cells:
            body = as_delimited(chance, self.columns, "," if kind == "csv" else "\t", self.nulls).encode()
        elif kind == "jsonl":
            more = {"Op": '"I"', "lsn": "1"} if kinds else {}
            body = as_json_lines(self.columns, **more).encode()
        else:
            body = as_typed(self.columns, kind)
        ending, compress = chance.choice(list(COMPRESSED.items()))
        self.name, self.body = f"a.{kind}{ending}", compress(body)
        self.file = path / table / self.name
        self.properties = {
            "ingest_new_columns": "add",
            "ingest_timestamp_format": self.time_format or "iso",
            "ingest_nulls": ",".join(self.nulls),
        }

    def write(self) -> Path:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(self.body)
        return self.file

    def check(self, table: pa.Table) -> None:
        rows = table.sort_by("id")
        for name, column in self.columns.items():
            if name not in rows.column_names:
                assert not any((value or "").strip() for value in column.values), "only a blank column is not added"
                continue
            check_column(column, rows[name], self.time_format, cells=self.cells, nulls=self.inferred_nulls)


def _read(cli: Cli, path: Path, chance: random.Random, table: str) -> tuple[Case, pa.Table]:
    case = Case(chance, path, table, settings=True)
    options = ReadOptions(Dialect.of(case.properties))
    block = chance.choice([1 << 20, 1 << 20, 997])
    source = SourceFile(lambda: io.BytesIO(case.body), detect(case.name), case.name, options, block_bytes=block)
    return case, read(source, None).read_all()


def _append_create(cli: Cli, path: Path, chance: random.Random, table: str) -> tuple[Case, pa.Table]:
    case = Case(chance, path, table, settings=False)
    done = cli("append", table, case.write(), "--create", "--json")
    assert done.code == 0, done.err
    return _inferred(case, path, table)


def _create_like(cli: Cli, path: Path, chance: random.Random, table: str) -> tuple[Case, pa.Table]:
    case = Case(chance, path, table, settings=False)
    for command in (["create", table, "--like", case.write()], ["append", table, case.file]):
        done = cli(*command, "--json")
        assert done.code == 0, done.err
    return _inferred(case, path, table)


def _auto_create(cli: Cli, path: Path, chance: random.Random, table: str) -> tuple[Case, pa.Table]:
    case = Case(chance, path / "landing", table, settings=False)
    case.write()
    _backfill(cli, path, table, "--auto-create")
    return _inferred(case, path, table)


def _add(cli: Cli, path: Path, chance: random.Random, table: str) -> tuple[Case, pa.Table]:
    case = Case(chance, path / "landing", table, settings=True)
    case.write()
    dolmen.open(str(path / "db")).create_table(table, pa.schema({"id": pa.int64()}), properties=case.properties)
    _backfill(cli, path, table)
    return case, _rows(path, table)


def _changes(cli: Cli, path: Path, chance: random.Random, table: str) -> tuple[Case, pa.Table]:
    case = Case(chance, path / "landing", table, settings=True, kinds="jsonl")
    case.write()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("lsn", pa.int64())])
    properties = {**case.properties, "ingest_mode": "cdc", "cdc_envelope": "flat", "cdc_sequence": "lsn"}
    dolmen.open(str(path / "db")).create_table(table, schema, primary_key="id", properties=properties)
    _backfill(cli, path, table)
    return case, _rows(path, table)


def _backfill(cli: Cli, path: Path, table: str, *more: str) -> None:
    done = cli("backfill", path / "landing", "--table", table, "--json", *more)
    assert done.code == 0, (done.err, [json.loads(f.read_bytes()) for f in path.rglob("*.error.json")])


def _rows(path: Path, table: str) -> pa.Table:
    return dolmen.open(str(path / "db")).table(table).to_arrow()


def _inferred(case: Case, path: Path, table: str) -> tuple[Case, pa.Table]:
    """The case with the time formats that the table was created with, and its rows."""
    settings = dolmen.open(str(path / "db")).table(table).settings()
    dialect = Dialect.of({name: settings[name] for name in ("ingest_timestamp_format", "ingest_nulls")})
    case.time_format, case.inferred_nulls = dialect.timestamp_formats or None, dialect.nulls
    return case, _rows(path, table)


Door = Callable[[Cli, Path, random.Random, str], tuple[Case, pa.Table]]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("door", [_read, _append_create, _create_like, _auto_create, _add, _changes])
def test_text_whose_type_is_inferred_gives_itself_back(cli: Cli, tmp_path: Path, door: Door) -> None:
    chance = random.Random(f"{os.environ['DOLMEN_TEST_SEED']} {door.__name__}")
    for number in range(FILES):
        case, rows = door(cli, tmp_path, chance, f"t{number}")
        case.check(rows)
        case.file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("+1", 1),
        ("-0", 0),
        ("1.10", 1.1),
        ("1e-400", 0.0),
        ("20250105", pa.scalar(20093, pa.date32()).as_py()),
    ],
)
def test_the_judge_sees_what_is_lost(text: str, value: object) -> None:
    with pytest.raises(AssertionError):
        check_column(
            TextColumn(["1.5" if text == "1.10" else text, text]),
            pa.chunked_array([[value, value]]),
            "%Y%m%d",
            cells=True,
        )
