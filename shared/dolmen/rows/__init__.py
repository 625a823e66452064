"""Arrow data: reads rows, writes rows, and compares the rows of two versions.

A module belongs here if it touches Arrow data. It imports ``dolmen.commit``, ``dolmen.entries``, ``dolmen.predicate``
and what lies below.
Begin with ``dolmen.rows.scan.scan``, ``dolmen.rows.write.data_file`` and ``dolmen.rows.changes.feed``.
"""
