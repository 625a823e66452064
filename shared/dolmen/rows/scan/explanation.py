"""The requests and row groups of a scan, which ``Scan.explain`` shows."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from dolmen.base.records import FactSheet
from dolmen.base.units import count_text
from dolmen.rows.scan.plan import ScanPlan


class Fetch(Struct, frozen=True):
    """A number of requests, and the bytes that they fetch."""

    requests: int = 0
    bytes: int = 0

    def __add__(self, other: Fetch) -> Fetch:
        return Fetch(self.requests + other.requests, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{count_text(self.requests, 'request')}, {count_text(self.bytes, 'byte')}"


@dataclass(frozen=True, repr=False)
class Explanation(FactSheet):
    """The requests and row groups of a scan, with the current cache."""

    plan: ScanPlan
    row_groups: int  # in all files that are read
    row_groups_read: int  # the number that may have rows for the scan, by the footers' statistics and vectors
    row_groups_tested: int  # the number whose rows have to be tested against a predicate or tombstone
    # vectors, vector_positions: deletion vectors applied, and the rows they remove
    vectors: int
    vector_positions: int
    # where_tombstones, keys_tombstones: deletes that are checked, in at least one file
    where_tombstones: int
    keys_tombstones: int
    # filtered_files, excluded_files: files whose Bloom filters were used, and those that they excluded
    filtered_files: int
    excluded_files: int
    # indexed_files, absent_files: files that the index covers, if it was asked, and covered files without the keys
    indexed_files: int
    absent_files: int
    index_fetch: Fetch
    # tombstone_fetch, vector_fetch, footer_fetch, filter_fetch, data_fetch: requests. A small file comes whole with its
    # footer, and filters mostly with the footer. With a limit, ``data_fetch`` is the most that is read. Files of this
    # machine are read without requests, in ``row_groups_read`` pieces.
    tombstone_fetch: Fetch
    vector_fetch: Fetch
    footer_fetch: Fetch
    filter_fetch: Fetch
    data_fetch: Fetch

    @property
    def fetch(self) -> Fetch:
        files = self.footer_fetch + self.filter_fetch + self.data_fetch
        return self.index_fetch + self.tombstone_fetch + self.vector_fetch + files

    def facts(self) -> list[tuple[str, str]]:
        """The lines of ``repr``, first those from the manifest, then those from footers and tombstones."""
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
            ("vectors", f"{self.vectors:,}, removing {count_text(self.vector_positions, 'row')}"),
            ("applied tombstones", f"{self.where_tombstones:,} where, {self.keys_tombstones:,} keys"),
            ("fetch tombstones", str(self.tombstone_fetch)),
            ("fetch vectors", str(self.vector_fetch)),
            ("fetch footers", str(self.footer_fetch)),
            *(filters if self.filtered_files else ()),
            ("fetch data", f"{'at most ' if self.plan.limit is not None else ''}{self.data_fetch}"),
        ]
