"""How dropped files become rows: the formats of files, their properties, patterns of times, and checks of a table's.

A pattern such as ``%d/%m/%Y %H:%M:%S`` says how text writes times:

======================  ==================================================================================
``%Y`` ``%y``           the year in four digits; in two, 69 to 99 being of the last century
``%m`` ``%b`` ``%B``    the month in one or two digits; its English name, cut to three letters or in full
``%d``                  the day, one or two digits
``%H`` ``%I`` ``%p``    the hour, one or two digits; of twelve, with AM or PM
``%M`` ``%S`` ``%f``    minute and second, one or two digits; the second's decimal places, one to six
``%z``                  the UTC offset: ``Z``, ``+0200`` or ``+02:00``
``%%``                  a percent sign
======================  ==================================================================================

Anything else is literal, and white space matches any of it. Numbers next to digits have all of theirs: ``%Y%m%d`` is
eight digits, because ``2025115`` would be two dates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dolmen.base.units import parse_duration
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.properties import (
    OWN_PROPERTIES,
    HasProperties,
    Property,
    by_name,
    check_properties,
    check_subject_column,
    check_ttl_column,
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

FileKind = Literal["csv", "tsv", "jsonl", "parquet", "arrow", "avro"]
Compression = Literal["gzip", "zstd", "bz2"]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One format of files that rows come from and go to; ``dolmen.ingest.formats`` reads and writes them.

    Args:
        kind: its name, in properties and options.
        endings: of the names of such files, in lower case.
        is_text: whether files are lines of text, which may be compressed as a whole, and do not hold maps.
        delimiter: the text between the fields of a line, unless an option says otherwise.
        is_written: whether dolmen writes such files; all are read.
        aliases: more names that the command line takes for it.
    """

    kind: FileKind
    endings: tuple[str, ...]
    is_text: bool = False
    delimiter: str | None = None
    is_written: bool = True
    aliases: tuple[str, ...] = ()


FORMATS: dict[FileKind, FileFormat] = {
    each.kind: each
    for each in (
        FileFormat("csv", (".csv",), is_text=True, delimiter=","),
        FileFormat("tsv", (".tsv",), is_text=True, delimiter="\t"),
        FileFormat("jsonl", (".jsonl", ".ndjson", ".json"), is_text=True, aliases=("json",)),
        FileFormat("parquet", (".parquet",)),
        FileFormat("arrow", (".arrow", ".arrows", ".feather", ".ipc")),
        FileFormat("avro", (".avro",), is_written=False),
    )
}

WRITTEN = [each.kind for each in FORMATS.values() if each.is_written]
ENDINGS: dict[str, FileKind] = {ending: each.kind for each in FORMATS.values() for ending in each.endings}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""The compressions that a file of any format may have around it, by the ending that follows the format's."""


def kind_of(name: str) -> FileKind | None:
    """The format of this name, or of this alias; None if there is none."""
    return next((each.kind for each in FORMATS.values() if name in (each.kind, *each.aliases)), None)


def format_names(kinds: list[FileKind] | None = None, *, last: str = "or") -> str:
    """Names of formats as a sentence lists them: ``csv, tsv or jsonl``. None lists them all."""
    *others, end = kinds or list(FORMATS)
    return f"{', '.join(others)} {last} {end}"


MAX_LENGTH = 200
"""Characters of a pattern."""
UNIT_DIGITS = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}
"""Names of formats that are numbers since the epoch, with the decimal places of the unit that microseconds have."""
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_LONG_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"

_DIRECTIVES = {
    "Y": r"(?P<Y>[0-9]{4})",
    "y": r"(?P<y>[0-9]{2})",
    "m": r"(?P<m>[0-9]{1,2})",
    "b": rf"(?P<b>(?i:{'|'.join(MONTHS)}))",
    "B": rf"(?P<B>(?i:{_LONG_MONTHS}))",
    "d": r"(?P<d>[0-9]{1,2})",
    "H": r"(?P<H>[0-9]{1,2})",
    "I": r"(?P<I>0?[1-9]|1[0-2])",
    "p": r"(?P<p>(?i:AM|PM))",
    "M": r"(?P<M>[0-9]{1,2})",
    "S": r"(?P<S>[0-9]{1,2})",
    "f": r"(?P<f>[0-9]{1,6})",
    "z": r"(?P<z>Z|[+-][0-9]{2}:?[0-9]{2})",
}

