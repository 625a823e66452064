"""The options of ``format("dolmen")``: text by name, as Spark hands them over, checked before anything is read.

Turns Spark's pushed filters into dolmen predicates with the same truth for every row.

Spark has cast a filter's value to the column's own type before it pushes it, so that both sides have one domain.
What dolmen and Spark do not understand alike is not translated, and Spark evaluates it: IN over floats, which Spark
compares by their bits, and everything about nested columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as filters

from dolmen.errors import InputError
from dolmen.format.schema import Field, Schema, is_nested
from dolmen.predicate import Predicate, bind
from dolmen.predicate.constants import NULL, Domain, Op, Value, domain_of

READ = (
    "table", "version", "timestamp", "tag", "version_as_of", "timestamp_as_of", "columns", "where", "with_commit_ts",
    "push_filters",
)  # fmt: skip


PINS = ("version", "timestamp", "tag", "version_as_of", "timestamp_as_of")
"""The options that name a version."""


CHANGES_READ = ("table", "changes", "since", "until", "net", "columns", "where")


WRITE = ("table", "request", "since", "force", "merge_schema", "operation")


STREAM_READ = (
    "table", "columns", "where", "with_commit_ts", "starting_version", "starting_timestamp", "max_versions_per_trigger",
    "ignore_deletes",
)  # fmt: skip


CHANGES_STREAM_READ = (
    "table", "changes", "net", "columns", "where", "starting_version", "starting_timestamp",
    "max_versions_per_trigger", "cursor",
)  # fmt: skip


STREAM_WRITE = ("table", "merge_schema", "operation")


_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


_OF_SPARK = frozenset({
    "checkpointlocation", "collation", "comment", "external", "ismanagedlocation", "location", "mergeschema",
    "outputmode", "owner", "paths", "provider", "queryname",
})  # fmt: skip
"""Options that Spark itself adds, or its catalog."""


def reads_changes(options: Mapping[str, str]) -> bool:
    """Whether the option ``changes`` asks for the change feed. Raises InputError."""
    return Options(_given(options), ()).flag("changes")


def _given(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower().replace("_", ""): value for name, value in options.items()}


@dataclass(frozen=True)
class Options:
    """The options of one read or write.

    Args:
        given: values by name, as their author wrote them in lower case.
        known: names that mean something here; underscores in them may be left out, so that ``startingVersion`` is one.
    """

    given: Mapping[str, str]
    known: Collection[str]

    @classmethod
    def of(cls, options: Mapping[str, str], known: Collection[str]) -> Options:
        """Checks the names.

        Raises:
            InputError: an option that does not exist here, or no database.
        """
        given = _given(options)
        names = {name.replace("_", "") for name in known} | {"path", "url"}
        unknown = sorted(name for name in given if name not in names | _OF_SPARK and "." not in name)
        if unknown:
            there = ", ".join(sorted({"path", *known}))
            raise InputError(f'format("dolmen") has no option {unknown[0]!r} here; there are: {there}')
        return cls(given, known)

    @property
    def url(self) -> str:
        """URL of the database. Raises InputError if there is none, or two."""
        path, url = self.given.get("path"), self.given.get("url")
        if path and url and path != url:
            raise InputError(f"the options path and url name two databases, {path!r} and {url!r}: give one")
        if not (path or url):
            raise InputError(
                'format("dolmen") needs the database: .load("s3://bucket/database"), or option "path". Of a table by '
                "CREATE TABLE ... USING dolmen, Spark hands no options on: use CREATE TEMPORARY VIEW ... USING dolmen"
            )
        found = str(path or url)
        # Spark's catalog writes paths as Hadoop does.
        return f"file://{found[5:]}" if found.startswith("file:/") and not found.startswith("file://") else found

    @property
    def table(self) -> str:
        """The table's name. Raises InputError if there is none."""
        name = self.text("table")
        if not name:
            raise InputError('format("dolmen") needs the table: .option("table", "name")')
        return name

    @property
    def columns(self) -> list[str] | None:
        """The names of the columns to read, from a list with commas; None = all."""
        text = self.text("columns")
        return [name.strip() for name in text.split(",")] if text else None

    def text(self, name: str) -> str | None:
        """The option's value; None if it was not given."""
        return self.given.get(name.replace("_", ""))

    def flag(self, name: str) -> bool:
        """The option as a boolean, false by default. Raises InputError."""
        text = self.text(name) or "false"
        if text.lower() not in _TRUTHS:
            raise InputError(f"option {name!r} is {text!r}: true or false")
        return _TRUTHS[text.lower()]

    def number(self, name: str, least: int = 1) -> int | None:
        """A whole number of at least ``least``. Raises InputError."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise InputError(f"option {name!r} is {text!r}: a whole number of at least {least}")
        return value

    def version_or_time(self, name: str) -> str | int | None:
        """A version by its number, or a time as ISO 8601 text, as ``Table.changes`` takes them."""
        text = self.text(name)
        return int(text) if text and text.isdecimal() else text

    def zoned_moment(self, name: str) -> datetime | None:
        """A time with its offset from UTC. Raises InputError: the zone of the session is not known to a source."""
        text = self.text(name)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InputError(f"option {name!r} is {text!r}: write it as in '2026-11-21T10:00:00Z'") from None
        if found.tzinfo is None:
            raise InputError(f"option {name!r} is {text!r}: say which zone is meant, as in '2026-11-21T10:00:00Z'")
        return found

    def moment(self, name: str) -> str | int | None:
        """A time as ``Database.at`` takes it: ISO 8601 text, or microseconds since the epoch."""
        text = self.text(name)
        return int(text) if text and text.lstrip("-").isdecimal() else text


_OPS: dict[str, Op] = {
    "EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip


_PATTERNS = {"StringStartsWith": "{}%", "StringEndsWith": "%{}", "StringContains": "%{}%"}


_ESCAPE = "\\"


def to_predicate(filter_: Any, schema: Schema) -> Predicate | None:
    """The predicate; None for a filter that is left to Spark."""
    name = type(filter_).__name__
    if name == "Not":
        inner = to_predicate(filter_.child, schema)
        return None if inner is None else bind.negation(inner)
    if not isinstance(filter_, filters.Filter) or len(filter_.attribute) != 1:
        return None
    field = next((field for field in schema.fields if field.name == filter_.attribute[0]), None)
    if field is None or is_nested(field.arrow_type):
        return None
    try:
        return _of_column(name, field, filter_)
    except InputError:  # a value that the column can't be compared with: what Spark makes of it is Spark's
        return None


def _of_column(name: str, field: Field, filter_: Any) -> Predicate | None:
    if name == "IsNull":
        return bind.is_null(field)
    if name == "IsNotNull":
        return bind.negation(bind.is_null(field))
    if name in _PATTERNS:
        escaped = "".join(_ESCAPE + c if c in "%_" + _ESCAPE else c for c in filter_.value)
        return bind.like(field, Value(Domain.TEXT, _PATTERNS[name].format(escaped)), _ESCAPE, False)
    if name == "In":
        if pa.types.is_floating(field.arrow_type):
            return None
        values = [_value(each, field) for each in filter_.value]
        return None if None in values else bind.one_of(field, [value for value in values if value is not None])
    value = _value(filter_.value, field)
    if value is None:
        return None
    if name == "EqualNullSafe":
        return bind.negation(bind.distinct_from(field, value))
    return bind.compare(_OPS[name], field, value) if name in _OPS else None


def _value(value: Any, field: Field) -> Value | None:
    """Spark's value as a constant of the column's own domain; None if it is of another."""
    domain = domain_of(field.arrow_type)
    match value:
        case None:
            return NULL
        case bool():
            found = Value(Domain.BOOLEAN, value)
        case int() | Decimal():
            found = Value(Domain.EXACT, value)
        case float():  # of a float column it is the float, told in full
            return Value(Domain.FLOAT64, value) if domain and domain.is_float else None
        case str():
            found = Value(Domain.TEXT, value)
        case bytes() | bytearray():
            found = Value(Domain.BYTES, bytes(value))
        case datetime():
            epoch = datetime(1970, 1, 1, tzinfo=UTC if value.tzinfo else None)
            kind = Domain.ZONED if value.tzinfo else Domain.NAIVE
            found = Value(kind, (value - epoch) // timedelta(microseconds=1))
        case date():
            found = Value(Domain.DATE, value.toordinal() - date(1970, 1, 1).toordinal())
        case _:
            return None
    return found if found.kind is domain else None
