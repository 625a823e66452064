"""Change data capture: files of inserts, updates and deletes, each applied once, in whatever order they arrive.

Changes are ordered by a sequence, a column of the table. Of each key the change with the greatest sequence holds; of
equal ones in a file the later, of equal ones in two files the one that was applied first.

A file whose sequences all lie above what the table has come to is applied without a look at the rows, as an upsert is.
Any other one is compared with the rows of its keys and with the memory of deleted ones (``cdc_memory``); what is not
newer changes nothing. A row that is older than that memory reaches, and of whose key nothing is known, may be of one
that was deleted since: it is a bad row. Large files are taken in portions, which see those before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.commit.statements.sequence import Advance, all_above
from dolmen.errors import InputError
from dolmen.format.ingest_properties import CdcSettings, IngestSettings
from dolmen.format.schema import Field
from dolmen.format.values import Plain, to_array, to_plain
from dolmen.ingest.cdc.changes import DELETED, ROW, ChangeFaults, ChangeTables, last_of_each
from dolmen.ingest.cdc.current import LIVE, SEQUENCE, TS, latest_sequences
from dolmen.ingest.cdc.envelopes import envelope
from dolmen.ingest.cdc.memory import DeleteMemory
from dolmen.ingest.cdc.positions import find_forms
from dolmen.ingest.formats.formats import SourceFile, read
from dolmen.ingest.formats.options import OnBadRow
from dolmen.ingest.late import ErasedRows, RowIds
from dolmen.transaction import Transaction
from dolmen.units import MIB

PORTION_ROWS = 500_000
PORTION_BYTES = 128 * MIB
"""The most bytes that are applied at once; they are held in memory, twice for a moment."""


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """Counts of the changes of a file, by their effect.

    Args:
        upserted: rows that are there now.
        deleted: deletes that were applied, whether or not there was a row.
        unchanged: changes without effect, because a newer one of their key is in the file or the table.
        ddl: messages about the source's columns, which change nothing.
    """

    upserted: int = 0
    deleted: int = 0
    unchanged: int = 0
    ddl: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(
            self.upserted + other.upserted,
            self.deleted + other.deleted,
            self.unchanged + other.unchanged,
            self.ddl + other.ddl,
        )


def ingest_changes(
    transaction: Transaction,
    table: str,
    source: SourceFile,
    *,
    settings: IngestSettings,
    on_bad_row: OnBadRow | None,
    request: str,
    unused: Sequence[str] = (),
    portion_rows: int = PORTION_ROWS,
    portion_bytes: int = PORTION_BYTES,
    erased: ErasedRows | None = None,
) -> ChangeCounts:
    """Adds the changes in a file to a transaction, bound to the request.

    Args:
        source: the file, with the options that the settings ask for.
        settings: the table's, with ``cdc``.
        on_bad_row: called with each row that cannot be applied, while the others are; None = such a row is an error.
        request: the file's id.
        unused: columns of the file's rows that are read and left out.
        erased: tells which rows were erased after the file was dropped: no change brings them back. Deletes pass.

    Raises:
        RowError: a row is bad, and ``on_bad_row`` is None.
        InputError: the file can't be read, or the table can't be fed so.
    """
    if transaction.has_applied(request):
        return ChangeCounts()
    target = _Target.of(transaction, table, settings, request, ChangeFaults(source.name, on_bad_row))
    in_envelope = target.settings.envelope == "debezium"
    opened = envelope(
        target.fields,
        target.keys,
        target.sequence,
        target.settings,
        reject_extra=settings.new_columns != "ignore",
        forms=find_forms(source, target.settings.sequence_from) if in_envelope else {},
        unused=unused,
    )
    source, faults = replace(source, options=opened.options(source.options)), target.faults
    reader = read(source, opened.schema, on_bad_row=faults.add_unread)
    made = ChangeTables(target.fields, target.keys, target.sequence, opened, faults)
    tables = made.tables(reader)
    if erased is not None:
        erased.read_names(source, settings, partial(_read_images, source, target))
        tables = _without_erased(tables, target.fields, erased, faults)
    counts, first_ts = ChangeCounts(), transaction.next_ts
    for changes in _portions(tables, portion_rows, portion_bytes):
        counts += target.apply(changes, first_ts)
    return counts + ChangeCounts(ddl=sum(made.ddl))


def _without_erased(
    tables: Iterator[pa.Table], fields: tuple[Field, ...], erased: ErasedRows, faults: ChangeFaults
) -> Iterator[pa.Table]:
    """The changes but those that would bring erased rows back. A delete of an erased row takes nothing but itself."""
    on_bad_row = None if faults.on_bad_row is None else faults.report
    for changes in tables:
        deletes, upserts = changes.filter(changes[DELETED]), changes.filter(pc.invert(changes[DELETED]))
        columns, numbers = _images(upserts, fields)
        kept = pa.concat_tables([upserts.filter(erased.keep(columns, numbers, faults.name, on_bad_row)), deletes])
        if kept.num_rows:
            yield kept


def _read_images(
    source: SourceFile, target: _Target, renamed: Sequence[Field], on_bad_row: OnBadRow
) -> Iterator[tuple[dict[int, pa.Array], RowIds]]:
    """Reads the columns of the changed rows in a file by other names than the table's."""
    ids = {field.id for field in renamed}
    needed = [*target.keys, target.sequence]
    fields = (*(field for field in needed if field.id not in ids), *renamed)
    keys = [next(field for field in fields if field.id == key.id) for key in target.keys]
    sequence = next(field for field in fields if field.id == target.sequence.id)
    cdc = target.settings
    forms = find_forms(source, cdc.sequence_from) if cdc.envelope == "debezium" else {}
    opened = envelope(fields, keys, sequence, cdc, reject_extra=False, forms=forms)
    faults = ChangeFaults(source.name, on_bad_row)
    options = opened.options(replace(source.options, extra="ignore"))
    reader = read(replace(source, options=options), opened.schema, on_bad_row=faults.add_unread)
    for changes in ChangeTables(fields, tuple(keys), sequence, opened, faults).tables(reader):
        yield _images(changes.filter(pc.invert(changes[DELETED])), tuple(renamed))


