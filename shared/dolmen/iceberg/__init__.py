"""Publishes versions of tables as Apache Iceberg snapshots, by writing metadata alone.

It imports ``dolmen.rows.scan``, ``dolmen.commit`` and what lies below those.
Begin with ``dolmen.iceberg.publication``. ``schemas``, ``bounds``, ``manifests``, ``metadata``, ``puffin`` and
``position_deletes`` turn types into Iceberg's bytes (https://iceberg.apache.org/spec/).
"""
