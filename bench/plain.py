"""pyarrow alone: the writer with which appends and compactions are compared."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.dataset import SCHEMA
from dolmen.format.schema import Schema
from dolmen.rows.write.encodings import choose
from dolmen.rows.write.runs import DEFAULT

GROUP_ROWS = 1 << 17


def settings(table: pa.Table) -> dict[str, Any]:
    """The settings with which dolmen writes this table, as arguments of ``ParquetWriter``."""
    first = table.slice(0, DEFAULT.run_rows).cast(Schema.from_arrow(SCHEMA).arrow)
    return {
        "data_page_version": "1.0",
        "write_page_index": True,
        "write_page_checksum": True,
        "bloom_filter_options": {"id": {"ndv": GROUP_ROWS, "fpp": 0.03}},
        **choose(first).options(first.schema),
    }


def writer(sink: Any, chosen: dict[str, Any]) -> pq.ParquetWriter:
    """A writer with these settings."""
    return pq.ParquetWriter(sink, SCHEMA, **chosen)
