"""The change feed: the rows that commits added to a table and took from it, read in proportion to the change.

It imports ``dolmen.rows.scan``. Begin with ``feed``, then ``changed_files``.
"""
