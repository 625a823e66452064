"""Decides which row groups of an opened file are read, which deletes are tested on their rows, and which rows stay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyroaring import BitMap

from dolmen.base.records import replace
from dolmen.base.runtime import cached_property
from dolmen.entries.segments.row_bounds import RowBounds, undecided_deletes
from dolmen.entries.segments.tombstone_judge import FileTombstones
from dolmen.errors import CorruptionError
from dolmen.format.column_history import has_same_fields, nested_values
from dolmen.format.del_object import keep_mask
from dolmen.format.entries import Blob, DataFile, KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.schema import COMMIT_TS_ID, Field, Schema, is_nested
from dolmen.format.types import Mask, to_boolean_array, to_mask
from dolmen.predicate.any_of import Conjunction, any_of
from dolmen.predicate.ast import Column, Predicate, StructField, all_columns, columns, term_ids
from dolmen.predicate.evaluate import matches, with_fields
from dolmen.predicate.prune import StatsVerdict
from dolmen.rows.scan.bloom_probes import FileProbe
from dolmen.rows.scan.data_objects import DataFileFooter, Range
from dolmen.rows.scan.file_bytes import FileBytes, Rows, picked_pages
from dolmen.rows.scan.tombstone_keys import KeysLookup, Tuples

_FEW_ROWS = 10_000
"""If a file has at most these rows, in one row group, deletes by predicates are not compared with the row group's
statistics after those of the file: testing the rows takes less time."""


class FilePlan(Struct, frozen=True, gc=False):
    """A data file to read, with the tombstones that may hide rows of it.

    ``needs_filter``: whether the scan's predicate has to be evaluated on its rows.
    """

    file: DataFile
    needs_filter: bool
    tombstones: FileTombstones | tuple[Tombstone, ...]

    @property
    def where_tombstones(self) -> list[WhereTombstone]:
        if isinstance(self.tombstones, FileTombstones):
            return self.tombstones.where
        return [each for each in self.tombstones if isinstance(each, WhereTombstone)]

    @property
    def key_columns(self) -> list[tuple[int, ...]]:
        if isinstance(self.tombstones, FileTombstones):
            return self.tombstones.key_columns
        return list(dict.fromkeys(each.columns for each in self.tombstones if isinstance(each, KeysTombstone)))

    @property
    def exact_rows(self) -> int | None:
        """Number of rows that the scan gets from it; None if metadata does not tell."""
        return None if self.needs_filter or self.tombstones else self.file.live_rows


class OpenFile(Struct, frozen=True):
    """A file of the plan with all that is needed before its rows.

    ``source`` has its bytes if they are on this machine or came with the footer.
    """

    plan: FilePlan
    footer: DataFileFooter
    vector: BitMap | None
    source: FileBytes | None
    probe: FileProbe | None = None

    @property
    def file(self) -> DataFile:
        return self.plan.file

    def bounds(self, index: int, ids: frozenset[int], schema: Schema) -> RowBounds:
        """Bounds of these columns, and fields of structs, in a row group, by the footer's statistics.

        Columns that the schema lacks, and fields that the file lacks, are left out.
        """
        stats, fields = self.file.stats, schema.by_id
        column_bounds = {
            id_: self.footer.bounds(index, fields[id_], stats[id_].nans if id_ in stats else None)
            for id_ in ids
            if id_ in fields
        }
        for id_ in ids - fields.keys():
            if (leaf := self.footer.struct_fields.get(id_)) is not None:
                column_bounds[id_] = self.footer.leaf_bounds(index, leaf, None)
        return RowBounds(column_bounds, self.footer.rows(index), self.file.applied_through)


class RowTest(Protocol):
    """A test of rows by the values of some columns (``dolmen.rows.scan.conditions``)."""

    @property
    def fields(self) -> tuple[Field, ...]: ...

    def narrow(self, keep: Mask | None, arrays: Sequence[pa.Array]) -> Mask:
        """A mask of the rows that pass, among those of another mask."""


@dataclass(frozen=True)
class RowGroup:
    """A row group to read, with the tests of its rows that statistics could not decide."""

    file: OpenFile
    index: int
    first: int  # position of its first row: rows of the file before it, deleted ones included
    rows: int  # number of physical rows
    deleted: int  # number of its rows that the file's vector deletes
    where: Predicate | None  # the scan's predicate; None if every row matches
    hiding_predicates: tuple[Conjunction, ...]  # of ``where`` tombstones; rows for which one is TRUE are hidden
    lookups: tuple[KeysLookup, ...]  # of ``keys`` tombstones
    # indexes of the rows to read, ascending, counted from the start of the row group; None for all rows. If only some
    # are read, ``rows`` is the number of these.
    picked: Rows | None = field(default=None, kw_only=True)
    # ids of columns whose values in the picked rows are known: they are read only for a test
    known_columns: frozenset[int] = field(default=frozenset(), kw_only=True)
    # a mask of the rows that ``hiding_predicates`` hide, once they are evaluated
    hidden: Mask | None = field(default=None, kw_only=True)
    test: RowTest | None = field(default=None, kw_only=True)  # evaluates the scan's condition that is not a predicate

    @property
    def exact_rows(self) -> int | None:
        """Number of rows that the scan returns from it; None if it has to be read first."""
        return self.rows - self.deleted if not self.tested_ids else None

    @cached_property
    def tested_ids(self) -> frozenset[int]:
        """Ids of the columns that decide which rows are there."""
        ids: set[int] = set(columns(self.where)) if self.where is not None else set()
        ids.update(*(predicate.ids for predicate in self.hiding_predicates))
        for lookup in self.lookups:
            ids.update(lookup.columns)
        return frozenset(ids if self.test is None else ids.union(field.id for field in self.test.fields))

    def pick(self, rows: Rows, known_columns: frozenset[int] = frozenset()) -> RowGroup:
        """The row group with only some of its rows, of which the vector deletes none."""
        return replace(self, rows=len(rows), deleted=0, picked=rows, known_columns=known_columns)

    def rows_at(self, positions: BitMap) -> Rows:
        """The rows at some positions of the file, as indexes in the row group, without those that a vector deletes."""
        positions_here = positions & BitMap(range(self.first, self.first + self.rows))
        if self.deleted and self.file.vector:
            positions_here -= self.file.vector
        return np.array(positions_here, np.int64) - self.first

    @property
    def positions(self) -> Rows:
        return self.first + (np.arange(self.rows) if self.picked is None else self.picked)

    def tested_leaves(self, whole: frozenset[int]) -> dict[int, tuple[int, ...]]:
        """The Parquet columns of fields that are tested, by struct, unless the struct is read ``whole``.

        Empty where rows are picked: their structs are read as a whole.
        """
        footer = self.file.footer
        has_tests = self.where is not None or self.hiding_predicates
        if self.picked is not None or not has_tests or not footer.struct_fields:
            return {}
        used = frozenset[Column]() if self.where is None else all_columns(self.where)
        used = used.union(*(predicate.columns for predicate in self.hiding_predicates))
        whole = whole.union(*(lookup.columns for lookup in self.lookups))
        whole |= {each.id for each in self.test.fields} if self.test else set()
        found: dict[int, set[int]] = defaultdict(set)
        for column in used:
            leaf = footer.struct_fields.get(column.id) if column.path else None
            found[column.column_id] |= set(leaf.leaves) if leaf else {-1}
        return {id_: tuple(sorted(leaves)) for id_, leaves in found.items() if id_ not in whole and -1 not in leaves}

    def ranges(self, ids: frozenset[int]) -> list[Range]:
        """The bytes of these columns and of the tested ones: whole column chunks, or the pages with the picked rows."""
        footer = self.file.footer
        tested_leaves, ids = self.tested_leaves(ids), ids | self.tested_ids
        if self.picked is None:
            return footer.ranges(self.index, ids, tested_leaves)
        ranges: list[Range] = []
        for id_ in (ids - (self.known_columns - self.tested_ids)) & footer.columns.keys():
            pages = picked_pages(footer, self.index, footer.columns[id_], self.picked)
            ranges += footer.ranges(self.index, frozenset([id_])) if pages is None else pages.ranges()
        return ranges


class DeleteTests(Struct, frozen=True, dict=True):
    """The deletes to test on rows: a row is hidden if a predicate is TRUE for it, or a lookup has its key."""

    predicates: tuple[Conjunction, ...] = ()
    lookups: tuple[KeysLookup, ...] = ()

    @cached_property
    def ids(self) -> frozenset[int]:
        ids = {id_ for lookup in self.lookups for id_ in lookup.columns}
        return frozenset(ids.union(*(predicate.ids for predicate in self.predicates)))

    @cached_property
    def term_ids(self) -> frozenset[int]:
        """Ids of the columns and fields of structs by whose bounds the deletes are judged."""
        return self.ids.union(*(predicate.term_ids for predicate in self.predicates))

    def undecided(self, rows: RowBounds, *, judge_predicates: bool) -> DeleteTests | None:
        """The deletes that may hide some of the rows; None if one of them hides all."""
        predicates: Sequence[Conjunction] | None = self.predicates
        if judge_predicates:
            predicates = undecided_deletes((each, rows.judge(each.predicate)) for each in self.predicates)
        if predicates is None:
            return None
        lookups = undecided_deletes((each, each.judge(rows)) for each in self.lookups)
        return None if lookups is None else DeleteTests(tuple(predicates), tuple(lookups))


_NO_TESTS = DeleteTests()


class Deletes(Struct, frozen=True, dict=True):
    """The deletes of a scan's tombstones, ready to be applied: predicates by blob, lookups by columns."""

    predicates: dict[Blob, Predicate]
    lookups: dict[tuple[int, ...], tuple[KeysLookup, ...]]

    @cached_property
    def _conjunctions(self) -> dict[Blob, Conjunction]:
        return {blob: Conjunction(predicate) for blob, predicate in self.predicates.items()}

    def tests_of(self, plan: FilePlan) -> DeleteTests:
        if not plan.tombstones:
            return _NO_TESTS
        predicates = tuple(self._conjunctions[tombstone.blob] for tombstone in plan.where_tombstones)
        return DeleteTests(predicates, tuple(found for ids in plan.key_columns for found in self.lookups[ids]))

    def judge_keys(self, columns: tuple[int, ...], rows: RowBounds) -> StatsVerdict:
        """Judges whether the deletes by keys over these columns hide all, some or none of the rows."""
        maybe = undecided_deletes((lookup, lookup.judge(rows)) for lookup in self.lookups[columns])
        if maybe is None:
            return StatsVerdict.ALWAYS
        return StatsVerdict.MAYBE if maybe else StatsVerdict.NEVER


