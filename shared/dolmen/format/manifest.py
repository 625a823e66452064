"""The manifest: an immutable description of one version of the database, the root of its snapshot.

docs/format.md specifies its members; the docstrings here say what the code relies on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from dolmen.base import arguments
from dolmen.errors import (
    CorruptionError,
    Error,
    InputError,
    SchemaError,
    TableNotFoundError,
    UnsupportedFormatError,
    VersionExpiredError,
)
from dolmen.format.entries import Blob, ColumnStats, DataFile, KeysTombstone, Overlay, Tombstone, Vector, WhereTombstone
from dolmen.format.layout import (
    CLOCK_STEP_US,
    FORMAT_VERSION,
    Cursor,
    Tag,
    build_decoders,
    check_manifest_key,
    check_reference,
    check_table_name,
    decode_sealed,
    manifest_key,
    parse_manifest_key,
    seal,
)
from dolmen.format.schema import COMMIT_TS_ID, Field, Schema, SortKey, constant, type_from_json
from dolmen.format.types import Json

HISTORY_LENGTH = 64
"""The earlier commits that stay in a manifest, whatever its size, if the database has a budget of its own for it."""
SHORT_HISTORY = 16  # the earlier commits that stay in any manifest: most writers find the outcome of their commit there
PREDICATE_EXPRESSIONS = "predicate-expressions"
"""Tombstones may compute with columns: predicates may have nodes of kind ``call``."""
PREDICATE_FIELDS = "predicate-fields"
"""Tombstones may name fields of structs: predicates may have nodes of kind ``field``."""
PREDICATE_FUNCTIONS = "predicate-functions"
"""Tombstones may call functions that readers of ``predicate-expressions`` need not know."""
PREDICATE_LISTS = "predicate-lists"
"""Tombstones may ask for an element of a list: predicates may have nodes of kind ``list``."""
COLUMN_DEFAULTS = "column-defaults"  # files that lack a column may have a value other than NULL for it
WIDENED_COLUMNS = "widened-columns"  # A column may have a narrower type in files than in the schema
TAGS = "tags"  # versions before the horizon, or more of them than settings ask for, stay because of tags or cursors
ERASURES = "erasures"  # reads of an older version apply the erasures that the newest manifest lists
ADOPTED_FILES = "adopted-files"  # the feature of manifests that name adopted files
INDEXES = "indexes"  # tables may have segments of kind ``index``
CONSTANT_COLUMNS = "constant-columns"  # data files may have constants
CHECKS = "checks"  # tables may have checks, which a writer must compare its rows with
DEFAULT_FUNCTIONS = "default-functions"  # columns may have defaults that a writer must compute
PARTITIONS = "partitions"  # tables may have partitions, by which a writer must divide its rows
SORT_ORDERS = "sort-orders"  # sort keys may have terms other than columns in ascending order with NULLs last
FEATURES = frozenset(
    {
        PREDICATE_EXPRESSIONS, PREDICATE_FIELDS, PREDICATE_FUNCTIONS, PREDICATE_LISTS, COLUMN_DEFAULTS, WIDENED_COLUMNS,
        TAGS, ERASURES, ADOPTED_FILES, INDEXES, CONSTANT_COLUMNS, CHECKS, DEFAULT_FUNCTIONS, PARTITIONS,
        SORT_ORDERS,
    }
)  # fmt: skip
"""Features of the format, beyond its version, that this code understands."""


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of one commit. ``rows_deleted`` counts only deletes by position.

    ``groups_dropped`` = groups of a compaction that others changed; ``files_resolved`` = files with a new pair.
    """

    rows_added: int = 0
    files_added: int = 0
    tombstones_added: int = 0
    rows_deleted: int = 0
    files_removed: int = 0
    files_resolved: int = 0
    tombstones_removed: int = 0
    groups_dropped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)))


