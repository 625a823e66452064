"""Applies delete requests as tombstones: queue -> one commit per batch.

It takes SQS batches of requests, and reports partial batch failures. It also takes one request without a queue, and
then raises when it fails, so that Lambda tries again. The messages are described in
``dolmen.ingest.delete_requests``, the settings in ``dolmen.service.functions.function_settings``; the work is
in ``dolmen.service.functions.delete_function``.
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

from dolmen.ingest.batch import read_messages
from dolmen.service.functions.delete_function import delete_event
from dolmen.service.functions.function_settings import FunctionResources, FunctionSettings, Invocation

if TYPE_CHECKING:
    from dolmen.maintenance.round import Measures
    from dolmen.service.functions.deliveries import BatchResponse

logger = Logger(service="delete")
metrics = Metrics(namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "dolmen"), service="delete")


@logger.inject_lambda_context
@metrics.log_metrics(capture_cold_start_metric=True)
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
    """Applies the requests of an event; returns the messages that Lambda is to deliver again."""
    batch = read_messages(event)
    invocation = Invocation(context.aws_request_id, context.get_remaining_time_in_millis, logger, _report)
    return delete_event(_open(FunctionSettings.of(os.environ)), batch, invocation)


if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "false":  # otherwise X-Ray is not imported: that slows the start
    from aws_lambda_powertools import Tracer

    _tracer = Tracer(service="delete", patch_modules=["botocore"])
    # What a handler returns or raises stays out of traces.
    lambda_handler = _tracer.capture_lambda_handler(lambda_handler, capture_response=False, capture_error=False)


@cache
def _open(settings: FunctionSettings) -> FunctionResources:
    """One database for the life of the container: what it has cached makes the next commit cheaper."""
    return FunctionResources(settings)


def _report(measures: Measures) -> None:
    for name, (unit, value) in measures.items():
        metrics.add_metric(name, MetricUnit[unit], value)


gc.freeze()  # the modules stay for the life of the container
gc.enable()
