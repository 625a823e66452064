"""Hands large work over to Spark jobs: drops that are large or very many, and compactions of large tables.

It keeps records of what was handed over, asks the job service, and starts the jobs that are due.
It imports ``dolmen.ingest``, ``dolmen.database`` and what lies below those.
``dolmen.handover.emr_serverless`` talks to AWS.
Begin with ``dolmen.handover.round`` and ``dolmen.handover.drops``; docs/emr.md explains the setup.
"""
