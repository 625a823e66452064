"""Rows as frames of pandas and Polars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dolmen.scan.optional import optional

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def to_pandas(rows: pa.Table, **options: Any) -> pd.DataFrame:
    """The rows as a pandas frame.

    Args:
        options: for ``pyarrow.Table.to_pandas``.
    """
    return rows.to_pandas(**options)


def to_polars(rows: pa.Table) -> pl.DataFrame:
    """The rows as a Polars frame."""
    return optional("polars", "polars").from_arrow(rows)
