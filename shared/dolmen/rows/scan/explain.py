"""``explain()``: what a scan reads and what it can skip, in numbers.

The part of a scan that other engines use: narrower scans, their rows, and an explanation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dolmen.format.entries import KeysTombstone, WhereTombstone
from dolmen.rows.scan.plan import FactSheet, ScanPlan
from dolmen.rows.scan.read.footers import first_request
from dolmen.rows.scan.read.reading import PlanReader, batches
from dolmen.rows.scan.read.row_groups import RowGroup
from dolmen.rows.scan.scan_deletes import blob_requests, cache_key, tombstones_to_fetch


@dataclass(frozen=True)
class Fetch:
    """A number of requests, and the bytes they bring."""

    requests: int = 0
    bytes: int = 0

    def __add__(self, other: Fetch) -> Fetch:
        return Fetch(self.requests + other.requests, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {self.bytes:,} bytes"


@dataclass(frozen=True, repr=False)
class Explanation(FactSheet):
    """The requests and row groups of a scan, given what the cache holds now.

    Args:
        plan: of the scan.
        row_groups: in all files that are read.
        row_groups_read: those that may have rows for the scan, by the footers' statistics and vectors.
        row_groups_tested: those of them whose rows have to be tested, one by one, against a predicate or tombstone.
        vectors, vector_positions: deletion vectors applied, and the rows they remove.
        where_tombstones, keys_tombstones: deletes that are checked, in at least one file.
        filtered_files, excluded_files: files whose Bloom filters were asked, and those that they excluded.
        indexed_files, absent_files: files that the index knows, if it was asked, and those that have none of the keys.
        index_fetch: requests for its pages.
        tombstone_fetch, vector_fetch, footer_fetch, filter_fetch, data_fetch: requests; a small file comes whole with
            its footer. A request for filters mostly brings the footer, too, which is not counted again then. With
            a limit, ``data_fetch`` is what is read at most. Files of this machine are read without requests, in
            ``row_groups_read`` pieces.
    """

    plan: ScanPlan
    row_groups: int
    row_groups_read: int
    row_groups_tested: int
    vectors: int
    vector_positions: int
    where_tombstones: int
    keys_tombstones: int
    filtered_files: int
    excluded_files: int
    indexed_files: int
    absent_files: int
    index_fetch: Fetch
    tombstone_fetch: Fetch
    vector_fetch: Fetch
    footer_fetch: Fetch
    filter_fetch: Fetch
    data_fetch: Fetch

    @property
    def fetch(self) -> Fetch:
        """All requests together."""
        files = self.footer_fetch + self.filter_fetch + self.data_fetch
        return self.index_fetch + self.tombstone_fetch + self.vector_fetch + files

    def facts(self) -> list[tuple[str, str]]:
        """The lines of ``repr``: first facts from the manifest, then facts from footers and tombstones."""
        filters = [
            ("bloom filters", f"{self.excluded_files:,} of {self.filtered_files:,} files excluded"),
            ("fetch filters", str(self.filter_fetch)),
        ]
        index = [
            ("index", f"{self.absent_files:,} of {self.indexed_files:,} files have none of the keys"),
            ("fetch index", str(self.index_fetch)),
        ]
        return [
            *self.plan.facts(),
            *(index if self.indexed_files else ()),
            (
                "row groups, by footers",
                f"{self.row_groups_read:,} of {self.row_groups:,}, {self.row_groups_tested:,} row by row",
            ),
            ("vectors", f"{self.vectors:,}, removing {self.vector_positions:,} rows"),
            ("applied tombstones", f"{self.where_tombstones:,} where, {self.keys_tombstones:,} keys"),
            ("fetch tombstones", str(self.tombstone_fetch)),
            ("fetch vectors", str(self.vector_fetch)),
            ("fetch footers", str(self.footer_fetch)),
            *(filters if self.filtered_files else ()),
            ("fetch data", f"{'at most ' if self.plan.limit is not None else ''}{self.data_fetch}"),
        ]


def explain(reader: PlanReader) -> Explanation:
    """Explains what this (fresh) reader would do."""
    plan, cache = reader.plan, reader.context.cache
    vectors = [file.file.vector for file in plan.files if file.file.vector]
    blobs = blob_requests(t.blob for t in tombstones_to_fetch(plan.tombstones, cache))
    bitmaps = blob_requests(v for v in vectors if cache_key(v) not in cache)
    unopened = {file.file.uuid: file.file for file in plan.files if ("footer", file.file.path, 0) not in cache}
    groups: list[int] = []
    tested: list[int] = []

    def note(group: RowGroup) -> RowGroup:
        groups.append(group.index)
        if group.tests:
            tested.append(group.index)
        return group

    data = Fetch()
    for batch in batches(map(note, reader.groups()), plan.output_ids):
        data += Fetch(len(batch.requests), sum(request.length for request in batch.requests))
    filters = reader.filters
    indexed = reader.indexed
    known = [file for file in plan.files if indexed and file.file.uuid in indexed.covered]
    absent = [file for file in known if indexed and indexed.has_none_of(file)]
    for uuid in (*(file.file.uuid for file in absent), *reader.footers):
        unopened.pop(uuid, None)
    footers = [first_request(file) for file in unopened.values() if file.path not in filters.with_footer]
    kinds = Counter(type(tombstone) for tombstone in plan.tombstones)
    return Explanation(
        plan=plan,
        row_groups=reader.row_groups_seen,
        row_groups_read=len(groups),
        row_groups_tested=len(tested),
        vectors=len(vectors),
        vector_positions=sum(vector.cardinality for vector in vectors),
        where_tombstones=kinds[WhereTombstone],
        keys_tombstones=kinds[KeysTombstone],
        filtered_files=filters.files,
        excluded_files=filters.excluded,
        indexed_files=len(known),
        absent_files=len(absent),
        index_fetch=Fetch(indexed.tally.requests, indexed.tally.bytes) if indexed else Fetch(),
        tombstone_fetch=Fetch(len(blobs), sum(request.range.length for request in blobs)),
        vector_fetch=Fetch(len(bitmaps), sum(request.range.length for request in bitmaps)),
        footer_fetch=Fetch(len(footers), sum(request.length - 1 for request in footers)),
        filter_fetch=Fetch(filters.requests, filters.bytes),
        data_fetch=data,
    )


class RowSource(Protocol):
    """Rows of one table: a ``Scan``, for DuckDB and for Polars, which push columns and conditions down into it."""

    schema: pa.Schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; each call reads them."""

    def explain(self) -> Explanation:
        """The reads of the scan, and the files and row groups that it skips."""
