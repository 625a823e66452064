"""Compaction on Spark."""
