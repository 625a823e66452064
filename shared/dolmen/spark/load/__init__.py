"""Bulk load on Spark."""
