"""Updates and merges: rows that are read, hidden by their positions, and written again in the same commit.

It imports ``dolmen.transactions.row_statements``, ``dolmen.rows.scan``, ``dolmen.rows.write`` and what lies below.
Begin with ``dolmen.transactions.merge.merge``, then ``dolmen.transactions.merge.clauses``. Spark has the same clauses
(``dolmen.spark.write.merge_frame``).
"""
