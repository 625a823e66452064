"""Hands work over to Spark jobs: large or very many drops, and compactions of large tables.

It imports ``dolmen.ingest``, ``dolmen.api.database`` and what lies below those.
Begin with ``dolmen.service.handover.emr_serverless`` (the jobs, and the service that runs them), then
``dolmen.service.handover.handover_records``; docs/emr.md explains the setup.
"""
