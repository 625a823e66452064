"""Computes the health of a database: concerns that need attention, and the work of the next round of maintenance.

It reads the pointer, the manifest, segments and receipts (docs/health.md).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from dolmen.base.records import replace
from dolmen.base.units import DAY_US, HOUR_US, count_text, duration_text, size_text
from dolmen.commit.head import Context
from dolmen.entries.segments.live import LiveFiles, tombstones_of
from dolmen.errors import InputError, short_repr
from dolmen.format.column_terms import sort_ids, sort_texts
from dolmen.format.layout import RESERVED_TAGS
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import DatabaseSettings, TableSettings
from dolmen.maintenance.compact.compaction_plan import CompactionOptions, PlannedGroup, plan_compaction
from dolmen.maintenance.debt import MANY_DELETES, OLD_DELETE_US, STEPS, Debts, TableDebt, debts_of
from dolmen.maintenance.erasures.erasure_work import last_due_ts
from dolmen.maintenance.erasures.status import DANGER_PART, pending_spans, pending_statuses
from dolmen.maintenance.gc.collection import last_deletable_version, next_horizon
from dolmen.maintenance.health.elements import time_text
from dolmen.maintenance.health.file_figures import FilesSurvey
from dolmen.maintenance.health.health import (
    LEVELS,
    Concern,
    Health,
    KeptCursor,
    KeptTag,
    KeptVersions,
    PastWork,
    PendingErasure,
    Pipeline,
    PlannedWork,
    TableHealth,
)
from dolmen.transactions.unit_of_work import Commit

MOST_TABLES = 500  # the most tables with figures: the largest by bytes

MOST_COMMITS = 40  # the most commits that are listed

MOST_NAMES = 100  # the most tags and the most cursors that are listed

MOST_PLANNED_FILES = 20_000  # for a table with more files, the plan only says what compaction of its small files saves

MOST_ERASURES = 20  # the most erasures that are listed: each costs a request for its receipt

_MOST_REQUESTS = 5

_BACKGROUND = frozenset((*STEPS, "gather", "gc"))

SLOW_SCAN = 2.0  # from this estimated slowdown of scans on, deletes are a concern, however few and young they are

LATE_PUBLICATION_US = 6 * HOUR_US
"""From this lag on, a publication counts as late; the stack's alarm has the same limit."""

FEW_FILES = 16  # compaction that saves fewer files is not mentioned

DEEP_OVERLAP = 8  # from this mean number of files at a point of the sort key on, filters on it hardly help

FULL_MANIFEST = 0.9  # from this share of its budget on, a manifest counts as full

LATE_COLLECTION_US = 3 * DAY_US  # after this time without a collection, waiting objects are a concern

_CURSOR_PART = 8  # A cursor is about to end when less than 1/_CURSOR_PART of its time is left


def look(context: Context, pipeline: Pipeline | None = None) -> Health:
    """Computes the health of the newest version. See ``Database.health``."""
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise InputError(f"pipeline={short_repr(pipeline)} is not a Pipeline: look_at_pipeline makes one")
    manifest = context.head.refresh().manifest
    now_us = max(context.store.clock.now_us, manifest.created_at)
    with context.reading(manifest.version):
        return _look(context, manifest, now_us, pipeline or Pipeline())


