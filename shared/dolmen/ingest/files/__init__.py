"""How dropped files are read: every format, as record batches that fit a table."""
