"""The classes that users work with: databases, tables, buffered writers and cursors.

A module belongs here if docs/api.md shows it, or if it is a private part of such a class.
It imports ``dolmen.adopt``, ``dolmen.iceberg``, ``dolmen.maintenance``, ``dolmen.transactions`` and what lies below.
Begin with ``dolmen.api.database``, then ``dolmen.api.table``.
"""
