"""Merges segments, so that they stay few after any number of commits, and none has mostly removed entries.

A merge of segments of files also applies overlays and removals to the entries, and so removes them from the manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any

import msgspec
from msgspec import Struct

from dolmen.base.runtime import never
from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.background import MergeSegments
from dolmen.entries.segments.live import LiveFiles, newest_pairs
from dolmen.entries.segments.segment_reader import Uuids
from dolmen.format.layout import segment_key
from dolmen.format.manifest import DATABASE_TAILS, Manifest, Segment, SegmentKind, TableEntry
from dolmen.format.schema import Schema
from dolmen.format.segments import encode_checked
from dolmen.maintenance.erasures.erasure_work import last_due_ts
from dolmen.store.base import create

FAN_IN = 4
"""The number of segments of similar size to merge. An entry is rewritten log4(entries / entries per spill) times."""

MOST_ENTRIES = 50_000  # the most entries of a segment. For data files that is about 10 MB, which one GET fetches.

DIRTY_PART = 8
"""A segment of files is rewritten when more than 1/DIRTY_PART of its entries have an overlay or are removed."""


class Merged(Struct, frozen=True):
    """The result of a run."""

    commits: int
    # inputs, outputs: numbers of segments that were merged, and that replaced them
    inputs: int
    outputs: int
    finished: bool  # False when it stopped at its deadline with work left


def merge_segments(context: Context, *, deadline: Callable[[], bool] = never) -> Merged:
    """Merges segments of all tables and of the database where that pays, with a commit for each merge."""
    commits = inputs = outputs = 0
    for name in (None, *sorted(context.head.refresh().manifest.tables)):
        skipped = 0  # merges that others have made unnecessary
        while (merge := _next_merge(context, name, skipped)) is not None:
            if deadline():
                return Merged(commits, inputs, outputs, finished=False)
            now_us = context.store.clock.now_us
            commit = submit(context.head, "merge", [upload_merge(context, merge)], first_upload_us=now_us)
            if commit.manifest is None:
                skipped += 1
                continue
            commits += 1
            inputs += len(merge.statement.inputs)
            outputs += len(merge.bodies)
    return Merged(commits, inputs, outputs, finished=True)


def _next_merge(context: Context, name: str | None, skip: int) -> Merge | None:
    """Plans the next merge on the newest version, because the last commit may have spilled entries for it."""
    manifest = (context.head.cached or context.head.refresh()).manifest
    if name is not None and name not in manifest.tables:
        return None
    return next(islice(plan_merges(context, manifest, name), skip, None), None)


class Merge(Struct, frozen=True):
    """A merge: the statement that commits it, and the bodies of its outputs, which are not uploaded yet."""

    statement: MergeSegments
    bodies: tuple[bytes, ...]


def upload_merge(context: Context, merge: Merge) -> MergeSegments:
    """Uploads a merge's segments, and returns the statement that commits it."""
    for segment, body in zip(merge.statement.outputs, merge.bodies, strict=True):
        create(context.store, segment.object, body, context.runtime)
    return merge.statement


def plan_merges(context: Context, manifest: Manifest, name: str | None) -> Iterator[Merge]:
    """Plans the merges that pay, in a table or, if ``name`` is None, among the database's own segments."""
    if name is None:
        for kind in DATABASE_TAILS:
            yield from _plan_concatenations(context, manifest.segments_of(kind), None, "", 0)
        return
    entry = context.segments.whole(manifest.tables[name])
    yield from _plan_concatenations(context, entry.segments_of("tombstones"), name, entry.uuid, entry.epoch)
    merge = _plan_file_merge(context, name, entry, last_due_ts(context, manifest))
    if merge is not None:
        yield merge


# ---- segments that are concatenated ----------------------------------------------------------------------------------


def tiers(segments: Sequence[Segment]) -> Iterator[tuple[Segment, ...]]:
    """Groups of neighbours to merge: at least ``FAN_IN`` segments of similar size that are not full.

    Only neighbours, because entries keep their order. Sizes are similar between the same powers of ``FAN_IN``.
    """
    for tier, run in groupby(segments, key=lambda segment: size_tier(segment.count)):
        together = tuple(run)
        if tier < size_tier(MOST_ENTRIES) and len(together) >= FAN_IN:
            yield together


def size_tier(count: int) -> int:
    """The exponent of the greatest power of ``FAN_IN`` that is not greater than this number of entries."""
    tier = 0
    while count >= FAN_IN:
        count //= FAN_IN
        tier += 1
    return tier


