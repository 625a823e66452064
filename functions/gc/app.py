"""Collection: what no kept version needs is deleted, and nothing else. Called by a schedule.

The only function that may delete objects. Goes on until all is done or the time is nearly over; the next call goes on
from there. What it can be asked is in ``dolmen.maintenance.schedule``, the settings in ``dolmen.functions.settings``,
how long what is kept in the database's own (``dolmen settings``).
"""

from __future__ import annotations

import os
from functools import cache
from itertools import islice
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.database import Database
from dolmen.functions.settings import FunctionSettings
from dolmen.maintenance.deadline import Deadline
from dolmen.maintenance.measures import facts_of, measures_of_collection
from dolmen.maintenance.schedule import GcRequest

logger = Logger(service="gc")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="gc")


MOST_TOLD = 100
"""So many objects that could not be deleted are logged one by one."""


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Collects garbage; answers what is gone."""
    request = GcRequest.of(event)
    database = _opened(FunctionSettings.of(os.environ))
    deadline = Deadline(database.runtime, lambda: context.get_remaining_time_in_millis() / 1000)
    collected = database.gc(dry_run=request.dry_run, deadline=deadline)
    for name, (unit, value) in measures_of_collection(collected).items():
        metrics.add_metric(name, MetricUnit[unit], value)
    logger.info("collected", dry_run=request.dry_run, **facts_of(collected))
    if collected.errors:
        for key, reason in islice(collected.errors.items(), MOST_TOLD):
            logger.error("not deleted", key=key, reason=reason)
        raise RuntimeError(f"{len(collected.errors)} objects could not be deleted, {min(collected.errors)} first")
    return {"finished": collected.finished, "version": collected.version}


@cache
def _opened(settings: FunctionSettings) -> Database:
    """One database for the life of the container: what it has cached makes the next run cheaper."""
    return settings.open()[0]
