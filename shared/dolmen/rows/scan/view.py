"""A view: one table in one version, and what is needed to read it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from dolmen.commit.context import Context
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.rows.scan.blobs import Pending


@dataclass(frozen=True)
class View:
    """One table as one version shows it. Another process reads the same rows from a pickled view.

    Args:
        context: the database's store, runtime and cache.
        manifest: the version.
        table: the table's name.
        pending: reads objects that a transaction has not uploaded yet; None outside of transactions.
    """

    context: Context
    manifest: Manifest
    table: str
    pending: Pending | None = None

    def entry(self) -> TableEntry:
        """The table's entry, with what has left the manifest. Raises TableNotFoundError."""
        return self.context.segments.whole(self.manifest.table(self.table))

    def reading(self) -> AbstractContextManager[None]:
        """Surrounds work that reads the version's objects: see ``Context.reading``."""
        return self.context.reading(self.manifest.version)
