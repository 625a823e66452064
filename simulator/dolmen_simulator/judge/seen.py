"""Compares the rows of a reader with the expected rows, and names the violation if they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from dolmen_simulator.judge.columns import GENERATION, added_columns
from dolmen_simulator.judge.model import SCHEMA, Identity, Row, State, TableRows, struct_of
from dolmen_simulator.judge.never import Never, ViolationError


class VersionRecords(Protocol):
    """The expected content of each version, as ``ledger`` records it."""

    @property
    def states(self) -> Sequence[State]:
        """Tables by version."""

    @property
    def written_in(self) -> Mapping[int, int]:
        """By row, the version that wrote it."""

    @property
    def erased(self) -> Collection[tuple[Identity, int]]:
        """The rows that were erased, each by its table and its number."""

    def visible_state(self, version: int, known: int) -> State:
        """A version without the rows that were erased since, up to version ``known``."""

    def check_timestamps(self, table: str, timestamps: Mapping[int, int]) -> None:
        """Raises ViolationError unless these are the commit timestamps of those rows."""


def rows_from(data: pa.Table | pa.RecordBatch) -> list[Row]:
    """Converts data that production code returned to rows."""
    columns = (data["t"].cast(pa.int64()) if name == "t" else data[name] for name in SCHEMA.names)
    return [row_of(values) for values in zip(*(column.to_pylist() for column in columns), strict=True)]


def row_of(values: tuple[Any, ...]) -> Row:
    """A row of the values of all its columns. Raises ViolationError if it does not have its own struct."""
    row, struct = Row(*values[:-1]), struct_of(values[-1])
    if struct != (None if row.u is None else row.s):  # a feed has only the keys of some rows
        raise ViolationError(Never.HALF, f"{row} has the struct {struct}, not {row.s}")
    return row


def check_rows(
    ledger: VersionRecords, found: Sequence[Row], version: int, name: str, what: str, known: int | None = None
) -> None:
    """Raises ViolationError unless these are the table's rows in that version.

    Args:
        what: description of the read, for the message.
        known: the version that the reader knew, without whose erased rows it reads; None for the version itself.
    """
    state = ledger.visible_state(version, version if known is None else known)
    _check(ledger, found, [state], version, name, what)


def check_one_of(ledger: VersionRecords, found: Sequence[Row], versions: Sequence[int], name: str, what: str) -> None:
    """Raises ViolationError unless these are all rows that the table has in one of those versions.

    The message compares with the last version. All versions decide the kind: a missing row that each of them has is
    LOST, an extra row from before all of them is REVIVED, or SEEN if it was erased, and anything else is a mixture of
    versions, HALF.
    """
    _check(ledger, found, [ledger.states[version] for version in versions], min(versions), name, what)


def _check(
    ledger: VersionRecords, found: Sequence[Row], states: Sequence[State], oldest: int, name: str, what: str
) -> None:
    tables = [state[name] for state in states if name in state]
    expected = [table.rows for table in tables]
    seen = set(found)
    if any(len(found) == len(rows) and seen == set(rows) for rows in expected):
        return
    last = set(expected[-1]) if expected else set()
    everywhere = set(expected[0]).intersection(*expected[1:]) if expected else set()
    twice = {row for row, times in Counter(found).items() if times > 1}
    extra = seen.difference(*expected)
    parts = [("missing", last - seen), ("should not be there", seen - last), ("there twice", twice)]
    differences = "; ".join(f"{about}: {sorted(rows, key=lambda row: row.u)}" for about, rows in parts if rows)
    if tables and extra and all((table.identity, row.u) in ledger.erased for table in tables[-1:] for row in extra):
        never = Never.SEEN
    elif everywhere - seen or twice:
        never = Never.LOST
    elif extra and all(ledger.written_in.get(row.u, oldest + 1) <= oldest for row in extra):
        never = Never.REVIVED
    else:
        never = Never.HALF
    raise ViolationError(never, f"{what} of {name!r}: {differences or 'rows of no version'}")


def check_all(ledger: VersionRecords, data: pa.Table, version: int, name: str, what: str, known: int) -> None:
    """Checks rows and their commit timestamps. See ``check_rows``."""
    check_rows(ledger, rows_from(data), version, name, what, known)
    _check_added(ledger.states[version][name], data, f"{what} of {name!r}")
    ledger.check_timestamps(name, dict(zip(data["u"].to_pylist(), data["_commit_ts"].to_pylist(), strict=True)))


def _check_added(expected: TableRows, data: pa.Table, what: str) -> None:
    """Checks the order of columns, and what rows have in those that were added."""
    names = [name for name in data.column_names if not name.startswith("_")]
    if names != [column.name for column in expected.columns]:
        raise ViolationError(Never.LOST, f"{what} has columns {names}, not {[one.name for one in expected.columns]}")
    (struct,) = (column for column in expected.columns if column.name == "s")
    fields = [field.name for field in data.schema.field("s").type]
    if fields != ["a", "b", *struct.new_fields]:
        raise ViolationError(Never.LOST, f"{what} has fields {fields}, and not those of {struct}")
    numbers = data["u"].to_pylist()
    for column in added_columns(expected.columns):
        for u, value in zip(numbers, data[column.name].to_pylist(), strict=True):
            if value not in (possible := expected.added[u % GENERATION][column.number]):
                raise ViolationError(
                    Never.HALF, f"{what}: row {u} has {value} in column {column.name!r}, and not one of {possible}"
                )


def check_memory(data: pa.Table | None, expected: TableRows, what: str) -> None:
    """Raises ViolationError unless a memory holds the greatest sequence of each key that changes have deleted."""
    pairs = [] if data is None else zip(data["k"].to_pylist(), data["v"].to_pylist(), strict=True)
    check_remembered(pairs, expected, what)


def check_remembered(pairs: Iterable[tuple[int, int]], expected: TableRows, what: str) -> None:
    """Raises ViolationError unless pairs of key and sequence hold the greatest sequence of each deleted key."""
    found: dict[int, int] = {}
    for k, v in pairs:
        found[k] = max(v, found.get(k, v))
    if found != expected.deleted:  # a late change revives a key that the memory forgot
        raise ViolationError(Never.REVIVED, f"{what} remembers deletes {found}, not {dict(expected.deleted)}")
