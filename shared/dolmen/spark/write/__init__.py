"""Writes a DataFrame into a table: tasks write data files, and the driver makes one commit of them.

It imports what ``dolmen.spark`` may import. Begin with ``dolmen.spark.write.from_frame``, then
``dolmen.spark.write.key_tombstones``.
"""
