"""Reports that are not true: one delivery of an event rejected the file, and another one ingested it.

That takes two deliveries at the same moment, of which only one has found the file's table, because it is just being
created. Each of them leaves its trace first and looks for the other's then: who rejects writes the report, then reads
the pointer anew and looks whether the drop's id is applied; who ingests commits, then looks for the report. So the one
that comes second sees the other, and withdraws the report. One that dies before it has looked leaves its event
unacknowledged: delivered again, it is a duplicate, or rejected once more, and looks as such.

Who ingests need not look if every delivery must have found the table: if it was there before the file was dropped.

A report is withdrawn by writing over it. Were it removed, a put of the report that is still under way might bring it
back, and nobody but people may delete in the place for rejects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dolmen.commit.applied import find_applied
from dolmen.commit.versions import SETTLED_AFTER_US
from dolmen.database import Database
from dolmen.errors import Error, ObjectNotFoundError, StoreUnavailableError
from dolmen.format.manifest import Manifest
from dolmen.ingest.announcements import Drop
from dolmen.ingest.drops.outcomes import DropOutcome
from dolmen.ingest.landing import Landing
from dolmen.ingest.rejects.report import ERROR_SUFFIX, WITHDRAWN, reject_key
from dolmen.store.backoff import attempts
from dolmen.store.base import Stored
from dolmen.units import utc


def look_for_commits(database: Database, landing: Landing, outcomes: Sequence[DropOutcome]) -> list[DropOutcome]:
    """Whether others have ingested meanwhile what was rejected here: that is a duplicate, and its report withdrawn.

    One request, if anything was rejected. What it cannot find out fails, so that its event comes again.
    """
    rejected = {outcome.drop.id for outcome in outcomes if outcome.status == "rejected"}
    if not rejected:
        return list(outcomes)
    try:
        newest = database.context.head.refresh().manifest
        applied = find_applied(newest, rejected, database.context.segments)
    except Error as error:
        return [
            replace(outcome, status="failed", error=error) if outcome.status == "rejected" else outcome
            for outcome in outcomes
        ]

    def settled(outcome: DropOutcome) -> DropOutcome:
        there = applied.get(outcome.drop.id)
        if outcome.status != "rejected" or there is None or there.digest != outcome.drop.digest:
            return outcome
        return _without_report(landing, DropOutcome(outcome.drop, "duplicate", version=there.version))

    return [settled(outcome) for outcome in outcomes]


def look_for_reports(seen: Manifest, landing: Landing, outcomes: Sequence[DropOutcome]) -> list[DropOutcome]:
    """Whether others have rejected what was ingested, here or before: its report is withdrawn.

    A request for each file that was dropped before its table was there for certain, none for any other. Where it
    cannot be done the file fails, though its rows are in: its event comes again, and finds that it is a duplicate.

    Args:
        seen: a version that has the tables which the files were ingested into: that of the commit, or a later one.
    """

    def settled(outcome: DropOutcome) -> DropOutcome:
        drop = outcome.drop
        if outcome.status not in ("ingested", "duplicate") or not drop.sequencer:  # without: a new try, not a delivery
            return outcome
        if outcome.version is None:
            return outcome  # stands in this batch twice, and is rejected
        place = landing.place(drop)
        if place is None or table_was_there(seen, place.path.partition("/")[0], drop):
            return outcome
        return _without_report(landing, outcome)

    return list(landing.runtime.map(settled, outcomes))


def table_was_there(seen: Manifest, table: str, drop: Drop) -> bool:
    """Whether whoever was told of a drop has found this table of a version.

    By the times that versions and events tell, without a request. A version lands a while after its time at most; the
    time of one long ago is known as not later than that of some version after it.
    """
    entry = seen.tables.get(table)
    if entry is None or drop.created_us is None or _may_be_renamed(seen, table, drop.created_us - SETTLED_AFTER_US):
        return False
    inline = next((then.created_at for then in seen.history if then.version >= entry.epoch), seen.created_at)
    created_at = next((part.created_at for part in seen.segments_of("history") if part.greatest >= entry.epoch), inline)
    return created_at + SETTLED_AFTER_US < drop.created_us


def _may_be_renamed(seen: Manifest, table: str, since_us: int) -> bool:
    """Whether the table may have got its name at a time or later: by what the manifest itself tells of its commits."""
    commits = (*seen.history, seen.as_history())
    if commits[0].version > 1 and commits[0].created_at >= since_us:
        return True  # what was done since stands partly elsewhere
    recent = (commit for commit in commits if commit.created_at >= since_us)
    return any(
        commit.did_more or any(deed.what == "rename" and table in deed.over for deed in commit.did) for commit in recent
    )


def _without_report(landing: Landing, outcome: DropOutcome) -> DropOutcome:
    try:
        _withdraw(landing, outcome)
    except Error as error:
        return replace(outcome, status="failed", error=error)
    return outcome


def _withdraw(landing: Landing, outcome: DropOutcome) -> None:
    """Makes the report of this very event void, if there is one. Raises StoreUnavailableError, ..."""
    drop, place = outcome.drop, landing.place(outcome.drop)
    assert place is not None
    store, key = landing.rejects_store(drop), reject_key(drop, place) + ERROR_SUFFIX
    for _ in attempts(landing.runtime):
        try:
            found = store.get(key)
        except ObjectNotFoundError:
            return
        report = _report(found.body)
        if WITHDRAWN in report:
            return
        at = utc(store.clock.now_us).isoformat()
        void = {
            **report,
            WITHDRAWN: {"at": at, "version": outcome.version},
            "then": f"nothing: another delivery of its event ingested the file, in version {outcome.version}",
        }
        body = json.dumps(void, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        if isinstance(store.put(key, body, if_match=found.etag), Stored):
            return  # else another one may have withdrawn it, or this put has landed all the same
    raise StoreUnavailableError(f"cannot withdraw {store.url}/{key}")


def _report(body: bytes) -> dict[str, Any]:
    try:
        report = json.loads(body)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}
