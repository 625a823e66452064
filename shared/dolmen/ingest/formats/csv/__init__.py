"""Reads delimited text: CSV and TSV.

It imports what ``dolmen.ingest.formats`` may import; ``dolmen.ingest.formats.text`` reads the cells.
Begin with ``dolmen.ingest.formats.csv.delimited``.
"""
