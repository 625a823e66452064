"""The sections about the whole database: versions, erasures, the pipeline, background work, and unknown facts."""

from __future__ import annotations

from collections.abc import Iterator

from dolmen.base.units import count_text, duration_text
from dolmen.maintenance.health.elements import (
    WIDTH,
    Html,
    ago_text,
    element,
    grid,
    join,
    key_legend,
    meter,
    small_print,
    time_text,
)
from dolmen.maintenance.health.health import Health, KeptVersions, PendingErasure, Pipeline, QueueHealth, RejectsHealth


def versions(health: Health) -> Html | None:
    kept = health.versions
    if not kept.newest:
        return None
    since = f", since {time_text(kept.oldest_at)}" if kept.oldest_at else ""
    text = (
        f"Versions {kept.oldest:,} to {kept.newest:,} can be read{since}. A version expires when it is older than "
        f"{duration_text(kept.retention_us)} and not among the newest {kept.keep_versions:,}, unless a tag or a cursor "
        "keeps it."
    )
    pins = f"{kept.pins:,} more kept for readers of tables that are published as Iceberg."
    legend = key_legend(
        ("tag-key", f"tags: {len(kept.tags):,}, above"), ("cursor-key", f"cursors: {len(kept.cursors):,}, below")
    )
    return _section(
        "Versions",
        element(
            "div",
            element("p", text),
            version_strip(kept),
            legend,
            small_print(pins) if kept.pins else None,
            class_="card",
        ),
        _tags(health),
        _cursors(health),
    )


def _tags(health: Health) -> Html | None:
    kept = health.versions
    columns = {"tag": "", "version": "number", "of": "time", "kept until": "time"}
    rows = [
        (tag.name, f"{tag.version:,}", time_text(tag.created_at), time_text(tag.until) or "no end") for tag in kept.tags
    ]
    return grid(_with_rest("Tags", kept.tags_left_out), columns, rows) if rows else None


def _cursors(health: Health) -> Html | None:
    kept = health.versions
    columns = {"cursor": "", "version": "number", "versions behind": "number", "moved": "time", "ends": "time"}
    rows = [
        (
            cursor.name,
            f"{cursor.version:,}",
            f"{kept.newest - cursor.version:,}",
            ago_text(cursor.moved_at, health.looked_at),
            ago_text(cursor.ends_at, health.looked_at),
        )
        for cursor in kept.cursors
    ]
    caption = _with_rest("Cursors: positions of readers of changes", kept.cursors_left_out)
    return grid(caption, columns, rows) if rows else None


def erasures(health: Health) -> Html:
    if not health.erasures:
        return _section("Erasures", element("p", "No erasure is pending: what was erased is gone from the disk."))
    columns = {"erasure": "id", "deadline": "time", "time used": "", "state": "", "tables": "words", "next": "words"}
    rows = [_erasure_row(each, health.looked_at) for each in health.erasures]
    caption = _with_rest("Erasures whose rows some object may still hold, by deadline", health.erasures_left_out)
    return _section("Erasures", grid(caption, columns, rows))


def _erasure_row(each: PendingErasure, now_us: int) -> tuple[object, ...]:
    elapsed, total = now_us - each.requested_at, max(each.due_at - each.requested_at, 1)
    sign = element("span", "✖ in danger", class_="badge danger") if each.in_danger else None
    if each.due_at < now_us:
        sign = element("span", "✖ past", class_="badge danger")
    when = "was due" if each.next_at < now_us else "by"
    step = each.next_step + (f", {when} {time_text(each.next_at)}" if each.next_at else "")
    return (
        element("code", each.id),
        join((time_text(each.due_at), element("br"), ago_text(each.due_at, now_us), " " if sign else None, sign)),
        meter(elapsed, total, "danger" if each.in_danger else ""),
        each.state,
        ", ".join(each.tables) or "no longer in the manifest",
        step,
    )


def pipeline(health: Health) -> Html:
    """Rejects and queues, as far as they were named."""
    return _section("Rejects and dead letters", *_pipeline_parts(health.pipeline, health.looked_at))


def _pipeline_parts(parts: Pipeline, now_us: int) -> Iterator[Html]:
    if parts.rejects is None:
        yield element(
            "p",
            "The database does not know where rejected files are, and no URL was given: ",
            element("code", "dolmen report --rejected URL"),
            " counts them.",
        )
    else:
        yield _rejects(parts.rejects, now_us)
    if not parts.queues:
        yield element(
            "p",
            "It knows no queue, either: ",
            element("code", "--ingest-queue URL --queue URL"),
            " count waiting messages and dead letters.",
        )
    else:
        columns = {"queue": "", "waiting": "number", "under way": "number", "given up": "number", "place": "words"}
        yield grid("Queues: approximate numbers of messages", columns, [_queue_row(each) for each in parts.queues])


def _rejects(rejects: RejectsHealth, now_us: int) -> Html:
    url = small_print("Place: ", element("code", rejects.url))
    if rejects.problem:
        return element("div", element("p", f"It could not be read: {rejects.problem}"), url, class_="card")
    retried = f" {rejects.retried:,} more were put back." if rejects.retried else ""
    if not rejects.waiting:
        return element("div", element("p", f"No reject waits.{retried}"), url, class_="card")
    rows = [(table or "(no table)", f"{count:,}") for table, count in rejects.waiting.items()]
    newest = f"The newest was rejected {ago_text(rejects.newest_at, now_us)}.{retried}"
    rest = "" if rejects.complete else " There are more: counting stopped."
    summary = grid("Rejects that wait, by table", {"table": "", "rejects": "number"}, rows)
    return join((summary, small_print(newest + rest), url))