def row_groups(
    file: OpenFile, where: Predicate | None, deletes: Deletes, schema: Schema, found: BitMap | None = None
) -> Iterator[RowGroup]:
    """The row groups that may have rows for the scan; those without any row that is ``found`` are left out.

    Columns that the file lacks have their ``initial_default`` in ``schema``.
    """
    plan, footer, probe = file.plan, file.footer, file.probe
    tests = deletes.tests_of(plan)
    predicate = where if plan.needs_filter else None
    ids = tests.term_ids if predicate is None else tests.term_ids | term_ids(predicate)
    has_one_small_group = plan.file.rows <= _FEW_ROWS and len(footer.firsts) == 1
    judge_predicates = not (has_one_small_group and isinstance(plan.tombstones, FileTombstones))
    has_tests = predicate is not None or tests.predicates or tests.lookups
    groups: Sequence[int] = range(len(footer.firsts))
    if found is not None:
        groups = np.unique(np.searchsorted(footer.firsts, np.array(found), "right") - 1).tolist()
    for index in groups:
        first, rows = footer.firsts[index], footer.rows(index)
        if found is not None and not found.range_cardinality(first, first + rows):
            continue
        # The vector may delete all rows.
        deleted = file.vector.range_cardinality(first, first + rows) if file.vector else 0
        if deleted == rows:
            continue
        if not has_tests:  # one of many small files, mostly
            yield RowGroup(file, index, first, rows, deleted, None, (), ())
            continue
        # Statistics, then Bloom filters, may prove that no row matches.
        bounds = file.bounds(index, ids, schema)
        verdict = StatsVerdict.ALWAYS if predicate is None else bounds.judge(predicate)
        if verdict is StatsVerdict.NEVER:
            continue
        if probe and verdict is StatsVerdict.MAYBE and predicate is not None and not probe.may_match(index, predicate):
            probe.excluded += 1
            continue
        # Statistics may prove that one delete hides all rows, or that some deletes hide none.
        undecided_tests = tests.undecided(bounds, judge_predicates=judge_predicates)
        if undecided_tests is None:
            continue
        predicates, lookups = undecided_tests.predicates, undecided_tests.lookups
        if probe and (predicates or lookups):
            predicates = tuple(each for each in predicates if probe.may_match(index, each.predicate))
            lookups = tuple(each for each in lookups if probe.may_hold(index, each))
            probe.excluded += not predicates and not lookups
        yield RowGroup(
            file=file,
            index=index,
            first=first,
            rows=rows,
            deleted=deleted,
            where=predicate if verdict is StatsVerdict.MAYBE else None,
            hiding_predicates=predicates,
            lookups=lookups,
        )


