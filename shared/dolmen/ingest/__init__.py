"""Turns files and messages into commits, and applies each exactly once.

The Lambda functions, the local pipeline, the command line and Spark's load all use it.
It imports ``dolmen.api.database`` and the layers below, but neither ``dolmen.service.handover`` nor
``dolmen.service.functions``.
Begin with ``dolmen.ingest.announcements`` (events), then ``dolmen.ingest.drops.ingest_drops`` (files) and
``dolmen.ingest.delete_requests`` (delete requests). ``dolmen.ingest.batch`` makes one commit of many requests.
"""
