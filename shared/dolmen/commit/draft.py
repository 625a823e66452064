"""The next version, while a change is applied to its base. Pure: no clock, and only immutable segments are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from dolmen.entries.segments.erasures_in_force import least_erasure
from dolmen.entries.segments.segment_reader import SegmentReader, listed_erasures
from dolmen.errors import ConflictError
from dolmen.format.layout import FORMAT_VERSION, Cursor, Tag
from dolmen.format.manifest import (
    HISTORY_LENGTH,
    AppliedId,
    Counts,
    Erasure,
    HistoryEntry,
    LeavingErasures,
    Manifest,
    Released,
    RewrittenErasures,
    Segment,
    TableEffect,
    TableEntry,
    references,
)

COPIED_MEMBERS = {
    name: name
    for name in (
        "tables", "properties", "tags", "cursors", "erasures", "rewritten", "leaving", "features", "released",
        "orphan_cutoff", "horizon", "freed", "swept",
    )
} | {"segments": "own_segments"}  # fmt: skip
"""The members of a manifest that pass from version to version until a statement changes them, each with the name of the
draft's attribute. ``Draft.finish`` makes all others for each version."""

MEMBERS = frozenset(Manifest.__struct_fields__)


class ColumnsChangedError(ConflictError):
    """A column's name no longer means the column that the call used: the caller must repeat the call."""


class Statement(Protocol):
    """One step of a change. A method ``effect(draft)``, if any, describes it for the history after it was applied."""

    @property
    def name(self) -> str | None:
        """The table's name at this point of the change; None for the database."""

    @property
    def uuid(self) -> str:
        """The table's uuid; "" for the database."""

    @property
    def request(self) -> str | None:
        """The request that this statement belongs to, if any."""

    def apply(self, draft: Draft, ts: int) -> None:
        """Changes the draft. Pure. Raises ConflictError, and the errors that the statement documents."""


class DatabaseStatement:
    """A statement about the whole database, not about a table (see ``Statement``)."""

    name: str | None = None
    uuid = ""
    request: str | None = None