def live_mask(group: RowGroup, columns: Mapping[int, pa.Array]) -> Mask | None:
    """A mask of the rows that are not deleted; None for all rows. ``columns``: by id, for ``group.tested_ids``."""
    # The vector comes first. It counts all physical rows of the file, so the row group must be whole.
    keep = keep_mask(group.file.vector, group.first, group.rows) if group.deleted and group.file.vector else None
    # Keys: lookups over the same columns share the codes of the rows.
    rows: dict[tuple[int, ...], Tuples] = {}
    for lookup in group.lookups:
        if lookup.columns not in rows:
            rows[lookup.columns] = Tuples([columns[id_] for id_ in lookup.columns], lookup.types)
        keep = _exclude(keep, lookup.hidden_mask(rows[lookup.columns], group.file.file.applied_through))
    # Predicates that ``PlanReader.read`` has not evaluated together with other row groups' predicates.
    if group.hiding_predicates:
        (group,) = add_hidden_masks([group], [columns])
        assert group.hidden is not None
        keep = _exclude(keep, group.hidden)
    return keep


def add_hidden_masks(groups: Sequence[RowGroup], columns: Sequence[Mapping[int, pa.Array]]) -> list[RowGroup]:
    """Adds to row groups a mask of the rows that their predicates hide; ``columns``: by id, for ``tested_ids``.

    Evaluates a predicate once for all row groups whose columns have the same types: many small row groups take as long
    as one.
    """
    masked = list(groups)
    # Row groups go together if their columns have the same types, and their files lack the same columns.
    alike: dict[tuple[tuple[tuple[int, pa.DataType], ...], tuple[int, ...]], list[int]] = defaultdict(list)
    read = list(columns)
    for at, group in enumerate(groups):
        if group.hiding_predicates and group.hidden is None:
            ids = sorted(frozenset[int]().union(*(predicate.term_ids for predicate in group.hiding_predicates)))
            if not columns[at].keys() >= set(ids):  # structs of the same type may have other ids inside
                predicates = (each.predicate for each in group.hiding_predicates)
                read[at] = with_fields(columns[at], chain.from_iterable(map(all_columns, predicates)))
            known = group.file.footer.columns.keys() | group.file.footer.constants.keys()
            lacking = tuple(id_ for id_ in ids if id_ not in known)
            alike[tuple((id_, read[at][id_].type) for id_ in ids), lacking].append(at)
    # Their columns are joined, and the mask of all their rows is cut into one for each row group.
    for (types, _), members in alike.items():
        some = [groups[at] for at in members]
        concatenated = {id_: _concat([read[at][id_] for at in members]) for id_, _ in types}
        hidden = _hidden_mask(some, concatenated)
        for at, mask in zip(members, np.split(hidden, np.cumsum([group.rows for group in some])[:-1]), strict=True):
            masked[at] = replace(groups[at], hidden=mask)
    return masked


