"""Writes a DataFrame into a table."""
