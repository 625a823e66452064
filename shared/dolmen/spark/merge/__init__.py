"""MERGE: joins a DataFrame with a table, and updates, deletes and inserts rows in one commit.

It imports what ``dolmen.spark`` may import. Begin with ``dolmen.spark.merge.spark_merge``, then
``dolmen.spark.merge.join_plan``.
"""
