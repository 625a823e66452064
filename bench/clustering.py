"""What a filter on each of two columns reads in a table that is not sorted, sorted by one, and clustered by both.

    python -m bench.clustering [MILLIONS_OF_ROWS]

The rows are visits of 100,000 users in 30 days, in the order of a load: of no column.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

import dolmen
from dolmen.base.units import MIB

BATCH = 1_000_000
USERS, DAYS = 100_000, 30
WHERES = {"user = 4711": "one user of 100,000", "at >= 86400000000 AND at < 90000000000": "one hour of 720"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "as loaded": {},
    "sorted by at": {"sort_key": "at"},
    "clustered by user, at": {"cluster_by": "user, at"},
}


def batch(number: int) -> pa.Table:
    rng = np.random.default_rng(number)
    return pa.table(
        {
            "user": rng.integers(0, USERS, BATCH),
            "at": rng.integers(0, DAYS * 86_400_000_000, BATCH),
            "page": rng.integers(0, 5_000, BATCH),
            "amount": np.round(rng.exponential(50, BATCH), 2),
        }
    )


def main(millions: int) -> None:
    """Prints a table in Markdown."""
    print("| layout | filter | files read | row groups read | MB read | of MB | seconds to compact |")
    print("|---|---|---|---|---|---|---|")
    with dolmen.open("memory://clustering") as db:
        for number, (layout, options) in enumerate(LAYOUTS.items()):
            table = db.create_table(f"t{number}", batch(0).schema, properties={"target_file_bytes": "8MB"}, **options)
            for part in range(millions):
                table.append(batch(part))
            began = time.perf_counter()
            db.compact(table.name, recluster=True)
            seconds = time.perf_counter() - began
            size, files = table.describe()["bytes"], table.files().num_rows
            for where, label in WHERES.items():
                found = table.scan(where=where).explain()
                rows = table.scan(where=where).count()
                groups = f"{found.row_groups_read} of {found.row_groups}"
                print(
                    f"| {layout} | {label}: {rows:,} rows | {len(found.plan.files)} of {files} | {groups} "
                    f"| {found.data_fetch.bytes / MIB:,.1f} | {size / MIB:,.0f} | {seconds:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
