"""Compaction: rewrites files that make scans slow."""
