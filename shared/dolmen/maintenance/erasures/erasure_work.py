"""Finds what collection has to do next for erasures, from the newest manifest and the receipts.

Each step of an erasure is a commit of collection:

1. No file of the newest version contains its rows any more. ``Manifest.rewritten`` records that version.
2. The versions before that one expire, at ``expire_at`` at the latest.
3. The erasure leaves the list for ``Manifest.leaving``: the values by which it finds rows must be erased, too.
4. The versions that list it expire, and objects that only they needed are deleted. The receipt says "gone".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct

from dolmen.base.runtime import RECEIPT, Runtime, attempts
from dolmen.base.units import DAY_US, HOUR_US
from dolmen.commit.draft import Statement
from dolmen.commit.head import Context
from dolmen.commit.statements.erasures import ForgetErasures, NoteRewritten, UnspillTables, first_to_leave
from dolmen.entries.segments.erasures_in_force import least_erasure, stale_sections
from dolmen.entries.segments.segment_reader import SegmentReader, erasures_of
from dolmen.errors import CorruptionError, ObjectNotFoundError, StoreUnavailableError
from dolmen.format.layout import FORMAT_VERSION
from dolmen.format.manifest import Erasure, Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.format.receipts import ErasedFile, ErasedFrom, Receipt, receipt_key
from dolmen.store.base import ObjectStore, Stored

_SPARE_US = 3 * DAY_US  # time for rounds that are late, or fail


def expire_at(erasure: Erasure, settings: DatabaseSettings) -> int:
    """When versions that hold rows of an erasure expire, whatever other settings say.

    A quarter of its time must remain, and enough for twice ``reader_grace`` and a sweep.
    """
    if erasure.hurried_at:
        return erasure.hurried_at
    period_us = erasure.due_at - erasure.requested_at
    needed_us = settings.orphan_age_us + 2 * settings.reader_grace_us + _SPARE_US
    return max(erasure.requested_at, erasure.due_at - max(period_us // 4, needed_us))


def rewrite_due_at(erasure: Erasure, settings: DatabaseSettings) -> int:
    """When files that hold rows of an erasure are rewritten for it alone: half-way to ``expire_at``.

    Until then most of them are rewritten for other reasons, or for several erasures at once.
    """
    return erasure.requested_at + (expire_at(erasure, settings) - erasure.requested_at) // 2


def last_due_ts(context: Context, manifest: Manifest) -> int:
    """Timestamp of the youngest erasure whose files must be rewritten now, else 0. Without erasures, no request."""
    listed = erasures_of(manifest, context.segments)
    if not listed:
        return 0
    settings, now_us = DatabaseSettings.of(manifest), max(context.store.clock.now_us, manifest.created_at)
    return max((each.ts for each in listed if rewrite_due_at(each, settings) <= now_us), default=0)


MOST_FORGOTTEN = 1_000  # the most erasures that leave the list with one commit, which writes all their receipts first


class ErasureWork(Struct, frozen=True):
    """The work of a collection for erasures."""

    listed: tuple[Erasure, ...] = ()  # the listed erasures, oldest first
    must_note: bool = False  # whether the files of more erasures are rewritten than ``Manifest.rewritten`` records
    expire_before: int = 0  # all versions before this one expire, whatever other settings say; 0 if none must
    tags: tuple[str, ...] = ()  # names of tags of these versions
    leaving: tuple[Erasure, ...] = ()  # the erasures that leave the list; their receipts are written first
    # keys of segments with entries of idle tables, and with an obsolete entry that may name files with erased rows
    stale_sections: frozenset[str] = frozenset()
    now_us: int = 0
    late_drops_us: int = 0  # how long an erasure applies to late drops

    def needs_fence(self, horizon: int) -> bool:
        """Whether this work needs the commit that moves the fence."""
        return self.must_note or self.expire_before > horizon or bool(self.tags or self.leaving or self.stale_sections)

    def before_fence(self) -> list[Statement]:
        """The statements of that commit before the one that moves the fence."""
        if self.stale_sections:
            return [UnspillTables(self.stale_sections), NoteRewritten()]
        return [NoteRewritten()] if self.must_note else []

    def after_fence(self) -> list[Statement]:
        """The statements of that commit after the one that moves the fence."""
        if not self.leaving:
            return []
        return [ForgetErasures(self.leaving[-1].ts, self.now_us, self.late_drops_us, self.now_us + HOUR_US)]


def erasure_work(
    manifest: Manifest, reader: SegmentReader, settings: DatabaseSettings, now_us: int, horizon: int
) -> ErasureWork:
    """Finds the work that is due if the horizon moves to this version. Without erasures, it sends no request."""
    listed = erasures_of(manifest, reader)
    if not listed and not manifest.leaving:
        return ErasureWork()
    expire_before = max(
        _least_version(manifest, listed, settings, now_us),
        max((each.version for each in manifest.leaving if each.expire_at <= now_us), default=0),
    )
    tags = tuple(name for name, tag in sorted(manifest.tags.items()) if tag.version < expire_before)
    oldest = min(
        [max(horizon, expire_before), *(tag.version for tag in manifest.tags.values() if tag.version >= expire_before)]
    )
    until = max((each.through for each in manifest.rewritten if each.version <= oldest), default=0)
    leaving = first_to_leave(
        listed[:MOST_FORGOTTEN], until, through=until, now_us=now_us, late_drops_us=settings.late_drops_us
    )
    due = any(rewrite_due_at(each, settings) <= now_us for each in listed)
    stale = frozenset(section.object for section in stale_sections(manifest.tables.values())) if due else frozenset()
    noted_ts = max((each.through for each in manifest.rewritten), default=0)
    must_note = bool(listed) and listed[-1].ts > noted_ts and last_rewritten_ts(manifest, reader, listed) > noted_ts
    return ErasureWork(listed, must_note, expire_before, tags, leaving, stale, now_us, settings.late_drops_us)


def last_rewritten_ts(manifest: Manifest, reader: SegmentReader, listed: tuple[Erasure, ...]) -> int:
    """Timestamp of the youngest listed erasure such that no file holds rows of it or of older ones; 0 if none."""
    least_ts = least_erasure(manifest.tables.values(), reader, {erasure.ts for erasure in listed})
    return max((erasure.ts for erasure in listed if not least_ts or erasure.ts < least_ts), default=0)


def _least_version(manifest: Manifest, listed: tuple[Erasure, ...], settings: DatabaseSettings, now_us: int) -> int:
    """All versions before this one must expire, so that no version holds rows of an erasure that is due."""
    due = [each.ts for each in listed if expire_at(each, settings) <= now_us]
    versions = [min((note.version for note in manifest.rewritten if note.through >= ts), default=0) for ts in due]
    return max(versions, default=0)


def receipt_of(erasure: Erasure, manifest: Manifest) -> Receipt:
    """The first receipt of an erasure, while its rows are only hidden. ``manifest`` says what its tables are called."""
    tables = tuple(
        ErasedFrom(
            uuid=each.uuid,
            name=manifest.name_of(each.uuid) or "",
            columns=tuple(field.name for field in each.columns),
            keys=getattr(each.tombstone, "count", 0),
        )
        for each in erasure.tables
    )
    return Receipt(
        format_version=FORMAT_VERSION,
        id=erasure.id,
        ts=erasure.ts,
        version=erasure.version,
        requested_at=erasure.requested_at,
        due_at=erasure.due_at,
        tables=tables,
    )


def load_receipt(store: ObjectStore, id_: str) -> Receipt | None:
    """The receipt of an erasure; None if it is not written yet. Raises CorruptionError."""
    return _load(store, receipt_key(id_))[0]


def update_receipt(
    store: ObjectStore, runtime: Runtime, first: Receipt, change: Callable[[Receipt], Receipt]
) -> Receipt:
    """Changes a receipt by compare-and-swap, unless it says "gone"; if there is none yet, changes and writes ``first``.

    ``change`` may be called several times.

    Raises:
        CorruptionError: the receipt is damaged: it is left unchanged.
        StoreUnavailableError: it is unknown whether it was written.
    """
    key = receipt_key(first.id)
    for _ in attempts(runtime, RECEIPT):
        old, etag = _load(store, key)
        new = change(old or first) if old is None or not old.gone_at else old
        if new == old or isinstance(store.put(key, new.encode(), if_match=etag), Stored):
            return new
    raise StoreUnavailableError(f"cannot write {key!r} in {store.url}: others write it, or no response comes")


def note_erased_files(
    store: ObjectStore,
    runtime: Runtime,
    manifest: Manifest,
    rows_by_erasure: Sequence[tuple[Erasure, Mapping[str, int | None]]],
) -> None:
    """Records the erased rows of each file in the receipts (None: not counted), before the files may be replaced."""

    def write(item: tuple[Erasure, Mapping[str, int | None]]) -> None:
        erasure, rows_of = item

        def add_files(receipt: Receipt) -> Receipt:
            noted_paths = {file.path for file in receipt.files}
            files = [ErasedFile(path, rows) for path, rows in sorted(rows_of.items()) if path not in noted_paths]
            return msgspec.structs.replace(receipt, files=(*receipt.files, *files)) if files else receipt

        with suppress(CorruptionError):  # the last step of the erasure reports it, and deletes continue
            update_receipt(store, runtime, receipt_of(erasure, manifest), add_files)

    for _ in runtime.map(write, rows_by_erasure):
        pass


def write_receipts(context: Context, manifest: Manifest, work: ErasureWork) -> None:
    """Writes the receipts of erasures that the next commit takes off the list, or whose tagged versions it removes."""
    notes = sorted(manifest.rewritten, key=lambda note: note.version)
    leaving_ids = {erasure.id for erasure in work.leaving}

    def write(erasure: Erasure) -> None:
        note = next((note for note in notes if note.through >= erasure.ts), None)
        first = note.version if note else 0
        tags = tuple(name for name in work.tags if manifest.tags[name].version < first)

        def complete_receipt(receipt: Receipt) -> Receipt:
            receipt = _add_tags(tags, receipt)
            if erasure.id not in leaving_ids:
                return receipt
            rewritten_at = receipt.rewritten_at if receipt.rewritten_version == first else work.now_us
            return msgspec.structs.replace(receipt, rewritten_version=first, rewritten_at=rewritten_at)

        with suppress(CorruptionError):
            update_receipt(context.store, context.runtime, receipt_of(erasure, manifest), complete_receipt)

    for _ in context.runtime.map(write, work.listed if work.tags else work.leaving):
        pass
    for entry in manifest.leaving if work.tags else ():
        for id_ in entry.ids:
            tags = tuple(name for name in work.tags if manifest.tags[name].version < entry.version)
            with suppress(CorruptionError):
                update_receipt(context.store, context.runtime, unnamed_receipt(id_), partial(_add_tags, tags))


def unnamed_receipt(id_: str) -> Receipt:
    """A receipt with nothing but the id, for an erasure that has left the list without a receipt."""
    return Receipt(format_version=FORMAT_VERSION, id=id_)


def _add_tags(tags: Sequence[str], receipt: Receipt) -> Receipt:
    return msgspec.structs.replace(receipt, tags=(*receipt.tags, *(name for name in tags if name not in receipt.tags)))


def _load(store: ObjectStore, key: str) -> tuple[Receipt | None, str | None]:
    try:
        stored = store.get(key)
    except ObjectNotFoundError:
        return None, None
    return Receipt.decode(stored.body, key), stored.etag
