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
    chronicle: Chronicle,
    copy: TableCopy,
    until: int,
    fed: Sequence[FedRow],
    *,
    net: bool = False,
    known: int | None = None,
) -> TableCopy:
    """The copy at a later version, by the changes of the feed.

    Rows that were erased leave the copy with the commit that took them away, at the latest with that which erased them.

    Args:
        net: whether the feed is the difference of the two versions.
        known: the newest version that the feed knew: no one gets the rows that were erased up to then. None: ``until``.

    Raises:
        ViolationError: it does not have the rows of some version, or tells of erased rows.
    """
    rows = Counter(copy.rows)
    by_version: dict[int, list[FedRow]] = {}
    for row in fed:
        by_version.setdefault(row.version, []).append(row)
    where = f"the {'net change' if net else 'change feed'} of {copy.table} from version {copy.version} to {until}"
    if wrong := by_version.keys() - (range(until, until + 1) if net else range(copy.version + 1, until + 1)):
        raise ViolationError(Never.MISFED, f"{where} tells of versions {sorted(wrong)}")
    newest = until if known is None else known
    before = _Sight.of(chronicle, copy.version, newest, copy.table)
    for version in (until,) if net else range(copy.version + 1, until + 1):
        changes, now = by_version.get(version, []), _Sight.of(chronicle, version, newest, copy.table)
        _check_hidden(where, changes, before, now)
        _apply(where, rows, changes, before)
        _check_facts(where, chronicle, changes)
        missing, extra = now.seen - rows, rows - now.landed
        if missing or extra:
            raise ViolationError(
                Never.MISFED,
                f"{where}, version {version}: missing {sorted(missing, key=_number)}; should not be there: "
                f"{sorted(extra, key=_number)}",
            )
        before = now
    return TableCopy(copy.table, until, tuple(rows.elements()))


class _Sight(NamedTuple):
    """The rows of a table in a version: as they landed, and those that a feed may contain now."""

    landed: Counter[Row]
    seen: Counter[Row]

    @classmethod
    def of(cls, chronicle: Chronicle, version: int, known: int, table: Identity) -> _Sight:
        name = name_in(chronicle.states[version], table)
        if name is None:
            return cls(Counter(), Counter())
        return cls(*(Counter(chronicle.visible_state(version, at)[name].rows) for at in (version, known)))

    @property
    def hidden(self) -> Counter[Row]:
        """The rows that were erased since."""
        return self.landed - self.seen


def _check_hidden(where: str, changes: Sequence[FedRow], before: _Sight, now: _Sight) -> None:
    for change in changes:
        sight = now if change.change in ("insert", "update_after") else before
        if change.row in sight.hidden:
            raise ViolationError(Never.SEEN, f"{where} tells of {change}, which was erased")


def _apply(where: str, rows: Counter[Row], changes: Sequence[FedRow], before: _Sight) -> None:
    """Applies the changes of one commit. A delete with only the key is for erased rows, if the copy has them."""
    for change in changes:
        if change.change in ("insert", "update_after"):
            rows[change.row] += 1
        elif change.change == "delete" and _is_bare(change.row):
            for row in [row for row in rows if row.k == change.row.k and row not in before.seen]:
                del rows[row]
        elif rows[change.row] > 1:
            rows[change.row] -= 1
        elif change.row in rows:
            del rows[change.row]
        else:
            raise ViolationError(Never.MISFED, f"{where} takes away {change.row}, which is not there")


def _is_bare(row: Row) -> bool:
    """Whether a row has a value in its key alone, which no row of a table has."""
    return row.u is None


def _check_facts(where: str, chronicle: Chronicle, changes: Sequence[FedRow]) -> None:
    """Checks that updates come in pairs of one key, that no row came and went, and that timestamps are right."""
    keys, rows = Counter[tuple[str, int]](), Counter[Row]()
    for change in changes:
        keys[change.change, change.row.k] += 1
        rows[change.row] += not _is_bare(change.row)
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
