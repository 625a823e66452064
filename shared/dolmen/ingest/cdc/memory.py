"""The memory of a table of changes: which keys were deleted at which sequence, in a table beside it.

``<table>__deleted`` has the key's columns and the sequence column; each delete that is applied adds a row. It holds
every delete after ``forgotten_through`` of the table's ``sequences``; a row that is there again since has a greater
sequence, which counts. What is older is deleted from it, at most sixteen times within ``cdc_memory``.

It also says which values are older than their rows, because the source left them out of later changes: a row with the
sequence of the row, the id of the column (``kept_column``) and the sequence of the change that the value is from
(``kept_since``; NULL if the row had none). The memory gets these two columns with the first such change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dolmen.commit.statements.sequence import forgettable
from dolmen.errors import InputError, InvalidNameError
from dolmen.format.layout import check_table_name, memory_name
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field
from dolmen.format.values import Json, from_json
from dolmen.ingest.cdc.current import KEPT_COLUMN, KEPT_SINCE
from dolmen.predicate.bind import compare
from dolmen.predicate.constants import Value
from dolmen.predicate.domain import domain_of
from dolmen.transactions.transaction import Transaction
from dolmen.transactions.transaction_table import TransactionTable


@dataclass(frozen=True, slots=True)
class DeleteMemory:
    """The memory of one table, as a transaction sees it.

    Args:
        table: None until it is created, by the first changes.
        forgotten_through: deletes up to this sequence (plain) may be missing in it; None = none is.
        forget: the sequence in JSON form through which it is to be emptied now; None = it is not.
    """

    transaction: Transaction
    name: str
    keys: tuple[Field, ...]
    sequence: Field
    table: TransactionTable | None
    forgotten_through: Any
    forget: Json

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
        """Looks for it.

        Args:
            age_us: what is older than this may be forgotten, microseconds.

        Raises:
            InvalidNameError: the table's name leaves no room for the memory's.
            InputError: another table has that name.
        """
        name = memory_name(table)
        try:
            check_table_name(name)
        except InvalidNameError:
            longest = 64 - len(memory_name(""))
            raise InvalidNameError(
                f"table {table!r}: deletes of its changes are remembered in table {name!r}, whose name is too long; "
                f"for ingest_mode cdc a name has at most {longest} characters"
            ) from None
        sequences, there = entry.sequences, transaction.manifest.tables.get(name)
        if there is not None and (sequences is None or there.uuid != sequences.memory):
            raise InputError(
                f"table {name!r} is in the way: deletes of the changes of {table!r} are to be remembered under this "
                "name; keep its rows elsewhere and drop it"
            )
        forgotten: Json = None
        # Marks beyond the base are this transaction's own: their time is not that of its commit.
        forget = forgettable(sequences, min(transaction.now_us - age_us, transaction.base.commit_ts))
        if sequences is not None:
            forgotten = sequences.forgotten_through
            if there is None:  # it was dropped: nothing up to here is remembered any more
                forgotten = forget = sequences.greatest
        plain = from_json(forgotten, sequence.arrow_type)
        found = transaction.table(name) if there else None
        return cls(transaction, name, keys, sequence, found, plain, forget)

    def ensure_table(self, request: str) -> tuple[TransactionTable, str]:
        """The table, created if it is missing, and its uuid."""
        found = self.table
        if found is None:
            fields = [pa.field(field.name, field.arrow_type, False) for field in (*self.keys, self.sequence)]
            names = [field.name for field in self.keys]
            found = self.transaction.create_table(self.name, pa.schema(fields), names, names, request=request)
        return found, self.transaction.manifest.tables[self.name].uuid

    def ensure_kept(self, table: TransactionTable, request: str) -> None:
        """Gives the memory the columns that say which values of a row are older than its sequence."""
        names = table.schema.names
        for name, kind in ((KEPT_COLUMN, pa.int64()), (KEPT_SINCE, self.sequence.arrow_type)):
            if name not in names:
                table.add_column(name, kind, request=request)

    def forget_old(self, request: str) -> None:
        """Deletes what is to be forgotten. Call it after ``ensure_table``."""
        if self.forget is None or self.table is None:
            return
        sequence = self.transaction.entry(self.name).schema.field(self.sequence.name)
        kind = sequence.arrow_type
        old = compare("<=", sequence, Value(domain_of(kind), from_json(self.forget, kind)))
        self.table.delete(old, request=request)
