"""Merges on Spark."""
