"""Ingests a batch of dropped files in one commit. Each file is in it once and whole, or not at all.

A rejection is a commit too, under an id of its own, which excludes the file's id (docs/ingest.md, Rejects). A file
found by listing has no event: its report is written without a commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from dolmen.api.database import Database
from dolmen.base.records import replace
from dolmen.base.runtime import RetryPolicy, attempts
from dolmen.commit.head import context_of
from dolmen.errors import Error
from dolmen.format.ingest_properties import IngestSettings, LandingPolicy
from dolmen.ingest.announcements import Drop
from dolmen.ingest.batch import BatchRequest, Decision, apply_together
from dolmen.ingest.drops.drop_ingestion import DropIngestion
from dolmen.ingest.drops.drop_outcomes import DropOutcome, IngestResult
from dolmen.ingest.landing import Landing, apply_landing_policy
from dolmen.transactions.transaction import Transaction, unit_of


def ingest_drops(
    database: Database,
    landing: Landing,
    drops: Sequence[Drop],
    *,
    auto_create: bool = False,
    may_wait: Collection[Drop] = (),
    max_bytes: int | None = None,
    deadline: Callable[[], bool] = lambda: False,
    time_left: Callable[[], float] = lambda: math.inf,
    operation: str = "ingest",
    read_all: ReadAll | None = None,
) -> IngestResult:
    """Ingests files into the tables that their keys name, in ONE commit, as the tables' properties say.

    A file that cannot be read goes to the rejects, with the reason, and so does one for a table that does not exist,
    unless it may wait. A temporary failure is reported as failed: deliver the file again.

    Args:
        auto_create: create a table that does not exist, with the schema of its first readable file of the batch, in the
            commit of its rows.
        may_wait: drops that wait if their table does not exist, because they will be delivered again.
        max_bytes: the most bytes of one unpacked file; a larger one is rejected.
        deadline: once it is true, files not begun yet are postponed.
        time_left: seconds until the deadline of the process: a reject that cannot be copied in time stays in place.
        read_all: reads all files at once, instead of each by itself. Files that it leaves out are postponed.
    """
    outcomes: dict[int, DropOutcome] = {}
    waitable = frozenset(may_wait)
    ingestions: dict[int, DropIngestion] = {}
    for index, drop in enumerate(drops):
        path = landing.path_of(drop)
        if path is None:
            outcomes[index] = DropOutcome(drop, "ignored")
        else:
            waits = drop in waitable
            ingestions[index] = DropIngestion(database, landing, drop, path, max_bytes, time_left, waits, auto_create)
    requests = [
        BatchRequest(each.drop.id, each.drop.digest, each.add_to, each.drop.rejection_id)
        for each in ingestions.values()
    ]
    by_id = {each.drop.id: each for each in reversed(ingestions.values())}

    def add_all(transaction: Transaction, requests: Sequence[BatchRequest]) -> dict[str, Decision]:
        assert read_all is not None
        return dict.fromkeys(read_all(transaction, [by_id[request.id] for request in requests]), "apply")

    result = apply_together(database, operation, requests, deadline=deadline, add_all=add_all if read_all else None)
    drop_outcomes = [each.outcome(outcome) for each, outcome in zip(ingestions.values(), result.outcomes, strict=True)]
    if result.transaction is not None:
        _apply_policies(result.transaction, list(ingestions.values()), drop_outcomes)
    outcomes |= zip(ingestions, drop_outcomes, strict=True)
    return IngestResult([outcomes[index] for index in range(len(drops))], result.commit)


def ingest_with_retries(
    database: Database, landing: Landing, drops: Sequence[Drop], *, tries: int = 3, **options: Any
) -> Iterator[IngestResult]:
    """Ingests drops that no queue delivers again. Yields the result of each try, without failures to be retried."""
    pending = list(drops)
    for attempt in attempts(context_of(database).runtime, RetryPolicy(tries, cap_seconds=10.0)):
        ingested = ingest_drops(database, landing, pending, **options)
        failed = [outcome.drop for outcome in ingested.outcomes if outcome.status == "failed"]
        if not failed or attempt.is_last:
            yield ingested
            return
        finished = [outcome for outcome in ingested.outcomes if outcome.status != "failed"]
        yield IngestResult(finished, ingested.commit)
        pending = failed


ReadAll = Callable[[Transaction, Sequence[DropIngestion]], Collection[str]]
"""Adds the rows of many files to a transaction, and sets ``counts`` of each. Returns the ids of those that it read."""


def _apply_policies(transaction: Transaction, ingestions: list[DropIngestion], outcomes: list[DropOutcome]) -> None:
    """Tags or removes each file whose rows are committed, now or before; a failure goes into the outcome."""

    def apply_policy(index: int) -> None:
        ingestion, outcome = ingestions[index], outcomes[index]
        try:
            apply_landing_policy(ingestion.landing, ingestion.drop, policies[index])
        except Exception as error:  # noqa: BLE001 - reported in the outcome
            outcomes[index] = replace(outcome, landing_error=error)

    policies: dict[int, LandingPolicy] = {}
    for index, (ingestion, outcome) in enumerate(zip(ingestions, outcomes, strict=True)):
        if outcome.version is None:
            continue
        try:
            settings = ingestion.settings or IngestSettings.of(unit_of(transaction).entry(ingestion.path.table))
        except Error as error:
            outcomes[index] = replace(outcome, landing_error=error)
            continue
        if settings.landing != "keep":
            policies[index] = settings.landing
    for _ in ingestions[0].landing.runtime.map(apply_policy, policies) if policies else ():
        pass
