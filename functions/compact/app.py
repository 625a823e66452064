"""The background work that keeps a database fast: expire, resolve, compact, merge. Called by a schedule.

Goes on until all is done or the time is nearly over; the next call goes on from there. What it can be asked is in
``dolmen.maintenance.schedule``, the settings in ``dolmen.ingest.settings``. A table that fails does not stop the
others; the invocation fails in the end, and names them all.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.database import Database
from dolmen.errors import Error
from dolmen.ingest.logged import logged_facts, logged_reason
from dolmen.ingest.settings import Settings
from dolmen.maintenance.deadline import Deadline
from dolmen.maintenance.run import Done, Failure
from dolmen.maintenance.schedule import CompactRequest
from dolmen.maintenance.telling import changed_anything, facts_of, measures_of_debt, measures_of_round

logger = Logger(service="compact")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="compact")


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Does a round of maintenance; answers what it did."""
    request = CompactRequest.of(event)
    database = _opened(Settings.of(os.environ))
    deadline = Deadline(database.runtime, lambda: context.get_remaining_time_in_millis() / 1000)
    done = database.maintain(request.tables, steps=request.steps, deadline=deadline, tell=_tell)
    measured = measures_of_round(done)
    try:
        measured |= measures_of_debt(database.stats())
    except Error as error:
        logger.error("debt unknown", **logged_facts(error))
    for name, (unit, value) in measured.items():
        metrics.add_metric(name, MetricUnit[unit], value)
    if not done.finished:
        logger.info("to be continued", remaining_ms=context.get_remaining_time_in_millis())
    if done.failures:
        raise RuntimeError("; ".join(map(_said, done.failures)))
    return {"finished": done.finished, "version": database.version}


@cache
def _opened(settings: Settings) -> Database:
    """One database for the life of the container: what it has cached makes the next round cheaper."""
    return settings.open()[0]


def _said(failure: Failure) -> str:
    about = failure.table or "the database"
    return f"{failure.step} {about}: {type(failure.error).__name__}: {logged_reason(failure.error)}"


def _tell(ended: Done | Failure) -> None:
    """Logs a step: names and numbers, never values of the data."""
    if isinstance(ended, Failure):
        logger.error(f"{ended.step} failed", table=ended.table, **logged_facts(ended.error))
        return
    about: dict[str, Any] = {"table": ended.table} if ended.table else {}
    log = logger.info if changed_anything(ended.result) else logger.debug
    log(ended.step, **about, seconds=round(ended.seconds, 3), **facts_of(ended.result))
