"""SQL over the tables of a database, on Spark: views of all tables, and statements that change them.

It imports what ``dolmen.spark`` may import.
Begin with ``dolmen.spark.sql.run_sql``, then ``dolmen.spark.sql.attachment`` and ``dolmen.sql.statements``.
docs/spark-statements.md says what each statement does, and which are refused.
"""
