"""Deletion vectors of data files: the requests that fetch them, and the bitmaps that they bring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from dolmen.base.units import MIB
from dolmen.commit.context import Context
from dolmen.format import vectors
from dolmen.format.entries import DataFile, Vector
from dolmen.rows.scan.blobs import BlobPlace, BlobReader, BlobRequest, cache_key, place
from dolmen.rows.scan.plan import FilePlan

VECTOR_BYTES = 16 * MIB
"""Vectors of consecutive files are fetched together up to this much."""


@dataclass(frozen=True)
class VectorRequest:
    """One GET, and the files whose vectors it brings, by the place of the vector."""

    request: BlobRequest
    files: dict[BlobPlace, list[tuple[DataFile, Vector]]]


@dataclass(frozen=True)
class VectorReader:
    """Reads vectors of data files, from the cache or with as few requests as their places allow."""

    context: Context
    blobs: BlobReader

    def read(self, files: Sequence[DataFile]) -> dict[str, BitMap]:
        """The vectors of files that have one, by the path of the file. Raises CorruptionError."""
        found, wanted = self.split(files)
        for some in self.context.runtime.map(self.fetch, wanted):
            found |= some
        return found

    def split(self, files: Sequence[DataFile]) -> tuple[dict[str, BitMap], list[VectorRequest]]:
        """The vectors that are here, by the path of their file, and the requests that bring the others."""
        found: dict[str, BitMap] = {}
        wanted: dict[BlobPlace, list[tuple[DataFile, Vector]]] = defaultdict(list)
        for file in files:
            if file.vector is not None:
                bitmap = self.context.cache.get(cache_key(file.vector))
                if bitmap is None:
                    wanted[place(file.vector)].append((file, file.vector))
                else:
                    found[file.path] = bitmap
        here, asked = self.blobs.split(vector for some in wanted.values() for _, vector in some)
        for where, body in here.items():
            found |= self._decode(wanted[where], body)
        requests = [
            VectorRequest(request, {place(blob): wanted[place(blob)] for blob in some})
            for request, some in asked.items()
        ]
        return found, requests

    def fetch(self, wanted: VectorRequest) -> dict[str, BitMap]:
        """Sends a request: its vectors, by the path of their file. Raises CorruptionError."""
        body = self.blobs.get(wanted.request)
        found: dict[str, BitMap] = {}
        some = [files[0][1] for files in wanted.files.values()]
        for where, own in self.blobs.cut(wanted.request, some, body):
            found |= self._decode(wanted.files[where], own)
        return found

    def _decode(self, wanted: list[tuple[DataFile, Vector]], body: bytes) -> dict[str, BitMap]:
        found: dict[str, BitMap] = {}
        for file, vector in wanted:
            bitmap = vectors.decode(body, vector, file.rows)
            self.context.cache.put(cache_key(vector), bitmap, vector.length)
            found[file.path] = bitmap
        return found


def by_vector_bytes(files: Sequence[FilePlan], most: int) -> Iterator[Sequence[FilePlan]]:
    """Cuts files into runs whose vectors take at most ``most`` bytes, or are of one file."""
    held: list[FilePlan] = []
    size = 0
    for plan in files:
        length = plan.file.vector.length if plan.file.vector else 0
        if held and size + length > most:
            yield held
            held, size = [], 0
        held.append(plan)
        size += length
    if held:
        yield held