def _look(context: Context, manifest: Manifest, now_us: int, pipeline: Pipeline) -> Health:
    debts = debts_of(context, manifest)
    largest = sorted(debts.tables.values(), key=lambda debt: (-debt.bytes, debt.name))
    erase_through = last_due_ts(context, manifest)
    tables: list[TableHealth] = []
    planned: list[PlannedWork] = []
    for debt in largest[:MOST_TABLES]:
        entry = context.segments.whole(manifest.tables[debt.name])
        table = _table(context, debt, entry, manifest, now_us)
        tables.append(table)
        planned += plan_table(context, table, entry, erase_through)
    erasures, erasures_left_out, erasures_in_danger = _pending_erasures(context, manifest, now_us)
    health = Health(
        url=context.store.url,
        looked_at=now_us,
        debts=debts,
        versions=_versions(manifest, debts),
        tables=tuple(tables),
        tables_left_out=len(largest) - len(tables),
        erasures=erasures,
        erasures_left_out=erasures_left_out,
        erasures_in_danger=erasures_in_danger,
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
        debt, exact=True, **survey.sums.figures(), publication_lag_us=lag + now_us - manifest.created_at if lag else lag
    )
    names = {field.id: field.name for field in entry.schema.fields}
    return TableHealth(
        name=debt.name,
        debt=exact,
        primary_key=tuple(names[id_] for id_ in entry.primary_key),
        sort_key=tuple(sort_texts(entry.sort_key, entry.schema)),
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
    history = chain(manifest.history, [manifest.as_history()])
    return KeptVersions(
        newest=manifest.version,
        oldest=oldest,
        oldest_at=next((entry.created_at for entry in history if entry.version == oldest), 0),
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


def _pending_erasures(context: Context, manifest: Manifest, now_us: int) -> tuple[tuple[PendingErasure, ...], int, int]:
    """Returns the pending erasures that are due first, the number of other ones, and the number of all in danger."""
    spans = pending_spans(manifest, context.segments)
    if not spans:
        return (), 0, 0
    urgent = sorted(spans, key=lambda id_: (spans[id_], id_))[:MOST_ERASURES]
    statuses = {status.id: status for status in pending_statuses(context, manifest, frozenset(urgent))}
    pending = [
        PendingErasure(
            id_,
            status.state,
            spans[id_].requested_at,
            spans[id_].due_at,
            spans[id_].is_in_danger(now_us),
            tuple(each.name or "a dropped table" for each in status.receipt.tables),
            status.next_step,
            status.next_at,
        )
        for id_ in urgent
        if (status := statuses.get(id_)) is not None and status.state != "gone"
    ]
    other_ids = spans.keys() - set(urgent)
    endangered = sum(spans[id_].is_in_danger(now_us) for id_ in other_ids)
    return tuple(pending), len(other_ids), endangered + sum(each.in_danger for each in pending)


def _past(manifest: Manifest) -> tuple[PastWork, ...]:
    """Recent commits in the manifest, with the ids of their requests."""
    if not manifest.version:
        return ()
    entries = list(islice(chain([manifest.as_history()], reversed(manifest.history)), MOST_COMMITS))
    requests = dict[int, list[str]]()
    for applied in manifest.applied:
        requests.setdefault(applied.version, []).append(applied.id)
    return tuple(
        PastWork(
            version=entry.version,
            at=entry.created_at,
            operation=entry.operation,
            done=Commit.of(entry).done,
            rows_added=entry.counts.rows_added,
            files_added=entry.counts.files_added,
            files_removed=entry.counts.files_removed,
            message=entry.message,
            requests=tuple(requests.get(entry.version, ())[:_MOST_REQUESTS]),
            is_background=entry.operation in _BACKGROUND,
        )
        for entry in entries
    )


def plan_table(context: Context, table: TableHealth, entry: TableEntry, erase_through: int) -> Iterator[PlannedWork]:
    """Yields the work that a table needs, in the order in which a round does it. See ``plan_compaction``."""
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


def _compaction(context: Context, table: TableHealth, entry: TableEntry, erase_through: int) -> Iterator[PlannedWork]:
    debt, command = table.debt, f"dolmen compact {table.name}"
    if debt.files > MOST_PLANNED_FILES:
        if debt.files_saved:
            files = count_text(debt.small_files, "file")
            what = f"small files: {files}, {size_text(debt.small_bytes)}, become {debt.files_saved:,} fewer"
            yield PlannedWork("compact", table.name, what, command)
        return
    live_files = LiveFiles.of(entry, context.segments).find_matching(None, ids=sort_ids(entry.sort_key))
    plan = plan_compaction(
        table.name, entry, live_files, debt.target_file_bytes, CompactionOptions(), erase_through=erase_through
    )
    groups_by_reason: dict[str, list[PlannedGroup]] = {}
    for group in plan.groups:
        groups_by_reason.setdefault(group.reason, []).append(group)
    for reason, groups in groups_by_reason.items():
        sums = Counter[str]()
        for group in groups:
            sums.update(
                files=len(group.inputs), bytes=group.bytes_in, out=group.files_out, requests=group.requests_saved
            )
        files = f"{count_text(sums['files'], 'file')}, {size_text(sums['bytes'])}"
        what = f"{reason}: {files}, become about {sums['out']:,}" if sums["out"] else f"{reason}: {files}, go"
        saved = f"; saves each scan {count_text(sums['requests'], 'request')}" if sums["requests"] else ""
        yield PlannedWork("compact", table.name, what + saved, command)


def plan_collection(context: Context, manifest: Manifest, now_us: int) -> Iterator[PlannedWork]:
    """Yields the work of the next collection, without orphans: counting them would need a listing."""
    settings = DatabaseSettings.of(manifest)
    horizon = max(manifest.horizon, 1)
    expiring = max(0, next_horizon(context.head, manifest, settings, now_us) - horizon) if manifest.version else 0
    if expiring:
        yield PlannedWork("gc", None, f"let {count_text(expiring, 'version')} expire", "dolmen gc")
    deletable = last_deletable_version(manifest, settings, now_us)
    released = [entry for entry in manifest.released if manifest.freed < entry.version <= manifest.horizon]
    objects = sum(len(entry.objects) for entry in released)
    trees = sum(len(entry.trees) for entry in released)
    if objects or trees:
        what = f"delete {count_text(objects, 'object')} that no kept version needs"
        what += f", and {count_text(trees, 'segment')} with all that it names" if trees else ""
        due = 0 if deletable >= manifest.horizon else manifest.horizon_at + settings.reader_grace_us
        yield PlannedWork("gc", None, what, "dolmen gc", due)


def concerns_of(health: Health) -> tuple[Concern, ...]:
    """The things that need attention, the most urgent first."""
    concerns = [*_erasures(health), *_cursors(health), *_pipeline(health), *_manifest(health), *_collection(health)]
    for table in health.tables:
        concerns += [*_deletes(table), *_publication(table), *_files(table), *_index(table)]
    return tuple(sorted(concerns, key=lambda concern: LEVELS.index(concern.level)))


def _erasures(health: Health) -> Iterator[Concern]:
    late = sum(each.due_at < health.looked_at for each in health.erasures)
    commands = ("dolmen erasures", "dolmen maintain", "dolmen gc")
    if late:
        yield Concern(
            "danger",
            f"{count_text(late, 'erasure is', 'erasures are')} past the deadline",
            "Objects of the database may still hold their rows. Rounds of maintenance rewrite the files, and "
            "collection deletes the old ones.",
            commands,
        )
    if in_danger := health.erasures_in_danger - late:
        yield Concern(
            "danger",
            f"{count_text(in_danger, 'erasure is', 'erasures are')} close to the deadline",
            f"Less than 1/{DANGER_PART} of the time is left, and objects of the database may still hold their rows.",
            commands,
        )


def _cursors(health: Health) -> Iterator[Concern]:
    for cursor in health.versions.cursors:
        left_us = cursor.ends_at - health.looked_at
        if left_us < 0:
            yield Concern(
                "warning",
                f"Cursor {cursor.name!r} has ended",
                f"Its reader has not acknowledged anything since {time_text(cursor.moved_at)}. Versions that it has "
                "not seen may expire: then it must read the tables again. Remove the cursor if it is not used.",
            )
        elif left_us < (cursor.ends_at - cursor.moved_at) // _CURSOR_PART:
            yield Concern(
                "warning",
                f"Cursor {cursor.name!r} ends in {duration_text(left_us)}",
                f"Its reader has not acknowledged anything since {time_text(cursor.moved_at)}. Start it again before "
                "versions that it has not seen expire.",
            )


def _pipeline(health: Health) -> Iterator[Concern]:
    if (rejects := health.pipeline.rejects) is not None:
        command = f"dolmen rejected ls --rejected {shlex.quote(rejects.url)}"
        if rejects.problem:
            yield Concern("notice", "The rejected files could not be listed", rejects.problem, (command,))
        if count := sum(rejects.waiting.values()):
            yield Concern(
                "warning",
                f"{'' if rejects.complete else 'At least '}{count_text(count, 'reject waits', 'rejects wait')}",
                "Files or rows could not be ingested. The listing says why. Have their producers correct them, or put "
                "them back once the table is right.",
                (command,),
            )
    for queue in health.pipeline.queues:
        if queue.problem:
            yield Concern("notice", f"The queue of {queue.name} could not be read", queue.problem)
        if queue.dead:
            yield Concern(
                "warning",
                f"{count_text(queue.dead, 'message')} of {queue.name} {'was' if queue.dead == 1 else 'were'} given up",
                f"Each is in {queue.dead_letters or 'the dead-letter queue'}, with the reason. Correct it, and send it "
                "again.",
            )


def _manifest(health: Health) -> Iterator[Concern]:
    size, budget = health.debts.manifest_bytes, health.debts.manifest_budget
    if size > FULL_MANIFEST * budget:
        yield Concern(
            "warning",
            f"The manifest takes {100 * size // budget:,} % of its budget",
            "Every commit uploads it. A round of maintenance merges segments and resolves deletes, so that it shrinks.",
            ("dolmen maintain",),
        )


def _collection(health: Health) -> Iterator[Concern]:
    debts = health.debts
    ages = [age for age in (debts.horizon_age_us, debts.orphan_cutoff_age_us) if age is not None]
    waiting = [work for work in health.planned if work.step == "gc" and work.due_at == 0]
    if waiting and (not ages or min(ages) > LATE_COLLECTION_US):
        last = f"The last collection was {duration_text(min(ages))} ago." if ages else "No collection ever ran."
        yield Concern(
            "notice",
            "Garbage waits for a collection",
            f"{last} It would {'; '.join(work.what for work in waiting)}. Until then you pay for the space.",
            ("dolmen gc --dry-run", "dolmen gc"),
        )
    if debts.revoked_intents:
        yield Concern(
            "notice",
            f"{count_text(debts.revoked_intents, 'job was', 'jobs were')} taken for dead",
            "They began to upload files, and did not commit in time. Their log says what ended them.",
        )


def _deletes(table: TableHealth) -> Iterator[Concern]:
    cost = table.deletes
    if cost is None:
        return
    deletes, command = count_text(cost.deletes, "unresolved delete"), f"dolmen resolve {table.name}"
    fetched = f", and fetches {count_text(cost.objects, 'more object')}" if cost.objects else ""
    compared = f"A scan of the table compares the rows of {count_text(cost.files, 'file')} with them{fetched}"
    if cost.deletes >= MANY_DELETES or cost.oldest_age_us >= OLD_DELETE_US:
        yield Concern(
            "warning",
            f"{deletes} of table {table.name}, the oldest {duration_text(cost.oldest_age_us)} old",
            f"They are in effect. But resolution does not run, or does not keep up. {compared}.",
            (command,),
        )
    elif cost.slowdown >= SLOW_SCAN:
        yield Concern(
            "warning",
            f"{deletes} of table {table.name} {'makes' if cost.deletes == 1 else 'make'} its scans slow",
            f"{compared}. By an estimate it takes {cost.slowdown:,.1f} times as long as without them. "
            "Resolution ends this; so do fewer deletes that each name more rows.",
            (command,),
        )


def _publication(table: TableHealth) -> Iterator[Concern]:
    lag, command = table.debt.publication_lag_us or 0, f"dolmen publish-iceberg --table {table.name}"
    if lag > LATE_PUBLICATION_US:
        yield Concern(
            "warning",
            f"Readers of Iceberg see table {table.name} as it was {duration_text(lag)} ago",
            "Publication fails, or rounds of maintenance have no time for it.",
            (command,),
        )
    elif table.publishes and not table.debt.published_version:
        yield Concern(
            "notice",
            f"Table {table.name} has not been published as Iceberg yet",
            "Its setting asks for it; the next round of maintenance publishes it.",
            (command,),
        )


def _files(table: TableHealth) -> Iterator[Concern]:
    debt, overlap = table.debt, table.overlap
    command = f"dolmen compact {table.name}"
    if debt.files_saved >= FEW_FILES and debt.files_saved * 4 > debt.files:
        yield Concern(
            "warning",
            f"Table {table.name} has {debt.small_files:,} small files of {debt.files:,}",
            f"Each costs a scan a request. Compaction saves up to {debt.files_saved:,} of them.",
            (f"{command} --dry-run", command),
        )
    elif overlap and overlap.mean > DEEP_OVERLAP and debt.files > FEW_FILES:
        yield Concern(
            "notice",
            f"Files of table {table.name} overlap in the sort key: {overlap.mean:,.1f} at a point on average",
            "A filter on the sort key reads all of them. Compaction sorts them together once that pays.",
            (f"{command} --dry-run",),
        )
    if debt.rows and debt.dead_rows * 2 > debt.rows:
        yield Concern(
            "notice",
            f"{100 * debt.dead_rows // debt.rows} % of the rows in files of table {table.name} are deleted",
            "They take space until compaction rewrites their files.",
            (command,),
        )


def _index(table: TableHealth) -> Iterator[Concern]:
    lag, rows = table.debt.index_lag_rows, table.debt.rows
    if table.indexed and lag * 10 > rows:
        yield Concern(
            "notice",
            f"The index of table {table.name} lacks at least {lag:,} of {rows:,} rows",
            "Look-ups by key fall back on the files that it does not know.",
            (f"dolmen maintain {table.name}",),
        )
