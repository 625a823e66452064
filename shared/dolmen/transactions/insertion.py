"""Inserts: rows that are added only if the table has none of their primary keys, whatever others commit meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from dolmen.base.units import MIB
from dolmen.commit.context import Context
from dolmen.commit.draft import Draft
from dolmen.commit.statements.row_changes import InsertRows, Write
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.index.sorting import KeyRuns
from dolmen.entries.index.table_index import encoding_of
from dolmen.errors import ConflictError, DuplicateKeyError, InputError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.types import to_plain
from dolmen.predicate.text import plain_text
from dolmen.rows.scan.lookup import existing_keys
from dolmen.rows.scan.plan import View
from dolmen.rows.scan.scan_deletes import ErasedRowsFilter
from dolmen.rows.write.row_digest import RowDigest
from dolmen.rows.write.row_input import check_not_null
from dolmen.transactions import row_statements
from dolmen.transactions.unit_of_work import UnitOfWork

HELD_BYTES = 64 * MIB
"""Up to this much Arrow memory, the keys of rows are checked before anything is written; of more rows, afterwards."""

NAMED = 10
"""The most keys that an error names."""


def insert_rows(
    unit: UnitOfWork,
    name: str,
    entry: TableEntry,
    data: Any,
    request: str | None,
    digest: RowDigest | None,
    erased: ErasedRowsFilter | None = None,
) -> InsertRows | None:
    """Writes rows into data files, and returns the statement that adds them; None without rows.

    Args:
        request: the request that this belongs to. If it was applied meanwhile, there is nothing to add.
        digest: updated with the rows.
        erased: counts rows that were erased, and may leave them out.

    Raises:
        DuplicateKeyError: several rows have one key, or the table has it.
        RowError: a key is NULL, or a row does not fit.
    """
    fields = primary_key(name, entry)
    keys = KeyRuns(pa.schema([field.to_arrow() for field in fields]))
    check = _InsertCheck(unit.context, name, entry.uuid, fields, keys)
    held, rest = _hold(_add_keys(row_statements.rows_of(entry, data, digest, erased), fields, keys))
    if not held:
        return None
    made: InsertRows | None = InsertRows(Write(name, entry.uuid, request=request, schema=entry.schema), check)
    if made and rest is None:
        made = _fit(unit, made, check)
    if made is None:
        return None
    files = row_statements.write_rows(unit.context, name, entry, chain(held, rest or ()), unit.intent)
    made = replace(made, write=replace(made.write, files=files))
    return made if rest is None else _fit(unit, made, check)


def add_inserts(unit: UnitOfWork, entry: TableEntry, write: Write, keys: Iterable[pa.RecordBatch]) -> None:
    """Adds rows that are written already, provided that the table has none of the keys of some of them.

    Args:
        write: adds the rows, and hides none.
        keys: the primary keys, in the columns of the table, of the rows that must be new.

    Raises:
        DuplicateKeyError: several rows have one key, or the table has it.
        RowError: a key is NULL.
    """
    fields = primary_key(write.name, entry)
    noted = KeyRuns(pa.schema([field.to_arrow() for field in fields]))
    for _ in _add_keys(keys, fields, noted):
        pass
    check = _InsertCheck(unit.context, write.name, write.uuid, fields, noted)
    check.check_distinct()
    unit.add(InsertRows(write, check))


def primary_key(name: str, entry: TableEntry) -> tuple[Field, ...]:
    """The columns of a table's primary key, in its order. Raises InputError if it has none."""
    if not entry.primary_key:
        raise InputError(f"table {name!r} has no primary key, by which insert would compare rows: append them")
    return tuple(entry.schema.by_id[id_] for id_ in entry.primary_key)


def _fit(unit: UnitOfWork, statement: InsertRows, check: _InsertCheck) -> InsertRows | None:
    """Checks the keys; None if the request was applied by a version that the transaction did not know."""
    check.check_distinct()
    try:
        return unit.fit(statement)
    except DuplicateKeyError:
        if not unit.renew():
            raise
    return None if unit.has_applied(statement.request) else unit.fit(statement)


def _add_keys(batches: Iterable[pa.RecordBatch], fields: tuple[Field, ...], keys: KeyRuns) -> Iterator[pa.RecordBatch]:
    """Passes rows on, and notes their keys. Raises RowError for a NULL in a key."""
    names, seen = [field.name for field in fields], 0
    for batch in batches:
        check_not_null(batch, fields, seen)
        seen += batch.num_rows
        keys.add(batch.select(names))
        if batch.num_rows:
            yield batch


def _hold(batches: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
    """The first ``HELD_BYTES`` of rows, and the others; None if these are all."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > HELD_BYTES:
            return held, batches
    return held, None


class _InsertCheck:
    """Compares the keys of an insert with each other and with those of the table.

    Args:
        name, uuid: the table's.
        fields: the columns of its primary key.
        keys: of the rows to insert.
    """

    def __init__(self, context: Context, name: str, uuid: str, fields: tuple[Field, ...], keys: KeyRuns) -> None:
        self._context, self._name, self._uuid, self._fields, self._keys = context, name, uuid, fields, keys

    def check_distinct(self) -> None:
        """Raises DuplicateKeyError if several rows have one key."""
        count, first = self._keys.repeated(NAMED)
        if count:
            raise self._error(count, first, in_rows=True)

    def __call__(self, draft: Draft, uploads: PendingUploads, newer_than: int) -> None:
        """See ``KeysCheck``."""
        entry = draft.table(self._name, self._uuid)
        if encoding_of(entry).kinds != self._keys.encoding.kinds:
            raise ConflictError(
                f"table {self._name!r}: the type of its key was changed meanwhile: insert the rows again"
            )
        manifest = msgspec.structs.replace(draft.base, tables=dict(draft.tables))
        view = View(self._context, manifest, self._name, uploads.read)
        count, first = existing_keys(view, self._keys, newer_than, NAMED)
        if count and first is not None:
            raise self._error(count, first, in_rows=False)

    def _error(self, count: int, first: pa.Table, *, in_rows: bool) -> DuplicateKeyError:
        values = zip(*map(_shown_values, first.columns), strict=True)
        names = [field.name for field in self._fields]
        return DuplicateKeyError(self._name, names, list(values), count, in_rows=in_rows)


def _shown_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a key's column; dates and times that Python does not have as text."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [plain_text(value, column.type) for value in to_plain(column.combine_chunks())]
