"""Turns rows of any origin into Parquet data files that fit a table; commits nothing.

It never imports ``dolmen.rows.scan``. Begin with ``data_file``, then ``conform``.
"""