_TIME_FORMATS = "iso, epoch_s, epoch_ms, epoch_us, or a pattern as in %d/%m/%Y %H:%M:%S"
_TWO_DIGITS = {"m", "d", "H", "M", "S", "I"}
_BEGINS_WITH_DIGITS = re.compile("%[YymdHIMSf]|[0-9]")
_ENDS_WITH_DIGITS = re.compile("(%[YymdHIMSf]|[0-9])$")


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A parsed pattern.

    Args:
        regex: matches text of this pattern, with a group for each directive.
        directives: those in the pattern, without their percent signs.
    """

    regex: str
    directives: frozenset[str]


def parse_time_pattern(text: str) -> TimePattern:
    """Parses a pattern. Raises InputError unless its directives make a date, a time of day, or both."""
    what = f"time format {short_repr(text)}"
    if len(text) > MAX_LENGTH:
        raise InputError(f"{what} has {len(text):,} characters: at most {MAX_LENGTH} are allowed")
    directives: list[str] = []
    regex: list[str] = []
    pieces = re.findall(r"%.?|\s+|[^%\s]+", text, re.DOTALL)
    for piece, before, after in zip(pieces, ["", *pieces], [*pieces[1:], ""], strict=False):
        directive = piece[1:]
        if piece == "%%":
            regex.append("%")
        elif not piece.startswith("%"):
            regex.append(r"\s+" if piece.isspace() else re.escape(piece))
        elif directive not in _DIRECTIVES:
            listed = ", ".join(f"%{each}" for each in _DIRECTIVES)
            raise InputError(f"{what}: {piece} is unknown; there are {listed} and %%")
        elif directive in directives:
            raise InputError(f"{what}: {piece} is there twice")
        else:
            directives.append(directive)
            regex.append(_DIRECTIVES[directive])
            if directive in _TWO_DIGITS and (_ENDS_WITH_DIGITS.search(before) or _BEGINS_WITH_DIGITS.match(after)):
                regex[-1] = regex[-1].replace("{1,2}", "{2}").replace("0?", "0")
    used = frozenset(directives)
    years, months, hours = used & set("Yy"), used & set("mbB"), used & set("HI")
    has_date = len(years) == len(months) == 1 and "d" in used
    has_time = len(hours) == 1 and "M" in used and ("I" in used) == ("p" in used)
    if not used:
        raise InputError(f"{what}: {_TIME_FORMATS}")
    if not has_date and used & set("YymbBdz"):
        raise InputError(f"{what}: a date has a year, a month and a day, each once")
    if not (has_time and ("f" not in used or "S" in used)) and used & set("HIpMSfz"):
        raise InputError(f"{what}: a time of day has %H, or %I and %p, then %M, and %S if it has %f")
    return TimePattern(f"^{''.join(regex)}$", used)


IngestMode = Literal["append", "upsert", "cdc"]
LandingPolicy = Literal["keep", "tag", "expire"]
NewColumns = Literal["reject", "ignore", "add"]
EnvelopeKind = Literal["debezium", "dms", "flat"]

MAX_TEXT = 200
"""Characters of a text that stands for NULL, of a path and of a field's name."""
MAX_NULLS, MAX_PATHS = 100, 8
UNAVAILABLE_VALUE = "__debezium_unavailable_value"
"""Debezium's default placeholder for a value that the source's log does not hold."""
MAX_COLUMNS, MOST_COLUMNS = 10_000, 100_000
"""The most columns of a file, fields in columns counted; and the most that a table's settings may allow."""


def _parse_delimiter(value: Any) -> str:
    if value in ("tab", "\t"):
        return "\t"
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in '"\r\n\0':
        raise InputError(f"{value!r} is not a delimiter: one ASCII character, but no quote or line end, or 'tab'")
    return value


def _refuse_delimiter(value: str) -> None:
    if value.isalnum() or value in "+-.\\":
        raise InputError(f"{value!r} is not a delimiter: values are written with it")


def _refuse_nulls(value: tuple[str, ...]) -> None:
    if len(value) > MAX_NULLS:
        raise InputError(f"{len(value):,} texts: at most {MAX_NULLS} stand for NULL")
    for text in value:
        if len(text) > MAX_TEXT or any(each in text for each in '"\r\n\0'):
            raise InputError(
                f"{short_repr(text)} cannot stand for NULL: at most {MAX_TEXT} characters, no quote, no line end"
            )


def _parse_timestamp_format(value: Any) -> str | None:
    if value == "iso":
        return None
    if value in UNIT_DIGITS or (isinstance(value, str) and "%" in value):
        return str(value)
    raise InputError(f"{value!r}: {_TIME_FORMATS}")


def _refuse_timestamp_format(value: str | None) -> None:
    if value is not None and value not in UNIT_DIGITS:
        parse_time_pattern(value)


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
        raise InputError(f"{value!r} is not a path in an envelope, as in source.lsn, nor several with commas")
    return paths


def _refuse_paths(value: tuple[str, ...]) -> None:
    if len(value) > MAX_PATHS or any(len(path) > MAX_TEXT for path in value):
        raise InputError(f"at most {MAX_PATHS} paths, of at most {MAX_TEXT} characters each")


def _parse_columns(value: Any) -> int:
    columns = parse_count(value)
    if columns > MOST_COLUMNS:
        raise InputError(f"{columns:,} columns: at most {MOST_COLUMNS:,} are read")
    return columns


