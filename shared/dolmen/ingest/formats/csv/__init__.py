"""Delimited text: CSV and TSV."""
