"""The memory of a table of changes: deleted keys and their sequences, in the table ``<table>__deleted`` (docs/cdc.md).

It has the key's columns and the sequence column, and holds every delete after ``forgotten_through`` of the table's
``sequences``. If a row exists again since, its sequence is greater, and wins.

It also records values that are older than their rows, because the source left them out of later changes: the sequence
of the row, the id of the column (``kept_column``) and the sequence of the change that supplied the value
(``kept_since``; NULL if the row had none). The first such change adds these two columns to the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.base import pc
from dolmen.commit.statements.row_changes import sequence_to_forget
from dolmen.errors import InputError, InvalidNameError
from dolmen.format.layout import check_table_name, memory_name
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import COMMIT_TS, Field
from dolmen.format.types import Json, from_json
from dolmen.predicate.ast import Predicate
from dolmen.predicate.bind import compare
from dolmen.predicate.constants import Value
from dolmen.predicate.domains import domain_of
from dolmen.rows.scan.rows_by_key import where_key_in
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable

LIVE, SEQUENCE, TS, HAS_SEQUENCE = "live", "sequence", "ts", "has_sequence"
KEPT_COLUMN, KEPT_SINCE = "kept_column", "kept_since"  # columns of a memory
LIST = 1000  # a condition lists at most this many values; for more it uses a range
INDEXED_LIST = 10_000  # the same for a table with an index, which finds listed keys in any file
_FOLD_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LatestSequences:
    """The latest sequences of some keys, and their older values."""

    # the key columns of live and remembered keys, ``live`` (whether the key has a row), the greatest ``sequence`` (NULL
    # for rows without one) and its commit timestamp ``ts``
    rows: pa.Table
    kept: pa.Table  # values older than their live rows: ``index`` in ``rows``, ``kept_column``, ``kept_since``


def latest_sequences(
    transaction: Transaction,
    table: str,
    memory: str | None,
    changes: pa.Table,
    keys: tuple[Field, ...],
    sequence: Field,
) -> LatestSequences:
    """Reads the latest sequences of the keys of ``changes``; the transaction depends on them."""
    tables = [_rows(transaction, table, changes, keys, sequence, live=True)]
    if memory is not None:
        tables.append(_rows(transaction, memory, changes, keys, sequence, live=False))
    rows = pa.concat_tables([each.drop_columns([KEPT_COLUMN, KEPT_SINCE]) for each in tables])
    names = [str(field.id) for field in keys]
    latest = last_of_each(rows, names, [HAS_SEQUENCE, SEQUENCE, TS])
    alive = rows.group_by(names, use_threads=False).aggregate([(LIVE, "max")]).rename_columns([*names, LIVE])
    latest = latest.select([*names, SEQUENCE, TS]).join(alive, names, join_type="inner", use_threads=False)
    return LatestSequences(latest, _older_values(tables[-1], latest, names))


def last_of_each(rows: pa.Table, keys: Sequence[str], order: Sequence[str]) -> pa.Table:
    """Keeps the last row of each key by ``order``; the result is in ``order``."""
    if rows.num_rows < 2:
        return rows
    sorted_ = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in order])
    ranks = np.empty(rows.num_rows, np.int64)
    ranks[sorted_.to_numpy()] = np.arange(rows.num_rows)
    last = (
        rows.select(keys)
        .append_column("rank", pa.array(ranks))
        .group_by(list(keys), use_threads=False)
        .aggregate([("rank", "max")])["rank_max"]
    )
    return rows.take(pc.take(sorted_, np.sort(last.to_numpy())))


def _older_values(remembered: pa.Table, latest: pa.Table, names: list[str]) -> pa.Table:
    """The values older than their rows, if the rows are live and have the sequences in the memory."""
    remembered = remembered.filter(pc.is_valid(remembered[KEPT_COLUMN]))
    own = latest.append_column("index", pa.array(np.arange(latest.num_rows))).filter(latest[LIVE])
    own = own.select([*names, SEQUENCE, "index"]).rename_columns([*names, "own", "index"])
    both = remembered.join(own, names, join_type="inner", use_threads=False)
    return both.filter(pc.equal(both[SEQUENCE], both["own"])).select(["index", KEPT_COLUMN, KEPT_SINCE])


def _rows(
    transaction: Transaction, table: str, changes: pa.Table, keys: tuple[Field, ...], sequence: Field, *, live: bool
) -> pa.Table:
    names, where = [field.name for field in keys], condition_on_keys(transaction, table, keys, changes)
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

    def read() -> Iterator[pa.Table]:
        """Yields the rows with these keys; drops rows of other keys early, to bound memory."""
        buffered: list[pa.Table] = []
        size = 0
        for batch in scan.to_batches():
            arrays = [*(batch[name] for name in names), batch[sequence.name], batch[COMMIT_TS]]
            arrays += [batch[name] for name in more] or [pa.nulls(len(batch), kind) for kind in schema.types[-2:]]
            rows = pa.table(arrays, schema=schema)
            for field in keys:
                rows = rows.filter(pc.is_in(rows[str(field.id)], changes[str(field.id)].combine_chunks()))
            buffered.append(rows)
            size += rows.num_rows
            if size > _FOLD_ROWS:
                yield _select_keys(buffered, changes, keys)
                buffered, size = [], 0
        yield _select_keys(buffered, changes, keys) if buffered else schema.empty_table()

    rows = pa.concat_tables(read())
    has_sequence = pc.is_valid(rows[SEQUENCE]).cast(pa.int8())
    is_live = pa.array(np.full(rows.num_rows, live))
    return rows.append_column(HAS_SEQUENCE, has_sequence).append_column(LIVE, is_live)


def _select_keys(tables: list[pa.Table], changes: pa.Table, keys: tuple[Field, ...]) -> pa.Table:
    rows = pa.concat_tables(tables)
    if len(keys) == 1:
        return rows
    names = [str(field.id) for field in keys]
    return rows.join(changes.select(names), names, join_type="left semi", use_threads=False)


def condition_on_keys(transaction: Transaction, table: str, keys: tuple[Field, ...], changes: pa.Table) -> Predicate:
    """A condition that matches all rows with a key in ``changes``, and maybe others."""
    entry = unit_of(transaction).entry(table)
    most = INDEXED_LIST if len(keys) == 1 and entry.segments_of("index") else LIST
    own = ((entry.schema.field(key.name), changes[str(key.id)]) for key in keys)
    return where_key_in({field.id: values.cast(field.arrow_type) for field, values in own}, most)


@dataclass(frozen=True, slots=True)
class DeleteMemory:
    """The memory of one table, as a transaction sees it; ``table`` is None until the first changes create it."""

    transaction: Transaction
    name: str
    keys: tuple[Field, ...]
    sequence: Field
    table: TransactionTable | None
    forgotten_through: Any  # deletes up to this sequence (plain) may be missing; None: it has all deletes
    forget: Json  # now delete entries up to this sequence (in JSON form); None: delete none

    @classmethod
    def of(
        cls,
        transaction: Transaction,
        table: str,
        entry: TableEntry,
        keys: tuple[Field, ...],
        sequence: Field,
        age_us: int,
    ) -> DeleteMemory:
        """The memory of a table, which may forget deletes older than ``age_us``. Raises InputError."""
        unit = unit_of(transaction)
        name = memory_name(table)
        try:
            check_table_name(name)
        except InvalidNameError:
            longest = 64 - len(memory_name(""))
            raise InvalidNameError(
                f"table {table!r}: deletes of its changes are remembered in table {name!r}, whose name is too long; "
                f"for ingest_mode cdc a name has at most {longest} characters"
            ) from None
        sequences, memory = entry.sequences, unit.tables.get(name)
        if memory is not None and (sequences is None or memory.uuid != sequences.memory):
            raise InputError(
                f"table {name!r} has the name under which the deletes of the changes of {table!r} must be remembered: "
                "copy its rows elsewhere, and drop it"
            )
        forgotten: Json = None
        # Marks after the base are this transaction's own: their time is not its commit time.
        forget = sequence_to_forget(sequences, min(unit.now_us - age_us, unit.base.commit_ts))
        if sequences is not None:
            forgotten = sequences.forgotten_through
            if memory is None:  # it was dropped: all deletes up to here are lost
                forgotten = forget = sequences.greatest
        plain = from_json(forgotten, sequence.arrow_type)
        memory_table = transaction.table(name) if memory else None
        return cls(transaction, name, keys, sequence, memory_table, plain, forget)

    def ensure_table(self, request: str) -> tuple[TransactionTable, str]:
        """Returns the table, created if it is missing, and its uuid."""
        table = self.table
        if table is None:
            fields = [pa.field(field.name, field.arrow_type, False) for field in (*self.keys, self.sequence)]
            names = [field.name for field in self.keys]
            table = self.transaction.create_table(self.name, pa.schema(fields), names, names, request=request)
        return table, unit_of(self.transaction).tables[self.name].uuid

    def ensure_kept(self, table: TransactionTable, request: str) -> None:
        """Adds to the memory the columns for values that are older than their rows."""
        names = table.schema.names
        for name, kind in ((KEPT_COLUMN, pa.int64()), (KEPT_SINCE, self.sequence.arrow_type)):
            if name not in names:
                table.add_column(name, kind, request=request)

    def forget_old(self, request: str) -> None:
        """Deletes the rows to forget. Call it after ``ensure_table``."""
        if self.forget is None or self.table is None:
            return
        sequence = unit_of(self.transaction).entry(self.name).schema.field(self.sequence.name)
        kind = sequence.arrow_type
        old = compare("<=", sequence, Value(domain_of(kind), from_json(self.forget, kind)))
        self.table.delete(old, request=request)
