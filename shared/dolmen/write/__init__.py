"""Turns rows of any origin into Parquet data files that fit a table.

It checks and casts values, cuts rows into files, chooses encodings and collects statistics. It commits nothing.
It imports ``dolmen.format``, ``dolmen.store`` and what lies below those. The layers would allow ``dolmen.context`` and
``dolmen.commit``, but not ``dolmen.scan``.
Begin with ``dolmen.write.data_file``, then ``dolmen.write.conform``.
"""
