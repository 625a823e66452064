"""Deletes objects that no kept version of the database needs. A schedule calls it.

No other function may delete objects. It runs until all is done or its time is nearly over; the next call continues.
The events that it takes are described in ``dolmen.maintenance.round``, the settings in
``dolmen.service.functions.function_settings``; how long versions are kept is a setting of the database (``dolmen
settings``). The calls, from event to deletes::

    lambda_handler
      GcRequest.of                      the event: whether to delete, or only to count
      Database.gc                       dolmen.maintenance.gc.collection: lists, marks what is needed, deletes the rest
      measures_of_collection            the metrics
"""

from __future__ import annotations

import os
from functools import cache
from itertools import islice
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.api.database import Database
from dolmen.commit.context import context_of
from dolmen.maintenance.deadline import Deadline
from dolmen.maintenance.measures import facts_of, measures_of_collection
from dolmen.maintenance.round import GcRequest
from dolmen.service.functions.function_settings import FunctionSettings

logger = Logger(service="gc")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="gc")


MAX_LOGGED_FAILURES = 100
"""At most this many objects that could not be deleted are logged one by one."""


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Collects garbage; returns whether it finished, and the version."""
    request = GcRequest.of(event)
    settings = FunctionSettings.of(os.environ)
    database = _open(settings)
    deadline = Deadline(context_of(database).runtime, lambda: context.get_remaining_time_in_millis() / 1000)
    collected = database.gc(dry_run=request.dry_run, deadline=deadline, outside=settings.outside)
    for name, (unit, value) in measures_of_collection(collected).items():
        metrics.add_metric(name, MetricUnit[unit], value)
    logger.info("collected", dry_run=request.dry_run, **facts_of(collected))
    if collected.errors:
        for key, reason in islice(collected.errors.items(), MAX_LOGGED_FAILURES):
            logger.error("not deleted", key=key, reason=reason)
        raise RuntimeError(f"{len(collected.errors)} objects could not be deleted, {min(collected.errors)} first")
    return {"finished": collected.finished, "version": collected.version}


if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "false":  # else not even imported, as that would take a start's time
    from aws_lambda_powertools import Tracer

    _tracer = Tracer(service="gc", patch_modules=["botocore"])
    # What a handler returns or raises stays out of traces.
    lambda_handler = _tracer.capture_lambda_handler(lambda_handler, capture_response=False, capture_error=False)


@cache
def _open(settings: FunctionSettings) -> Database:
    """One database for the life of the container: what it has cached makes the next run cheaper."""
    return settings.open()[0]
