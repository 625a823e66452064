"""dolmen: columnar tables on S3 with constant-time deletes. No server, no catalog, no lock service.

``open`` a database by URL; everything else is a method of ``Database`` or ``Table``. Errors are in ``dolmen.errors``.
This module imports what users hold, and nothing that needs an extra.
Begin with ``dolmen.database`` and ``dolmen.table``, then read ``dolmen.transaction``. ARCHITECTURE.md has the map.
"""

from dolmen.database import Database, open, verify
from dolmen.errors import Error
from dolmen.merge.clauses import Delete, Insert, Update
from dolmen.merge.row_template import Expression
from dolmen.results import Commit
from dolmen.snapshot import Snapshot
from dolmen.table import Table
from dolmen.transaction import Transaction

__version__ = "0.1.0"
__all__ = [
    "Commit",
    "Database",
    "Delete",
    "Error",
    "Expression",
    "Insert",
    "Snapshot",
    "Table",
    "Transaction",
    "Update",
    "__version__",
    "open",
    "verify",
]
