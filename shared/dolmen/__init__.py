"""dolmen: columnar tables on S3 with constant-time deletes. No server, no catalog, no lock service.

``open`` a database by URL; everything else is a method of ``Database`` or ``Table``. Errors are in ``dolmen.errors``.
This module has the public names, and nothing that needs an extra. Each is imported at its first use, so that
``import dolmen`` takes no time, and a program that needs one part of the package imports only that part.
Begin with ``dolmen.api.database`` and ``dolmen.api.table``, then read ``dolmen.transactions.transaction``.
ARCHITECTURE.md has the map.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dolmen.base.late_imports import HIGHER_FUNCTIONS

if TYPE_CHECKING:
    from dolmen.api.database import Database, open, verify
    from dolmen.api.table import Table
    from dolmen.errors import Error
    from dolmen.ingest.inference.inference import infer
    from dolmen.transactions.merge.clauses import Delete, Expression, Insert, Update
    from dolmen.transactions.snapshot import Snapshot
    from dolmen.transactions.transaction import Transaction
    from dolmen.transactions.unit_of_work import Commit

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
    "infer",
    "open",
    "verify",
]

_MODULES = {
    "Commit": "dolmen.transactions.unit_of_work",
    "Database": "dolmen.api.database",
    "Delete": "dolmen.transactions.merge.clauses",
    "Error": "dolmen.errors",
    "Expression": "dolmen.transactions.merge.clauses",
    "Insert": "dolmen.transactions.merge.clauses",
    "Snapshot": "dolmen.transactions.snapshot",
    "Table": "dolmen.api.table",
    "Transaction": "dolmen.transactions.transaction",
    "Update": "dolmen.transactions.merge.clauses",
    "infer": "dolmen.ingest.inference.inference",
    "open": "dolmen.api.database",
    "verify": "dolmen.api.database",
}

HIGHER_FUNCTIONS.update(
    run_copy=("dolmen.ingest.copy_statement", "dolmen"),
    run_on_snapshot=("dolmen.sql.text", "dolmen[sql]"),
    run_on_transaction=("dolmen.sql.text", "dolmen[sql]"),
    to_spark=("dolmen.spark", "dolmen[spark]"),
    worker_schema=("dolmen.spark.frame_types", "dolmen[spark]"),
)


if not TYPE_CHECKING:  # or type checkers would take any name for one of this module

    def __getattr__(name: str) -> object:
        """Imports one of the names above, or a module of this package, when it is first used."""
        if name in _MODULES:
            globals()[name] = found = getattr(import_module(_MODULES[name]), name)
            return found
        if name.startswith("_") or find_spec(f"dolmen.{name}") is None:
            raise AttributeError(f"module 'dolmen' has no attribute {name!r}")
        return import_module(f"dolmen.{name}")

    def __dir__() -> list[str]:
        """All names, also those that have not been used yet."""
        return sorted({*globals(), *__all__})
