"""Autocommit: a statement of a table's handle is one commit, by the columns that the table has when it lands.

Read-modify-write: runs a function in transactions on ever newer versions until nothing it read has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from dolmen.base import arguments
from dolmen.base.runtime import AUTOCOMMIT, TRANSACTION, attempts
from dolmen.commit.change import ColumnsMovedError, ErasedMeanwhileError, find_applied
from dolmen.commit.context import Context
from dolmen.commit.versions import manifest_at_version
from dolmen.errors import AppliedIdError, ConflictError, Error, InputError, NotFoundError, VersionExpiredError
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Schema
from dolmen.transactions.results import Commit
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable

T = TypeVar("T")


@dataclass(frozen=True)
class Replayed(Generic[T]):
    """The result of a function, and the commit of the run that succeeded."""

    value: T
    commit: Commit


def replay(
    context: Context,
    function: Callable[[Transaction], T],
    operation: str = "transaction",
    *,
    message: str | None = None,
) -> Replayed[T]:
    """Runs ``function`` in transactions on ever newer versions until one commits."""
    conflict: Error
    for _ in attempts(context.runtime, TRANSACTION):
        transaction = Transaction(context, operation, message=message, newest=True)
        try:
            value = function(transaction)
        except VersionExpiredError as error:
            if unit_of(transaction).base.version >= context.head.refresh().manifest.horizon:
                raise  # of another version, which the function chose to read
            conflict = error
            continue
        try:
            return Replayed(value, transaction.commit())
        except ConflictError as error:
            conflict = error
    raise conflict


@dataclass(frozen=True)
class Autocommit:
    """One statement on one table.

    If its request was applied before, and the statement no longer fits the columns, its content is compared by the
    columns of the version that applied it.

    Args:
        context: the database's.
        name: the table's.
        operation: a word for ``history``.
        statement: adds itself to a transaction.
        message: the author's, for ``history``.
        request: its request id.
        data: what it reads. If that can be read only once, a change of columns is a ConflictError.
        holds: whether small data files may wait for the commit, as the statement reads none of them.
    """

    context: Context
    name: str
    operation: str
    statement: Callable[[TransactionTable], None]
    message: str | None = None
    request: str | None = None
    data: Any = None
    holds: bool = False

    def replay(self) -> Commit:
        """Commits it after all that was committed before, made again until nothing that it read has changed.

        Raises:
            ConflictError: that did not happen, a hundred times in a row.
        """
        try:
            return replay(
                self.context, lambda tx: self.statement(tx.table(self.name)), self.operation, message=self.message
            ).commit
        except InputError as error:
            if (commit := self._applied_before(error)) is not None:
                return commit
            raise

    def run(self) -> Commit:
        """Commits it on the version that this process knows, and what was committed since.

        If it does not fit the columns of that version, or these have changed by the commit, it is made once more on the
        newest version.

        Raises:
            ConflictError: columns have changed, and the data can be read only once; or the table is another one now.
        """
        for attempt in attempts(self.context.runtime, AUTOCOMMIT):
            transaction = Transaction(self.context, self.operation, message=self.message)
            unit = unit_of(transaction)
            try:
                return self._commit(transaction)
            except ErasedMeanwhileError:
                if attempt.is_last or not _is_repeatable(self.data):
                    raise
            except (InputError, ColumnsMovedError) as error:
                if (commit := self._applied_before(error)) is not None:
                    return commit
                if isinstance(error, AppliedIdError) or not self._has_new_columns(unit.base, error):
                    raise
                if attempt.is_last:
                    raise
                if not _is_repeatable(self.data):
                    raise ConflictError(
                        f"columns of table {self.name!r} have changed since version {unit.base.version}, which "
                        "this handle knew, and the rows can be read only once: repeat the call with rows from their "
                        "beginning"
                    ) from error
        raise AssertionError("the last round returns or raises")

    def _commit(self, transaction: Transaction) -> Commit:
        unit = unit_of(transaction)
        with transaction:
            if self.holds:
                unit.uploads.files.allow()
            self.statement(transaction.table(self.name))
            if self.operation != "alter":  # which compares the columns itself
                unit.claim_columns(self.name)
            return transaction.commit()

    def _applied_before(self, error: Error) -> Commit | None:
        """The outcome of a request that does not fit the present columns, if an earlier version applied it.

        Raises:
            AppliedIdError: another request was applied under its id.
        """
        if self.request is None or not _is_repeatable(self.data):
            return None
        try:
            arguments.request_id(self.request)
        except InputError:  # the error is about it, or another one
            return None
        newest = self.context.head.refresh().manifest
        applied = find_applied(newest, [self.request], self.context.segments).get(self.request)
        now = newest.tables.get(self.name)
        if applied is None or now is None:
            return None
        try:
            then = manifest_at_version(self.context.head, newest, applied.version)
        except NotFoundError:  # it has expired, and its columns with it
            return None
        name = then.name_of(now.uuid)
        if name is None or self._schema(then.tables[name]) == self._schema(now):
            return None
        transaction = Transaction(self.context, self.operation, base=then)
        try:
            self.statement(transaction.table(name))
        except InputError:
            raise error from None
        return Commit.nothing(newest.as_history(), transaction.commit().already)

    def _has_new_columns(self, base: Manifest, error: Error) -> bool:
        """Whether the table has other columns now than in the version in which the statement did not fit.

        Raises:
            ConflictError, TableNotFoundError: it is another table now, or none.
        """
        known = base.tables.get(self.name)
        now = self.context.head.refresh().manifest.table(self.name)
        if known is None:
            return False
        if known.uuid != now.uuid:
            raise ConflictError(
                f"table {self.name!r} was dropped and created again since version {base.version}, which this handle "
                "knows and the input does not fit: open it anew and repeat"
            ) from error
        return self._schema(known) != self._schema(now)

    def _schema(self, entry: TableEntry) -> Schema:
        return self.context.segments.whole(entry).schema


def _is_repeatable(data: Any) -> bool:
    """Whether rows or keys can be read twice: values, Arrow data in memory and frames, but no reader or iterator."""
    known = (str, bytes, Mapping, Sequence, Set, pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray, np.ndarray)
    return data is None or isinstance(data, known) or type(data).__name__ in ("DataFrame", "Series")
