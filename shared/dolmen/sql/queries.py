"""Queries of a text, over the tables of one version or of a transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.head import Context
from dolmen.errors import InputError, short_repr
from dolmen.rows.scan.engines.expressions import Literals
from dolmen.rows.scan.engines.sql import NO_TABLES, KeptRows, Parameters, SqlResult, TableSource, lists_tables, run_sql
from dolmen.sql.shown import ShownRelation
from dolmen.transactions.inspection import deletes_of, files_of, partitions_of, tags_of, versions_of
from dolmen.transactions.snapshot import Snapshot, pin, read_changes
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable, pin_table


@dataclass(frozen=True)
class Queries:
    """Runs queries over the tables of ``source``, relations of the text (``replace_shown``), and ``rows`` by name.

    ``literals`` are those of each column of queries that read literals as ``rows``.
    """

    context: Context
    source: Snapshot | Transaction
    shown: Mapping[str, ShownRelation] = field(default_factory=dict)
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    literals: Mapping[str, Sequence[Literals]] = field(default_factory=dict)
    _snapshots: dict[tuple[str, Any], Snapshot] = field(default_factory=dict)

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
        tables, relations = dict(tables or {}), {**self.rows, **(relations or {})}
        for view, shown in self.shown.items():
            if re.search(rf"\b{view}\b", query):
                if shown.name:
                    tables[view] = self._version(shown)
                else:
                    relations[view] = self._call(shown)
        return run_sql(query, _QueriedTables(self.source, tables), parameters, relations)

    def _version(self, shown: ShownRelation) -> TableSource:
        [text] = shown.arguments
        if shown.what == "TIMESTAMP":
            text = f"epoch_us(CAST((\n{text}\n) AS TIMESTAMPTZ))"
        [value] = self.scalars([text])
        if shown.what == "TAG":
            value = str(value)
        elif not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"AT ({shown.what} => {short_repr(shown.arguments[0])}) is not a {shown.what.lower()}")
        snapshot = self._snapshots.get((shown.what, value))
        if snapshot is None:
            snapshot = pin(self.context, **{"version": None, "timestamp": None, shown.what.lower(): value})
            self._snapshots[shown.what, value] = snapshot
        return snapshot.table(shown.name if shown.name in snapshot else shown.name.lower())

    def _call(self, shown: ShownRelation) -> pa.Table:
        """The rows of a function."""
        source, values = self.source, self.scalars(shown.arguments)
        manifest = unit_of(source).manifest if isinstance(source, Transaction) else source.manifest
        match shown.what:
            case "dolmen_versions":
                return versions_of(self.context, unit_of(source).base if isinstance(source, Transaction) else manifest)
            case "dolmen_tags":
                return tags_of(manifest)
        name = arguments.text(shown.what, values[0]).lower()
        if isinstance(source, Transaction):
            source.table(name)
        match shown.what:
            case "dolmen_files":
                return files_of(self.context, manifest, name)
            case "dolmen_partitions":
                return partitions_of(self.context, manifest, name)
            case "dolmen_deletes":
                return deletes_of(self.context, manifest, name)
        until = values[2] if len(values) > 2 else (manifest.version if isinstance(source, Snapshot) else None)
        changes = read_changes(self.context, name, values[1], until, None, None, None, net=False)
        return KeptRows(changes.schema, changes).to_table()

    def scalars(self, texts: Sequence[str]) -> list[Any]:
        """The values of expressions without a table. Raises InputError."""
        if not texts:
            return []
        [row] = run_sql("SELECT " + ", ".join(f"(\n{text}\n)" for text in texts), NO_TABLES).fetchall()
        return list(row)

    def target(self, transaction: Transaction, name: str) -> TransactionTable:
        """The table that a statement changes; its name ignores case, as names of SQL do."""
        if name in self.shown:
            raise InputError(
                "an older version can't be changed, nor what a function shows: name the table, or restore it"
            )
        names = unit_of(transaction).tables
        return transaction.table(name if name in names else name.lower())


@dataclass(frozen=True)
class _QueriedTables:
    """The tables that a query may name. Looking a name up here does not make the commit depend on all names."""

    source: Snapshot | Transaction
    more: Mapping[str, TableSource] = field(default_factory=dict)

    def tables(self) -> list[str]:
        source = self.source
        own = unit_of(source).tables if isinstance(source, Transaction) else source.manifest.tables
        return sorted({*own, *self.more})

    def table(self, name: str) -> TableSource:
        if name in self.more:
            return self.more[name]
        source = self.source
        return pin_table(source.table(name)) if isinstance(source, Transaction) else source.table(name)
