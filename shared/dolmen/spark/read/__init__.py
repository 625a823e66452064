"""Reads a table as a DataFrame."""
