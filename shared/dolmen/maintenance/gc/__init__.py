"""Garbage collection: deletes what no kept version needs."""