class TableEffect(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect of a commit on one table, without the values of any row."""

    table: str  # its name; "" for the database itself
    what: str  # in a word: append, upsert, delete, overwrite, create, drop, rename, set, resolve, compact, merge
    # columns of a delete's predicate or keys, the settings that were set, or a table's new name; the first few
    over: tuple[str, ...] = ()
    more: int = 0  # how many more there were

    def __str__(self) -> str:
        names = ", ".join([*self.over, f"{self.more:,} more"] if self.more else self.over)
        return f"{self.what} {self.table}".rstrip() + (f"({names})" if names else "")


class HistoryEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One earlier commit. ``attempt`` completes the name of its manifest; the others are as in ``Manifest``."""

    version: int
    attempt: str
    commit_id: str
    commit_ts: int
    created_at: int
    operation: str
    counts: Counts = Counts()
    did: tuple[TableEffect, ...] = ()
    did_more: int = 0
    message: str = ""
    metadata: dict[str, str] = {}

    def is_same_commit(self, other: HistoryEntry) -> bool:
        """Whether both describe one commit, even if one says less of what it did, as older writers do."""
        bare = [msgspec.structs.replace(entry, did=(), did_more=0, message="", metadata={}) for entry in (self, other)]
        return bare[0] == bare[1]

    @property
    def manifest(self) -> str:
        return manifest_key(self.version, self.attempt)


SegmentKind: TypeAlias = Literal[
    "files", "overlays", "removed", "tombstones", "applied", "released", "history", "table", "erasures", "index"
]

# The lists of entries that move into segments, of a table and of the database itself
TABLE_TAILS: tuple[SegmentKind, ...] = ("files", "tombstones", "overlays", "removed")
DATABASE_TAILS: tuple[SegmentKind, ...] = ("history", "applied", "released", "erasures")


class Segment(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Entries that have left the manifest's inline tail, in an object of their own: see "Segments" in docs/format.md.

    Bounds and sums of files count removed files too.
    """

    kind: SegmentKind
    object: str
    size: int
    crc32: int
    count: int
    least: int = 0
    greatest: int = 0
    least_applied_through: int = 0
    resolved_through: int = 0
    rows: int = 0
    bytes: int = 0
    deleted: int = 0
    stats: dict[int, ColumnStats] = {}
    created_at: int = 0
    bloom: tuple[int, int, int] | None = None
    erasing: int = 0
    root: tuple[int, int, int] | None = None

    @property
    def applied_through(self) -> int:
        """The least ``applied_through`` that its files may have."""
        return max(self.least_applied_through, self.resolved_through)


class Released(msgspec.Struct, frozen=True, omit_defaults=True):
    """The objects from which the commit of ``version`` removed at least one reference."""

    version: int
    objects: tuple[str, ...] = ()  # each alone: a merged-away segment is released without what it names
    trees: tuple[Segment, ...] = ()  # segments released with all that they name, as a dropped table's are
    # manifests released with all that their versions need, because they had expired and lost their tag
    manifests: tuple[str, ...] = ()

    def check(self, holder: str) -> None:
        """Raises CorruptionError for ``holder`` if it names what can't be an object of a database."""
        for key in (*self.objects, *(tree.object for tree in self.trees), *self.manifests):
            if parse_manifest_key(key) is None:
                check_reference(key, holder)


class AppliedId(msgspec.Struct, frozen=True, gc=False):
    """An event or request that was applied: its id, the digest of its content, and the version that did it."""

    id: str
    digest: str
    version: int


class Mark(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The greatest sequence of a table's changes at a time: ``[ts, greatest]``, with a commit timestamp."""

    ts: int
    greatest: Json


class Sequences(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of the changes (CDC) of a table. Sequences are in JSON form (format/types.py), uncut."""

    greatest: Json  # the greatest sequence that a committed change had
    memory: str  # uuid of the table that remembers which keys were deleted at which sequence
    forgotten_through: Json = None  # deletes up to this sequence may be forgotten; None = none
    marks: tuple[Mark, ...] = ()  # the progress over time, by which ``forgotten_through`` moves, oldest first


class TableEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table of one version: see "A table entry" in docs/format.md."""

    uuid: str  # never reused: dropping and creating a table of the same name gives another
    epoch: int  # version of the commit that last created, overwrote or restored it
    schema: Schema
    primary_key: tuple[int, ...] = ()
    sort_key: SortKey = ()
    properties: dict[str, Any] = {}
    last_delete_ts: int = 0  # timestamp of the last statement that deleted rows in any way
    unseen_delete_ts: int = 0  # greatest timestamp of a delete that no tombstone in ``tombstones`` shows
    # files, tombstones: the newest entries, oldest first; ``segments`` has the older ones
    files: tuple[DataFile, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    segments: tuple[Segment, ...] = ()
    # newer pairs of files whose entries are in segments; if a file has several, the greatest counts
    overlays: tuple[Overlay, ...] = ()
    # uuids of files whose entries are in segments, and which are not part of the table any more
    removed: tuple[str, ...] = ()
    # of an idle table, the segment that holds its whole entry (and others'). Beside it are only uuid, epoch, the two
    # timestamps of deletes, and what tells whether an erasure reaches it: source, origins, subject.
    section: Segment | None = None
    indexes: tuple[dict[str, Any], ...] = ()
    sequences: Sequences | None = None
    # source, origins: uuids of the table that it was cloned from, and of that one's sources, nearest first
    source: str = ""
    origins: tuple[str, ...] = ()

    @property
    def lineage(self) -> tuple[str, ...]:
        """Uuids of the table and of those that it was cloned from, directly or not."""
        return (self.uuid, self.source, *self.origins) if self.source else (self.uuid,)

    @property
    def needed_features(self) -> tuple[str, ...]:
        """The features of the format that its properties need."""
        partitions = (PARTITIONS,) if self.properties.get("partition_by") is not None else ()
        return (*partitions, SORT_ORDERS) if any(isinstance(term, str) for term in self.sort_key) else partitions

    def segments_of(self, kind: SegmentKind) -> tuple[Segment, ...]:
        """Its segments of one kind, oldest first."""
        return tuple(segment for segment in self.segments if segment.kind == kind)


class ErasedTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """The delete of an erasure in a table, and in tables cloned from it, with the columns that the tombstone names."""

    uuid: str
    tombstone: Tombstone
    columns: tuple[Field, ...] = ()


class Erasure(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A delete whose rows no version shows any more, and which leave the disk: see "Erasures" in docs/format.md."""

    id: str
    ts: int  # its statement's timestamp. The tombstones of this timestamp are its own.
    version: int
    # requested_at, due_at: the request, and the deadline for the disk, in microseconds by the server's clock
    requested_at: int
    due_at: int
    tables: tuple[ErasedTable, ...] = ()
    # the values, in JSON form, of the subject that is forgotten in all tables with a subject; empty if rows of single
    # tables are erased
    subject: tuple[Json, ...] = ()
    # request, digest: id of the request, and the digest of its content; "" if it has none
    request: str = ""
    digest: str = ""
    has_own_deadline: bool = False
    hurried_at: int = 0  # the time of a request that its rows leave the disk as soon as they can; 0 = there was none

    def memory_us(self, most_us: int) -> int:
        """How long it applies to late drops: ``most_us`` by the settings, or less for a deadline of its own."""
        if self.hurried_at:
            return 0
        return min(most_us, (self.due_at - self.requested_at) // 2) if self.has_own_deadline else most_us

    def is_later_than(self, dropped_us: int | None) -> bool:
        """Whether it holds for rows that were dropped at a time by the server's clock; None = unknown."""
        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US


class RewrittenErasures(msgspec.Struct, frozen=True):
    """A version: from it on, no file of any version has rows of erasures up to the timestamp ``through``."""

    version: int
    through: int


class LeavingErasures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Erasures that left the manifest's list in a version, and whose rows may still be on the disk."""

    version: int
    ids: tuple[str, ...]
    # a time by the server's clock, in microseconds, after which no object is uploaded that holds their rows
    left_at: int = 0
    expire_at: int = 0  # when all versions before ``version`` expire at the latest
    # due_at, requested_at: the earliest of these erasures
    due_at: int = 0
    requested_at: int = 0


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One version of the database: see "The manifest" in docs/format.md."""

    format_version: int
    version: int
    attempt: str
    previous: str | None  # key of the previous version, None for the first
    commit_id: str  # names the change; the same in all attempts of a commit
    commit_ts: int  # timestamp of the commit's LAST statement, int64 microseconds; orders deletes against data
    created_at: int  # microseconds by the server's clock, never decreasing; for time travel and retention
    operation: str
    counts: Counts = Counts()
    # did, did_more: the first few of its effects on tables, and how many more there were
    did: tuple[TableEffect, ...] = ()
    did_more: int = 0
    # message, metadata: what its author says about it
    message: str = ""
    metadata: dict[str, str] = {}
    data_change: bool = True  # whether any scan's rows may differ from the previous version
    tables: dict[str, TableEntry] = {}
    # history, applied, released, erasures: oldest first; older ones are in ``segments``
    history: tuple[HistoryEntry, ...] = ()
    applied: tuple[AppliedId, ...] = ()
    released: tuple[Released, ...] = ()
    orphan_cutoff: int = 0  # the fence: older objects of a commit that has not landed may be deleted
    revoked_intents: dict[str, int] = {}  # txids whose objects may be deleted, with the server's time of the revocation
    # horizon, horizon_at: the oldest version that may be read, and ``created_at`` of the commit that moved it
    horizon: int = 0
    horizon_at: int = 0
    # freed, swept: the version up to which all released objects are deleted, and the time for orphans
    freed: int = 0
    swept: int = 0
    properties: dict[str, Any] = {}
    tags: dict[str, Tag] = {}
    cursors: dict[str, Cursor] = {}
    erasures: tuple[Erasure, ...] = ()
    # versions from which on no file holds rows of listed erasures, oldest first
    rewritten: tuple[RewrittenErasures, ...] = ()
    # erasures that are not listed any more, and whose rows may still be on the disk
    leaving: tuple[LeavingErasures, ...] = ()
    segments: tuple[Segment, ...] = ()
    features: tuple[str, ...] = ()  # the features that a reader must understand beyond ``format_version``

    def segments_of(self, kind: SegmentKind) -> tuple[Segment, ...]:
        """The database's own segments of one kind, oldest first."""
        return tuple(segment for segment in self.segments if segment.kind == kind)

    @property
    def key(self) -> str:
        return manifest_key(self.version, self.attempt)

    def table(self, name: str) -> TableEntry:
        """The table of this name. Raises TableNotFoundError with the names there are."""
        arguments.text("table", name)
        try:
            return self.tables[name]
        except KeyError:
            names = ", ".join(sorted(self.tables)) or "none"
            raise TableNotFoundError(f"no table {name!r} in version {self.version}; tables: {names}") from None

    def name_of(self, uuid: str) -> str | None:
        """The name of the table with this uuid; None if there is none. A renamed table keeps its uuid."""
        return next((name for name, entry in self.tables.items() if entry.uuid == uuid), None)

    def tagged_manifest(self, version: int) -> str | None:
        """Key of a version's manifest if a tag names the version."""
        return next((tag.manifest for tag in self.tags.values() if tag.version == version), None)

    def is_kept(self, version: int, *, by_tag: bool = True) -> bool:
        """Whether a version may be read: it has not expired, or a tag keeps it. Version 0 expires with version 1."""
        return max(version, 1) >= self.horizon or (by_tag and self.tagged_manifest(version) is not None)

    def check_kept(self, version: int, *, by_tag: bool = True) -> None:
        """Raises VersionExpiredError if a version is not kept: its objects may be missing."""
        if not self.is_kept(version, by_tag=by_tag):
            raise VersionExpiredError(f"version {max(version, 1)} has expired: the oldest kept is {self.horizon}")

    def as_history(self) -> HistoryEntry:
        """This commit as an entry in the history of later manifests."""
        return HistoryEntry(*(getattr(self, name) for name in HistoryEntry.__struct_fields__))

    def encode(self) -> bytes:
        """The object's bytes: sealed JSON. Raises InputError for a value that JSON cannot represent."""
        try:
            return seal(msgspec.json.encode(self))
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"this can't be committed: JSON has no form for it: {error}") from error

    def as_read(self) -> tuple[Manifest, bytes]:
        """The object's bytes, and the manifest that readers will decode from them. Raises InputError if they can't."""
        body = self.encode()
        try:
            read = Manifest.decode(body, self.key)
        except (Error, RecursionError) as error:
            raise InputError(f"this can't be committed: readers would refuse it: {error}") from error
        return (self if read == self else read), body  # the same objects as before, where there is no difference

    @classmethod
    def decode(cls, body: bytes, key: str) -> Manifest:
        """Reads a manifest.

        Raises:
            UnsupportedFormatError: written by a newer dolmen.
            CorruptionError: it is damaged, is another version's, or refers to a key that can't be an object.
        """
        manifest = decode_sealed(body, key, cls, "not a manifest", FEATURES)
        if manifest.key != key:
            raise CorruptionError(key, f"it says that it is {manifest.key}")
        if manifest.previous is not None and parse_manifest_key(manifest.previous) is None:
            raise CorruptionError(key, f"{manifest.previous!r} is not a manifest")
        for name in manifest.tables:
            check_table_name(name)
        check_references(manifest, key)
        for released in manifest.released:
            released.check(key)
        for tag in manifest.tags.values():
            check_manifest_key(tag.manifest, tag.version, key)
        if CONSTANT_COLUMNS in manifest.features:
            for entry in manifest.tables.values():
                check_constants(entry.files, key, entry.schema.next_id)
        return manifest


def check_constants(files: Iterable[DataFile], holder: str, next_id: int = COMMIT_TS_ID) -> None:
    """Raises CorruptionError for ``holder`` if a file in it has an invalid constant.

    Its id (``next_id`` is the first that no column has had) or its type is unknown, or its value is not of the type.
    """
    for file in files:
        for id_, each in file.constants.items():
            try:
                if not 0 < id_ < next_id:
                    raise SchemaError("there is no such column")
                constant(each.value, type_from_json(each.type), 1)
            except (SchemaError, pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise CorruptionError(holder, f"{file.path}: constant of column {id_}: {error}") from error


EMPTY = Manifest(
    format_version=FORMAT_VERSION,
    version=0,
    attempt="00000000",
    previous=None,
    commit_id="",
    commit_ts=0,
    created_at=0,
    operation="empty",
)
"""The manifest of a prefix without a pointer: the base of the first commit."""

# The one registry of all fields that hold references: what a version needs, field by field. Collection must not forget
# a kind of object, so a test lists the other fields of each struct, and fails for a field that is in neither list.
# References in segments are found by reading them (maintenance/gc/mark.py).
KEY_FIELDS: dict[type, tuple[str, ...]] = {
    Blob: ("object",),
    DataFile: ("path",),
    Segment: ("object",),
    Vector: ("object",),
}
"""Fields that are the key of an object."""

REFERENCE_FIELDS: dict[type, tuple[str, ...]] = {
    DataFile: ("vector",),
    ErasedTable: ("tombstone",),
    Erasure: ("tables",),
    KeysTombstone: ("blob",),
    Manifest: ("tables", "segments", "erasures"),
    Overlay: ("vector",),
    TableEntry: ("files", "tombstones", "segments", "overlays", "section"),
    WhereTombstone: ("blob",),
}
"""Fields whose value, or whose values, hold references."""

RESERVED_FIELDS: dict[type, tuple[str, ...]] = {TableEntry: ("indexes",)}
"""Fields that will hold references one day. If one is not empty, this code cannot tell what the version needs."""


def references(value: Any, *, check_reserved: bool = True) -> Iterator[str]:
    """Keys of all objects that a manifest, a table's entry or any entry names itself; with repetitions.

    Raises UnsupportedFormatError with ``check_reserved``: a part may have references that this code does not know.
    Readers may ignore them.
    """
    if isinstance(value, msgspec.Struct):
        kind = type(value)
        for name in RESERVED_FIELDS.get(kind, ()):
            if check_reserved and getattr(value, name):
                raise UnsupportedFormatError(f"this dolmen does not know what {name} of a table needs: upgrade it")
        for name in KEY_FIELDS.get(kind, ()):
            yield getattr(value, name)
        for name in REFERENCE_FIELDS.get(kind, ()):
            yield from references(getattr(value, name), check_reserved=check_reserved)
    elif value is not None and not isinstance(value, str):
        for each in value.values() if isinstance(value, dict) else value:
            yield from references(each, check_reserved=check_reserved)


def check_references(value: Any, holder: str) -> None:
    """Raises CorruptionError for ``holder`` if entries in it need what can't be an object of a database."""
    for path in references(value, check_reserved=False):
        check_reference(path, holder)


build_decoders(Manifest)
