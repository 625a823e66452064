"""The content and the history of a database, as it reports them."""

from __future__ import annotations

from dolmen import Database


def ids(database: Database, table: str = "events") -> list[int]:
    found: list[int] = sorted(row["id"] for row in database.table(table).to_arrow().to_pylist())
    return found


def operations(database: Database) -> list[str]:
    """The operations of all commits but those that create tables."""
    return [commit.operation for commit in database.history() if not commit.operation.startswith("create")][::-1]


def newest(database: Database) -> int:
    return max(commit.version for commit in database.history())
