"""The next version while a change is being applied to its base. Pure: no I/O, no clock."""

from __future__ import annotations

import msgspec

from dolmen.errors import ConflictError
from dolmen.format.manifest import HISTORY_LENGTH, AppliedId, Counts, Manifest, Released, TableEntry
from dolmen.format.pointer import FORMAT_VERSION


class Draft:
    """Collects what statements do to ``base``; ``finish`` makes the next manifest of it."""

    def __init__(self, base: Manifest) -> None:
        self.base = base
        self.tables = dict(base.tables)
        self.counts = Counts()
        self.data_change = False
        self._released: set[str] = set()

    def copy(self) -> Draft:
        """A draft of the same state, to come back to."""
        other = Draft(self.base)
        other.tables, other.counts, other.data_change = dict(self.tables), self.counts, self.data_change
        other._released = set(self._released)
        return other

    @property
    def version(self) -> int:
        """The version this draft will be."""
        return self.base.version + 1

    def table(self, name: str, uuid: str) -> TableEntry:
        """The table as statements so far have left it.

        Raises:
            TableNotFoundError: it has been dropped.
            ConflictError: the name belongs to another table now.
        """
        entry = self.tables.get(name)
        if entry is None:
            return self.base.table(name) if name not in self.base.tables else self._dropped_here(name)
        if entry.uuid != uuid:
            raise ConflictError(
                f"table {name!r} was dropped and created again by version {entry.epoch}: open it anew and repeat"
            )
        return entry

    def _dropped_here(self, name: str) -> TableEntry:
        return msgspec.structs.replace(self.base, tables=self.tables).table(name)

    def release(self, objects: set[str]) -> None:
        """Notes objects from which this commit removes a reference."""
        self._released |= objects

    def finish(
        self,
        *,
        attempt: str,
        commit_id: str,
        operation: str,
        commit_ts: int,
        created_at: int,
        applied: tuple[AppliedId, ...],
    ) -> Manifest:
        """The next manifest. Fields it does not know how to change are carried over from the base."""
        base = self.base
        history = (*base.history, base.as_history())[-HISTORY_LENGTH:] if base.version else ()
        released = base.released
        if self._released:
            released = (*released, Released(self.version, tuple(sorted(self._released))))
        oldest = self.version - HISTORY_LENGTH
        return msgspec.structs.replace(
            base,
            format_version=FORMAT_VERSION,
            version=self.version,
            attempt=attempt,
            previous=base.key if base.version else None,
            commit_id=commit_id,
            commit_ts=commit_ts,
            created_at=created_at,
            operation=operation,
            counts=self.counts,
            data_change=self.data_change,
            tables=self.tables,
            history=history,
            applied=(*base.applied, *applied),
            released=tuple(entry for entry in released if entry.version > oldest),
        )