class Draft:
    """Collects the effects of statements on ``base``; ``finish`` makes the next manifest.

    ``committed`` is the last version; ``base`` adds the effects of other changes of the same version (``next_draft``).
    """

    tables: dict[str, TableEntry]
    properties: dict[str, Any]
    tags: dict[str, Tag]
    cursors: dict[str, Cursor]
    erasures: tuple[Erasure, ...]
    rewritten: tuple[RewrittenErasures, ...]
    leaving: tuple[LeavingErasures, ...]
    own_segments: tuple[Segment, ...]
    features: tuple[str, ...]
    released: tuple[Released, ...]
    orphan_cutoff: int
    horizon: int
    freed: int
    swept: int

    def __init__(self, base: Manifest, segments: SegmentReader) -> None:
        self.base, self.segments = base, segments
        self.committed = base
        for member, attribute in COPIED_MEMBERS.items():
            setattr(self, attribute, getattr(base, member))
        self.tables = dict(base.tables)
        self.counts = Counts()
        self.data_change = False
        self.revoked: tuple[str, ...] = ()
        self._objects: set[str] = set()
        self._trees: dict[str, Segment] = {}
        self._manifests: set[str] = set()

    def check_prepared(self, key: str) -> None:
        """Checks that a statement was prepared on the manifest (key) to which it is applied."""
        assert key == self.base.key, "the statement was prepared on another version"

    def copy(self) -> Draft:
        other = Draft.__new__(Draft)
        vars(other).update(vars(self))
        other.tables, other._objects, other._trees = dict(self.tables), set(self._objects), dict(self._trees)
        other._manifests = set(self._manifests)
        return other

    def next_draft(self, commit_ts: int, applied: tuple[AppliedId, ...]) -> Draft:
        """The draft for the next change of the same version. Its base has the effects so far, as if committed."""
        other = self.copy()
        other.counts = Counts()
        other.base = msgspec.structs.replace(
            self.base,
            commit_ts=commit_ts,
            applied=(*self.base.applied, *applied),
            **{**self._members(), "tables": dict(self.tables)},
        )
        return other

    @property
    def version(self) -> int:
        return self.base.version + 1

    @property
    def has_changes(self) -> bool:
        return (
            bool(self.revoked or self._objects or self._trees)
            or self.tables.keys() != self.base.tables.keys()
            or any(entry is not self.base.tables[name] for name, entry in self.tables.items())
            or any(value != getattr(self.base, name) for name, value in self._members().items() if name != "tables")
        )

    def _members(self) -> dict[str, Any]:
        return {member: getattr(self, attribute) for member, attribute in COPIED_MEMBERS.items()}

    def table(self, name: str, uuid: str) -> TableEntry:
        """The whole entry of a table after the statements so far. Raises TableNotFoundError, ConflictError."""
        entry = self.tables.get(name)
        if entry is not None and entry.uuid == uuid:
            return self.segments.whole(entry)
        now = next((other for other, there in self.tables.items() if there.uuid == uuid), None)
        if now is not None:
            raise ConflictError(
                f"table {name!r} was renamed to {now!r} by version {self.base.version} or one before it: open it under "
                "that name and repeat"
            )
        if entry is None:
            return msgspec.structs.replace(self.base, tables=self.tables).table(name)  # raises TableNotFoundError
        raise ConflictError(
            f"table {name!r} was dropped and created again by version {entry.epoch}, or another table has its name "
            "now: open it again and repeat"
        )

    def unchanged_table(self, name: str, uuid: str, epoch: int) -> TableEntry | None:
        """The whole entry if the table still has this uuid and epoch; None if it was dropped or overwritten."""
        entry = self.tables.get(name)
        return self.segments.whole(entry) if entry and (entry.uuid, entry.epoch) == (uuid, epoch) else None

    def column_names(self, table: str | None, ids: Iterable[int]) -> tuple[str, ...]:
        """The names of a table's columns by their ids, without ids that it lacks; none if there is no table."""
        entry = self.tables.get(table or "")
        columns = self.segments.whole(entry).schema.by_id if entry else {}
        return tuple(columns[id_].name for id_ in ids if id_ in columns)

    def require(self, features: Iterable[str]) -> None:
        """Records features that readers must support. They stay, because older versions can be restored."""
        self.features = tuple(sorted({*self.features, *features}))

    def release(self, objects: Iterable[str]) -> None:
        """Records objects to which this commit removes a reference."""
        self._objects.update(objects)

    def release_tree(self, segment: Segment) -> None:
        """Releases a segment and all objects that its entries name."""
        self._trees[segment.object] = _without_values(segment)

    def release_all_of(self, entry: TableEntry) -> None:
        """Releases everything that a table reaches; objects that only segments name go with their segments."""
        segments = {segment.object: _without_values(segment) for segment in entry.segments}
        self._objects |= set(references(entry)) - segments.keys()
        self._trees |= segments

    def put_tag(self, name: str, tag: Tag | None) -> None:
        """Gives a name to a version; None frees the name. A version that only this tag kept is released."""
        old = self.tags.get(name)
        others = {other: each for other, each in self.tags.items() if other != name}
        self.tags = others if tag is None else {**others, name: tag}
        kept = {each.manifest for each in self.tags.values()}
        self._manifests -= kept
        if old is not None and old.manifest not in kept and old.version < self.base.horizon:
            self._manifests.add(old.manifest)

    def erasures_after(self, ts: int) -> tuple[Erasure, ...]:
        """The erasures of later timestamps, oldest first, this commit's included."""
        spilled = [segment for segment in self.own_segments if segment.kind == "erasures"]
        return listed_erasures(spilled, self.erasures, self.segments, ts)

    def finish(
        self,
        *,
        attempt: str,
        commit_id: str,
        operation: str,
        commit_ts: int,
        created_at: int,
        applied: tuple[AppliedId, ...],
        did: tuple[TableEffect, ...] = (),
        did_more: int = 0,
        message: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Manifest:
        base = self.committed
        for name, entry in base.tables.items():
            if entry.section and self.tables.get(name) is not entry:
                self._objects.add(entry.section.object)
        released = self.released
        if self._objects or self._trees or self._manifests:
            manifests = tuple(sorted(self._manifests))
            own = Released(self.version, tuple(sorted(self._objects)), tuple(self._trees.values()), manifests)
            released = (*released, own)
        made = {
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "attempt": attempt,
            "previous": base.key if base.version else None,
            "commit_id": commit_id,
            "commit_ts": commit_ts,
            "created_at": created_at,
            "operation": operation,
            "counts": self.counts,
            "did": did,
            "did_more": did_more,
            "message": message,
            "metadata": dict(metadata or {}),
            "data_change": self.data_change,
            "history": self._history(),
            "applied": (*base.applied, *applied),
            "horizon_at": created_at if self.horizon != base.horizon else base.horizon_at,
            "revoked_intents": self._revoked_intents(created_at),
        }
        # The draft goes on changing its own tables, and this version stays as it is.
        made |= {"tables": dict(self.tables), "released": released, "rewritten": self._still_rewritten()}
        members = {**self._members(), **made}
        assert members.keys() == MEMBERS, f"in COPIED_MEMBERS or made here: {sorted(members.keys() ^ MEMBERS)}"
        return Manifest(**members)

    def _still_rewritten(self) -> tuple[RewrittenErasures, ...]:
        """The entries of ``rewritten`` that still hold: a restored or cloned table may bring erased rows back."""
        if not self.rewritten:
            return ()
        committed = {(entry.uuid, entry.epoch) for entry in self.committed.tables.values()}
        new_entries = [entry for entry in self.tables.values() if (entry.uuid, entry.epoch) not in committed]
        least_ts = least_erasure(new_entries, self.segments) if new_entries else 0
        return tuple(each for each in self.rewritten if not least_ts or each.through < least_ts)

    def _history(self) -> tuple[HistoryEntry, ...]:
        base = self.committed
        history = (*base.history, base.as_history()) if base.version else ()
        if self.horizon == base.horizon:
            return history
        # Expired versions leave the history, but the last commits stay: a writer may still look for its own among them.
        recent = max(0, len(history) - HISTORY_LENGTH)
        return (*(entry for entry in history[:recent] if entry.version >= self.horizon), *history[recent:])

    def _revoked_intents(self, created_at: int) -> dict[str, int]:
        """The revoked txids, without those revoked before the fence's time: the fence stops their writers."""
        if not self.revoked and self.orphan_cutoff == self.committed.orphan_cutoff:
            return self.committed.revoked_intents
        still_revoked = {txid: at for txid, at in self.committed.revoked_intents.items() if at >= self.orphan_cutoff}
        return {**dict.fromkeys(self.revoked, created_at), **still_revoked}


def _without_values(segment: Segment) -> Segment:
    """A segment's reference as ``released`` has it: without bounds, which are values of rows that may be erased."""
    return msgspec.structs.replace(segment, stats={}) if segment.stats else segment
