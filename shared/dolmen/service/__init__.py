"""Work that a queue, a timer or an event starts: the functions, the local pipeline, jobs, and checks of stores.

A module belongs here if a queue, a timer or an event calls it. It imports ``dolmen.ingest`` and what lies below.
Begin with ``dolmen.service.functions.deliveries``, then ``dolmen.service.local.pipeline``.
"""
