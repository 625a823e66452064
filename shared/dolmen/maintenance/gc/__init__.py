"""Garbage collection: deletes objects that no kept version needs. Nothing else deletes data.

It imports what ``dolmen.maintenance`` may import.
Begin with ``collection`` (``collect``). ``mark`` finds the objects to keep; ``deletion`` and ``sweep`` delete
the others.
"""
