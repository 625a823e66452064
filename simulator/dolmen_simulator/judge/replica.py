"""Checks the change feed: a copy that is kept by it has the rows of every version that it comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from dolmen_simulator.judge.chronicle import Chronicle
from dolmen_simulator.judge.model import Identity, Row, State
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.seen import rows_from


class FedRow(NamedTuple):
    """A row of the feed."""

    change: str
    version: int
    commit_ts: int
    row: Row


@dataclass(frozen=True)
class TableCopy:
    """A copy of a table as one version shows it.

    Args:
        table: the table, whatever its name is.
        version: the version.
        rows: its rows.
    """

    table: Identity
    version: int
    rows: tuple[Row, ...]


def name_in(state: State, table: Identity) -> str | None:
    """The name of a table in a version; None if the version does not have it."""
    return next((name for name, rows in state.items() if rows.identity == table), None)


def fed_rows(batches: Iterable[pa.RecordBatch]) -> list[FedRow]:
    """The rows of a feed, in their order."""
    found: list[FedRow] = []
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("_change", "_version", "_commit_ts"))
        found += map(FedRow, *columns, rows_from(batch))
    return found


def follow_feed(
    chronicle: Chronicle, copy: TableCopy, until: int, fed: Sequence[FedRow], *, net: bool = False
) -> TableCopy:
    """The copy at a later version, by the changes that the feed told.

    Args:
        net: whether the feed is the difference of the two versions.

    Raises:
        ViolationError: it does not have the rows of some version.
    """
    rows = Counter(copy.rows)
    by_version: dict[int, list[FedRow]] = {}
    for row in fed:
        by_version.setdefault(row.version, []).append(row)
    where = f"the {'net change' if net else 'change feed'} of {copy.table} from version {copy.version} to {until}"
    if wrong := by_version.keys() - (range(until, until + 1) if net else range(copy.version + 1, until + 1)):
        raise ViolationError(Never.MISFED, f"{where} tells of versions {sorted(wrong)}")
    for version in (until,) if net else range(copy.version + 1, until + 1):
        changes = by_version.get(version, [])
        _apply(where, rows, changes)
        _check_facts(where, chronicle, changes)
        name = name_in(chronicle.states[version], copy.table)
        expected = Counter(chronicle.states[version][name].rows if name is not None else ())
        if rows != expected:
            raise ViolationError(
                Never.MISFED,
                f"{where}, version {version}: missing {sorted((expected - rows), key=_number)}; should not be there: "
                f"{sorted((rows - expected), key=_number)}",
            )
    return TableCopy(copy.table, until, tuple(rows.elements()))


def _apply(where: str, rows: Counter[Row], changes: Sequence[FedRow]) -> None:
    """Applies the changes of one commit."""
    for change in changes:
        if change.change in ("insert", "update_after"):
            rows[change.row] += 1
        elif rows[change.row] > 1:
            rows[change.row] -= 1
        elif change.row in rows:
            del rows[change.row]
        else:
            raise ViolationError(Never.MISFED, f"{where} takes away {change.row}, which is not there")


def _check_facts(where: str, chronicle: Chronicle, changes: Sequence[FedRow]) -> None:
    """Checks that updates come in pairs of one key, that no row came and went, and that timestamps are right."""
    keys, rows = Counter[tuple[str, int]](), Counter[Row]()
    for change in changes:
        keys[change.change, change.row.k] += 1
        rows[change.row] += 1
        if change.commit_ts != chronicle.chain[change.version].commit_ts:
            raise ViolationError(Never.MISFED, f"{where} dates {change}, not by its commit")
    before = {k: count for (what, k), count in keys.items() if what == "update_before"}
    after = {k: count for (what, k), count in keys.items() if what == "update_after"}
    if before != after:
        raise ViolationError(Never.MISFED, f"{where} pairs updates of {before} with those of {after}")
    if twice := [row for row, count in rows.items() if count > 1]:
        raise ViolationError(Never.MISFED, f"{where} tells of {twice} more than once")


def _number(row: Row) -> int:
    return row.u