def _queue_row(queue: QueueHealth) -> tuple[object, ...]:
    numbers = [
        "not known" if number is None else f"{number:,}" for number in (queue.waiting, queue.under_way, queue.dead)
    ]
    dead = f"; dead letters: {queue.dead_letters}" if queue.dead_letters else ""
    return (queue.name, *numbers, queue.problem or f"{queue.url}{dead}")


def background(health: Health) -> Html:
    return _section("Background work", _planned_work(health), _last_runs(health), _recent_commits(health))


def _planned_work(health: Health) -> Html:
    if not health.planned:
        return element("p", "Nothing is due: a round of maintenance, or a collection, would find nothing to do.")
    columns = {"step": "", "table": "", "work": "words", "command": "words"}
    rows = [
        (
            work.step,
            work.table or "the database",
            work.what + (f", from {time_text(work.due_at)} on" if work.due_at else ""),
            element("code", work.command),
        )
        for work in health.planned
    ]
    return grid("What the next round of maintenance, and the next collection, will do", columns, rows)


def _last_runs(health: Health) -> Html | None:
    if not health.past:
        return None
    last: dict[str, int] = {}
    for work in health.past:
        if work.is_background:
            last.setdefault(work.operation, work.at)
    if not last:
        text = f"None of the last {count_text(len(health.past), 'commit')} is background work."
    else:
        runs = ", ".join(f"{operation} {ago_text(at, health.looked_at)}" for operation, at in last.items())
        text = f"Last commits of background work: {runs}. A round that finds nothing to do makes no commit."
    return small_print(text)


def _recent_commits(health: Health) -> Html | None:
    if not health.past:
        return None
    columns = {
        "version": "number",
        "time": "time",
        "did": "words",
        "rows added": "number",
        "files": "number",
        "message and requests": "words",
    }
    rows = [
        (
            f"{work.version:,}",
            time_text(work.at),
            join(
                (
                    work.done or work.operation,
                    element("span", "background", class_="tag") if work.is_background else None,
                )
            ),
            f"{work.rows_added:,}" if work.rows_added else "",
            _files(work.files_added, work.files_removed),
            "; ".join(text for text in (work.message, ", ".join(work.requests)) if text),
        )
        for work in health.past
    ]
    return grid("Recent commits", columns, rows)


def _files(added: int, removed: int) -> str:
    return " ".join(f"{sign}{count:,}" for sign, count in (("+", added), ("−", removed)) if count)


def unknown_facts(health: Health) -> Html:
    """A list of facts that the page does not know, so that its silence is not mistaken for good news."""
    unknowns: list[tuple[str, str]] = [
        ("Whether every object is there and intact: ", "dolmen verify"),
        ("Uploads that no commit names (orphans), which take space until a collection: ", "dolmen gc --dry-run"),
        ("How many rows unresolved deletes hide. Figures of rows count them: ", "dolmen scan TABLE --count"),
        ("Older versions of objects that the bucket itself keeps, and what else lies in it.", ""),
        ("Rounds of maintenance that failed or found nothing: they make no commit. The functions' log has them.", ""),
        ("Who reads the database, and what that costs.", ""),
    ]
    if health.pipeline.rejects is None or not health.pipeline.queues:
        unknowns.append(("Rejected files and dead letters whose URLs were not given: see above.", ""))
    items = [element("li", text, element("code", command) if command else None) for text, command in unknowns]
    return _section("What this page does not know", element("ul", *items, class_="unknown"))


def _section(title: str, *content: object) -> Html:
    name = title.lower().replace(" ", "-")
    return element("section", element("h2", title, id=name), *content, aria_labelledby=name)


def _with_rest(caption: str, left_out: int) -> str:
    return f"{caption}; {left_out:,} more are not shown" if left_out else caption


def version_strip(versions: KeptVersions) -> Html:
    """The kept versions as a bar, with marks of tags above and of cursors below."""
    marks = [*(tag.version for tag in versions.tags), *(cursor.version for cursor in versions.cursors)]
    first = min([max(versions.oldest, 1), *(max(version, 1) for version in marks)])
    span = max(versions.newest - first, 1)

    def x(version: int) -> float:
        return round((max(version, first) - first) / span * (WIDTH - 8), 1)

    begin = x(versions.oldest)
    kept = element("rect", class_="fill", x=begin, y=12, width=WIDTH - begin, height=12)
    ticks = [
        element("rect", class_=f"tick {kind}-tick", x=x(mark.version), y=y, width=6, height=18)
        for kind, marks, y in (("tag", versions.tags, 2), ("cursor", versions.cursors, 16))
        for mark in marks
    ]
    description = (
        f"Versions {versions.oldest:,} to {versions.newest:,} are kept, {len(versions.tags):,} tags and "
        f"{len(versions.cursors):,} cursors are marked."
    )
    drawing = element(
        "svg",
        element("title", "Kept versions", id="versions-title"),
        element("desc", description, id="versions-desc"),
        element("rect", class_="track", y=12, width=WIDTH, height=12),
        kept,
        *ticks,
        class_="strip",
        viewBox=f"0 0 {WIDTH} 36",
        preserveAspectRatio="none",
        role="img",
        aria_labelledby="versions-title versions-desc",
    )
    ends = element(
        "div", element("span", f"version {first:,}"), element("span", f"version {versions.newest:,}"), class_="ends"
    )
    return join((drawing, ends))
