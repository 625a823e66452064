"""Runs the whole pipeline on one machine: a landing directory and a queue directory instead of S3 and SQS.

It loads the Lambda handlers by path and calls them with the events that AWS would send.
It imports ``dolmen.service.functions`` and what lies below that. Begin with ``dolmen.service.local.pipeline``.
"""

from dolmen.service.local.pipeline import LocalEvent, LocalLayout, run_local

__all__ = ["LocalEvent", "LocalLayout", "run_local"]
