"""Bulk load: takes landing files of any format, and whole prefixes of them, each file once.

It imports what ``dolmen.spark`` may import, and reads files with ``dolmen.ingest.formats``. Begin with
``dolmen.spark.load.load``, then ``dolmen.spark.load.load_tasks``.
"""
