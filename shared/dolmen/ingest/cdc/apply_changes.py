"""Change data capture: files of inserts, updates and deletes, each applied once, in any order of arrival.

docs/cdc.md says which change wins. If all sequences of a file are above the table's, it is applied like an upsert,
without a look at the rows. Otherwise it is compared with the rows of its keys and with the memory of deleted keys.
Large files are applied in portions; each sees the portions before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.records import replace
from dolmen.commit.statements.row_changes import Advance, is_above_all
from dolmen.errors import InputError
from dolmen.format.ingest_properties import CdcSettings, FileKind, IngestSettings
from dolmen.format.schema import Field
from dolmen.format.types import Plain, one_array, to_array, to_plain
from dolmen.ingest.cdc.change_columns import find_columns, find_text_positions
from dolmen.ingest.cdc.changes import (
    DELETED,
    PORTION_BYTES,
    PORTION_ROWS,
    ROW,
    BadChanges,
    ChangeTables,
    cut_portions,
    unavailable_columns,
)
from dolmen.ingest.cdc.deleted_keys import (
    KEPT_COLUMN,
    KEPT_SINCE,
    LIVE,
    SEQUENCE,
    TS,
    DeleteMemory,
    last_of_each,
    latest_sequences,
)
from dolmen.ingest.cdc.envelopes import DELETED_FIELD, choose_envelope
from dolmen.ingest.cdc.placeholders import MarkedText, UnavailableValue
from dolmen.ingest.cdc.previous import PreviousValues
from dolmen.ingest.drops.drop_outcomes import RowCounts
from dolmen.ingest.formats.formats import SourceFile, read
from dolmen.ingest.formats.source_file import OnBadRow
from dolmen.ingest.late import ErasedRows, RowIds
from dolmen.rows.write.conform import row_checks
from dolmen.transactions.transaction import Transaction, unit_of


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
) -> RowCounts:
    """Adds the changes in a file to a transaction, bound to the request. Raises InputError.

    Args:
        unused: columns of the file's rows to read and leave out.
        erased: rows that were erased after the file was dropped: no change brings them back. Deletes are kept.
    """
    if transaction.has_applied(request):
        return RowCounts()
    target = _Target.of(transaction, table, settings, request, BadChanges(source.name, on_bad_row))
    words = UnavailableValue.of(target.settings.unavailable_value).words
    marked = target.marked_columns(source.format.kind)
    target_names = {field.name for field in target.fields}
    if target.settings.envelope == "flat" and (
        source.options.dialect.header or source.format.kind not in ("csv", "tsv")
    ):
        unused = [name for name in dict.fromkeys([*unused, DELETED_FIELD]) if name not in target_names]
    envelope = choose_envelope(
        target.fields,
        target.keys,
        target.sequence,
        target.settings,
        reject_extra=settings.new_columns != "ignore",
        text_positions=find_text_positions(source, target.settings),
        unused=unused,
        marked=marked,
    )
    source, bad = replace(source, options=replace(envelope.options(source.options), placeholders=words)), target.bad
    marks = MarkedText(words, [field.name for field in marked])
    if marked and source.format.kind == "jsonl":
        source = marks.source(source)
    reader = read(source, envelope.schema, on_bad_row=lambda row: bad.add_unread(marks.restore(row)))
    checks = row_checks(unit_of(transaction).entry(table).schema)
    change_tables = ChangeTables(target.fields, target.keys, target.sequence, envelope, bad, checks=checks)
    tables = change_tables.tables(reader)
    if erased is not None:
        erased.read_names(source, partial(find_columns, source, settings), partial(_read_images, source, target))
        tables = _filter_erased(tables, target.fields, erased, bad)
    counts, first_ts = RowCounts(), unit_of(transaction).next_ts
    for changes in cut_portions(tables, str(target.sequence.id), portion_rows, portion_bytes):
        counts += target.apply(changes, first_ts)
    return counts + RowCounts(ddl=sum(change_tables.ddl))


def _filter_erased(
    tables: Iterator[pa.Table], fields: tuple[Field, ...], erased: ErasedRows, bad: BadChanges
) -> Iterator[pa.Table]:
    """Removes changes that would bring erased rows back. Deletes are kept."""
    on_bad_row = None if bad.on_bad_row is None else bad.report
    for changes in tables:
        deletes, upserts = changes.filter(changes[DELETED]), changes.filter(pc.invert(changes[DELETED]))
        columns, numbers = _images(upserts, fields)
        remaining = pa.concat_tables([upserts.filter(erased.keep(columns, numbers, bad.name, on_bad_row)), deletes])
        if remaining.num_rows:
            yield remaining


def _read_images(
    source: SourceFile, target: _Target, renamed: Sequence[Field], on_bad_row: OnBadRow
) -> Iterator[tuple[dict[int, pa.Array], RowIds]]:
    """Reads columns of the changed rows in a file by other names than the table's."""
    ids = {field.id for field in renamed}
    needed = [*target.keys, target.sequence]
    fields = (*(field for field in needed if field.id not in ids), *renamed)
    keys = [next(field for field in fields if field.id == key.id) for key in target.keys]
    sequence = next(field for field in fields if field.id == target.sequence.id)
    cdc = target.settings
    envelope = choose_envelope(
        fields, keys, sequence, cdc, reject_extra=False, text_positions=find_text_positions(source, cdc)
    )
    bad = BadChanges(source.name, on_bad_row)
    options = envelope.options(replace(source.options, extra="ignore"))
    reader = read(replace(source, options=options), envelope.schema, on_bad_row=bad.add_unread)
    for changes in ChangeTables(fields, tuple(keys), sequence, envelope, bad).tables(reader):
        yield _images(changes.filter(pc.invert(changes[DELETED])), tuple(renamed))


