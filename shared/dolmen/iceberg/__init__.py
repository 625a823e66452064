"""Publishes versions of tables as Apache Iceberg snapshots, by writing metadata alone.

It imports ``dolmen.rows`` and what lies below. Begin with ``dolmen.iceberg.publication``.
The format is described at https://iceberg.apache.org/spec/.
"""
