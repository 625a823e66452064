"""A table inside a transaction: reads see what stands before them there, writes are added to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dolmen import mutation
from dolmen.commit.statements import DeletePositions, Overwrite, Statement
from dolmen.commit.upkeep import SetProperties
from dolmen.errors import InputError
from dolmen.format.manifest import Manifest
from dolmen.format.properties import check_table_properties
from dolmen.predicate import Predicate
from dolmen.reading import ReadableTable, Where

if TYPE_CHECKING:
    from dolmen.transaction import Transaction


class TransactionTable(ReadableTable):
    """A table inside a transaction: reads see its statements, writes add to them."""

    def __init__(self, transaction: Transaction, name: str) -> None:
        super().__init__(transaction.context, name)
        self._transaction = transaction

    def _snapshot(self) -> Manifest:
        return self._transaction.manifest

    def _pending(self, key: str, offset: int, length: int) -> bytes | None:
        return self._transaction.bench.read(key, offset, length)

    def _note_read(self, predicate: Predicate | None) -> None:
        self._transaction.claim(self.name, predicate)

    def append(self, data: Any, *, request: str | None = None) -> None:
        """See ``Table.append``."""
        transaction = self._transaction
        entry = transaction.entry(self.name)
        if transaction.has_applied(request):
            return
        transaction.begin_upload()
        statement = mutation.append(self._context, self.name, entry, data, request, transaction.intent)
        if statement.files:
            transaction.add(statement)

    def upsert(self, data: Any, on: Sequence[str] | None = None, *, request: str | None = None) -> None:
        """See ``Table.upsert``."""
        transaction = self._transaction
        entry = transaction.entry(self.name)
        if transaction.has_applied(request):
            return
        transaction.begin_upload()
        statement = mutation.upsert(
            self._context, transaction.bench, self.name, entry, data, on, request, transaction.intent
        )
        if statement.files:
            transaction.add(statement)

    def replace(self, data: Any, keys: Any, *, request: str | None = None) -> None:
        """Adds rows and deletes the older ones with ``keys``, in one statement: an upsert whose keys are known.

        Args:
            keys: values of the primary key, tuples of several, or anything Arrow with columns of their names.
        """
        transaction = self._transaction
        entry = transaction.entry(self.name)
        if transaction.has_applied(request):
            return
        transaction.begin_upload()
        statement = mutation.replace(
            self._context, transaction.bench, self.name, entry, data, keys, request, transaction.intent
        )
        if statement.files or statement.tombstones:
            transaction.add(statement)

    def overwrite(self, data: Any, *, force: bool = False, request: str | None = None) -> None:
        """See ``Table.overwrite``."""
        transaction = self._transaction
        entry = transaction.entry(self.name)
        if transaction.has_applied(request):
            return
        transaction.begin_upload()
        base = transaction.base.tables.get(self.name)
        written = mutation.append(self._context, self.name, entry, data, request, transaction.intent)
        transaction.add(
            Overwrite(
                self.name,
                entry.uuid,
                base.epoch if base else 0,
                transaction.base.commit_ts,
                written.files,
                force,
                request,
            )
        )

    def set(self, **changes: Any) -> None:
        """See ``Table.set``."""
        entry = self._transaction.entry(self.name)
        if changes:
            checked = check_table_properties(changes, entry.schema, entry.primary_key, entry.properties)
            self._transaction.add(SetProperties(self.name, entry.uuid, checked))

    def delete(
        self,
        where: Where = None,
        *,
        keys: Any = None,
        on: Sequence[str] | None = None,
        mode: mutation.Mode = "tombstone",
        request: str | None = None,
    ) -> None:
        """See ``Table.delete``."""
        transaction, context = self._transaction, self._context
        entry = transaction.entry(self.name)
        statement: Statement | None
        if (keys is None) == (where is None):
            raise InputError("delete takes a predicate or keys=..., one of them")
        if transaction.has_applied(request):
            return
        if mode == "positions":
            if keys is not None:
                raise InputError('mode="positions" takes a predicate, not keys')
            transaction.pin()
            statement = mutation.delete_positions(
                context, transaction.bench, transaction.manifest, self.name, where, request
            )
            if statement is None and transaction.changes(self.name):
                # What stands before it may be why it found nothing, and may be taken out (Change.without).
                statement = DeletePositions.of(self.name, entry.uuid, {}, request)
        elif mode != "tombstone":
            raise InputError(f'mode {mode!r}: "tombstone" or "positions"')
        elif keys is not None:
            statement = mutation.delete_keys(transaction.bench, self.name, entry, keys, on, request)
        else:
            statement = mutation.delete_where(context, transaction.bench, self.name, entry, where, request)
        if statement is not None and getattr(statement, "tombstones", True):
            transaction.add(statement)
