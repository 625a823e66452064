"""The change feed: the rows that commits added to a table and took from it, read in proportion to the change.

It imports ``dolmen.rows.scan``, ``dolmen.commit`` and what lies below those.
Begin with ``dolmen.rows.changes.feed``, then ``dolmen.rows.changes.table_state`` and
``dolmen.rows.changes.changed_files``.
"""
