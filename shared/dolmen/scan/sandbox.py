"""Connections of DuckDB that see what is registered with them, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dolmen.scan.optional import optional

if TYPE_CHECKING:
    import duckdb

_SETTINGS = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
"""A query sees the tables that are given to it: no files, no network, no Python variables."""


def open_sandbox(temp_directory: str = "", **settings: str) -> duckdb.DuckDBPyConnection:
    """Opens a connection, whose settings cannot be changed any more. Its time zone is UTC.

    Args:
        temp_directory: where it puts what exceeds memory; nothing may exceed it if empty.
        settings: more settings of DuckDB.

    Raises:
        InputError: DuckDB is not installed.
    """
    engine = optional("duckdb", "dolmen[sql]")
    config = {**_SETTINGS, **settings, "temp_directory": temp_directory}
    connection: duckdb.DuckDBPyConnection = engine.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'; SET lock_configuration = true")
    return connection
