"""The work that the next round of maintenance and the next collection find to do, by metadata alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dolmen.commit.context import Context
from dolmen.entries.segments.live import LiveFiles
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import DatabaseSettings
from dolmen.maintenance.compact.plan import CompactionOptions, PlannedGroup, plan_compaction
from dolmen.maintenance.gc.plan import freeable, next_horizon
from dolmen.maintenance.health.health import PlannedWork, TableHealth
from dolmen.maintenance.health.words import count_text, size_text

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
    until = freeable(manifest, settings, now_us)
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
