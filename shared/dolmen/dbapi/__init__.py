"""Databases through PEP 249, Python's interface of databases: ``dolmen.dbapi.connect(url)``.

A module belongs here if it implements an interface of other programs: PEP 249, SQLAlchemy, or dbt's DuckDB adapter.
It imports ``dolmen.api`` and what lies below. Begin with ``dolmen.dbapi.connection``.
docs/dbapi.md says how transactions, values and errors map.
"""

from dolmen.dbapi.connection import SqlConnection, SqlCursor, connect
from dolmen.dbapi.standard import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    DatabaseError,
    DataError,
    Date,
    DateFromTicks,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    TypeObject,
    Warning,
)

apilevel = "2.0"
threadsafety = 1  # threads may share the module, but not a connection
paramstyle = "qmark"  # ``:name`` and ``$name`` work as well, with a mapping

__all__ = [
    "BINARY", "DATETIME", "NUMBER", "ROWID", "STRING", "Binary", "DataError", "DatabaseError", "Date",
    "DateFromTicks", "Error", "IntegrityError", "InterfaceError", "InternalError", "NotSupportedError",
    "OperationalError", "ProgrammingError", "SqlConnection", "SqlCursor", "Time", "TimeFromTicks", "Timestamp",
    "TimestampFromTicks", "TypeObject", "Warning", "apilevel", "connect", "paramstyle", "threadsafety",
]  # fmt: skip
