"""Databases to play with."""

from support.databases import bucket, db, other, store, table  # noqa: F401 - fixtures
