"""Debts: what background work would have to do, told from metadata alone.

Nothing is listed. A segment is told of by what the manifest says of it, unless exact figures are asked for; an idle
table's entry is fetched once (and cached), since the manifest says nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from dolmen.context import Context
from dolmen.format.entries import DataFile, Tombstone, WhereTombstone
from dolmen.format.manifest import Manifest, Segment, SegmentKind, TableEntry
from dolmen.format.properties import DatabaseSettings, TableSettings
from dolmen.segments.live import LiveFiles, tombstones_of

TABLE_TAILS: tuple[SegmentKind, ...] = ("files", "tombstones", "overlays", "removed")
DATABASE_TAILS: tuple[SegmentKind, ...] = ("history", "applied", "released")


@dataclass(frozen=True)
class SegmentsDebt:
    """Segments of one kind: how many, their bytes, and the entries in them."""

    segments: int
    bytes: int
    entries: int


@dataclass(frozen=True)
class TableDebt:
    """What maintenance of one table would have to do.

    Args:
        name: the table's.
        exact: whether every figure is; otherwise those of spilled files are as they were spilled, and ``small_files``
            goes by the mean size of the files in a segment.
        files: data files.
        rows: physical rows in them.
        dead_rows: those that vectors delete; rows hidden by tombstones only are not known.
        bytes: of all data files.
        tombstones: unresolved deletes, spilled ones included.
        where_tombstones, keys_tombstones: by kind; without ``exact`` those that stand in the manifest.
        tombstone_bytes: of their records; without ``exact`` of those that stand in the manifest.
        keys: values in the keys tombstones counted above.
        unresolved_files: files that resolution has to look at: younger deletes may hide rows of them.
        oldest_unresolved_ts: timestamp of the oldest unresolved delete; None if there is none.
        oldest_unresolved_age_us: how much older it is than the newest commit; None if there is none.
        small_files, small_bytes: files below half the target size.
        target_file_bytes: the target.
        vector_objects: ``.del`` objects that hold vectors of entries in the manifest.
        segments: by kind.
        inline_bytes: what each tail takes of the manifest.
        idle: whether the whole entry is in a segment.
    """

    name: str
    exact: bool
    files: int
    rows: int
    dead_rows: int
    bytes: int
    tombstones: int
    where_tombstones: int
    keys_tombstones: int
    tombstone_bytes: int
    keys: int
    unresolved_files: int
    oldest_unresolved_ts: int | None
    oldest_unresolved_age_us: int | None
    small_files: int
    small_bytes: int
    target_file_bytes: int
    vector_objects: int
    segments: dict[str, SegmentsDebt]
    inline_bytes: dict[str, int]
    idle: bool

    @property
    def live_rows(self) -> int:
        """Rows that vectors leave."""
        return self.rows - self.dead_rows

    @property
    def files_saved(self) -> int:
        """How many files fewer there would be if the small ones were compacted."""
        return max(0, self.small_files - -(-self.small_bytes // self.target_file_bytes)) if self.small_files else 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"live_rows": self.live_rows, "files_saved": self.files_saved}


@dataclass(frozen=True)
class Debts:
    """What background work would have to do for a database.

    Args:
        version: of which this is told.
        created_at: microseconds by the store's clock: ages are of that time.
        tables: by name.
        manifest_bytes: size of the manifest, which every commit uploads.
        manifest_budget: beyond it entries are spilled.
        inline_bytes: what the database's own tails take of it.
        segments: the database's own, by kind.
        versions: kept.
        applied_ids: remembered.
        released_objects: objects in ``released`` that wait to be freed; those in segments of it are not counted.
        released_trees: segments among them that are released with all they name.
        released_bytes: as far as known: of released segments, and of the data files these name.
        horizon_age_us: how long ago the horizon moved; None if it never did.
        orphan_cutoff_age_us: how old an orphan must be to have been collected; None if none ever was.
        revoked_intents: jobs taken for dead that could still try to commit.
    """

    version: int
    created_at: int
    tables: dict[str, TableDebt]
    manifest_bytes: int
    manifest_budget: int
    inline_bytes: dict[str, int]
    segments: dict[str, SegmentsDebt]
    versions: int
    applied_ids: int
    released_objects: int
    released_trees: int
    released_bytes: int
    horizon_age_us: int | None
    orphan_cutoff_age_us: int | None
    revoked_intents: int

    def total(self, figure: str) -> int:
        """A figure of ``TableDebt`` summed over all tables, such as ``tombstones`` or ``files_saved``."""
        return sum(getattr(table, figure) for table in self.tables.values())

    @property
    def oldest_unresolved_age_us(self) -> int:
        """Age of the oldest unresolved delete of any table; 0 if there is none."""
        return max((table.oldest_unresolved_age_us or 0 for table in self.tables.values()), default=0)

    def __repr__(self) -> str:
        what = {
            "unresolved deletes": self.total("tombstones"),
            "files fewer when compacted": self.total("files_saved"),
            "dead rows": self.total("dead_rows"),
            "released objects": self.released_objects,
        }
        told = ", ".join(f"{count:,} {name}" for name, count in what.items() if count) or "nothing to do"
        size = f"manifest of {self.manifest_bytes:,} bytes of {self.manifest_budget:,}"
        return f"<Debts of version {self.version}, {len(self.tables):,} tables: {told}; {size}>"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        tables = {name: table.to_dict() for name, table in self.tables.items()}
        return asdict(self) | {"tables": tables, "oldest_unresolved_age_us": self.oldest_unresolved_age_us}


def debts(context: Context, *, exact: bool = False) -> Debts:
    """What there is to do, in the newest version.

    Args:
        exact: read the segments too, where what the manifest says of them is not enough.

    Raises:
        CorruptionError: the manifest, or a segment that had to be read, is damaged or missing.
    """
    manifest = context.head.refresh().manifest
    released = [entry for entry in manifest.released if entry.version > manifest.freed]
    trees = [tree for entry in released for tree in entry.trees]
    return Debts(
        version=manifest.version,
        created_at=manifest.created_at,
        tables={name: _table(context, manifest, name, root, exact) for name, root in sorted(manifest.tables.items())},
        manifest_bytes=len(manifest.encode()) if manifest.version else 0,
        manifest_budget=DatabaseSettings.of(manifest).root_bytes,
        inline_bytes=_inline_bytes(manifest, DATABASE_TAILS),
        segments=_by_kind(manifest.segments),
        versions=manifest.version - max(manifest.horizon, 1) + 1,
        applied_ids=len(manifest.applied) + sum(s.count for s in manifest.segments_of("applied")),
        released_objects=sum(len(entry.objects) for entry in released),
        released_trees=len(trees),
        released_bytes=sum(tree.size + tree.bytes for tree in trees),
        horizon_age_us=manifest.created_at - manifest.horizon_at if manifest.horizon_at else None,
        orphan_cutoff_age_us=manifest.created_at - manifest.orphan_cutoff if manifest.orphan_cutoff else None,
        revoked_intents=len(manifest.revoked_intents),
    )


def _table(context: Context, manifest: Manifest, name: str, root: TableEntry, exact: bool) -> TableDebt:
    entry = context.segments.whole(root)
    target = TableSettings.of(entry).target_file_bytes
    spilled = entry.segments_of("tombstones")
    tombstones: tuple[Tombstone, ...] = tombstones_of(entry, context.segments) if exact else entry.tombstones
    keys = [tombstone for tombstone in tombstones if not isinstance(tombstone, WhereTombstone)]
    stamps = [t.ts for t in entry.tombstones] + [end for s in spilled for end in (s.least, s.greatest)]
    oldest, newest = (min(stamps), max(stamps)) if stamps else (None, 0)
    sums = _Sums(target, newest)
    sums.add_files(entry.files)
    if exact:
        for part in LiveFiles.of(entry, context.segments).live_segments():
            sums.add_files(part.entries(ids=()))
    else:
        for segment in entry.segments_of("files"):
            sums.add_segment(segment)
        sums.files -= len(entry.removed) + sum(segment.count for segment in entry.segments_of("removed"))
    vectors = {file.vector.object for file in entry.files if file.vector}
    vectors.update(overlay.vector.object for overlay in entry.overlays if overlay.vector)
    return TableDebt(
        name=name,
        exact=exact or not any(segment.kind in ("files", "tombstones") for segment in entry.segments),
        files=sums.files,
        rows=sums.rows,
        dead_rows=sums.dead,
        bytes=sums.bytes,
        tombstones=len(entry.tombstones) + sum(segment.count for segment in spilled),
        where_tombstones=len(tombstones) - len(keys),
        keys_tombstones=len(keys),
        tombstone_bytes=sum(tombstone.blob.length for tombstone in tombstones),
        keys=sum(tombstone.count for tombstone in keys),
        unresolved_files=sums.unresolved,
        oldest_unresolved_ts=oldest,
        oldest_unresolved_age_us=None if oldest is None else max(0, manifest.created_at - oldest),
        small_files=sums.small,
        small_bytes=sums.small_bytes,
        target_file_bytes=target,
        vector_objects=len(vectors),
        segments=_by_kind((*((root.section,) if root.section else ()), *entry.segments)),
        inline_bytes=_inline_bytes(root, TABLE_TAILS),
        idle=root.section is not None,
    )


class _Sums:
    """Adds up data files, inline ones one by one and spilled ones by their segments.

    Args:
        target: bytes of a full file.
        newest: timestamp of the newest unresolved delete; 0 if there is none.
    """

    def __init__(self, target: int, newest: int) -> None:
        self._small_below, self._newest = target // 2, newest
        self.files = self.rows = self.dead = self.bytes = self.small = self.small_bytes = self.unresolved = 0

    def add_files(self, files: Iterable[DataFile]) -> None:
        """Adds files one by one."""
        for file in files:
            dead = file.rows - file.live_rows
            self._add(1, file.rows, dead, file.size, file.applied_through)

    def add_segment(self, segment: Segment) -> None:
        """Adds all files of a segment as if all were alike."""
        self._add(segment.count, segment.rows, segment.deleted, segment.bytes, segment.applied_through)

    def _add(self, files: int, rows: int, dead: int, size: int, applied_through: int) -> None:
        self.files += files
        self.rows += rows
        self.dead += dead
        self.bytes += size
        if size < self._small_below * files:
            self.small += files
            self.small_bytes += size
        if applied_through < self._newest:
            self.unresolved += files


def _by_kind(segments: Iterable[Segment]) -> dict[str, SegmentsDebt]:
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    for segment in segments:
        count[segment.kind] += 1
        size[segment.kind] += segment.size
        entries[segment.kind] += segment.count
    return {kind: SegmentsDebt(count[kind], size[kind], entries[kind]) for kind in count}


def _inline_bytes(holder: Manifest | TableEntry, tails: Iterable[SegmentKind]) -> dict[str, int]:
    encode: Callable[[Any], bytes] = msgspec.json.encode
    return {tail: len(encode(getattr(holder, tail))) for tail in tails if getattr(holder, tail)}
