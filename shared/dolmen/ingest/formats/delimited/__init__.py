"""Delimited text: CSV, TSV and their dialects, parsed by pyarrow after ``csv_for_pyarrow`` has prepared it."""
