"""Late drops: files that were dropped before an erasure and are ingested after it must not bring erased rows back.

A late row was erased if it matches under the names that the columns had when its file was dropped. If it matches only
under the present names, or under another name that a column once had, it may be another row, and it is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from dolmen.base.records import replace
from dolmen.commit.change import ExpectErasures
from dolmen.entries.segments.erasures_in_force import SUBJECT, tables_of
from dolmen.entries.segments.segment_reader import erasures_of
from dolmen.errors import RowError, SchemaError
from dolmen.format.column_history import Names, distinct_names, named_since, names_around, placed_since
from dolmen.format.layout import CLOCK_STEP_US
from dolmen.format.manifest import Erasure, TableEntry
from dolmen.format.schema import Field, Schema, is_nested
from dolmen.format.types import Mask, to_boolean_array
from dolmen.ingest.formats.formats import SourceFile, read
from dolmen.ingest.formats.source_file import BadRow, OnBadRow, RowNumbers
from dolmen.rows.scan.load_deletes import ErasureMatcher
from dolmen.transactions.transaction import Transaction, unit_of


class LateNames(Struct, frozen=True):
    """The names that a file may use for the columns by which rows were erased, by id."""

    ids: tuple[int, ...]
    at_drop: tuple[Names, ...]  # their names when the file was dropped; several if that time is not exact
    now: Names  # their present names, which the file is read with
    # as ``now``, but one column has a former name, which no other column had when the file was dropped
    others: tuple[Names, ...]
    is_complete: bool  # whether ``at_drop`` is reliable. The table may be older than the history of names.

    @classmethod
    def of(
        cls, schema: Schema, ids: Collection[int], dropped_us: int | None, more: Iterable[tuple[int, str]]
    ) -> LateNames:
        """Takes the names from the history of a table's columns, and ``more`` names that they had."""
        now = {field.id: field.name for field in schema.fields if field.id in ids}
        around = names_around(schema, dropped_us)
        at_drop = distinct_names({id_: names[id_] for id_ in ids if id_ in names} for names in around)
        latest_us = 2**63 if dropped_us is None else dropped_us + CLOCK_STEP_US
        added_later = {field.id for field in schema.fields if field.added_ts > latest_us}
        owners = {name: id_ for names in around for id_, name in names.items() if id_ not in added_later}
        former = [(name.id, name.name) for name in schema.former if name.id in ids]
        others = [
            {**now, id_: name}
            for id_, name in dict.fromkeys([*former, *more])
            if now.get(id_) != name
            and all(names.get(id_) != name for names in at_drop)
            and owners.get(name, id_) == id_
        ]
        first_us = -1 if dropped_us is None else dropped_us - CLOCK_STEP_US
        is_complete = named_since(schema) <= first_us or not named_since(schema)
        return cls(tuple(sorted(ids)), at_drop, now, distinct_names(others), is_complete)

    @property
    def may_differ(self) -> bool:
        """Whether a file may have these columns under other names than the present ones."""
        return bool(self.others) or self.at_drop != (self.now,) or not self.is_complete

    def spell(self, columns: Iterable[str]) -> frozenset[str]:
        """The file's own names, and the names here that match one of them in any case."""
        own = frozenset(columns)
        lower = {name.lower() for name in own}
        names = {name for names in (*self.at_drop, self.now, *self.others) for name in names.values()}
        return own | {name for name in names if name.lower() in lower}

    def select(self, present: Collection[str]) -> tuple[Names, ...]:
        """Selects the names at the drop that fit the columns of a file best; several if they fit equally well."""
        fits = [sum(name in present for name in names.values()) for names in self.at_drop]
        return tuple(names for names, fit in zip(self.at_drop, fits, strict=True) if fit == max(fits))

    def find_missing(self, present: Collection[str]) -> list[int]:
        """The columns that a file has under no recorded name; it may have them under another name."""
        present_ids = {id_ for names in (*self.at_drop, self.now) for id_, name in names.items() if name in present}
        return [id_ for id_ in self.ids if id_ not in present_ids]


RowIds: TypeAlias = npt.NDArray[np.int64]  # numbers of rows in their file, from 1
_NONE: RowIds = np.zeros(0, np.int64)
_UNDECIDED = (
    "rows were erased after this file was dropped, and columns were renamed or dropped since: under one of their names "
    "this is an erased row, so it is not ingested; if it was not erased, drop it again in a new file"
)
ReadColumns: TypeAlias = Callable[[Sequence[Field], OnBadRow], Iterator[tuple[Mapping[int, pa.Array], RowIds]]]
"""Reads a file by the names of some fields: yields columns by id, with the numbers of their rows."""


