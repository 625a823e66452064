"""Databases that are updated and merged into."""

from support.databases import bucket, db, other, store  # noqa: F401 - fixtures
