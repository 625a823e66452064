"""Publishes versions of tables as Apache Iceberg snapshots, by writing metadata alone.

It imports ``dolmen.transactions`` and what lies below. Begin with ``dolmen.iceberg.publication``.
The format is described at https://iceberg.apache.org/spec/.
"""

from dolmen.transactions.publisher import register_publisher

register_publisher("dolmen.iceberg.publication")
