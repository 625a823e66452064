"""The change feed: the rows that commits added to a table and took from it, read in proportion to the change.

It imports ``dolmen.scan``, ``dolmen.commit`` and what lies below those.
Begin with ``dolmen.changes.feed``, then ``dolmen.changes.commits`` and ``dolmen.changes.changed_files``;
``dolmen.changes.parts`` divides a feed among processes.
"""
