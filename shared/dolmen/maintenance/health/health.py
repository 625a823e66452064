"""The health of a database as data. It holds names and numbers, and never a value of a row."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from dolmen.maintenance.debt import Debts, TableDebt

Level: TypeAlias = Literal["danger", "warning", "notice"]
LEVELS: tuple[Level, ...] = ("danger", "warning", "notice")
"""In this order: something is about to be lost or broken; it gets worse by itself; it is worth knowing."""


@dataclass(frozen=True)
class Concern:
    """Something that needs attention: its title, its meaning and remedy, and commands for that, in order."""

    level: Level
    title: str
    detail: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileSizes:
    """The sizes of a table's data files."""

    counts: dict[int, int]  # number of files by exponent ``e``: of at least 2**e bytes, and less than 2**(e + 1)
    small_below_bytes: int
    # small_files, small_bytes: number and size of the files below ``small_below_bytes``, without their deleted rows
    small_files: int
    small_bytes: int


@dataclass(frozen=True)
class SortOverlap:
    """How many files share each point in the range of the sort key, by rank: it shows no bound.

    The points are the distinct bounds of files in ascending order, and the gaps between neighbours.
    """

    column: str  # name of the sort key's first column, whose bounds these are
    files: int  # number of files with known bounds
    unknown: int  # number of files without known bounds, which every filter on the column reads
    deepest: int  # the most files that share a point
    mean: float  # the mean number of files over all points
    # (mean, greatest) of consecutive parts of the range; at most ``MOST_PARTS``. Empty if not computed.
    depths: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class DeleteCost:
    """The cost of a table's unresolved deletes for a scan of the whole table."""

    deletes: int
    oldest_age_us: int
    # files, rows: files and rows that a scan compares with the deletes
    files: int
    rows: int
    # objects, bytes: objects that a scan fetches for deletes whose record is not in the manifest, and their size
    objects: int
    bytes: int
    # estimated time of a scan of the whole table, as a multiple of the time without these deletes. It depends on the
    # number of files, and on the number and kind of the deletes that may hide rows of each.
    slowdown: float = 1.0


@dataclass(frozen=True)
class PlannedWork:
    """Work that the next round of maintenance, or the next collection, finds to do."""

    step: str  # expire, resolve, compact, index, publish or gc
    table: str | None  # the table's name; None for the whole database
    # what, command: the work in words, and the command that does it now
    what: str
    command: str
    due_at: int = 0  # the time from which on it can be done; 0 if it is due


@dataclass(frozen=True)
class PastWork:
    """A commit in the recent history."""

    # version, at: the version that it made, and its time by the store's clock, in microseconds
    version: int
    at: int
    operation: str
    done: str  # its changes in words: tables and columns, never values
    rows_added: int
    files_added: int
    files_removed: int
    message: str
    requests: tuple[str, ...]  # ids of the requests that it applied: the first few
    is_background: bool


@dataclass(frozen=True)
class TableHealth:
    """The health of one table."""

    name: str
    debt: TableDebt  # the work that it needs; its figures of files, rows and small files are exact
    primary_key: tuple[str, ...]
    sort_key: tuple[str, ...]
    columns: int
    sizes: FileSizes
    overlap: SortOverlap | None  # the overlap of its files; None for a table without a sort key, or without files
    deletes: DeleteCost | None  # what its unresolved deletes cost; None if it has none
    publishes: bool  # whether maintenance publishes it as Iceberg
    indexed: bool  # whether it has the setting ``index``, for an index of its primary key
    expires: bool


@dataclass(frozen=True)
class KeptTag:
    """A tag. Times are in microseconds; ``until`` is 0 for a tag without an end."""

    name: str
    version: int
    created_at: int
    until: int


@dataclass(frozen=True)
class KeptCursor:
    """A cursor: the version that its reader has acknowledged, when it moved, and when it ends, in microseconds."""

    name: str
    version: int
    moved_at: int
    ends_at: int


