"""Looks up the latest sequence of some keys in a table and in its memory of deletes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dolmen.format.schema import COMMIT_TS, Field
from dolmen.format.values import to_plain
from dolmen.ingest.cdc.changes import last_of_each
from dolmen.predicate import Predicate
from dolmen.predicate.bind import compare, conjunction, one_of
from dolmen.predicate.constants import Value
from dolmen.predicate.domain import domain_of
from dolmen.transactions.transaction import Transaction

LIVE, SEQUENCE, TS, KNOWN = "live", "sequence", "ts", "known"
KEPT_COLUMN, KEPT_SINCE = "kept_column", "kept_since"
"""Columns of a memory (``memory``)."""
LIST = 1000
"""A condition lists at most this many values; more are asked for as a range."""
INDEXED_LIST = 10_000
"""But so many where a table has an index of them, which finds listed keys wherever they are."""

_FOLD_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LatestSequences:
    """The latest sequences of some keys, and values that are older.

    Args:
        rows: of each key that is live or remembered the greatest sequence. The keys' columns, ``live`` (whether there
            are rows of it), ``sequence`` (NULL for rows without one) and ``ts`` (when it came to it).
        kept: which values of live rows are older than their sequences. ``place`` among ``rows``, ``kept_column`` and
            ``kept_since``.
    """

    rows: pa.Table
    kept: pa.Table


def latest_sequences(
    transaction: Transaction,
    table: str,
    memory: str | None,
    wanted: pa.Table,
    keys: tuple[Field, ...],
    sequence: Field,
) -> LatestSequences:
    """The latest sequences of some keys, in the table and in its memory.

    Reads are claims: the transaction is valid only if they are still right when it commits.

    Args:
        memory: name of the table of deleted keys, if there is one.
        wanted: the keys; columns named by ids.
    """
    found = [_rows(transaction, table, wanted, keys, sequence, live=True)]
    if memory is not None:
        found.append(_rows(transaction, memory, wanted, keys, sequence, live=False))
    rows = pa.concat_tables([each.drop_columns([KEPT_COLUMN, KEPT_SINCE]) for each in found])
    names = [str(field.id) for field in keys]
    latest = last_of_each(rows, names, [KNOWN, SEQUENCE, TS])
    alive = rows.group_by(names, use_threads=False).aggregate([(LIVE, "max")]).rename_columns([*names, LIVE])
    latest = latest.select([*names, SEQUENCE, TS]).join(alive, names, join_type="inner", use_threads=False)
    return LatestSequences(latest, _older_values(found[-1], latest, names))


def _older_values(remembered: pa.Table, latest: pa.Table, names: list[str]) -> pa.Table:
    """The values that are older than their rows, if these are live with the sequences that the memory names."""
    remembered = remembered.filter(pc.is_valid(remembered[KEPT_COLUMN]))
    own = latest.append_column("place", pa.array(np.arange(latest.num_rows))).filter(latest[LIVE])
    own = own.select([*names, SEQUENCE, "place"]).rename_columns([*names, "own", "place"])
    both = remembered.join(own, names, join_type="inner", use_threads=False)
    return both.filter(pc.equal(both[SEQUENCE], both["own"])).select(["place", KEPT_COLUMN, KEPT_SINCE])


def _rows(
    transaction: Transaction, table: str, wanted: pa.Table, keys: tuple[Field, ...], sequence: Field, *, live: bool
) -> pa.Table:
    names, where = [field.name for field in keys], condition_on_keys(transaction, table, keys, wanted)
    more = [] if live else [name for name in (KEPT_COLUMN, KEPT_SINCE) if name in transaction.table(table).schema.names]
    scan = transaction.table(table).scan([*names, sequence.name, *more], where, with_commit_ts=True)
    schema = pa.schema(
        [
            *((str(field.id), field.arrow_type) for field in keys),
            (SEQUENCE, sequence.arrow_type),
            (TS, pa.int64()),
            (KEPT_COLUMN, pa.int64()),
            (KEPT_SINCE, sequence.arrow_type),
        ]
    )

    def read_wanted() -> Iterator[pa.Table]:
        """Yields the rows with wanted keys; rows of other keys are soon dropped, to bound memory."""
        held: list[pa.Table] = []
        size = 0
        for batch in scan.to_batches():
            arrays = [*(batch[name] for name in names), batch[sequence.name], batch[COMMIT_TS]]
            arrays += [batch[name] for name in more] or [pa.nulls(len(batch), kind) for kind in schema.types[-2:]]
            rows = pa.table(arrays, schema=schema)
            for field in keys:
                rows = rows.filter(pc.is_in(rows[str(field.id)], wanted[str(field.id)].combine_chunks()))
            held.append(rows)
            size += rows.num_rows
            if size > _FOLD_ROWS:
                yield _select_wanted(held, wanted, keys)
                held, size = [], 0
        yield _select_wanted(held, wanted, keys) if held else schema.empty_table()

    rows = pa.concat_tables(read_wanted())
    known = pc.is_valid(rows[SEQUENCE]).cast(pa.int8())
    lives = pa.array(np.full(rows.num_rows, live))
    return rows.append_column(KNOWN, known).append_column(LIVE, lives)


def _select_wanted(held: list[pa.Table], wanted: pa.Table, keys: tuple[Field, ...]) -> pa.Table:
    rows = pa.concat_tables(held)
    if len(keys) == 1:
        return rows
    names = [str(field.id) for field in keys]
    return rows.join(wanted.select(names), names, join_type="left semi", use_threads=False)


def condition_on_keys(transaction: Transaction, table: str, keys: tuple[Field, ...], wanted: pa.Table) -> Predicate:
    """A condition on the rows of a table, or of a memory, that those with one of the keys fulfil, and maybe others.

    Args:
        wanted: the keys; columns named by ids.
    """
    entry = transaction.entry(table)
    most = INDEXED_LIST if len(keys) == 1 and entry.segments_of("index") else LIST
    return conjunction([_condition_on(entry.schema.field(key.name), wanted[str(key.id)], most) for key in keys])


def _condition_on(field: Field, values: pa.ChunkedArray, most: int) -> Predicate:
    """A condition on a column that all of ``values`` fulfil: up to ``most`` of them exactly, more by their range."""
    domain = domain_of(field.arrow_type)
    distinct = pc.unique(values)
    if len(distinct) <= most:
        return one_of(field, [Value(domain, value) for value in to_plain(distinct)])
    ends = pc.min_max(distinct)
    least, greatest = to_plain(pa.array([ends["min"], ends["max"]], field.arrow_type))
    return conjunction([compare(">=", field, Value(domain, least)), compare("<=", field, Value(domain, greatest))])