def _images(upserts: pa.Table, fields: Iterable[Field]) -> tuple[dict[int, pa.Array], RowIds]:
    """The columns of changed rows by id, and the numbers of these rows in the file."""
    return {field.id: one_array(upserts[str(field.id)]) for field in fields}, one_array(upserts[ROW]).to_numpy()


@dataclass(frozen=True, slots=True)
class _Target:
    """The table that the changes of one file are applied to, and the settings by which it takes them."""

    transaction: Transaction
    name: str
    fields: tuple[Field, ...]
    keys: tuple[Field, ...]
    sequence: Field
    settings: CdcSettings
    request: str
    bad: BadChanges

    @classmethod
    def of(
        cls, transaction: Transaction, name: str, settings: IngestSettings, request: str, bad: BadChanges
    ) -> _Target:
        """Raises InputError if the table does not take changes."""
        entry = unit_of(transaction).entry(name)
        settings.check(entry.schema, entry.primary_key)
        if settings.cdc is None:
            raise InputError(f"table {name!r} takes no changes: its ingest_mode is {settings.mode}")
        keys = tuple(entry.schema.by_id[id_] for id_ in entry.primary_key)
        sequence = entry.schema.field(settings.cdc.sequence)
        return cls(transaction, name, entry.schema.fields, keys, sequence, settings.cdc, request, bad)

    def marked_columns(self, kind: FileKind) -> list[Field]:
        """The columns whose placeholders in a text file are not values of their types.

        Numbers and Booleans in JSON are not among them: no source leaves these out, and marks slow down the reader.
        """
        if kind not in ("jsonl", "csv", "tsv"):
            return []
        plain = (t.is_string, t.is_integer, t.is_floating, t.is_boolean) if kind == "jsonl" else (t.is_string,)
        others = [field for field in self.fields if field not in (*self.keys, self.sequence)]
        return [field for field in others if not any(is_kind(field.arrow_type) for is_kind in plain)]

    @property
    def key_names(self) -> list[str]:
        return [str(field.id) for field in self.keys]

    def apply(self, changes: pa.Table, first_ts: int) -> RowCounts:
        """Adds one portion of a file; its earlier portions have commit timestamps from ``first_ts`` on."""
        sequence, bad_before = str(self.sequence.id), self.bad.count
        last = last_of_each(changes, self.key_names, [sequence, ROW])
        least, _ = self._least_and_greatest(last)
        entry = unit_of(self.transaction).entry(self.name)
        memory = DeleteMemory.of(self.transaction, self.name, entry, self.keys, self.sequence, self.settings.memory_us)
        lacks_values = bool(unavailable_columns(changes))
        if not lacks_values and is_above_all(entry, self.sequence, least):
            self._add(last, last, memory, above=least)
        else:
            remembered = memory.name if memory.table else None
            latest = latest_sequences(self.transaction, self.name, remembered, last, self.keys, self.sequence)
            previous = None
            if lacks_values or latest.kept.num_rows:
                previous = PreviousValues.of(changes, latest, self.key_names, self.sequence, first_ts)
                self._report_lost(previous)
                last = last_of_each(previous.changes, self.key_names, [sequence, ROW])
            last, live = self._select_newer(last, latest.rows, memory, first_ts)
            if previous is not None:
                last, live = (pa.concat_tables([rows, previous.amended]) for rows in (last, live))
            if last.num_rows:
                self._add(last, live, memory, above=None, previous=previous)
        deleted = pc.sum(last[DELETED]).as_py() or 0
        bad = self.bad.count - bad_before
        unchanged = changes.num_rows - last.num_rows - bad
        return RowCounts(upserted=last.num_rows - deleted, deleted=deleted, unchanged=unchanged)

    def _least_and_greatest(self, changes: pa.Table) -> list[Plain]:
        ends = pc.min_max(changes[str(self.sequence.id)])
        return to_plain(pa.array([ends["min"], ends["max"]], self.sequence.arrow_type))

    def _select_newer(
        self, last: pa.Table, known_keys: pa.Table, memory: DeleteMemory, first_ts: int
    ) -> tuple[pa.Table, pa.Table]:
        """Selects changes that are newer than the rows and deletes of their keys, and those of live keys among them."""
        names = self.key_names
        indices = last.select(names).append_column("index", pa.array(range(last.num_rows), pa.int64()))
        joined = indices.join(known_keys, names, join_type="left outer", use_threads=False).sort_by("index")
        sequences, latest = last[str(self.sequence.id)], joined[SEQUENCE]
        unknown = pc.is_null(joined[LIVE])
        is_same_file = pc.and_(pc.equal(sequences, latest), pc.greater_equal(joined[TS], first_ts))
        newer = pc.or_(pc.is_null(latest), pc.or_(pc.greater(sequences, latest), is_same_file))
        newer = pc.fill_null(newer, True)
        if memory.forgotten_through is not None:
            limit = to_array([memory.forgotten_through], self.sequence.arrow_type)[0]
            late = pc.and_(unknown, pc.less_equal(sequences, limit))
            newer = pc.and_not(newer, late)
            self._report_stragglers(last.filter(pc.and_not(late, last[DELETED])))
        return last.filter(newer), last.filter(pc.and_(newer, pc.fill_null(joined[LIVE], False)))

    def _report_stragglers(self, late: pa.Table) -> None:
        """Reports late changes of keys whose deletes may be forgotten."""
        for row in sorted(late[ROW].to_pylist()):
            self.bad.add(
                f"straggler: a change whose {self.sequence.name} is older than the remembered deletes (cdc_memory); "
                "its row may have been deleted since",
                row,
                self.sequence.name,
            )

    def _report_lost(self, previous: PreviousValues) -> None:
        """Reports changes that lack a value which no row or change has."""
        names = {field.id: field.name for field in self.fields}
        for row, column in previous.lost:
            self.bad.add(
                "the source left this value out (cdc_unavailable_value), and neither the table nor an earlier change "
                "has it: first apply the file that has it, then drop this one again",
                row,
                names[column],
            )

    def _add(
        self,
        changes: pa.Table,
        hidden: pa.Table,
        memory: DeleteMemory,
        above: Plain,
        previous: PreviousValues | None = None,
    ) -> None:
        """Adds changes to the transaction; they replace the rows with the keys of ``hidden``."""
        transaction, request = self.transaction, self.request
        memory_table, uuid = memory.ensure_table(request)
        unit_of(transaction).add(
            Advance(
                self.name,
                unit_of(transaction).entry(self.name).uuid,
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
        rows: pa.Table | pa.RecordBatchReader = _rename_columns(upserts, self.fields)
        if previous is not None:
            filled = previous.fill(upserts, transaction, self.name, self.keys)
            tables = (_rename_columns(part, self.fields) for part in filled)
            rows = pa.RecordBatchReader.from_batches(rows.schema, (b for part in tables for b in part.to_batches()))
        target.replace(rows, _rename_columns(hidden, self.keys), request=request)
        memory_rows = _rename_columns(deletes, (*self.keys, self.sequence))
        if previous is not None and (kept := previous.select_kept(upserts)).num_rows:
            memory.ensure_kept(memory_table, request)
            kept_rows = _rename_columns(kept, (*self.keys, self.sequence))
            for name in (KEPT_COLUMN, KEPT_SINCE):
                kept_rows = kept_rows.append_column(name, kept[name])
            memory_rows = pa.concat_tables([memory_rows, kept_rows], promote_options="default")
        if memory_rows.num_rows:
            memory_table.append(memory_rows, request=request)


def _rename_columns(changes: pa.Table, fields: tuple[Field, ...]) -> pa.Table:
    return pa.table([changes[str(field.id)] for field in fields], [field.name for field in fields])
