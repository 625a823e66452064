"""Makes tables of existing Parquet files and of Apache Iceberg tables, without copying data.

It may import the packages below ``dolmen.api.database``. Begin with ``dolmen.adopt.adoption``.
"""
