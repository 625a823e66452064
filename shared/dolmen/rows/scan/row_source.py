"""The part of a scan that other engines use: narrower scans, their rows, and an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from dolmen.predicate import Predicate
from dolmen.rows.scan.explain import Explanation


class RowSource(Protocol):
    """Rows of one table: a ``Scan``, for DuckDB and for Polars, which push columns and conditions down into it."""

    schema: pa.Schema

    @property
    def is_limited(self) -> bool:
        """Whether it has a limit, so that no condition may be added to it."""

    def only(self, columns: Sequence[str], where: Predicate | None, limit: int | None = None) -> RowSource:
        """The same rows with some of the columns, one more condition, and at most ``limit`` rows."""

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, read anew."""

    def explain(self) -> Explanation:
        """Explains what is read and what is skipped."""
