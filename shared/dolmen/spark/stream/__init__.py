"""Structured Streaming from and into tables."""
