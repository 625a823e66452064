"""Delete requests become tombstones, and a sender can ask what became of each request.

It imports what ``dolmen.ingest`` may import.
Begin with ``dolmen.ingest.deletes.delete_requests`` (the messages), then ``dolmen.ingest.deletes.delete_requests``.
"""
