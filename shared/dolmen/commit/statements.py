"""Statements: the steps of a change, as data. Each can be applied to any base, again and again.

Every statement has one timestamp T, given when it is applied: fresh files get it as ``row_ts`` and
``applied_through``, tombstones as ``ts``. So an upsert is files and a keys tombstone of ONE statement: the tombstone
hides older rows with these keys, and not its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
from pyroaring import BitMap

from dolmen.commit.draft import Draft
from dolmen.commit.workbench import Workbench
from dolmen.errors import ConflictError, TableExistsError
from dolmen.format.entries import DataFile, Tombstone, Vector
from dolmen.format.manifest import Counts, TableEntry


class Statement(Protocol):
    """One step of a change. ``request`` is the applied id it is bound to, if any."""

    @property
    def request(self) -> str | None:
        """The applied id that this statement belongs to."""

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the draft. Raises ConflictError and what the statement documents; pure."""


@dataclass(frozen=True)
class Create:
    """Creates a table. Raises TableExistsError when the name is taken."""

    name: str
    entry: TableEntry
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Adds the table with this version as its epoch."""
        if self.name in draft.tables:
            raise TableExistsError(f"table {self.name!r} exists already")
        draft.tables[self.name] = msgspec.structs.replace(self.entry, epoch=draft.version)


@dataclass(frozen=True)
class Drop:
    """Drops a table: the name is free, older versions still read it."""

    name: str
    uuid: str
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the table and releases all that it reaches."""
        entry = draft.table(self.name, self.uuid)
        draft.release(entry.objects())
        draft.counts += Counts(files_removed=len(entry.files))
        draft.data_change = True
        del draft.tables[self.name]


@dataclass(frozen=True)
class Write:
    """Adds rows (files), or hides rows (tombstones), or both at once (an upsert).

    Commutes with everything but the loss of its table or of a column that a tombstone names.
    """

    name: str
    uuid: str
    files: tuple[DataFile, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Appends the stamped entries."""
        entry = draft.table(self.name, self.uuid)
        for tombstone in self.tombstones:
            if gone := set(tombstone.columns) - entry.schema.by_id.keys():
                raise ConflictError(f"table {self.name!r}: columns {sorted(gone)} of the delete were dropped meanwhile")
        draft.tables[self.name] = msgspec.structs.replace(
            entry,
            files=(*entry.files, *(file.stamped(ts) for file in self.files)),
            tombstones=(*entry.tombstones, *(tombstone.stamped(ts) for tombstone in self.tombstones)),
            last_delete_ts=ts if self.tombstones else entry.last_delete_ts,
        )
        draft.counts += Counts(
            rows_added=sum(file.rows for file in self.files),
            files_added=len(self.files),
            tombstones_added=len(self.tombstones),
        )
        draft.data_change |= bool(self.files or self.tombstones)


@dataclass(frozen=True)
class DeletePositions:
    """Hides rows by position: vectors that replace those of their files.

    Args:
        positions: by path of the data file, the positions found to be deleted.
        vectors: by path, the vector that was replaced and the one that takes its place; made by ``prepare``, and
            made again for files whose vector somebody else has replaced meanwhile (vectors merge by OR).
    """

    name: str
    uuid: str
    positions: Mapping[str, BitMap]
    vectors: Mapping[str, tuple[Vector | None, Vector]]
    request: str | None = None

    @classmethod
    def of(cls, name: str, uuid: str, positions: Mapping[str, BitMap], request: str | None = None) -> DeletePositions:
        """The statement before it is prepared."""
        return cls(name, uuid, positions, {}, request)

    def prepare(self, draft: Draft, bench: Workbench) -> DeletePositions:
        """Merges the positions with the vectors that the files have now."""
        files = self._files(draft)
        moved = [
            path for path in self.positions if path not in self.vectors or self.vectors[path][0] != files[path].vector
        ]
        if not moved:
            return self
        target = bench.tombstone_object(self.name, self.uuid)
        vectors = dict(self.vectors)
        for path in moved:
            file = files[path]
            merged = self.positions[path]
            if file.vector:
                merged = merged | bench.read_vector(file.vector, file.rows)
            vectors[path] = (file.vector, target.add_vector(file.uuid, merged))
        return replace(self, vectors=vectors)

    def apply(self, draft: Draft, ts: int) -> None:
        """Puts the vectors into their files' entries."""
        entry = draft.table(self.name, self.uuid)
        files = self._files(draft)
        deleted = 0
        changed: dict[str, DataFile] = {}
        for path, (replaced, vector) in self.vectors.items():
            file = files[path]
            if file.vector != replaced:
                raise ConflictError(f"table {self.name!r}: {path} got another deletion vector meanwhile")
            deleted += vector.cardinality - (replaced.cardinality if replaced else 0)
            if replaced:
                draft.release({replaced.object})
            if vector != replaced and file.newer_pair(file.applied_through, vector):
                changed[path] = msgspec.structs.replace(file, vector=vector)
        draft.tables[self.name] = msgspec.structs.replace(
            entry,
            files=tuple(changed.get(file.path, file) for file in entry.files),
            last_delete_ts=ts,
            unseen_delete_ts=ts,
        )
        draft.counts += Counts(rows_deleted=deleted)
        draft.data_change = True

    def _files(self, draft: Draft) -> dict[str, DataFile]:
        files = {file.path: file for file in draft.table(self.name, self.uuid).files if file.path in self.positions}
        if gone := self.positions.keys() - files.keys():
            raise ConflictError(
                f"table {self.name!r}: {len(gone)} files, {min(gone)} first, were replaced since the delete was planned"
            )
        return files


@dataclass(frozen=True)
class Claim:
    """What a transaction read: its commit is valid only if nobody changed the answer since.

    Args:
        base_ts: ``commit_ts`` of the version that was read.
        epoch: the table's epoch in that version.
        may_match: whether a data file may hold rows of what was read (by its statistics).
    """

    name: str
    uuid: str
    epoch: int
    base_ts: int
    may_match: Callable[[DataFile], bool]

    def check(self, draft: Draft) -> None:
        """Raises ConflictError if the answer may differ in this base. Errs on the safe side."""
        base = draft.base
        if base.commit_ts == self.base_ts:
            return
        entry = draft.table(self.name, self.uuid)
        where = f"table {self.name!r}, read at commit_ts {self.base_ts}: version {base.version} "
        if entry.epoch != self.epoch:
            raise ConflictError(where + "has overwritten or restored it; repeat the transaction")
        if entry.last_delete_ts > self.base_ts:
            raise ConflictError(where + "or one before it deleted rows; repeat the transaction")
        if any(file.greatest_row_ts > self.base_ts and self.may_match(file) for file in entry.files):
            raise ConflictError(where + "or one before it added rows that may match; repeat the transaction")
