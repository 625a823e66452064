"""Updates and merges: rows that are read, hidden by their positions, and written again in the same commit.

It imports ``dolmen.transactions.unit_of_work``, ``dolmen.transactions.row_statements``, ``dolmen.rows.scan``,
``dolmen.rows.write`` and what lies below those.
Begin with ``dolmen.transactions.merge.update``, then ``dolmen.transactions.merge.clauses`` and
``dolmen.transactions.merge.merge``. Spark has the same clauses (``dolmen.spark.write.spark_merge``).
"""
