"""Readers and writers of file formats: record batches that fit a table."""
