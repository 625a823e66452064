"""Queries of a text, over the tables of one version or of a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dolmen.commit.head import Context
from dolmen.rows.scan.engines.sql import NO_TABLES, Parameters, SqlResult, TableSource, lists_tables, run_sql
from dolmen.transactions.snapshot import Snapshot
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable


@dataclass(frozen=True)
class Queries:
    """Runs queries over the tables of ``source``."""

    context: Context
    source: Snapshot | Transaction

    def run(
        self,
        query: str,
        tables: Mapping[str, TableSource] | None = None,
        relations: Mapping[str, pa.Table] | None = None,
        parameters: Parameters = None,
    ) -> SqlResult:
        """Prepares a query over the tables, further ``tables`` and rows in memory. Raises as ``Database.sql``."""
        if isinstance(self.source, Transaction) and lists_tables(query):
            unit_of(self.source).depend_on_names()
        return run_sql(query, _QueriedTables(self.source, tables or {}), parameters, relations)

    def scalars(self, texts: Sequence[str]) -> list[Any]:
        """The values of expressions without a table. Raises InputError."""
        if not texts:
            return []
        [row] = run_sql("SELECT " + ", ".join(f"(\n{text}\n)" for text in texts), NO_TABLES).fetchall()
        return list(row)

    def target(self, transaction: Transaction, name: str) -> TransactionTable:
        """The table that a statement changes; its name ignores case, as names of SQL do."""
        names = unit_of(transaction).manifest.tables
        return transaction.table(name if name in names else name.lower())


@dataclass(frozen=True)
class _QueriedTables:
    """The tables that a query may name. Looking a name up here does not make the commit depend on all names."""

    source: Snapshot | Transaction
    more: Mapping[str, TableSource] = field(default_factory=dict)

    def tables(self) -> list[str]:
        source = self.source
        own = unit_of(source).manifest.tables if isinstance(source, Transaction) else source.manifest.tables
        return sorted({*own, *self.more})

    def table(self, name: str) -> TableSource:
        return self.more[name] if name in self.more else self.source.table(name)
