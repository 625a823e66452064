"""The options of ``format("dolmen")``: text by name, as Spark hands them over, checked before anything is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from dolmen.errors import InputError

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
