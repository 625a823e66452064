"""Rows that are replaced: hidden by their positions, and written anew, by statements of one commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from dolmen import mutation
from dolmen.commit.statements.rows import DeletePositions, Write
from dolmen.format.manifest import TableEntry
from dolmen.predicate import Predicate
from dolmen.scan.scan import Scan
from dolmen.scan.view import View
from dolmen.unit_of_work import UnitOfWork

Positions: TypeAlias = npt.NDArray[np.int64]


class HiddenRows:
    """Positions of rows that are to be hidden, by the path of their file."""

    def __init__(self) -> None:
        self.positions: dict[str, BitMap] = {}

    def add(self, path: str, positions: Positions) -> None:
        """Adds rows of one file."""
        if len(positions):
            self.positions.setdefault(path, BitMap()).update(BitMap(positions.astype(np.uint32)))


def claimed_scan(transaction: UnitOfWork, name: str, columns: list[str] | None, predicate: Predicate | None) -> Scan:
    """A scan whose rows the commit depends on: it is refused if others change them.

    Args:
        columns: names; all by default.
        predicate: only rows for which it is TRUE; all by default.
    """
    transaction.claim(name, predicate)
    view = View(transaction.context, transaction.manifest, name, transaction.uploads.read)
    return Scan(view, columns=columns, where=predicate)


def replace_rows(
    transaction: UnitOfWork,
    name: str,
    entry: TableEntry,
    rows: Iterable[pa.RecordBatch],
    hidden: HiddenRows,
    request: str | None,
    columns: tuple[int, ...] = (),
) -> None:
    """Writes rows, and adds the statements that hide others and show these.

    Args:
        rows: of exactly the table's schema; taken once.
        hidden: complete when the last of ``rows`` was taken.
        columns: ids of the columns by which rows were found, for the history.
    """
    transaction.begin_upload()
    files = mutation.write_rows(transaction.context, name, entry, rows, transaction.intent)
    if hidden.positions or transaction.changes(entry.uuid):
        # Earlier statements may be why it hides nothing, and a rebase may remove them (Change.without).
        transaction.add(DeletePositions.of(name, entry.uuid, hidden.positions, request, columns))
    if files:
        transaction.add(Write(name, entry.uuid, files, request=request, schema=entry.schema))
