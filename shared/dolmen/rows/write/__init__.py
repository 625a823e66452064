"""Turns rows of any origin into Parquet data files that fit a table.

It checks and casts values, cuts rows into files, chooses encodings and collects statistics. It commits nothing.
It needs only ``dolmen.format``, ``dolmen.store`` and what lies below those; it never imports ``dolmen.rows.scan``.
Begin with ``dolmen.rows.write.data_file``, then ``dolmen.rows.write.conform``.
"""
