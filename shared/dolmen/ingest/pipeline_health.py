"""Looks at the pipeline around a database: rejected files, and queues with their dead letters."""

from __future__ import annotations

from collections import Counter

from dolmen.base.runtime import Runtime
from dolmen.errors import Error
from dolmen.ingest.queues import open_queue
from dolmen.ingest.reject_listing import RETRIED_SUFFIX
from dolmen.ingest.rejects import ERROR_SUFFIX
from dolmen.maintenance.health.health import Pipeline, QueueHealth, RejectsHealth
from dolmen.store import open_store

MOST_OBJECTS = 100_000  # the most rejects that are counted: a hundred requests
MOST_REJECT_TABLES = 50  # the most tables with a count of their own; the others share one
OTHER_TABLES = "(others)"


def look_at_pipeline(
    rejected: str | None, ingest_queue: str | None, delete_queue: str | None, runtime: Runtime
) -> Pipeline:
    """Looks at rejects and queues. If one cannot be read, its entry says why."""
    urls = {"drops": ingest_queue, "delete requests": delete_queue}
    queues = tuple(look_at_queue(name, url, runtime) for name, url in urls.items() if url)
    return Pipeline(look_at_rejects(rejected, runtime) if rejected else None, queues)


def look_at_rejects(url: str, runtime: Runtime) -> RejectsHealth:
    """Counts rejects by table: one request for each thousand objects, and reads none of them."""
    reports, retried, newest, count = Counter[str](), Counter[str](), dict[str, int](), 0
    try:
        store = open_store(url, runtime)
        for count, info in enumerate(store.list(""), 1):
            if count > MOST_OBJECTS:
                break
            table = info.key.partition("/")[0] if "/" in info.key else ""
            if info.key.endswith(ERROR_SUFFIX):
                reports[table] += 1
                newest[table] = max(newest.get(table, 0), info.last_modified_us)
            elif info.key.endswith(RETRIED_SUFFIX):
                retried[table] += 1
    except (Error, OSError) as error:
        return RejectsHealth(url, problem=f"{type(error).__name__}: {error}")
    waiting = Counter({table: unretried for table, all_ in reports.items() if (unretried := all_ - retried[table]) > 0})
    shown = dict(waiting.most_common(MOST_REJECT_TABLES))
    if others := sum(waiting.values()) - sum(shown.values()):
        shown[OTHER_TABLES] = others
    newest_at = max((at for table, at in newest.items() if waiting[table]), default=0)
    return RejectsHealth(url, shown, sum(retried.values()), newest_at, count <= MOST_OBJECTS)


def look_at_queue(name: str, url: str, runtime: Runtime) -> QueueHealth:
    """Counts the messages of a queue: one or two requests. ``name`` says what its messages are."""
    try:
        depth = open_queue(url, runtime, expedited=True).depth()
    except (Error, OSError) as error:
        return QueueHealth(name, url, problem=f"{type(error).__name__}: {error}")
    return QueueHealth(name, url, depth.waiting, depth.under_way, depth.dead, depth.dead_letters)
