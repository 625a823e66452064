"""Hands large work over to Spark jobs: drops that are large or very many, and compactions of large tables.

It keeps records of what was handed over, asks the job service, and starts the jobs that are due.
It imports ``dolmen.ingest``, ``dolmen.api.database`` and what lies below those.
``dolmen.service.handover.emr_serverless`` talks to AWS.
Begin with ``dolmen.service.handover.due_jobs`` and ``dolmen.service.handover.handover_records``; docs/emr.md explains
the setup.
"""
