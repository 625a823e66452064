"""The interface of a peer: one function for each kind of work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


class UnsupportedError(Exception):
    """This peer has no such work."""


@dataclass(frozen=True)
class S3:
    """Where an S3 server answers, and with which keys."""

    endpoint: str
    access_key: str = "bench"
    secret_key: str = "bench-local"
    region: str = "us-east-1"


@dataclass(frozen=True)
class Place:
    """Where a peer keeps one table.

    Args:
        url: a folder, or ``s3://bucket/prefix``.
        catalog: a folder of this machine, for the catalogs of peers that need one.
        s3: None for a folder.
        postgres: address of a PostgreSQL server, as libpq takes it, for the catalog of DuckLake; None: SQLite.
    """

    url: str
    catalog: Path
    s3: S3 | None = None
    postgres: str | None = None


@dataclass(frozen=True)
class Sums:
    """The answer of a scan: the number of rows, and the sums of two columns."""

    rows: int
    users: int
    amount: float

    def agrees_with(self, other: Sums) -> bool:
        """Whether both are of the same rows: amounts are added up in another order."""
        near = abs(self.amount - other.amount) <= 1e-9 * max(abs(self.amount), abs(other.amount), 1.0)
        return (self.rows, self.users) == (other.rows, other.users) and near


def sums_of(batches: Any) -> Sums:
    """Adds up batches with the columns ``user_id`` and ``amount``."""
    rows, users, amount = 0, 0, 0.0
    for batch in batches:
        rows += batch.num_rows
        users += pc.sum(batch["user_id"]).as_py() or 0
        amount += pc.sum(batch["amount"]).as_py() or 0.0
    return Sums(rows, users, amount)


def numbers(rows: pa.Table) -> Ids:
    """The only column of a table."""
    found: Ids = rows.column(0).to_numpy()
    return found


class Peer(ABC):
    """One table of one format. The table has ``user_id`` and ``amount``, and a key column, ``id`` or ``key``.

    A method that a peer lacks raises ``UnsupportedError``. Errors are the library's own: nothing is tried again here.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    @abstractmethod
    def versions(cls) -> dict[str, str]:
        """Versions of the libraries that it runs on."""

    @abstractmethod
    def create(self, schema: pa.Schema, key: str) -> None:
        """Makes an empty table, and opens it."""

    @abstractmethod
    def open(self) -> None:
        """Opens the table again, without caches."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Adds rows in one commit."""

    @abstractmethod
    def sums(self, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
        """Adds up all rows, or those whose column ``by`` is in ``low <= by < high``."""

    @abstractmethod
    def get(self, key: str, value: int | str) -> list[dict[str, Any]]:
        """All columns of the rows with a key."""

    @abstractmethod
    def ids(self) -> Ids:
        """The ids of all rows."""

    def delete_range(self, low: int, high: int) -> None:
        """Deletes the rows with ``low <= id < high`` in one commit."""
        raise UnsupportedError

    def delete_values(self, column: str, values: Ids) -> None:
        """Deletes the rows with one of these values in one commit."""
        raise UnsupportedError

    def upsert(self, rows: pa.Table, key: str) -> None:
        """Adds rows in place of those with their keys, in one commit."""
        raise UnsupportedError

    def register(self, files: Sequence[str], key: str) -> None:
        """Makes a table of Parquet files that are there, without a copy, and opens it."""
        raise UnsupportedError

    def index(self, key: str) -> None:
        """Builds an index on the key column."""
        raise UnsupportedError

    def cluster(self, columns: Sequence[str]) -> None:
        """Rewrites all rows so that filters on each of these columns read few of them."""
        raise UnsupportedError

    def resolve(self) -> None:
        """Applies deletes to what scans read, without rewriting rows."""
        raise UnsupportedError

    def compact(self) -> None:
        """Makes few files of many, without deleted rows."""
        raise UnsupportedError

    def clean(self) -> None:
        """Deletes what only older versions need, at once."""
        raise UnsupportedError

    def publish(self) -> str:
        """Publishes the newest version as Iceberg; returns where its metadata is."""
        raise UnsupportedError

    def files(self) -> int:
        """Data files of the newest version."""
        raise UnsupportedError


def sql_range(low: int | None, high: int | None, by: str) -> str:
    """A range of a column as a condition of SQL."""
    return "" if low is None else f" WHERE {by} >= {low} AND {by} < {high}"


def sql_value(value: int | str) -> str:
    """A literal of SQL."""
    return f"'{value}'" if isinstance(value, str) else str(value)
