"""Debts: the background work that remains, computed from metadata alone, without a listing.

Segments are counted by their entries in the manifest, unless exact figures are requested. The entry of an idle table is
fetched once and cached, because the manifest does not contain it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from dolmen.base.units import DAY_US, count_text
from dolmen.commit.head import Context
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.entries.segments.segment_reader import LiveSegment
from dolmen.format.entries import DataFile, Tombstone, WhereTombstone
from dolmen.format.manifest import DATABASE_TAILS, TABLE_TAILS, Manifest, Segment, SegmentKind, TableEntry
from dolmen.format.properties import DatabaseSettings, TableSettings
from dolmen.iceberg.publication_directory import publication_lag
from dolmen.maintenance.compact.compaction_plan import small_below

Numbers: TypeAlias = npt.NDArray[np.int64]

Step: TypeAlias = Literal["expire", "resolve", "compact", "index", "merge", "publish"]  # of a round of maintenance

STEPS: tuple[Step, ...] = get_args(Step)

# What slows scans down: from this number of unresolved deletes of a table on, however young they are; and an unresolved
# delete of this age shows that resolution does not run
MANY_DELETES = 1_000
OLD_DELETE_US = DAY_US


@dataclass(frozen=True)
class SegmentsDebt:
    """The segments of one kind: their number, their bytes, and the number of their entries."""

    segments: int
    bytes: int
    entries: int


@dataclass(frozen=True)
class TableDebt:
    """The maintenance work that one table needs."""

    name: str
    # whether all figures are exact. Otherwise figures of spilled files are those at their spill, and ``small_files`` is
    # estimated from the mean file size in each segment.
    exact: bool
    files: int
    rows: int  # physical rows in the files
    dead_rows: int  # rows that deletion vectors delete. Rows that only tombstones hide are not known.
    bytes: int
    tombstones: int  # number of unresolved deletes, including spilled ones
    # where_tombstones, keys_tombstones: tombstones by kind; without ``exact`` only those in the manifest
    where_tombstones: int
    keys_tombstones: int
    tombstone_bytes: int  # size of the tombstones' records; without ``exact`` only of those in the manifest
    keys: int  # number of keys in the keys tombstones counted above
    unresolved_files: int  # files that resolution must read, because younger deletes may hide their rows
    oldest_unresolved_ts: int | None  # timestamp of the oldest unresolved delete; None if there is none
    oldest_unresolved_age_us: int | None  # its age at the newest commit, in microseconds; None if there is none
    # small_files, small_bytes: number and size of files below half the target size, without their deleted rows
    small_files: int
    small_bytes: int
    target_file_bytes: int
    vector_objects: int  # number of ``.del`` objects that hold vectors of entries in the manifest
    segments: dict[str, SegmentsDebt]
    inline_bytes: dict[str, int]  # size of each tail in the manifest, by kind
    idle: bool  # whether the whole entry is in a segment
    # the version that Iceberg's readers see; 0 if there is none yet, None if the table is not published
    published_version: int | None = None
    # age of the oldest change that they do not see, at the newest commit, in microseconds
    publication_lag_us: int | None = None
    # number of entries in the index, including entries of removed rows; None without an index
    index_entries: int | None = None

    @property
    def live_rows(self) -> int:
        return self.rows - self.dead_rows

    @property
    def index_lag_rows(self) -> int:
        """The least number of rows that the index lacks: entries of removed rows count as entries of others."""
        return 0 if self.index_entries is None else max(0, self.rows - self.index_entries)

    @property
    def files_saved(self) -> int:
        return max(0, self.small_files - -(-self.small_bytes // self.target_file_bytes)) if self.small_files else 0

    def to_dict(self) -> dict[str, Any]:
        derived = {"live_rows": self.live_rows, "files_saved": self.files_saved, "index_lag_rows": self.index_lag_rows}
        return asdict(self) | derived


@dataclass(frozen=True)
class Debts:
    """The background work that a database needs."""

    # version, created_at: the version and its time by the store's clock, in microseconds, at which ages are measured
    version: int
    created_at: int
    tables: dict[str, TableDebt]
    manifest_bytes: int
    manifest_budget: int  # size beyond which entries are moved into segments
    inline_bytes: dict[str, int]  # size of the database's own tails in the manifest, by kind
    segments: dict[str, SegmentsDebt]  # the database's own segments, by kind
    versions: int
    applied_ids: int
    released_objects: int  # objects in ``released`` that wait to be deleted, without those listed in segments
    released_trees: int  # segments that are released with all objects that they name
    released_bytes: int  # known size of released segments and of the data files that these name
    horizon_age_us: int | None  # microseconds since the horizon moved; None if it never did
    orphan_cutoff_age_us: int | None  # least age of orphans that collection could delete; None if it never ran
    revoked_intents: int  # number of jobs that count as dead and might still try to commit

    def total(self, figure: str) -> int:
        """The sum of a figure of ``TableDebt`` over all tables, such as ``tombstones`` or ``files_saved``."""
        return sum(getattr(table, figure) for table in self.tables.values())

    @property
    def oldest_unresolved_age_us(self) -> int:
        """Age of the oldest unresolved delete of any table; 0 if there is none."""
        return max((table.oldest_unresolved_age_us or 0 for table in self.tables.values()), default=0)

    @property
    def publication_lag_us(self) -> int:
        return max((table.publication_lag_us or 0 for table in self.tables.values()), default=0)

    def __repr__(self) -> str:
        backlog = (
            (self.total("tombstones"), "unresolved delete", ""),
            (self.total("files_saved"), "file fewer when compacted", "files fewer when compacted"),
            (self.total("dead_rows"), "dead row", ""),
            (self.released_objects, "released object", ""),
        )
        work = ", ".join(count_text(*each) for each in backlog if each[0]) or "nothing to do"
        size = f"manifest of {self.manifest_bytes:,} bytes of {self.manifest_budget:,}"
        return f"<Debts of version {self.version}, {count_text(len(self.tables), 'table')}: {work}; {size}>"

    def to_dict(self) -> dict[str, Any]:
        tables = {name: table.to_dict() for name, table in self.tables.items()}
        return asdict(self) | {"tables": tables, "oldest_unresolved_age_us": self.oldest_unresolved_age_us}


def debts(context: Context, *, exact: bool = False) -> Debts:
    """Computes the debts of the newest version. See ``Database.stats``."""
    return debts_of(context, context.head.refresh().manifest, exact=exact)


def debts_of(context: Context, manifest: Manifest, *, exact: bool = False) -> Debts:
    released = [entry for entry in manifest.released if entry.version > manifest.freed]
    trees = [tree for entry in released for tree in entry.trees]
    return Debts(
        version=manifest.version,
        created_at=manifest.created_at,
        tables={name: _debt_of(context, manifest, name, root, exact) for name, root in sorted(manifest.tables.items())},
        manifest_bytes=len(manifest.encode()) if manifest.version else 0,
        manifest_budget=DatabaseSettings.of(manifest).root_bytes,
        inline_bytes=_inline_bytes(manifest, DATABASE_TAILS),
        segments=_sum_by_kind(manifest.segments),
        versions=manifest.version - max(manifest.horizon, 1) + 1,
        applied_ids=len(manifest.applied) + sum(s.count for s in manifest.segments_of("applied")),
        released_objects=sum(len(entry.objects) for entry in released),
        released_trees=len(trees),
        released_bytes=sum(tree.size + tree.bytes for tree in trees),
        horizon_age_us=manifest.created_at - manifest.horizon_at if manifest.horizon_at else None,
        orphan_cutoff_age_us=manifest.created_at - manifest.orphan_cutoff if manifest.orphan_cutoff else None,
        revoked_intents=len(manifest.revoked_intents),
    )


def _debt_of(context: Context, manifest: Manifest, name: str, root: TableEntry, exact: bool) -> TableDebt:
    entry = context.segments.whole(root)
    settings, index_parts = TableSettings.of(entry), entry.segments_of("index")
    tombstone_segments = entry.segments_of("tombstones")
    tombstones: tuple[Tombstone, ...] = tombstones_of(entry, context.segments) if exact else entry.tombstones
    keys = [tombstone for tombstone in tombstones if not isinstance(tombstone, WhereTombstone)]
    stamps = [t.ts for t in entry.tombstones] + [end for s in tombstone_segments for end in (s.least, s.greatest)]
    oldest, newest = (min(stamps), max(stamps)) if stamps else (None, 0)
    sums = FileSums(settings.target_file_bytes, newest)
    sums.add_files(entry.files)
    if exact:
        for part in LiveFiles.of(entry, context.segments).live_segments():
            sums.add_segment(part)
    else:
        for segment in entry.segments_of("files"):
            sums.add_means(segment)
        sums.files -= len(entry.removed) + sum(segment.count for segment in entry.segments_of("removed"))
    vectors = {file.vector.object for file in entry.files if file.vector}
    vectors.update(overlay.vector.object for overlay in entry.overlays if overlay.vector)
    lag = publication_lag(manifest, name, entry)
    return TableDebt(
        name=name,
        exact=exact or not any(segment.kind in ("files", "tombstones") for segment in entry.segments),
        **sums.figures(),
        tombstones=len(entry.tombstones) + sum(segment.count for segment in tombstone_segments),
        where_tombstones=len(tombstones) - len(keys),
        keys_tombstones=len(keys),
        tombstone_bytes=sum(tombstone.blob.length for tombstone in tombstones),
        keys=sum(tombstone.count for tombstone in keys),
        oldest_unresolved_ts=oldest,
        oldest_unresolved_age_us=None if oldest is None else max(0, manifest.created_at - oldest),
        vector_objects=len(vectors),
        segments=_sum_by_kind((*((root.section,) if root.section else ()), *entry.segments)),
        inline_bytes=_inline_bytes(root, TABLE_TAILS),
        idle=root.section is not None,
        published_version=None if lag is None else lag.version,
        publication_lag_us=None if lag is None else lag.lag_us,
        index_entries=sum(part.count for part in index_parts) if index_parts or settings.index else None,
    )


@dataclass
class FileSums:
    """Sums over a table's data files."""

    target_file_bytes: int
    newest_delete: int  # the timestamp of the youngest unresolved delete; 0 if there is none
    files: int = 0
    rows: int = 0
    dead_rows: int = 0  # rows that are deleted by position, and still in the files
    bytes: int = 0
    # small_files, small_bytes: files that compaction would merge with others, and their live bytes
    small_files: int = 0
    small_bytes: int = 0
    unresolved_files: int = 0  # files to which not all deletes are applied

    def add_files(self, files: Iterable[DataFile]) -> None:
        figures = [(file.size, file.rows, file.rows - file.live_rows, file.applied_through) for file in files]
        self._add(*np.array(figures, np.int64).reshape(-1, 4).T)

    def add_segment(self, each: LiveSegment) -> None:
        columns = each.table.numbers("size"), each.table.numbers("rows"), each.cardinalities(), each.applied_through()
        self._add(*(column[each.positions()] for column in columns))

    def add_means(self, segment: Segment) -> None:
        """Adds the files of a segment as if each had their mean size."""
        figures = (segment.bytes, segment.rows, segment.deleted, segment.applied_through)
        self._add(*np.array([figures], np.int64).T, files=segment.count)

    def _add(self, size: Numbers, rows: Numbers, dead: Numbers, through: Numbers, *, files: int = 1) -> None:
        """Adds the figures of files, or sums of so many ``files`` each."""
        live = (size * ((rows - dead) / np.maximum(rows, 1))).astype(np.int64)  # see ``DataFile.live_bytes``
        small = live < small_below(self.target_file_bytes) * files
        self.files += files * len(size)
        self.rows += int(rows.sum())
        self.dead_rows += int(dead.sum())
        self.bytes += int(size.sum())
        self.small_files += files * int(np.count_nonzero(small))
        self.small_bytes += int(live[small].sum())
        self.unresolved_files += files * int(np.count_nonzero(through < self.newest_delete))

    def figures(self) -> dict[str, Any]:
        """The sums by the names of a ``TableDebt``."""
        found = asdict(self)
        del found["newest_delete"]
        return found


def _sum_by_kind(segments: Iterable[Segment]) -> dict[str, SegmentsDebt]:
    debts_by_kind: dict[str, SegmentsDebt] = {}
    for segment in segments:
        debt = debts_by_kind.get(segment.kind, SegmentsDebt(0, 0, 0))
        debts_by_kind[segment.kind] = SegmentsDebt(
            debt.segments + 1, debt.bytes + segment.size, debt.entries + segment.count
        )
    return debts_by_kind


def _inline_bytes(holder: Manifest | TableEntry, tails: Iterable[SegmentKind]) -> dict[str, int]:
    return {tail: len(msgspec.json.encode(part)) for tail in tails if (part := getattr(holder, tail))}