def _hidden_mask(groups: Sequence[RowGroup], columns: Mapping[int, pa.Array]) -> Mask:
    """A mask of the rows of several row groups, one after the other, that their predicates hide."""
    rows = [group.rows for group in groups]
    hidden = np.zeros(sum(rows), np.bool_)
    predicates: list[Conjunction] = []
    limits: list[Mask | None] = []
    for predicate, limit in _limits(groups, rows):
        bound_columns = narrow_absent(predicate.predicate, groups[0], columns)
        if bound_columns is columns:
            predicates.append(predicate)
            limits.append(limit)
        else:  # it needs narrower constants than the others
            mask = to_mask(matches(predicate.predicate, bound_columns, len(hidden)))
            hidden |= mask if limit is None else mask & limit
    # All others at once: conjuncts that several of them have are evaluated once.
    return hidden | any_of(predicates, columns, len(hidden), limits)


def _limits(groups: Sequence[RowGroup], rows: list[int]) -> Iterator[tuple[Conjunction, Mask | None]]:
    """Each predicate of some row groups, with a mask of the rows that it applies to; None for all rows.

    A predicate applies to the row groups that have it: their files are older than its delete.
    """
    first = groups[0].hiding_predicates
    if all(group.hiding_predicates == first for group in groups):
        yield from ((predicate, None) for predicate in first)
        return
    members: dict[Conjunction, list[int]] = defaultdict(list)
    for at, group in enumerate(groups):
        for predicate in group.hiding_predicates:
            members[predicate].append(at)
    for predicate, indexes in members.items():
        applies = np.zeros(len(groups), np.bool_)
        applies[indexes] = True
        yield predicate, None if len(indexes) == len(groups) else np.repeat(applies, rows)


