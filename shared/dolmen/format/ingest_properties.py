"""How dropped files become rows: the formats of files, their properties, and the checks of a table's properties."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa
from msgspec import Struct

from dolmen.base import arguments
from dolmen.base.units import parse_duration
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.column_terms import check_partition_columns, check_sortable, parse_partition_by
from dolmen.format.dialect import DIALECT_PROPERTIES, MAX_TEXT, STRICT, Dialect
from dolmen.format.properties import (
    STORAGE_PROPERTIES,
    USER,
    HasProperties,
    Property,
    by_name,
    check_properties,
    check_subject_column,
    check_ttl_column,
    clustered_columns,
    named_columns,
    parse_choice,
    parse_count,
    parse_flag,
    parse_name,
    parse_ttl,
    parse_words,
    read_settings,
    with_renamed_column,
)
from dolmen.format.schema import Schema, is_nested

FileKind = Literal["csv", "tsv", "jsonl", "parquet", "arrow", "avro", "orc", "excel"]
Compression = Literal["gzip", "zstd", "bz2", "zip"]


class FileFormat(Struct, frozen=True):
    """One format of files that rows come from and go to; ``dolmen.ingest.formats`` reads and writes them."""

    kind: FileKind  # its name, in properties and options
    endings: tuple[str, ...]  # of the names of such files, in lower case
    is_text: bool = False  # whether files are lines of text, which may be compressed as a whole, and do not hold maps
    delimiter: str | None = None  # the text between the fields of a line, unless an option says otherwise
    is_written: bool = True  # whether dolmen writes such files; all are read
    aliases: tuple[str, ...] = ()  # other names that the command line accepts for it


FORMATS: dict[FileKind, FileFormat] = {
    each.kind: each
    for each in (
        FileFormat("csv", (".csv",), is_text=True, delimiter=","),
        FileFormat("tsv", (".tsv",), is_text=True, delimiter="\t"),
        FileFormat("jsonl", (".jsonl", ".ndjson", ".json"), is_text=True, aliases=("json",)),
        FileFormat("parquet", (".parquet",)),
        FileFormat("arrow", (".arrow", ".arrows", ".feather", ".ipc")),
        FileFormat("avro", (".avro",), is_written=False),
        FileFormat("orc", (".orc",), is_written=False),
        FileFormat("excel", (".xlsx", ".xlsm", ".xltx", ".xltm", ".ods"), is_written=False, aliases=("xlsx", "ods")),
    )
}

WRITTEN = [each.kind for each in FORMATS.values() if each.is_written]
ENDINGS: dict[str, FileKind] = {ending: each.kind for each in FORMATS.values() for ending in each.endings}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".zip": "zip"}
"""The compressions that a file of any format may have around it, by the ending that follows the format's. A zip archive
holds one file, whose own name may show the format instead."""


def split_name(name: str) -> tuple[str, FileKind | None, Compression | None]:
    """The name of a file in lower case, without the ending of a compression; the format and compression it shows."""
    stem, compression = name.lower(), None
    for ending, codec in COMPRESSIONS.items():
        if stem.endswith(ending):
            stem, compression = stem.removesuffix(ending), codec
            break
    return stem, next((kind for ending, kind in ENDINGS.items() if stem.endswith(ending)), None), compression


def kind_of(name: str) -> FileKind | None:
    """The format of this name, or of this alias; None if there is none."""
    return next((each.kind for each in FORMATS.values() if name in (each.kind, *each.aliases)), None)


def parse_kind(name: str | None, option: str) -> FileKind | None:
    """The format of this name or alias; None for none. Raises InputError, which begins with the option."""
    kind = None if name is None else kind_of(name)
    if name is not None and kind is None:
        raise InputError(f"{option}{name!r} is unknown: there are {', '.join(FORMATS)}")
    return kind


def format_names(kinds: list[FileKind] | None = None) -> str:
    """Names of formats as a sentence lists them: ``csv, tsv or jsonl``. None lists them all."""
    *others, last = kinds or list(FORMATS)
    return f"{', '.join(others)} or {last}"


IngestMode = Literal["append", "upsert", "cdc"]
LandingPolicy = Literal["keep", "tag", "expire"]
NewColumns = Literal["reject", "ignore", "add"]
EnvelopeKind = Literal["debezium", "dms", "flat"]

MAX_PATHS = 8
UNAVAILABLE_VALUE = "__debezium_unavailable_value"
"""Debezium's default placeholder for a value that the source's log does not hold."""
MAX_COLUMNS, MOST_COLUMNS = 10_000, 100_000
"""The most columns of a file, fields in columns counted; and the most that a table's settings may allow."""


def _refuse_name(value: str) -> None:
    if len(value) > MAX_TEXT:
        raise InputError(f"{short_repr(value)} has {len(value):,} characters: at most {MAX_TEXT} are allowed")


