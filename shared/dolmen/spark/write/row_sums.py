"""A digest of rows in any order, which tasks make each of their own rows: whatever partitions these come in, the sum
over all tasks is the same. So the content of a request can be told from another's (docs/protocol.md).

Each row gets 64 bits (``dolmen.rows.write.row_hashes``), of its values as they fit the table. Summed are these, and a
second function of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dolmen.rows.write.row_hashes import mix, row_hashes

_MASK = (1 << 64) - 1
_SECOND = 0xD6E8FEB86659FD93


@dataclass
class RowSums:
    """The sums of some rows.

    Args:
        rows: how many they are.
        first, second: the sums, modulo 2^64.
    """

    rows: int = 0
    first: int = 0
    second: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the rows of a batch."""
        each = row_hashes(batch)
        self.rows += batch.num_rows
        self.first = (self.first + int(each.sum(dtype=np.uint64))) & _MASK
        self.second = (self.second + int(mix(each ^ np.uint64(_SECOND)).sum(dtype=np.uint64))) & _MASK

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, each taken on its way."""
        for batch in batches:
            self.add(batch)
            yield batch

    def content(self) -> list[Any]:
        """For a request's digest (``content_digest``)."""
        return ["rows in any order", self.rows, f"{self.first:016x}", f"{self.second:016x}"]

    def encode(self) -> bytes:
        """As bytes, for reports of tasks."""
        return b"%d %d %d" % (self.rows, self.first, self.second)

    @classmethod
    def of(cls, encoded: Iterable[bytes]) -> RowSums:
        """The sum of what tasks have reported."""
        found = cls()
        for body in encoded:
            rows, first, second = map(int, bytes(body).split())
            found.rows += rows
            found.first = (found.first + first) & _MASK
            found.second = (found.second + second) & _MASK
        return found
