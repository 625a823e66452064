"""Arrow data: reads rows, writes rows, and compares the rows of two versions.

A module belongs here if it touches Arrow data. It imports ``dolmen.commit``, ``dolmen.entries``, ``dolmen.predicate``
and the layers below. Begin with ``scan.scan``, ``write.data_file`` and ``changes.feed``.
"""