@dataclass(frozen=True)
class KeptVersions:
    """The versions that can be read."""

    newest: int  # the newest version; 0 if nothing was ever committed
    # oldest, oldest_at: the oldest version that has not expired, and its time; 0 if the manifest lacks the time
    oldest: int
    oldest_at: int
    retention_us: int
    keep_versions: int
    # tags, cursors: tags of users, and cursors, by version
    tags: tuple[KeptTag, ...]
    cursors: tuple[KeptCursor, ...]
    pins: int  # number of versions that are kept because they are published as Iceberg
    # tags_left_out, cursors_left_out: number of further ones
    tags_left_out: int = 0
    cursors_left_out: int = 0


@dataclass(frozen=True)
class PendingErasure:
    """An erasure whose rows some object may still hold. Times are in microseconds."""

    id: str
    state: str  # see ``dolmen.maintenance.erasures.status.ErasureStatus``
    requested_at: int
    due_at: int
    in_danger: bool  # whether hardly any of its time is left
    tables: tuple[str, ...]
    # next_step, next_at: the next step, and its latest time; 0 if that depends on other things
    next_step: str
    next_at: int


@dataclass(frozen=True)
class RejectsHealth:
    """The rejected files at a URL."""

    url: str
    # number of rejects that were not put back, by table; "" for files outside of any table's folder
    waiting: dict[str, int] = field(default_factory=dict)
    retried: int = 0
    newest_at: int = 0  # the time of the newest waiting reject, in microseconds; 0 if none waits
    complete: bool = True  # whether all objects were counted
    problem: str = ""  # why the URL could not be listed; "" if it could


@dataclass(frozen=True)
class QueueHealth:
    """A queue of messages. Numbers are approximate; None is unknown."""

    name: str  # a word for its messages: drops, deletes
    url: str
    waiting: int | None = None
    under_way: int | None = None  # messages that were delivered, and are neither done nor given up
    # dead, dead_letters: number of messages that were given up, and the queue that has them
    dead: int | None = None
    dead_letters: str | None = None
    problem: str = ""  # why the queue could not be read; "" if it could


@dataclass(frozen=True)
class Pipeline:
    """Rejects and queues outside the database, which does not know their URLs: the caller names them."""

    rejects: RejectsHealth | None = None
    queues: tuple[QueueHealth, ...] = ()


@dataclass(frozen=True)
class Health:
    """The health of a database in one version.

    Args:
        looked_at: the time of these figures by the store's clock, in microseconds.
        debts: the work that is left to do, by the manifest alone.
        tables: the largest tables, in this order.
        erasures: pending erasures, in the order of their deadlines.
        erasures_in_danger: number of all pending erasures with hardly any time left.
        past: recent commits, newest first.
        concerns: the most urgent first.
        tables_left_out, erasures_left_out: number of further ones.
    """

    url: str
    looked_at: int
    debts: Debts
    versions: KeptVersions
    tables: tuple[TableHealth, ...] = ()
    tables_left_out: int = 0
    erasures: tuple[PendingErasure, ...] = ()
    erasures_left_out: int = 0
    erasures_in_danger: int = 0
    past: tuple[PastWork, ...] = ()
    planned: tuple[PlannedWork, ...] = ()
    pipeline: Pipeline = Pipeline()
    concerns: tuple[Concern, ...] = ()

    @property
    def worst(self) -> Level | None:
        """The level of the most urgent concern; None if there is none."""
        return next((level for level in LEVELS if any(each.level == level for each in self.concerns)), None)

    def total(self, figure: str) -> int:
        """The sum of a figure of ``TableDebt`` over the tables that were looked at."""
        return sum(getattr(table.debt, figure) for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """These figures for JSON."""
        tables = [asdict(table) | {"debt": table.debt.to_dict()} for table in self.tables]
        debts = self.debts.to_dict()
        del debts["tables"]
        return asdict(self) | {"tables": tables, "debts": debts, "worst": self.worst}