def _images(upserts: pa.Table, fields: Iterable[Field]) -> tuple[dict[int, pa.Array], RowIds]:
    """The columns of changed rows by id, and the numbers of these rows in the file."""
    return {field.id: _whole(upserts[str(field.id)]) for field in fields}, _whole(upserts[ROW]).to_numpy()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _portions(tables: Iterator[pa.Table], max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    rows = size = 0
    for changes in tables:
        for start in range(0, changes.num_rows, max_rows):
            part = changes.slice(start, max_rows)
            if held and (rows + part.num_rows > max_rows or size + part.nbytes > max_bytes):
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
            held.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
    if held:
        yield pa.concat_tables(held)


@dataclass(frozen=True, slots=True)
class _Target:
    """The table that changes are applied to."""

    transaction: Transaction
    name: str
    fields: tuple[Field, ...]
    keys: tuple[Field, ...]
    sequence: Field
    settings: CdcSettings
    request: str
    faults: ChangeFaults

    @classmethod
    def of(
        cls, transaction: Transaction, name: str, settings: IngestSettings, request: str, faults: ChangeFaults
    ) -> _Target:
        """Raises InputError: the table can't be fed with changes."""
        entry = transaction.entry(name)
        settings.check(entry.schema, entry.primary_key)
        if settings.cdc is None:
            raise InputError(f"table {name!r} takes no changes: its ingest_mode is {settings.mode}")
        keys = tuple(entry.schema.by_id[id_] for id_ in entry.primary_key)
        sequence = entry.schema.field(settings.cdc.sequence)
        return cls(transaction, name, entry.schema.fields, keys, sequence, settings.cdc, request, faults)

    @property
    def key_names(self) -> list[str]:
        """The key's columns, as tables of changes call them."""
        return [str(field.id) for field in self.keys]

    def apply(self, changes: pa.Table, first_ts: int) -> ChangeCounts:
        """Adds one portion of a file.

        Args:
            first_ts: rows from this commit timestamp on are of portions of the same file.
        """
        sequence = str(self.sequence.id)
        told = self.faults.count
        last = last_of_each(changes, self.key_names, [sequence, ROW])
        least, _ = self._least_and_greatest(last)
        entry = self.transaction.entry(self.name)
        memory = DeleteMemory.of(self.transaction, self.name, entry, self.keys, self.sequence, self.settings.memory_us)
        if all_above(entry, self.sequence, least):
            self._add(last, last, memory, above=least)
        else:
            last, live = self._select_newer(last, memory, first_ts)
            if last.num_rows:
                self._add(last, live, memory, above=None)
        deleted = pc.sum(last[DELETED]).as_py() or 0
        bad = self.faults.count - told
        return ChangeCounts(last.num_rows - deleted, deleted, changes.num_rows - last.num_rows - bad)

    def _least_and_greatest(self, changes: pa.Table) -> list[Plain]:
        """Least and greatest sequence."""
        ends = pc.min_max(changes[str(self.sequence.id)])
        return to_plain(pa.array([ends["min"], ends["max"]], self.sequence.arrow_type))

    def _select_newer(self, last: pa.Table, memory: DeleteMemory, first_ts: int) -> tuple[pa.Table, pa.Table]:
        """The changes that are newer than what is known of their keys; and of these, those whose keys are live."""
        names = self.key_names
        remembered = memory.name if memory.table else None
        known = latest_sequences(self.transaction, self.name, remembered, last, self.keys, self.sequence)
        places = last.select(names).append_column("place", pa.array(range(last.num_rows), pa.int64()))
        beside = places.join(known, names, join_type="left outer", use_threads=False).sort_by("place")
        own, theirs = last[str(self.sequence.id)], beside[SEQUENCE]
        unknown = pc.is_null(beside[LIVE])
        again = pc.and_(pc.equal(own, theirs), pc.greater_equal(beside[TS], first_ts))  # of this very file
        newer = pc.or_(pc.is_null(theirs), pc.or_(pc.greater(own, theirs), again))
        newer = pc.fill_null(newer, True)
        if memory.forgotten_through is not None:
            limit = to_array([memory.forgotten_through], self.sequence.arrow_type)[0]
            late = pc.and_(unknown, pc.less_equal(own, limit))
            newer = pc.and_not(newer, late)
            self._report_stragglers(last.filter(pc.and_not(late, last[DELETED])))
        return last.filter(newer), last.filter(pc.and_(newer, pc.fill_null(beside[LIVE], False)))

    def _report_stragglers(self, late: pa.Table) -> None:
        """Reports stragglers: their keys are unknown, and may have been deleted so long ago that it is forgotten."""
        for row in sorted(late[ROW].to_pylist()):
            self.faults.add(
                f"straggler: a change whose {self.sequence.name} is older than deletes are remembered (cdc_memory); "
                "whether its row was deleted since is not known",
                row,
                self.sequence.name,
            )

    def _add(self, changes: pa.Table, hidden: pa.Table, memory: DeleteMemory, above: Plain) -> None:
        """Adds changes to the transaction; rows with the keys of ``hidden`` are what they replace."""
        transaction, request = self.transaction, self.request
        remembered, uuid = memory.ensure_table(request)
        transaction.add(
            Advance(
                self.name,
                transaction.entry(self.name).uuid,
                self.sequence.id,
                greatest=self._least_and_greatest(changes)[1],
                above=above,
                memory=uuid,
                memory_us=self.settings.memory_us,
                forget=memory.forget,
                request=request,
            )
        )
        memory.forget_old(request)
        upserts, deletes = changes.filter(pc.invert(changes[DELETED])), changes.filter(changes[DELETED])
        target = transaction.table(self.name)
        target.replace(_with_names(upserts, self.fields), _with_names(hidden, self.keys), request=request)
        if deletes.num_rows:
            remembered.append(_with_names(deletes, (*self.keys, self.sequence)), request=request)


def _with_names(changes: pa.Table, fields: tuple[Field, ...]) -> pa.Table:
    """Columns of the table, under their names."""
    return pa.table([changes[str(field.id)] for field in fields], [field.name for field in fields])
