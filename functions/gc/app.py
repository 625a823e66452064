"""Deletes objects that no kept version of the database needs. A schedule calls it.

No other function may delete objects. It runs until all is done or its time is nearly over; the next call continues.
The work, and the events that it takes, are in ``dolmen.service.functions.scheduled_functions``, the settings in
``dolmen.service.functions.function_settings``; how long versions are kept is a setting of the database (``dolmen
settings``).
"""

from __future__ import annotations

import gc

gc.disable()  # it would scan all modules repeatedly while they are imported

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from dolmen.service.functions.function_settings import FunctionResources, FunctionSettings, Invocation
from dolmen.service.functions.scheduled_functions import gc_event

if TYPE_CHECKING:
    from dolmen.maintenance.round import Measures

logger = Logger(service="gc")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="gc")


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Collects garbage; returns whether it finished, and the version."""
    invocation = Invocation(context.aws_request_id, context.get_remaining_time_in_millis, logger, _report)
    return gc_event(_open(FunctionSettings.of(os.environ)), event, invocation)


if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "false":  # otherwise X-Ray is not imported: that slows the start
    from aws_lambda_powertools import Tracer

    _tracer = Tracer(service="gc", patch_modules=["botocore"])
    # What a handler returns or raises stays out of traces.
    lambda_handler = _tracer.capture_lambda_handler(lambda_handler, capture_response=False, capture_error=False)


@cache
def _open(settings: FunctionSettings) -> FunctionResources:
    """One database for the life of the container: what it has cached makes the next run cheaper."""
    return FunctionResources(settings)


def _report(measures: Measures) -> None:
    for name, (unit, value) in measures.items():
        metrics.add_metric(name, MetricUnit[unit], value)


gc.freeze()  # the modules stay for the life of the container
gc.enable()