def _parse_placeholder(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{value!r} is not a placeholder: a text, or hex: and hexadecimal digits")
    if value.startswith("hex:") and not re.fullmatch(r"([0-9A-Fa-f]{2})+", value.removeprefix("hex:")):
        raise InputError(f"{short_repr(value)}: after hex: come two hexadecimal digits for each octet")
    return value


def _parse_paths(value: Any) -> tuple[str, ...]:
    paths = tuple(path.strip() for path in parse_words(value))
    if not all(re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", path) for path in paths):
        raise InputError(f"{value!r} is not a path in an envelope, such as source.lsn, nor several with commas")
    return paths


def _parse_columns(value: Any) -> tuple[str, ...]:
    return tuple(parse_name(word) for word in parse_words(value))


def _refuse_paths(value: tuple[str, ...]) -> None:
    if len(value) > MAX_PATHS or any(len(path) > MAX_TEXT for path in value):
        raise InputError(f"at most {MAX_PATHS} paths, of at most {MAX_TEXT} characters each")


INGEST_PROPERTIES = by_name(
    Property("ingest_format", None, parse_choice(*FORMATS), "format of dropped files, whatever their names say"),
    *DIALECT_PROPERTIES.values(),
    Property(
        "ingest_mode",
        "append",
        parse_choice("append", "upsert", "cdc"),
        "rows are added, replace those of their key, or are changes (CDC)",
    ),
    Property(
        "ingest_new_columns",
        None,
        parse_choice("reject", "ignore", "add"),
        "a column that the table does not have: its file is rejected, it is skipped, or the table gets it",
    ),
    Property(
        "ingest_on_extra", "reject", parse_choice("reject", "ignore"), "applies while ingest_new_columns is not set"
    ),
    Property(
        "ingest_on_bad_row",
        "reject_file",
        parse_choice("reject_file", "quarantine"),
        "a row that can't be read rejects its file, or goes to rejected/ alone",
    ),
    Property(
        "ingest_max_bad_rows", 1000, parse_count, "with quarantine: a file with more bad rows than this is rejected"
    ),
    Property(
        "ingest_max_columns",
        MAX_COLUMNS,
        partial(parse_count, most=MOST_COLUMNS),
        "a file of more columns than this is rejected; of columns with fields, the fields count",
    ),
    Property(
        "ingest_hive",
        None,
        _parse_columns,
        "columns whose values are in names of folders, as in landing/<table>/day=2026-11-27/x.csv: day, country",
        list,
    ),
    Property(
        "ingest_landing",
        "keep",
        parse_choice("keep", "tag", "expire"),
        "an ingested file stays as it is, is tagged, or is tagged to expire",
    ),
    Property(
        "cdc_envelope", None, parse_choice("debezium", "dms", "flat"), "how files say what changed; needed by mode cdc"
    ),
    Property("cdc_sequence", None, parse_name, "the column that orders changes; needed by mode cdc"),
    Property(
        "cdc_sequence_from",
        None,
        _parse_paths,
        "path of the sequence in the envelope, as in source.lsn; by default in the row, as its column",
        list,
        _refuse_paths,
    ),
    Property(
        "cdc_operation",
        "Op",
        parse_name,
        "the field that tells inserts, updates and deletes apart (dms, flat)",
        check_new=_refuse_name,
    ),
    Property(
        "cdc_unavailable_value",
        UNAVAILABLE_VALUE,
        _parse_placeholder,
        "placeholder of a value that the source left out, and that stays (debezium, flat); may begin with hex:",
        check_new=_refuse_name,
    ),
    Property(
        "cdc_memory",
        "7d",
        parse_duration,
        "keys of deleted rows are remembered for this long",
        attribute="cdc_memory_us",
    ),
)


class CdcSettings(Struct, frozen=True):
    """How changes are read."""

    envelope: EnvelopeKind
    sequence: str  # the column of the table that orders changes
    sequence_from: tuple[str, ...]  # paths in the envelope, whose values make the sequence; empty: the row has it
    operation: str  # the field that says what a change is
    memory_us: int  # how long keys of deleted rows are remembered, in microseconds
    unavailable_value: str = UNAVAILABLE_VALUE  # the placeholder of values that the source left out


class IngestSettings(Struct, frozen=True):
    """How dropped files become rows of a table, defaults filled in; see ``INGEST_PROPERTIES``."""

    format: FileKind | None = None  # None = by the file's name
    dialect: Dialect = STRICT  # how values are written
    mode: IngestMode = "append"
    new_columns: NewColumns = "reject"  # what becomes of a column in a file that the table does not have
    on_bad_row: Literal["reject_file", "quarantine"] = "reject_file"
    max_bad_rows: int = 1000
    landing: LandingPolicy = "keep"
    max_columns: int = MAX_COLUMNS
    hive: tuple[str, ...] = ()  # columns whose values are in names of folders
    cdc: CdcSettings | None = None  # None unless ``mode`` is ``cdc``

    @classmethod
    def of(cls, entry: HasProperties) -> IngestSettings:
        """The settings of a table's entry. Raises InputError when it holds a value that can't be read."""
        return cls.read(entry.properties)

    @classmethod
    def read(cls, properties: Mapping[str, Any]) -> IngestSettings:
        """The settings that properties say. Raises InputError, also when one is missing that another needs."""
        others = {name: each for name, each in INGEST_PROPERTIES.items() if name not in DIALECT_PROPERTIES}
        values = read_settings(others, properties)
        own = {name.removeprefix("ingest_"): value for name, value in values.items() if name.startswith("ingest_")}
        on_extra = own.pop("on_extra")
        own |= {"new_columns": own["new_columns"] or on_extra, "dialect": Dialect.of(properties)}
        own["hive"] = own["hive"] or ()
        if own["mode"] != "cdc":
            return cls(**own)
        for needed in ("cdc_envelope", "cdc_sequence"):
            if values[needed] is None:
                raise InputError(f"property ingest_mode: cdc needs {needed}")
        if values["cdc_envelope"] == "debezium" and values["cdc_sequence_from"] is None:
            raise InputError("property cdc_envelope: debezium needs cdc_sequence_from, as in source.lsn")
        cdc = {name.removeprefix("cdc_"): value for name, value in values.items() if name.startswith("cdc_")}
        cdc["sequence_from"] = cdc["sequence_from"] or ()
        return cls(**own, cdc=CdcSettings(**cdc))

    def check(self, schema: Schema, primary_key: Sequence[int]) -> None:
        """Raises SchemaError if files cannot be ingested into a table of this schema and primary key in this way."""
        if self.mode != "append" and not primary_key:
            raise SchemaError(f"property ingest_mode: {self.mode} needs a primary key, and the table has none")
        for name in self.hive:
            schema.field(name)
        if self.cdc is None:
            return
        if self.hive:
            raise SchemaError("property ingest_hive: files of changes (ingest_mode: cdc) have all columns inside")
        field = schema.field(self.cdc.sequence)
        kind = field.arrow_type
        if pa.types.is_floating(kind) or pa.types.is_boolean(kind) or is_nested(kind):
            raise SchemaError(f"property cdc_sequence: column {field.name!r} of type {kind} cannot order changes")
        if field.id in primary_key:
            raise SchemaError(f"property cdc_sequence: column {field.name!r} is part of the primary key")
        if len(self.cdc.sequence_from) > 1 and not pa.types.is_string(kind):
            raise SchemaError(
                f"property cdc_sequence_from: several paths need a string column, {field.name!r} is not one"
            )


TABLE_PROPERTIES = {**STORAGE_PROPERTIES, **INGEST_PROPERTIES}


def check_table_properties(
    changes: Mapping[str, Any],
    schema: Schema,
    primary_key: Sequence[int] = (),
    current: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns ``changes`` if a table of this schema may have these settings; the value None unsets one.

    Args:
        primary_key: ids of its columns.
        current: what is set already.

    Raises:
        InputError: an unknown name, a value that is not allowed, or some that do not go together.
        SchemaError: a column that is not there, or can't be what it is named for.
    """
    checked = check_properties(changes, TABLE_PROPERTIES, "a table")
    own = {
        name for name, value in {**(current or {}), **checked}.items() if name.startswith(USER) and value is not None
    }
    if len(own) > arguments.MAX_OWN_ENTRIES:
        raise InputError(f"{len(own)} properties user.*: a table has at most {arguments.MAX_OWN_ENTRIES}")
    if checked.get("ttl") is not None:
        check_ttl_column(parse_ttl(checked["ttl"]), schema)
    if checked.get("index") is not None and parse_flag(checked["index"]) and not primary_key:
        raise SchemaError("property index: rows are found by their primary key, and the table has none")
    if checked.get("subject") is not None:
        check_subject_column(parse_name(checked["subject"]), schema)
    if checked.get("partition_by") is not None:
        check_partition_columns(parse_partition_by(checked["partition_by"]), schema)
    check_sortable([schema.field(name) for name in clustered_columns(checked)])
    if checked.keys() & INGEST_PROPERTIES.keys():
        merged = {name: value for name, value in {**(current or {}), **checked}.items() if value is not None}
        settings = IngestSettings.read(merged)
        settings.check(schema, primary_key)
        contradicts = settings.new_columns == "add" and not settings.dialect.header
        if contradicts and checked.keys() & {"ingest_header", "ingest_new_columns"}:
            raise InputError(
                "property ingest_new_columns: add takes the names of new columns from a header, so it cannot be "
                "combined with ingest_header: false"
            )
    for column in named_columns(checked):
        checked = with_renamed_column(checked, column, schema.field(column).name)
    return checked
