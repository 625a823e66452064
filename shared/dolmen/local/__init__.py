"""The whole system on one machine: a landing directory and a queue directory instead of S3 and SQS."""

from dolmen.local.layout import LocalLayout
from dolmen.local.pipeline import LocalEvent, run_local

__all__ = ["LocalEvent", "LocalLayout", "run_local"]
