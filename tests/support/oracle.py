"""DuckDB as an oracle of the meaning of predicates."""

from __future__ import annotations

import duckdb


def connect_oracle() -> duckdb.DuckDBPyConnection:
    """Opens a DuckDB in UTC that evaluates expressions as they are written.

    One of its rules for rewriting them, which moves constants to one side, fails inside on ``u + 1 = 2**64 - 1``.
    """
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET disabled_optimizers = 'expression_rewriter'")
    return connection
