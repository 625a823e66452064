"""Makes tables of Parquet files that are already there, and of Apache Iceberg tables, without copying data.

It may import what stands below ``dolmen.api.database``. Begin with ``dolmen.adopt.adoption``.
"""
