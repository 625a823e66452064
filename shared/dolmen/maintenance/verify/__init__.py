"""Verification: checks a database from the pointer to the last byte of its data."""
