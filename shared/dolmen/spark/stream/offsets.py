"""Offsets of streams that read a table: a query's position in the table's history."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dolmen.errors import ConflictError, InputError
from dolmen.format.manifest import Manifest, TableEntry


@dataclass(frozen=True)
class Offset:
    """The state of the table in one version, as a checkpoint keeps it.

    Rows have their commit timestamps for ever, through compaction too: what was appended between two offsets is what
    the later version holds of timestamps between theirs. So only the later one must still be there.

    Args:
        version: of the database; 0 = before the first one.
        commit_ts: the greatest timestamp that a row of it can have.
        table: uuid of the table; "" where no version was looked at.
        epoch: version in which the table was last overwritten; 0 where no version was looked at.
    """

    version: int
    commit_ts: int
    table: str = ""
    epoch: int = 0

    @classmethod
    def of(cls, manifest: Manifest, entry: TableEntry) -> Offset:
        """The offset of a version."""
        return cls(manifest.version, manifest.commit_ts, entry.uuid, entry.epoch)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Offset:
        """Reads the offset in a checkpoint. Raises InputError."""
        try:
            return cls(**document)
        except TypeError as error:
            raise InputError(f"the checkpoint holds no offset of a dolmen table: {document}") from error

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark's checkpoint keeps it."""
        return asdict(self)

    def check(self, name: str, entry: TableEntry, end: Offset, *, ignore_deletes: bool) -> None:
        """Checks that a stream at this offset may go on to a later version.

        Args:
            entry: the table in the version ``end``.

        Raises:
            ConflictError: rows that it has read are no longer there, and nobody has said that this does not matter.
        """
        if not self.table:
            return
        if self.table != entry.uuid:
            raise ConflictError(
                f"table {name!r} was dropped and created again since version {self.version}: "
                "begin a new query, with a new checkpoint"
            )
        if ignore_deletes:
            return
        if entry.epoch != self.epoch:
            what = f"version {entry.epoch} has overwritten it"
        elif entry.last_delete_ts > self.commit_ts:
            what = "rows were deleted, or replaced by an upsert"
        else:
            return
        raise ConflictError(
            f"table {name!r}: {what} between versions {self.version} and {end.version}, which a stream of appended "
            'rows can\'t tell. Set the option "ignoreDeletes" to true to read on with what was added'
        )
