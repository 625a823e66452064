"""Rows that are replaced: hidden by their positions, and written anew, by statements of one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.units import MIB
from dolmen.commit.statements.rows import DeletePositions, Write
from dolmen.format.manifest import TableEntry
from dolmen.predicate import Predicate
from dolmen.rows.scan.positions import PositionedRows, rows_with_positions
from dolmen.rows.scan.scan import Scan
from dolmen.rows.scan.view import View
from dolmen.transactions import row_statements
from dolmen.transactions.unit_of_work import UnitOfWork

STEP = 65_536
STEP_BYTES = 64 * MIB
"""The number of rows that are worked on at once: large row groups are split, small ones are joined."""

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlacedRows:
    """Rows of one or several files, with their places.

    Args:
        rows: the rows.
        paths: of the files.
        files: the place of each row's file among ``paths``, ascending.
        positions: of each row in its file.
    """

    rows: pa.RecordBatch
    paths: Sequence[str]
    files: Places
    positions: Places


class HiddenRows:
    """Positions of rows that are to be hidden, by the path of their file."""

    def __init__(self) -> None:
        self.positions: dict[str, BitMap] = {}

    def add(self, placed: PlacedRows, places: Places) -> None:
        """Adds some of the rows.

        Args:
            places: of the rows, ascending.
        """
        if len(places) == 0:
            return
        files, positions = placed.files[places], placed.positions[places].astype(np.uint32)
        starts = np.append(0, np.flatnonzero(np.diff(files)) + 1)
        for file, own in zip(files[starts], np.split(positions, starts[1:]), strict=True):
            self.positions.setdefault(placed.paths[file], BitMap()).update(BitMap(own))


def claimed_rows(
    transaction: UnitOfWork,
    name: str,
    columns: Sequence[str],
    predicate: Predicate | None,
    *,
    with_commit_ts: bool = False,
) -> Iterator[PlacedRows]:
    """Reads rows on which the commit depends: it is refused if others change them. The claim is made at once.

    Args:
        columns: names.
        predicate: only rows for which it is TRUE; all by default.
    """
    transaction.claim(name, predicate)
    view = View(transaction.context, transaction.manifest, name, transaction.uploads.read)
    scan = Scan(view, columns=columns, where=predicate, with_commit_ts=with_commit_ts)
    return _in_steps(rows_with_positions(scan))


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
    passing = transaction.passing(entry, rows, leave_out=False)  # one that is left out would be deleted
    files = row_statements.write_rows(transaction.context, name, entry, passing, transaction.intent)
    if hidden.positions or transaction.changes(entry.uuid):
        # Earlier statements may be why it hides nothing, and a rebase may remove them (Change.without).
        transaction.add(DeletePositions.of(name, entry.uuid, hidden.positions, request, columns))
    if files:
        transaction.add(Write(name, entry.uuid, files, request=request, schema=entry.schema))


def _in_steps(found: Iterable[PositionedRows]) -> Iterator[PlacedRows]:
    """Cuts large batches, and joins small ones."""
    held: list[PositionedRows] = []
    rows = size = 0
    for batch, path, positions in found:
        for start in range(0, batch.num_rows, STEP):
            part = batch.slice(start, STEP)
            if held and (rows + part.num_rows > STEP or size + part.nbytes > STEP_BYTES):
                yield _joined(held)
                held, rows, size = [], 0, 0
            held.append((part, path, positions[start : start + STEP]))
            rows += part.num_rows
            size += part.nbytes
    if held:
        yield _joined(held)


def _joined(parts: Sequence[PositionedRows]) -> PlacedRows:
    rows = parts[0][0] if len(parts) == 1 else pa.concat_batches([rows for rows, _, _ in parts])
    files = np.repeat(np.arange(len(parts)), [part.num_rows for part, _, _ in parts])
    return PlacedRows(rows, [path for _, path, _ in parts], files, np.concatenate([places for _, _, places in parts]))
