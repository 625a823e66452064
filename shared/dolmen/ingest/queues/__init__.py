"""Queues of messages: of SQS, or a directory on one machine.

``dolmen.functions``, ``dolmen.local``, the command line and ``dolmen.ingest.deletes.tracking`` use them.
It imports ``dolmen.errors``, ``dolmen.runtime`` and ``dolmen.store``.
Begin with ``dolmen.ingest.queues.url.open_queue``; ``base`` has what all queues share.
"""
