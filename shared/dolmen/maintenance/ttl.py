"""Expiry: deletes rows of tables with the property ``ttl`` by tombstones, once the rows are old enough.

A run adds at most one tombstone per table, in one commit for all tables. It adds none if statistics and the last expiry
(in the table's properties) prove that no live row has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from dolmen.base.runtime import EXPIRY, never
from dolmen.base.units import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from dolmen.commit.change import Expect
from dolmen.commit.head import Context
from dolmen.commit.statements.background import SetProperties
from dolmen.entries.segments.live import LiveFiles
from dolmen.entries.segments.row_bounds import may_hold_matches
from dolmen.errors import Error, NotFoundError
from dolmen.format.entries import DataFile
from dolmen.format.layout import build_decoders
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import TableSettings, TimeToLive, check_ttl_column
from dolmen.predicate import bind
from dolmen.predicate.constants import Value
from dolmen.predicate.domains import Domain, domain_of
from dolmen.transactions.transaction import Transaction, replay, unit_of
from dolmen.transactions.unit_of_work import Commit

EXPIRED = "ttl_expired"  # the property that remembers the last expiry of a table

_STEPS_US = (DAY_US, HOUR_US, MINUTE_US, SECOND_US)
_STEPS_PER_AGE = 50


class LastExpiry(msgspec.Struct, frozen=True):
    """In this epoch, no live row committed up to ``through`` has a time before ``before`` in this column.

    For a column of dates, ``before`` is midnight of the first day that lives.
    """

    column: int
    epoch: int
    before: int
    through: int


@dataclass(frozen=True)
class Expired:
    """The result of a run."""

    # for each table that got a tombstone, the time before which rows have expired (microseconds, UTC)
    cutoffs: dict[str, int] = field(default_factory=dict)
    commit: Commit | None = None  # the commit with the tombstones; None when nothing had expired
    failures: dict[str, Error] = field(default_factory=dict)  # errors, by name of the table that could not be checked

    @property
    def commits(self) -> int:
        """Number of versions that the run made: one at most."""
        return int(self.commit is not None)


def expire_rows(
    context: Context, *, tables: Collection[str] | None = None, deadline: Callable[[], bool] = never
) -> Expired:
    """Deletes rows that are older than their table's ``ttl``.

    The store's clock gives the present time. NULL never expires. A date expires when its whole day has. Times without
    zone are taken as UTC. Cut-offs move in steps of about a fiftieth of the age, in whole days, hours, minutes or
    seconds. So runs within a step add no tombstone, and no row outlives its age by more than a step.

    Args:
        deadline: when it returns True, no further table is checked, and the tombstones so far are committed.
    """
    (cutoffs, failures), commit = replay(
        context,
        lambda transaction: _expire(context, transaction, tables, deadline),
        "expire",
        policy=EXPIRY,
        also=(NotFoundError,),  # a table was dropped since it was looked at
    )
    return Expired(cutoffs, commit if cutoffs else None, failures)


def cutoff_of(ttl: TimeToLive, now_us: int, arrow_type: pa.DataType) -> int:
    """The time before which rows have expired, in microseconds. It does not move back unless ``now_us`` does."""
    step = next((step for step in _STEPS_US if step * _STEPS_PER_AGE <= ttl.age_us), 1)
    step = DAY_US if pa.types.is_date(arrow_type) else step
    return (now_us - ttl.age_us) // step * step


def _expire(
    context: Context, transaction: Transaction, tables: Collection[str] | None, deadline: Callable[[], bool]
) -> tuple[dict[str, int], dict[str, Error]]:
    """Adds the tombstones to the transaction. Returns the cut-offs and the failures by table."""
    base, cutoffs, failures = unit_of(transaction).base, dict[str, int](), dict[str, Error]()
    for name in sorted(base.tables if tables is None else base.tables.keys() & set(tables)):
        if deadline():
            break
        try:
            with transaction.savepoint():
                cutoff = _expire_table(context, transaction, base, name)
        except Error as error:
            failures[name] = error
            continue
        if cutoff is not None:
            cutoffs[name] = cutoff
    return cutoffs, failures


def _expire_table(context: Context, transaction: Transaction, base: Manifest, name: str) -> int | None:
    """Adds a tombstone for a table to the transaction if it needs one; returns the cut-off."""
    unit = unit_of(transaction)
    entry = context.segments.whole(base.tables[name])
    ttl = TableSettings.of(entry).ttl
    if ttl is None:
        return None
    arrow_type, now_us = check_ttl_column(ttl, entry.schema), context.store.clock.now_us
    cutoff = cutoff_of(ttl, now_us, arrow_type)
    column = entry.schema.field(ttl.column)
    last = _last_expiry(entry, column.id)
    domain = domain_of(arrow_type)
    unit_us = DAY_US if domain is Domain.DATE else 1
    expired = bind.compare("<", column, Value(domain, cutoff // unit_us))
    since = None
    if last is not None and last.before < cutoff:
        since = bind.conjunction([bind.compare(">=", column, Value(domain, last.before // unit_us)), expired])

    def may_hold(file: DataFile) -> bool:
        """Whether the file may have live rows that have expired since the last expiry."""
        if file.live_rows == 0:
            return False
        if last is None or file.greatest_row_ts > last.through:
            return may_hold_matches(file, expired, entry.schema)
        return since is not None and may_hold_matches(file, since, entry.schema)

    if not any(may_hold(file) for file in LiveFiles.of(entry, context.segments).find_matching(expired)):
        return None
    unit.add(Expect(name, entry.uuid, entry.properties, ["ttl"]))  # if the ttl became longer, these rows must live
    transaction.table(name).delete(expired)
    expiry = LastExpiry(column.id, entry.epoch, cutoff, base.commit_ts)
    unit.add(SetProperties(name, entry.uuid, {EXPIRED: msgspec.to_builtins(expiry)}))
    return cutoff


def _last_expiry(entry: TableEntry, column: int) -> LastExpiry | None:
    """The last expiry in the table's properties; None if it was about another column or other rows."""
    stored = entry.properties.get(EXPIRED)
    if stored is None:
        return None
    last = msgspec.convert(stored, LastExpiry)
    return last if (last.column, last.epoch) == (column, entry.epoch) else None


build_decoders(LastExpiry)
