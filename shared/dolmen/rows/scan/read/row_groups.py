"""Row groups: which of an opened file's have to be read, and which tests their rows have to pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from dolmen.base.cached import cached_property
from dolmen.entries.segments.tombstone_judge import Suspects
from dolmen.format.entries import Bounds, DataFile
from dolmen.format.schema import Schema
from dolmen.predicate import Predicate, StatsVerdict, columns, judge
from dolmen.predicate.any_of import Conjunction
from dolmen.rows.scan.by_key.key_filters import FileProbe
from dolmen.rows.scan.by_key.keys_lookup import KeysLookup
from dolmen.rows.scan.hide.scan_deletes import Deletes
from dolmen.rows.scan.plan import FilePlan
from dolmen.rows.scan.read.byte_ranges import Range
from dolmen.rows.scan.read.file_bytes import FileBytes
from dolmen.rows.scan.read.footers import DataFileFooter
from dolmen.rows.scan.read.single_pages import Rows, picked_pages

_FEW_ROWS = 10_000
"""A file with so few rows, all in one row group, is not judged again: that takes longer than to test its rows."""


@dataclass(frozen=True)
class OpenFile:
    """A file of the plan with all that is needed before its rows.

    Args:
        plan: its part of the plan.
        footer: what its footer says.
        vector: positions already gone.
        source: where its bytes are, if none have to be fetched: on this machine, or they came with the footer.
        probe: its Bloom filters, if they are asked.
    """

    plan: FilePlan
    footer: DataFileFooter
    vector: BitMap | None
    source: FileBytes | None
    probe: FileProbe | None = None

    @property
    def file(self) -> DataFile:
        """Its entry."""
        return self.plan.file


@dataclass(frozen=True)
class RowGroup:
    """A row group to read: what statistics could not decide is decided row by row.

    Args:
        file: the file it is in.
        index: its number there.
        first: position of its first row: rows of the file before it, deleted ones included.
        rows: physical rows.
        gone: how many of them the file's vector removes.
        filter: the scan's predicate, None if every row matches.
        predicates: of ``where`` tombstones; rows for which one is TRUE are hidden.
        hidden: a mask of the rows that ``predicates`` hide, once they are evaluated.
        lookups: of ``keys`` tombstones.
        picked: numbers of rows in the row group, ascending, if only these are read: they are its ``rows`` then.
        known: ids of columns that are not read, unless for a test, as their values are known.
    """

    file: OpenFile
    index: int
    first: int
    rows: int
    gone: int
    filter: Predicate | None
    predicates: tuple[Conjunction, ...]
    lookups: tuple[KeysLookup, ...]
    picked: Rows | None = field(default=None, kw_only=True)
    known: frozenset[int] = field(default=frozenset(), kw_only=True)
    hidden: npt.NDArray[np.bool_] | None = field(default=None, kw_only=True)

    @property
    def exact_rows(self) -> int | None:
        """Number of rows that it has for the scan; None where only reading it would tell."""
        return self.rows - self.gone if not self.tests else None

    @cached_property
    def tests(self) -> frozenset[int]:
        """Ids of the columns that decide which rows are there."""
        ids: set[int] = set(columns(self.filter)) if self.filter is not None else set()
        ids.update(*(predicate.ids for predicate in self.predicates))
        for lookup in self.lookups:
            ids.update(lookup.columns)
        return frozenset(ids)

    def pick(self, rows: Rows, known: frozenset[int] = frozenset()) -> RowGroup:
        """The row group with some of its rows alone, of which none is deleted by a vector.

        Args:
            known: ids of columns whose values are known.
        """
        return replace(self, rows=len(rows), gone=0, picked=rows, known=known)

    def rows_at(self, places: BitMap) -> Rows:
        """The numbers in the row group of those of some positions that are in it, and that no vector deletes."""
        own = places & BitMap(range(self.first, self.first + self.rows))
        if self.gone and self.file.vector:
            own -= self.file.vector
        return np.array(own, np.int64) - self.first

    @property
    def positions(self) -> Rows:
        """The positions of its rows in the file."""
        return self.first + (np.arange(self.rows) if self.picked is None else self.picked)

    def ranges(self, ids: frozenset[int]) -> list[Range]:
        """Where the bytes of these columns are: whole column chunks, or the pages with the picked rows."""
        footer = self.file.footer
        if self.picked is None:
            return footer.ranges(self.index, ids)
        found: list[Range] = []
        for id_ in (ids - (self.known - self.tests)) & footer.columns.keys():
            pages = picked_pages(footer, self.index, footer.columns[id_], self.picked)
            found += footer.ranges(self.index, frozenset([id_])) if pages is None else pages.ranges()
        return found


def row_groups(file: OpenFile, where: Predicate | None, deletes: Deletes, schema: Schema) -> Iterator[RowGroup]:
    """The row groups that may have rows for the scan.

    Args:
        schema: the table's, which knows the values of columns that the file lacks.
    """
    plan, footer, probe = file.plan, file.footer, file.probe
    predicates = deletes.predicates_of(plan.tombstones)
    lookups = deletes.lookups_of(plan.tombstones)
    wanted = where if plan.filter else None
    ids = {id_ for lookup in lookups for id_ in lookup.columns}.union(
        *(predicate.ids for predicate in predicates), columns(wanted) if wanted is not None else ()
    )
    nans = {id_: stats.nans for id_, stats in plan.file.stats.items()}
    is_judged = isinstance(plan.tombstones, Suspects) and plan.file.rows <= _FEW_ROWS and len(footer.firsts) == 1
    for index, first in enumerate(footer.firsts):
        rows = footer.rows(index)
        gone = file.vector.range_cardinality(first, first + rows) if file.vector else 0
        if gone == rows:
            continue
        known = {id_: footer.bounds(index, schema.by_id[id_], nans.get(id_)) for id_ in ids}
        verdict = StatsVerdict.ALWAYS if wanted is None else judge(wanted, known, rows)
        if verdict is StatsVerdict.NEVER:
            continue
        if probe and verdict is StatsVerdict.MAYBE and wanted is not None and not probe.may_match(index, wanted):
            probe.excluded += 1
            continue
        tests = tuple(predicates) if is_judged else _predicates_to_test(predicates, known, rows)
        if tests is None:
            continue
        judged = [(lookup.judge(known, rows, plan.file.applied_through), lookup) for lookup in lookups]
        if any(found is StatsVerdict.ALWAYS for found, _ in judged):
            continue
        keys = tuple(lookup for found, lookup in judged if found is StatsVerdict.MAYBE)
        if probe and (tests or keys):
            tests = tuple(test for test in tests if probe.may_match(index, test.predicate))
            keys = tuple(lookup for lookup in keys if probe.may_hold(index, lookup))
            probe.excluded += not tests and not keys
        yield RowGroup(
            file=file,
            index=index,
            first=first,
            rows=rows,
            gone=gone,
            filter=wanted if verdict is StatsVerdict.MAYBE else None,
            predicates=tests,
            lookups=keys,
        )


def _predicates_to_test(
    predicates: list[Conjunction], known: dict[int, Bounds], rows: int
) -> tuple[Conjunction, ...] | None:
    """Those that may hide some of the rows; None when one hides all."""
    tests = []
    for predicate in predicates:
        verdict = judge(predicate.predicate, known, rows)
        if verdict is StatsVerdict.ALWAYS:
            return None
        if verdict is StatsVerdict.MAYBE:
            tests.append(predicate)
    return tuple(tests)
