"""Compaction on Spark: the plan and the rewriting of ``dolmen.maintenance.compact``, many groups at once.

It imports what ``dolmen.spark`` may import. Begin with ``dolmen.spark.compact.spark_compaction``, then
``dolmen.spark.compact.group_jobs``.
"""
