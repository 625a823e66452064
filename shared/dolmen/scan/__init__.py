"""Reading a table: what to read is planned from metadata, then fetched, cleared of deleted rows, and streamed."""