def _concat(arrays: Sequence[pa.Array]) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    if pa.types.is_dictionary(arrays[0].type):
        arrays = [array.cast(array.type.value_type) for array in arrays]
    return pa.concat_arrays(arrays)


def row_mask(group: RowGroup, columns: Mapping[int, pa.Array]) -> Mask | None:
    """A mask of the rows that match the scan's predicate and are not deleted; None for all rows."""
    keep = live_mask(group, columns)
    if group.where is not None:
        # The scan's predicate is evaluated on all rows, deleted ones too: taking rows out of columns would cost more.
        matching = to_mask(matches(group.where, columns, group.rows))
        keep = matching if keep is None else keep & matching
    if group.test is not None:
        keep = group.test.narrow(keep, [column_of(group, each, columns) for each in group.test.fields])
    return keep


def kept_rows(columns: list[pa.Array], keep: Mask | None, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a mask, as a batch; None for all rows."""
    if keep is not None and not keep.all():
        mask = to_boolean_array(keep)
        columns = [column.filter(mask) for column in columns]
    return pa.record_batch(columns, schema)


def column_of(group: RowGroup, field: Field, arrays: Mapping[int, pa.Array]) -> pa.Array:
    """A column of all rows of a row group, in the table's type. Raises CorruptionError if a value does not fit."""
    row_ts = group.file.file.row_ts
    if field.id == COMMIT_TS_ID and row_ts is not None:
        return pa.repeat(pa.scalar(row_ts, pa.int64()), group.rows)
    array, target = arrays[field.id], field.arrow_type
    file_column = group.file.footer.columns.get(field.id)
    try:
        if file_column is not None and is_nested(target) and not has_same_fields(file_column.type, target):
            return nested_values(array, file_column.type, target)  # fields inside go by ids, whatever their names
        if array.type == target:
            return array
        return pa.nulls(group.rows, target) if pa.types.is_null(array.type) else array.cast(target)
    except pa.ArrowInvalid:  # its text is not shown, because it quotes a value of a row
        reason = f"column {field.name!r} is {array.type} there, and has a value that the table's {target} cannot hold"
        raise CorruptionError(group.file.file.path, reason) from None


def narrow_absent(predicate: Predicate, group: RowGroup, columns: Mapping[int, pa.Array]) -> Mapping[int, pa.Array]:
    """Casts columns that the file lacks to the type to which the predicate was bound, if that is narrower.

    A comparison of floats depends on their width, so a default that was widened to double is compared as a float.
    """
    known = group.file.footer.columns.keys() | group.file.footer.constants.keys()
    if known >= columns.keys():
        return columns
    lacking = [each for each in all_columns(predicate) if each.id not in known and not isinstance(each, StructField)]
    narrow = {
        column.id: columns[column.id].cast(column.arrow_type)
        for column in lacking
        if pa.types.is_float32(column.arrow_type) and pa.types.is_float64(columns[column.id].type)
    }
    return {**columns, **narrow} if narrow else columns


def _exclude(keep: Mask | None, hidden: Mask) -> Mask:
    return ~hidden if keep is None else keep & ~hidden
