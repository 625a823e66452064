"""The results of commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape

from dolmen.base.units import utc
from dolmen.format.manifest import Counts, HistoryEntry, TableEffect


@dataclass(frozen=True)
class Commit:
    """One commit, as returned to its writer and by ``history()``, which shows what was committed together as one.

    Args:
        version: the version it made; if nothing changed, the version it was made on.
        commit_ts: timestamp of its last statement, int64 microseconds; it orders deletes and data.
        created_at: the time of the attempt that landed, by the store's clock, in UTC. It is not before the call began.
            S3's clock shows whole seconds, so it may be a second early on a machine whose own clock is wrong. It never
            decreases from version to version.
        commit_id: the unique id of its version, which changes that were committed together share.
        operation: a word for what it did; "nothing" if there was nothing to do.
        counts: the numbers of rows, files and tombstones that it changed.
        did: what it did to which tables and columns; only the first few, and never a value.
        did_more: the number of further ones.
        message: its author's message.
        requests: ids of the requests that it applied, as long as they are remembered.
        attempts: how often the pointer was put (0 in history).
        already: versions that had applied requests of this call before, by request id.
        erased_rows_written: how many of the rows that this call wrote match an erasure in force: people who were
            erased may be there again (0 in history).
        erased_rows_left_out: how many rows this call left out because they match one (0 in history).
    """

    version: int
    commit_ts: int
    created_at: datetime
    commit_id: str
    operation: str
    counts: Counts
    did: tuple[TableEffect, ...] = ()
    did_more: int = 0
    message: str = ""
    requests: tuple[str, ...] = ()
    attempts: int = 0
    already: dict[str, int] = field(default_factory=dict)
    erased_rows_written: int = 0
    erased_rows_left_out: int = 0

    @classmethod
    def of(
        cls,
        entry: HistoryEntry,
        requests: Sequence[str] = (),
        *,
        attempts: int = 0,
        already: dict[str, int] | None = None,
    ) -> Commit:
        """Makes a commit from its entry in the history."""
        return cls(
            entry.version,
            entry.commit_ts,
            utc(entry.created_at),
            entry.commit_id,
            entry.operation,
            entry.counts,
            entry.did,
            entry.did_more,
            entry.message,
            tuple(requests),
            attempts,
            already or {},
        )

    @classmethod
    def nothing(cls, base: HistoryEntry, already: dict[str, int] | None = None) -> Commit:
        """The result of a call that changed nothing on ``base``, or whose requests had been applied before."""
        version = max(already.values()) if already else base.version
        created_at = utc(base.created_at)
        return cls(version, base.commit_ts, created_at, "", "nothing", Counts(), already=already or {})

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that it changed, as far as they are in ``did``."""
        return tuple(dict.fromkeys(deed.table for deed in self.did if deed.table))

    @property
    def done(self) -> str:
        """Its deeds in words: ``append events; delete users(user_id)``."""
        return "; ".join([*map(str, self.did), *([f"{self.did_more:,} more"] if self.did_more else ())])

    @property
    def rows(self) -> int | None:
        """Number of rows added, or else deleted; None if a tombstone deleted them, as it does not count rows."""
        if self.counts.rows_added:
            return self.counts.rows_added
        return None if self.counts.tombstones_added else self.counts.rows_deleted

    def _facts(self) -> list[tuple[str, str]]:
        counts = self.counts
        facts = [
            ("rows added", counts.rows_added),
            ("files added", counts.files_added),
            ("tombstones", counts.tombstones_added),
            ("rows deleted", counts.rows_deleted),
            ("files removed", counts.files_removed),
            ("files resolved", counts.files_resolved),
            ("tombstones removed", counts.tombstones_removed),
            ("groups dropped", counts.groups_dropped),
            ("written rows that were erased", self.erased_rows_written),
            ("erased rows left out", self.erased_rows_left_out),
        ]
        told = [(name, f"{value:,}") for name, value in facts if value]
        told += [("did", self.done)] if self.did else []
        told += [("for", _few(self.requests))] if self.requests else []
        told += [("message", repr(self.message))] if self.message else []
        if self.already:
            told.append(("applied before", ", ".join(f"{id_} (version {v})" for id_, v in self.already.items())))
        return told

    def __repr__(self) -> str:
        facts = "".join(f", {name} {value}" for name, value in self._facts())
        return f"<Commit {self.version} {self.operation} at {self.created_at:%Y-%m-%d %H:%M:%S}Z{facts}>"

    def _repr_html_(self) -> str:
        head = f"<b>version {self.version}</b> {escape(self.operation)} {self.created_at:%Y-%m-%d %H:%M:%S}Z"
        rows = "".join(f"<tr><td>{escape(n)}</td><td>{escape(v)}</td></tr>" for n, v in self._facts())
        return f"<div>{head}<table>{rows}</table></div>"


def _few(ids: tuple[str, ...]) -> str:
    """The first of many ids, each cut to fit a line."""
    told = [id_ if len(id_) <= 80 else f"{id_[:77]}..." for id_ in ids[:3]]
    return ", ".join([*told, *([f"{len(ids) - 3:,} more"] if len(ids) > 3 else ())])
