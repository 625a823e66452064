"""Judges the figures: what needs attention, how urgent it is, and which command mends it.

Numbers, sizes and times as people say them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dolmen.base.units import DAY_US, HOUR_US, LAST_US, count_text, duration_text, utc
from dolmen.maintenance.health.health import LEVELS, Concern, Health, KeptCursor, QueuePlace, RejectsPlace, TableHealth

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


def size_text(size_bytes: int) -> str:
    """A size with three digits, in units of 1,024 as settings have them: ``12.3 MB``."""
    if size_bytes < 1_000:
        return f"{size_bytes:,} bytes"
    size, unit = float(size_bytes), 0
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = f"{size:,.{2 if size < 10 else 1 if size < 100 else 0}f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {_UNITS[unit]}"


def power_text(exponent: int) -> str:
    """2**exponent bytes: ``64 KB``."""
    unit = min(exponent // 10, len(_UNITS) - 1)
    return f"{2 ** (exponent - 10 * unit):,} {_UNITS[unit]}"


def range_text(first: int, end: int) -> str:
    """From 2**first to 2**end bytes: ``16 – 32 KB``."""
    least, greatest = power_text(first), power_text(end)
    return f"{least.partition(' ')[0] if least.partition(' ')[2] == greatest.partition(' ')[2] else least} – {greatest}"


def time_text(at_us: int) -> str:
    """A time to the minute, in UTC; "" for 0."""
    if not at_us:
        return ""
    return f"{utc(at_us):%Y-%m-%d %H:%M} UTC" if 0 < at_us <= LAST_US else "beyond the year 9999"


def ago_text(at_us: int, now_us: int) -> str:
    """How long before now a time was, or how long after now it will be: ``3h ago``, ``in 2d``."""
    if at_us > now_us:
        return f"in {duration_text(at_us - now_us)}"
    return f"{duration_text(now_us - at_us)} ago"


def share_text(part: float, whole: float) -> str:
    """A share in percent: ``12 %``; "<1 %" for what is not nothing."""
    share = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < share < 1 else f"{share:.0f} %"


MANY_DELETES = 1_000
"""Number of unresolved deletes of a table from which scans get slow, however young they are."""


SLOW_SCAN = 2.0
"""Estimated slowdown of scans from which deletes are a concern, however few and young they are."""


OLD_DELETE_US = DAY_US
"""Age from which an unresolved delete says that resolution does not run."""


LATE_PUBLICATION_US = 6 * HOUR_US
"""Lag from which a publication counts as late; also that of the stack's alarm."""


FEW_FILES = 16
"""Compaction that saves fewer files is not worth a word."""


DEEP_OVERLAP = 8
"""Mean number of files at one place of the sort key from which filters on it hardly help."""


FULL_MANIFEST = 0.9
"""Share of its budget from which a manifest counts as full."""


LATE_COLLECTION_US = 3 * DAY_US
"""Time without a collection from which objects count as waiting for long."""


_CURSOR_PART = 8
"""A cursor is about to end when less than 1/_CURSOR_PART of its time is left."""


def concerns_of(health: Health) -> tuple[Concern, ...]:
    """The things that need attention, the most urgent first."""
    found = [*_erasures(health), *_cursors(health), *_pipeline(health), *_manifest(health), *_collection(health)]
    for table in health.tables:
        found += [*_deletes(table), *_publication(table), *_files(table), *_index(table)]
    return tuple(sorted(found, key=lambda concern: LEVELS.index(concern.level)))


def _erasures(health: Health) -> Iterator[Concern]:
    late = [each for each in health.erasures if each.due_at < health.looked_at]
    commands = ("dolmen erasures", "dolmen maintain", "dolmen gc")
    if late:
        yield Concern(
            "danger",
            f"{count_text(len(late), 'erasure is', 'erasures are')} past the deadline",
            "Objects of the database may still hold their rows. Rounds of maintenance rewrite the files, and "
            "collection deletes the old ones.",
            commands,
        )
    if in_danger := health.erasures_in_danger - len(late):
        yield Concern(
            "danger",
            f"{count_text(in_danger, 'erasure is', 'erasures are')} close to the deadline",
            "Less than 1/16 of the time is left, and objects of the database may still hold their rows.",
            commands,
        )


def _cursors(health: Health) -> Iterator[Concern]:
    for cursor in health.versions.cursors:
        left = cursor.ends_at - health.looked_at
        if left < 0:
            yield Concern(
                "warning",
                f"Cursor {cursor.name!r} has ended",
                f"Its reader has not acknowledged anything since {_day(cursor)}. Versions that it has not seen may "
                "expire: then it must read the tables anew. Remove the cursor if nobody uses it.",
            )
        elif left < (cursor.ends_at - cursor.moved_at) // _CURSOR_PART:
            yield Concern(
                "warning",
                f"Cursor {cursor.name!r} ends in {duration_text(left)}",
                f"Its reader has not acknowledged anything since {_day(cursor)}. Start it again before versions that "
                "it has not seen expire.",
            )


def _pipeline(health: Health) -> Iterator[Concern]:
    rejects = health.pipeline.rejects
    if rejects is not None:
        yield from _rejects(rejects)
    for queue in health.pipeline.queues:
        yield from _queue(queue)


def _rejects(place: RejectsPlace) -> Iterator[Concern]:
    command = f"dolmen rejected ls --rejected {shlex.quote(place.url)}"
    if place.problem:
        yield Concern("notice", "The place of rejects could not be looked at", place.problem, (command,))
    if count := sum(place.waiting.values()):
        yield Concern(
            "warning",
            f"{'' if place.complete else 'At least '}{count_text(count, 'reject waits', 'rejects wait')}",
            "Files or rows could not be ingested. The listing says why. Their producers correct them, or they are put "
            "back once the table is right.",
            (command,),
        )


def _queue(queue: QueuePlace) -> Iterator[Concern]:
    if queue.problem:
        yield Concern("notice", f"The queue of {queue.name} could not be looked at", queue.problem)
    if queue.dead:
        yield Concern(
            "warning",
            f"{count_text(queue.dead, 'message')} of {queue.name} {'was' if queue.dead == 1 else 'were'} given up",
            f"Each is in {queue.dead_letters or 'the dead-letter queue'}, with the reason. Correct it, and send it "
            "anew.",
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
            f"{last} It would {'; '.join(work.what for work in waiting)}. Until then the space is paid for.",
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
            f"Table {table.name} was not published as Iceberg yet",
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
            f"Files of table {table.name} overlap in the sort key: {overlap.mean:,.1f} at a place on average",
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


def _day(cursor: KeptCursor) -> str:
    return f"{utc(cursor.moved_at):%Y-%m-%d %H:%M} UTC"