INGEST_PROPERTIES = by_name(
    Property("ingest_format", None, parse_choice(*FORMATS), "format of dropped files, whatever their names say"),
    Property(
        "ingest_delimiter",
        None,
        _parse_delimiter,
        "the delimiter of fields of CSV: one character, or tab",
        refuse=_refuse_delimiter,
    ),
    Property(
        "ingest_header", "true", parse_flag, "false: CSV without a header; the fields are the columns in order", bool
    ),
    Property(
        "ingest_nulls",
        "",
        parse_words,
        "unquoted texts of CSV that are NULL, with commas; an empty one counts",
        list,
        _refuse_nulls,
    ),
    Property(
        "ingest_timestamp_format",
        "iso",
        _parse_timestamp_format,
        "of times in text: iso, epoch_s, epoch_ms, epoch_us, or a pattern as in %d/%m/%Y %H:%M:%S",
        refuse=_refuse_timestamp_format,
    ),
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
        _parse_columns,
        "a file of more columns than this is rejected; of columns with fields, the fields count",
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
        refuse=_refuse_name,
    ),
    Property(
        "cdc_unavailable_value",
        UNAVAILABLE_VALUE,
        _parse_placeholder,
        "placeholder of a value that the source left out, and that stays (debezium, flat); may begin with hex:",
        refuse=_refuse_name,
    ),
    Property(
        "cdc_memory",
        "7d",
        parse_duration,
        "keys of deleted rows are remembered for this long",
        attribute="cdc_memory_us",
    ),
)


@dataclass(frozen=True)
class CdcSettings:
    """How changes are read.

    Args:
        sequence: the column of the table that orders changes.
        sequence_from: paths in the envelope, whose values make the sequence; empty: the row has it.
        operation: the field that says what a change is.
        memory_us: how long keys of deleted rows are remembered, in microseconds.
        unavailable_value: the placeholder of values that the source left out.
    """

    envelope: EnvelopeKind
    sequence: str
    sequence_from: tuple[str, ...]
    operation: str
    memory_us: int
    unavailable_value: str = UNAVAILABLE_VALUE


@dataclass(frozen=True)
class IngestSettings:
    """How dropped files become rows of a table, defaults filled in; see ``INGEST_PROPERTIES``.

    Args:
        format: None = by the file's name.
        delimiter: None = that of the format.
        timestamp_format: None = ISO 8601.
        new_columns: what becomes of a column in a file that the table does not have.
        cdc: None unless ``mode`` is ``cdc``.
    """

    format: FileKind | None = None
    delimiter: str | None = None
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    timestamp_format: str | None = None
    mode: IngestMode = "append"
    new_columns: NewColumns = "reject"
    on_bad_row: Literal["reject_file", "quarantine"] = "reject_file"
    max_bad_rows: int = 1000
    landing: LandingPolicy = "keep"
    max_columns: int = MAX_COLUMNS
    cdc: CdcSettings | None = None

    @classmethod
    def of(cls, entry: HasProperties) -> IngestSettings:
        """The settings of a table's entry. Raises InputError when it holds a value that can't be read."""
        return cls.read(entry.properties)

    @classmethod
    def read(cls, properties: Mapping[str, Any]) -> IngestSettings:
        """The settings that properties say. Raises InputError, also when one is missing that another needs."""
        values = read_settings(INGEST_PROPERTIES, properties)
        own = {name.removeprefix("ingest_"): value for name, value in values.items() if name.startswith("ingest_")}
        on_extra = own.pop("on_extra")
        own["new_columns"] = own["new_columns"] or on_extra
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
        if self.cdc is None:
            return
        field = schema.field(self.cdc.sequence)
        kind = field.arrow_type
        if pa.types.is_floating(kind) or pa.types.is_boolean(kind) or is_nested(kind):
            raise SchemaError(f"property cdc_sequence: column {field.name!r} of type {kind} orders no changes")
        if field.id in primary_key:
            raise SchemaError(f"property cdc_sequence: column {field.name!r} is part of the primary key")
        if len(self.cdc.sequence_from) > 1 and not pa.types.is_string(kind):
            raise SchemaError(
                f"property cdc_sequence_from: several paths need a string column, {field.name!r} is not one"
            )


TABLE_PROPERTIES = {**OWN_PROPERTIES, **INGEST_PROPERTIES}


def check_table_properties(
    changes: Mapping[str, Any],
    schema: Schema,
    primary_key: Sequence[int] = (),
    current: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns ``changes`` if a table of this schema may be set so; None as a value unsets.

    Args:
        primary_key: ids of its columns.
        current: what is set already.

    Raises:
        InputError: an unknown name, a value that is not allowed, or some that do not go together.
        SchemaError: a column that is not there, or can't be what it is named for.
    """
    checked = check_properties(changes, TABLE_PROPERTIES, "a table")
    if checked.get("ttl") is not None:
        check_ttl_column(parse_ttl(checked["ttl"]), schema)
    if checked.get("index") is not None and parse_flag(checked["index"]) and not primary_key:
        raise SchemaError("property index: rows are found by their primary key, and the table has none")
    if checked.get("subject") is not None:
        check_subject_column(parse_name(checked["subject"]), schema)
    if checked.keys() & INGEST_PROPERTIES.keys():
        merged = {name: value for name, value in {**(current or {}), **checked}.items() if value is not None}
        IngestSettings.read(merged).check(schema, primary_key)
    for column in named_columns(checked):
        checked = with_renamed_column(checked, column, schema.field(column).name)
    return checked
