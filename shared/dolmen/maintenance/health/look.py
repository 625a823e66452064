"""Looks at a database: reads its pointer, its manifest and the segments that this names, and nothing else.

Requests are 2 for pointer and manifest, 1 for each segment of the tables that are looked at (and of erasures), and 1
for the receipt of each erasure that is told of. Memory does not grow with the number of files, but for 16 bytes of each
file in tables with a sort key (more where it is text), as long as their overlap is computed.

The work that the next round of maintenance and the next collection find to do, by metadata alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from dolmen.base import arguments
from dolmen.base.units import count_text
from dolmen.commit.context import Context
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.errors import InputError
from dolmen.format.manifest import HistoryEntry, Manifest, TableEntry
from dolmen.format.pointer import RESERVED_TAGS
from dolmen.format.properties import DatabaseSettings, TableSettings
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, PlannedGroup, plan_compaction
from dolmen.maintenance.debt import Debts, TableDebt, debts_of
from dolmen.maintenance.erasures.erasure_work import rewrite_through
from dolmen.maintenance.gc.collection import last_deletable_version, next_horizon
from dolmen.maintenance.health.concerns import concerns_of, size_text
from dolmen.maintenance.health.file_figures import FilesSurvey, pending_erasures
from dolmen.maintenance.health.health import (
    Health,
    KeptCursor,
    KeptTag,
    KeptVersions,
    PastWork,
    Pipeline,
    PlannedWork,
    TableHealth,
)
from dolmen.transactions.results import Commit

MOST_PLANNED_FILES = 20_000
"""Tables with more files are not planned file by file: the plan says what compaction of their small files saves."""


def plan_table(context: Context, table: TableHealth, entry: TableEntry, erase_through: int) -> Iterator[PlannedWork]:
    """Yields the work that a table needs, in the order in which a round does it.

    Args:
        entry: the table's whole entry.
        erase_through: see ``plan_compaction``.
    """
    debt, name = table.debt, table.name
    if table.expires:
        yield PlannedWork(
            "expire", name, "look for rows that are older than the table's ttl", f"dolmen maintain {name}"
        )
    if table.deletes:
        deletes = count_text(debt.tombstones, "unresolved delete")
        what = f"{deletes}, {count_text(debt.unresolved_files, 'file')} to look at"
        yield PlannedWork("resolve", name, what, f"dolmen resolve {name}")
    yield from _compaction(context, table, entry, erase_through)
    if table.indexed and debt.index_lag_rows:
        yield PlannedWork(
            "index", name, f"at least {debt.index_lag_rows:,} rows to add to the index", f"dolmen maintain {name}"
        )
    if table.publishes and (not debt.published_version or debt.publication_lag_us):
        what = "publish what has changed" if debt.published_version else "publish for the first time"
        yield PlannedWork("publish", name, what, f"dolmen publish-iceberg --table {name}")


def plan_collection(context: Context, manifest: Manifest, now_us: int) -> Iterator[PlannedWork]:
    """Yields the work of the next collection. Orphans are not counted: that would take a listing."""
    settings = DatabaseSettings.of(manifest)
    horizon = max(manifest.horizon, 1)
    expiring = max(0, next_horizon(context.head, manifest, settings, now_us) - horizon) if manifest.version else 0
    if expiring:
        yield PlannedWork("gc", None, f"let {count_text(expiring, 'version')} expire", "dolmen gc")
    until = last_deletable_version(manifest, settings, now_us)
    waiting = [entry for entry in manifest.released if manifest.freed < entry.version <= manifest.horizon]
    objects = sum(len(entry.objects) for entry in waiting)
    trees = sum(len(entry.trees) for entry in waiting)
    if objects or trees:
        what = f"delete {count_text(objects, 'object')} that no kept version needs"
        what += f", and {count_text(trees, 'segment')} with all that it names" if trees else ""
        due = 0 if until >= manifest.horizon else manifest.horizon_at + settings.reader_grace_us
        yield PlannedWork("gc", None, what, "dolmen gc", due)


def _compaction(context: Context, table: TableHealth, entry: TableEntry, erase_through: int) -> Iterator[PlannedWork]:
    debt, command = table.debt, f"dolmen compact {table.name}"
    if debt.files > MOST_PLANNED_FILES:
        if debt.files_saved:
            files = count_text(debt.small_files, "file")
            what = f"small files: {files}, {size_text(debt.small_bytes)}, become {debt.files_saved:,} fewer"
            yield PlannedWork("compact", table.name, what, command)
        return
    live = LiveFiles.of(entry, context.segments).matching(None, ids=entry.sort_key)
    plan = plan_compaction(
        table.name, entry, live, debt.target_file_bytes, CompactionOptions(), erase_through=erase_through
    )
    together: dict[str, list[PlannedGroup]] = {}
    for group in plan.groups:
        together.setdefault(group.reason, []).append(group)
    for reason, groups in together.items():
        sums = Counter[str]()
        for group in groups:
            sums.update(
                files=len(group.inputs), bytes=group.bytes_in, out=group.files_out, requests=group.requests_saved
            )
        files = f"{count_text(sums['files'], 'file')}, {size_text(sums['bytes'])}"
        what = f"{reason}: {files}, become about {sums['out']:,}" if sums["out"] else f"{reason}: {files}, go"
        saved = f"; saves each scan {count_text(sums['requests'], 'request')}" if sums["requests"] else ""
        yield PlannedWork("compact", table.name, what + saved, command)


MOST_TABLES = 500
"""The most tables that are looked at: those of most bytes."""


MOST_COMMITS = 40
"""The most commits that are told of."""


MOST_NAMES = 100
"""The most tags and the most cursors that are told of."""


_MOST_REQUESTS = 5


_UPKEEP = frozenset(("expire", "resolve", "gather", "compact", "index", "merge", "publish", "gc"))


def look(context: Context, pipeline: Pipeline | None = None) -> Health:
    """Computes the health of the newest version.

    Args:
        pipeline: what lies beside the database, which does not know it.

    Raises:
        InputError: ``pipeline`` is none.
        CorruptionError: pointer, manifest or a segment is damaged or missing.
    """
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise InputError(f"pipeline={arguments.short_repr(pipeline)} is none: look_at_pipeline makes one")
    manifest = context.head.refresh().manifest
    now_us = max(context.store.clock.now_us, manifest.created_at)
    with context.reading(manifest.version):
        return _look(context, manifest, now_us, pipeline or Pipeline())


def _look(context: Context, manifest: Manifest, now_us: int, pipeline: Pipeline) -> Health:
    debts = debts_of(context, manifest)
    largest = sorted(debts.tables.values(), key=lambda debt: (-debt.bytes, debt.name))
    erase_through = rewrite_through(context, manifest)
    tables: list[TableHealth] = []
    planned: list[PlannedWork] = []
    for debt in largest[:MOST_TABLES]:
        entry = context.segments.whole(manifest.tables[debt.name])
        table = _table(context, debt, entry, manifest, now_us)
        tables.append(table)
        planned += plan_table(context, table, entry, erase_through)
    erasures = pending_erasures(context, manifest, now_us)
    health = Health(
        url=context.store.url,
        looked_at=now_us,
        debts=debts,
        versions=_versions(manifest, debts),
        tables=tuple(tables),
        tables_left_out=len(largest) - len(tables),
        erasures=erasures.first,
        erasures_left_out=erasures.left_out,
        erasures_in_danger=erasures.in_danger,
        past=_past(manifest),
        planned=(*planned, *plan_collection(context, manifest, now_us)),
        pipeline=pipeline,
    )
    return replace(health, concerns=concerns_of(health))


def _table(context: Context, debt: TableDebt, entry: TableEntry, manifest: Manifest, now_us: int) -> TableHealth:
    settings, tombstones = TableSettings.of(entry), tombstones_of(entry, context.segments)
    survey = FilesSurvey.of(entry, tombstones, debt.target_file_bytes, context.segments)
    lag = debt.publication_lag_us
    exact = replace(
        debt,
        exact=True,
        files=survey.files,
        rows=survey.rows,
        dead_rows=survey.dead_rows,
        bytes=survey.bytes,
        small_files=survey.small_files,
        small_bytes=survey.small_bytes,
        unresolved_files=survey.unresolved_files,
        publication_lag_us=lag + now_us - manifest.created_at if lag else lag,
    )
    names = {field.id: field.name for field in entry.schema.fields}
    return TableHealth(
        name=debt.name,
        debt=exact,
        primary_key=tuple(names[id_] for id_ in entry.primary_key),
        sort_key=tuple(names[id_] for id_ in entry.sort_key),
        columns=len(names),
        sizes=survey.sizes,
        overlap=survey.overlap,
        deletes=survey.delete_cost(tombstones, now_us),
        publishes=settings.iceberg is not None,
        indexed=settings.index,
        expires=settings.ttl is not None,
    )


def _versions(manifest: Manifest, debts: Debts) -> KeptVersions:
    settings = DatabaseSettings.of(manifest)
    own = sorted((tag.version, name, tag) for name, tag in manifest.tags.items() if not name.startswith(RESERVED_TAGS))
    cursors = sorted((cursor.version, name, cursor) for name, cursor in manifest.cursors.items())
    oldest = max(manifest.horizon, min(manifest.version, 1))
    known = chain(manifest.history, [manifest.as_history()])
    return KeptVersions(
        newest=manifest.version,
        oldest=oldest,
        oldest_at=next((entry.created_at for entry in known if entry.version == oldest), 0),
        retention_us=settings.retention_us,
        keep_versions=settings.keep_versions,
        tags=tuple(KeptTag(name, version, tag.created_at, tag.until) for version, name, tag in own[:MOST_NAMES]),
        cursors=tuple(
            KeptCursor(name, version, cursor.moved_at, cursor.moved_at + cursor.age_us)
            for version, name, cursor in cursors[:MOST_NAMES]
        ),
        pins=len(manifest.tags) - len(own),
        tags_left_out=max(0, len(own) - MOST_NAMES),
        cursors_left_out=max(0, len(cursors) - MOST_NAMES),
    )


def _past(manifest: Manifest) -> tuple[PastWork, ...]:
    """Recent commits and their requests, as far as these are in the manifest."""
    if not manifest.version:
        return ()
    entries = list(islice(chain([manifest.as_history()], reversed(manifest.history)), MOST_COMMITS))
    requests = dict[int, list[str]]()
    for applied in manifest.applied:
        requests.setdefault(applied.version, []).append(applied.id)
    return tuple(_work(entry, requests.get(entry.version, ())) for entry in entries)


def _work(entry: HistoryEntry, requests: Sequence[str]) -> PastWork:
    return PastWork(
        version=entry.version,
        at=entry.created_at,
        operation=entry.operation,
        done=Commit.of(entry).done,
        rows_added=entry.counts.rows_added,
        files_added=entry.counts.files_added,
        files_removed=entry.counts.files_removed,
        message=entry.message,
        requests=tuple(requests[:_MOST_REQUESTS]),
        upkeep=entry.operation in _UPKEEP,
    )
