"""Plain Parquet files by pyarrow: the floor. It has no commits, and deletes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bench.peers.peer import Ids, Peer, Sums, numbers, sums_of
from bench.peers.storage import filesystem


class Plain(Peer):
    """A folder of files, one for each append."""

    name = "pyarrow"
    title = "plain Parquet (pyarrow)"

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {"pyarrow": pa.__version__}

    def create(self, schema: pa.Schema, key: str) -> None:
        self.open()
        self._files.create_dir(self._path, recursive=True)

    def open(self) -> None:
        self._files, self._path = filesystem(self.place)

    def _dataset(self) -> ds.Dataset:
        return ds.dataset(self._path, filesystem=self._files, format="parquet")

    def append(self, rows: pa.Table) -> None:
        path = f"{self._path}/{uuid.uuid4().hex}.parquet"
        pq.write_table(rows, path, filesystem=self._files, compression="zstd", row_group_size=1 << 17)

    def sums(self, low: int | None = None, high: int | None = None, by: str = "id") -> Sums:
        chosen = None if low is None else (pc.field(by) >= low) & (pc.field(by) < high)
        return sums_of(self._dataset().to_batches(columns=["user_id", "amount"], filter=chosen))

    def get(self, key: str, value: int | str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._dataset().to_table(filter=pc.field(key) == value).to_pylist()
        return found

    def ids(self) -> Ids:
        return numbers(self._dataset().to_table(columns=["id"]))

    def register(self, files: Sequence[str], key: str) -> None:
        self.place = replace(self.place, url=str(Path(files[0]).parent))
        self.open()

    def files(self) -> int:
        return len(self._dataset().files)
