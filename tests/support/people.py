"""A small table of people."""

from __future__ import annotations

import pyarrow as pa

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user_id", pa.int64()), ("name", pa.string())])


def people(*ids: int, user_id: int | None = None, name: str = "x") -> pa.Table:
    return pa.table(
        {"id": ids, "user_id": [i % 10 if user_id is None else user_id for i in ids], "name": [name] * len(ids)}
    )
