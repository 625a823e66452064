"""Updates and merges: rows that are read, hidden by their positions, and written anew in the same commit.

It imports ``dolmen.unit_of_work``, ``dolmen.mutation``, ``dolmen.scan``, ``dolmen.write`` and what lies below those.
Begin with ``dolmen.merge.update``, then ``dolmen.merge.clauses`` and ``dolmen.merge.merge``. Spark has the same clauses
(``dolmen.spark.merge``).
"""
