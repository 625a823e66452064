"""Reads dropped files as record batches that fit a table, and writes rows as files that read back equal.

It imports ``dolmen.rows.write`` and what lies below that, but nothing that commits.
Begin with ``dolmen.ingest.formats.formats``, which picks the reader. ``text_blocks`` and ``csv_records`` find blocks
and records of text, ``cells`` and ``json_values`` parse values, and the reader of each format maps them to columns
(``csv_reader``, ``jsonl``); ``typed_batches`` does that for Parquet, Arrow and Avro.
"""
