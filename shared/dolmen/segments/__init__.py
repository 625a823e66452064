"""Entries that have left the manifest: reading segments, and a table's live files wherever their entries are."""
