"""Queues of messages: of SQS, or a directory on one machine.

``dolmen.service.functions``, ``dolmen.service.local``, the command line and ``dolmen.ingest.deletes.tracking`` use
them. It imports ``dolmen.errors``, ``dolmen.base.runtime`` and ``dolmen.store``.
Begin with ``dolmen.ingest.queues.sqs.open_queue``; ``base`` has what all queues share.
"""