class _Matches(Struct, frozen=True):
    """The numbers of a file's rows that match under some names, and of the rows that cannot be read with them."""

    erased: RowIds
    unread: RowIds
    matches_all: bool = False

    def mask(self, numbers: RowIds) -> Mask:
        return np.isin(numbers, self.erased) | self.matches_all


class ErasedRows:
    """Finds the rows of a late file that were erased. ``count`` is the number of rows left out so far."""

    def __init__(self, matcher: ErasureMatcher, names: LateNames, dropped_us: int | None) -> None:
        self._matcher, self._names, self._dropped_us = matcher, names, dropped_us
        self._at_drop: tuple[_Matches | None, ...] = (None,)  # None: under the present names
        self._others: tuple[_Matches, ...] = ()
        self.count = 0

    @classmethod
    def of(
        cls, transaction: Transaction, name: str, dropped_us: int | None, *, all_erasures: bool = False
    ) -> ErasedRows | None:
        """The rows of one table that were erased after a file was dropped; None if there are none.

        ``dropped_us`` is by the server's clock; if it is None, or with ``all_erasures``, all erased rows count.
        """
        unit = unit_of(transaction)
        context, base = unit.context, unit.base
        with context.reading(base.version):
            listed = erasures_of(base, context.segments)
            late = [erasure for erasure in listed if all_erasures or erasure.is_later_than(dropped_us)]
            if not late:
                return None
            matcher = ErasureMatcher.of(context, unit.entry(name), late)
        if matcher is None:
            return None
        names = LateNames.of(matcher.entry.schema, matcher.columns, dropped_us, _names_in_erasures(matcher.entry, late))
        return cls(matcher, names, dropped_us)

    def read_names(
        self,
        source: SourceFile,
        find_columns: Callable[[], Iterable[pa.Field]],
        read_columns: ReadColumns | None = None,
    ) -> None:
        """Reads the file once for each other set of names that it may use: not if no column was renamed or dropped.

        Raises SchemaError if the names at the time of the drop are unknown, or the file can't be read with them.
        """
        self._check_fields(source)
        if not (source.format.traits.delimiter is None or source.options.dialect.header):
            self._check_order(source)
            return
        if not self._names.may_differ:
            return
        present = self._names.spell(field.name for field in find_columns())
        if not self._names.is_complete and (find_missing := self._names.find_missing(present)):
            columns = ", ".join(repr(self._matcher.entry.schema.by_id[id_].name) for id_ in find_missing)
            raise SchemaError(
                f"file {source.name!r}: rows were erased by column {columns} after it was dropped, and what the column "
                "was called then is no longer known: take erased rows out of it, and drop it again as a new file"
            )
        read = read_columns or partial(_read_columns, source)
        self._at_drop = tuple(self._match(names, present, read, source) for names in self._names.select(present))
        others = [names for names in self._names.others if any(name in present for name in names.values())]
        matches = (self._match(names, present, read, None) for names in others)
        self._others = tuple(match for match in matches if match is not None)

    def leave_out(
        self, rows: pa.RecordBatchReader, numbers: RowNumbers, name: str, on_bad_row: OnBadRow | None
    ) -> pa.RecordBatchReader:
        """Leaves out erased rows. ``numbers`` numbers the rows that the reader returns; see ``keep``."""
        ids = {field.name: field.id for field in self._matcher.entry.schema.fields}

        def select_batches() -> Iterator[pa.RecordBatch]:
            for batch in rows:
                columns = {ids[name]: batch.column(name) for name in batch.schema.names if name in ids}
                remaining = batch.filter(self.keep(columns, numbers.next(batch.num_rows), name, on_bad_row))
                if remaining.num_rows:
                    yield remaining

        return pa.RecordBatchReader.from_batches(rows.schema, select_batches())

    def keep(
        self, columns: Mapping[int, pa.Array], numbers: RowIds, name: str, on_bad_row: OnBadRow | None
    ) -> pa.BooleanArray:
        """Selects the rows that were not erased, as a mask; counts the others.

        Args:
            columns: by id, as in the table. Rows get the default of a missing column.
            on_bad_row: called with each row that may or may not be an erased one; None: such a row is an error.
        """
        now = self._matcher.mask(columns, len(numbers))
        erased, may_be = np.ones(len(numbers), np.bool_), now
        for matches in self._at_drop:
            is_match = now if matches is None else matches.mask(numbers)
            erased, may_be = erased & is_match, may_be | is_match
            if matches is not None:
                may_be = may_be | np.isin(numbers, matches.unread)
        for other in self._others:
            may_be = may_be | other.mask(numbers)
        self.count += int(np.count_nonzero(erased))
        for number in numbers[may_be & ~erased]:
            if on_bad_row is None:
                raise RowError(_UNDECIDED, file=name, row=int(number))
            on_bad_row(BadRow(_UNDECIDED, int(number), None, None, None))
        return to_boolean_array(~may_be & ~erased)

    def _check_fields(self, source: SourceFile) -> None:
        """Raises SchemaError if rows were erased by fields of a struct that changed after a file was dropped."""
        since = -1 if self._dropped_us is None else self._dropped_us - CLOCK_STEP_US
        schema = self._matcher.entry.schema
        for field in (schema.by_id[id_] for id_ in sorted(self._matcher.columns)):
            if is_nested(field.arrow_type) and field.widened_ts > max(since, 0):
                raise SchemaError(
                    f"file {source.name!r}: rows were erased by fields of column {field.name!r} after it was dropped, "
                    "and what these fields were called then is no longer known: take erased rows out of it, and "
                    "drop it again as a new file"
                )

    def _check_order(self, source: SourceFile) -> None:
        """Raises SchemaError if columns had another order when a file without a header was dropped."""
        since = placed_since(self._matcher.entry.schema)
        if since == 0 or (
            since is not None and self._dropped_us is not None and since <= self._dropped_us - CLOCK_STEP_US
        ):
            return
        raise SchemaError(
            f"file {source.name!r} has no header, and the table's columns were moved or dropped after it may have been "
            "dropped; rows were erased since then, and which they are in this file is not known: take erased rows out "
            "of it, and drop it again as a new file"
        )

    def _match(
        self, names: Names, present: Collection[str], read: ReadColumns, source: SourceFile | None
    ) -> _Matches | None:
        """The rows of a file that match under some names; None if these are the present names.

        ``source`` is None for names that may not be the file's: then a value that does not fit is not a match.
        """
        if names == self._names.now:
            return None
        by_id = self._matcher.entry.schema.by_id
        fields = [
            msgspec.structs.replace(by_id[id_], name=name, nullable=True)
            for id_, name in names.items()
            if name in present
        ]
        if not fields:
            return _Matches(_NONE, _NONE, matches_all=bool(self._matcher.mask({}, 1)[0]))
        erased, unread = [_NONE], [_NONE]

        def add_unread(bad: BadRow) -> None:
            if source is not None and bad.row is not None:
                unread.append(np.array([bad.row]))

        try:
            for columns, numbers in read(fields, add_unread):
                erased.append(numbers[self._matcher.mask(columns, len(numbers))])
        except SchemaError as error:
            if source is None:
                return _Matches(_NONE, _NONE)
            raise SchemaError(
                f"file {source.name!r}: rows were erased by columns that had other names when it was dropped, and the "
                f"file can't be read by these names, so it is not known which rows were erased: {error}"
            ) from None
        return _Matches(np.concatenate(erased), np.concatenate(unread))


