"""Writes a DataFrame into a table, or merges it: tasks write data files, and the driver makes one commit of them.

It imports what ``dolmen.spark`` may import. Begin with ``dolmen.spark.write.from_frame``, then
``dolmen.spark.write.write_tasks`` and ``dolmen.spark.write.merge_frame``.
"""
