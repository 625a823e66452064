"""Gathers deletion vectors: a scan fetches vectors that are side by side in one request.

Every delete by position leaves a ``.del`` object of its own. When a table's vectors are spread over too many objects,
the small vectors are moved into one. This is done only in a table without unresolved deletes: a moved vector needs a
greater pair than before, so its file's ``applied_through`` becomes that of the snapshot, and that is correct only if
nothing is left to resolve.
"""

from __future__ import annotations

from collections.abc import Callable

from pyroaring import BitMap

from dolmen.base.units import KIB, MIB
from dolmen.commit.context import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import Resolve
from dolmen.entries.segments.live import LiveFiles
from dolmen.format.entries import DataFile
from dolmen.maintenance import never

MOST_OBJECTS = 32
"""Vectors are gathered when they are spread over more ``.del`` objects than this."""

SMALL_BYTES = 64 * KIB
"""A vector larger than this, in bytes, stays where it is: it is worth a request of its own."""

_BATCH_FILES = 1_000
_BATCH_BYTES = 16 * MIB


def gather_vectors(context: Context, name: str, *, deadline: Callable[[], bool] = never) -> int:
    """Moves a table's small vectors into few objects, if they are in many. Returns the number of vectors moved.

    Args:
        deadline: asked before each commit of at most a thousand vectors.

    Raises:
        TableNotFoundError: no such table.
    """
    manifest = (context.head.cached or context.head.refresh()).manifest  # it need not be the newest
    entry = context.segments.whole(manifest.table(name))
    if entry.tombstones or entry.segments_of("tombstones"):
        return 0
    scattered = _scattered_files(LiveFiles.of(entry, context.segments))
    moved = 0
    while scattered and not deadline():
        batch, size = list[DataFile](), 0
        while scattered and len(batch) < _BATCH_FILES and size < _BATCH_BYTES:
            file = scattered.pop()
            batch.append(file)
            size += file.vector.length if file.vector else 0
        positions = {file.path: BitMap() for file in batch}
        statement = Resolve.of(
            name, entry.uuid, entry.epoch, manifest.commit_ts, positions, gather=frozenset(positions)
        )
        if submit(context.head, "gather", [statement]).manifest is None:
            break
        moved += len(batch)
    return moved


def _scattered_files(live: LiveFiles) -> list[DataFile]:
    """Files with small vectors, if these are in too many objects; otherwise none."""
    small = [file for file in live if file.vector and file.vector.length <= SMALL_BYTES]
    objects = {file.vector.object for file in small if file.vector}
    return small if len(objects) > MOST_OBJECTS else []