def _names_in_erasures(entry: TableEntry, late: Iterable[Erasure]) -> Iterator[tuple[int, str]]:
    """The names that columns had when rows were erased by them, by id.

    If an erasure does not name the table, it erased it by its subject. The file may be from an earlier table of the
    same name, whose subject had another name.
    """
    for erasure in late:
        named = tables_of(erasure, entry)
        yield from ((field.id, field.name) for each in named for field in each.columns)
        subject = entry.properties.get(SUBJECT)
        if erasure.subject and not named and subject is not None:
            subject_id = next((field.id for field in entry.schema.fields if field.name == str(subject).strip()), None)
            if subject_id is not None:
                yield from ((subject_id, field.name) for each in erasure.tables for field in each.columns)


def _read_columns(
    source: SourceFile, fields: Sequence[Field], on_bad_row: OnBadRow
) -> Iterator[tuple[Mapping[int, pa.Array], RowIds]]:
    numbers = RowNumbers(on_bad_row)
    options = replace(source.options, extra="ignore", defaults={})
    schema = pa.schema([(field.name, field.arrow_type) for field in fields])
    for batch in read(replace(source, options=options), schema, on_bad_row=numbers.for_reader):
        columns = zip(fields, batch.columns, strict=True)
        yield {field.id: column for field, column in columns}, numbers.next(batch.num_rows)


def expect_erasures(transaction: Transaction, name: str, dropped_us: int | None, request: str) -> None:
    """Makes the commit fail if an erasure appears that the late rows were not compared with."""
    unit = unit_of(transaction)
    uuid, seen_ts = unit.entry(name).uuid, unit.base.commit_ts
    unit.add(ExpectErasures(name, uuid, seen_ts, dropped_us, request))