def _plan_concatenations(
    context: Context, segments: Sequence[Segment], name: str | None, uuid: str, epoch: int
) -> Iterator[Merge]:
    for run in tiers(segments):
        kind = run[0].kind
        read: Callable[[Segment], Iterable[Any]] = getattr(context.segments, kind)
        entries = chain.from_iterable(read(segment) for segment in run)
        outputs = list(_encode(context, kind, entries, None))
        newest = max(segment.created_at for segment in run)
        dated = tuple(msgspec.structs.replace(segment, created_at=newest) for segment, _ in outputs)
        inputs = tuple(segment.object for segment in run)
        yield Merge(MergeSegments(name, uuid, epoch, inputs, dated), tuple(body for _, body in outputs))


def _encode(
    context: Context, kind: SegmentKind, entries: Iterable[Any], schema: Schema | None
) -> Iterator[tuple[Segment, bytes]]:
    remaining = iter(entries)
    while part := list(islice(remaining, MOST_ENTRIES)):
        yield encode_checked(kind, part, segment_key(kind, context.runtime.uuid()), schema)


# ---- segments of files, with overlays and removals -------------------------------------------------------------------


def _plan_file_merge(context: Context, name: str, entry: TableEntry, erase_through: int) -> Merge | None:
    """One merge of all segments of files to rewrite: full tiers, and segments with many changes.

    Also segments with bounds of files that held rows of erasures up to ``erase_through``: bounds are values, too.
    """
    reader, segments = context.segments, entry.segments_of("files")
    if not segments:
        return None
    live = LiveFiles.of(entry, reader)
    removals, overlay_segments = entry.segments_of("removed"), entry.segments_of("overlays")
    spilled_removed = list(chain.from_iterable(map(reader.removed, removals)))
    spilled_overlays = list(chain.from_iterable(map(reader.overlays, overlay_segments)))
    removed, overlays = {*entry.removed, *spilled_removed}, [*entry.overlays, *spilled_overlays]
    keys_by_uuid = _find_segments(live, {*removed, *(overlay.file for overlay in overlays)})
    changes = Counter(keys_by_uuid.values())
    chosen = {segment.object for run in tiers(segments) for segment in run}
    chosen |= {segment.object for segment in segments if changes[segment.object] * DIRTY_PART > segment.count}
    chosen |= {segment.object for segment in segments if _has_erased_bounds(live, segment, erase_through)}
    if len(removals) >= FAN_IN or len(overlay_segments) >= FAN_IN:
        chosen |= changes.keys()
    # Only this merge can remove a change that was spilled while another merge applied it to the file's entry.
    if not chosen and {*spilled_removed, *(overlay.file for overlay in spilled_overlays)} <= keys_by_uuid.keys():
        return None
    run = [segment for segment in segments if segment.object in chosen]
    files = chain.from_iterable(live.of_segment(segment.object) for segment in run)
    outputs = list(_encode(context, "files", files, entry.schema))
    folded_uuids = {uuid for uuid, home in keys_by_uuid.items() if home in chosen}
    kept_uuids = keys_by_uuid.keys() - folded_uuids
    outputs += _encode(context, "removed", sorted(uuid for uuid in spilled_removed if uuid in kept_uuids), None)
    newest = newest_pairs(overlay for overlay in spilled_overlays if overlay.file in kept_uuids)
    outputs += _encode(context, "overlays", newest.values(), None)
    statement = MergeSegments(
        name,
        entry.uuid,
        entry.epoch,
        tuple(segment.object for segment in (*run, *removals, *overlay_segments)),
        tuple(segment for segment, _ in outputs),
        frozenset(folded_uuids & removed),
        frozenset(overlay for overlay in overlays if overlay.file in folded_uuids),
        entry.schema,
        {segment.object: segment.erasing for segment in run},
    )
    return Merge(statement, tuple(body for _, body in outputs))


def _has_erased_bounds(live: LiveFiles, segment: Segment, erase_through: int) -> bool:
    """Whether a segment has bounds of files that held erased rows, all of which have been rewritten."""
    if not 0 < segment.erasing <= erase_through:
        return False
    return not any(0 < file.erasing <= erase_through for file in live.of_segment(segment.object))


def _find_segments(live: LiveFiles, uuids: Collection[str]) -> dict[str, str]:
    """By a file's uuid, the key of the segment that holds its entry, live or not."""
    names, keys = Uuids(uuids), dict[str, str]()
    if len(names):
        for part in live.live_segments():
            _, positions = part.table.find(names)
            keys.update((names.names[index], part.segment.object) for index in positions.tolist())
    return keys
