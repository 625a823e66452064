"""Reads the metadata of an Apache Iceberg table that is to be adopted: columns, files and deletes of its snapshot.

It imports what ``dolmen.adopt`` may import. Begin with ``dolmen.adopt.iceberg.table``.
"""
