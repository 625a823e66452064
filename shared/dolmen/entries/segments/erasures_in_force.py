"""Applies erasures: the tombstones that they put on a table's entry, and on the memory of its deleted keys (CDC).

An older version is read with the later erasures that the newest version lists. This is exact by the one rule for
deletes: in an older version each file has an ``applied_through`` below the erasure's timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from dolmen.entries.segments.row_bounds import recorded_predicate
from dolmen.entries.segments.segment_reader import SegmentReader, erasures_of, read_blob
from dolmen.errors import PredicateError, SchemaError
from dolmen.format.column_history import fields_inside, widening_problem
from dolmen.format.del_object import Keys, decode_keys, inline_keys
from dolmen.format.entries import Blob, KeysTombstone, Tombstone, WhereTombstone, least_erasing
from dolmen.format.evolution import WidenColumn
from dolmen.format.manifest import ErasedTable, Erasure, Manifest, RewrittenErasures, Segment, TableEntry
from dolmen.format.schema import Field, is_nested
from dolmen.format.types import Json, to_json, to_plain
from dolmen.predicate.ast import Predicate, columns, from_builtins, to_builtins
from dolmen.predicate.parse import parse

SUBJECT = "subject"
"""The property of a table that names its subject: the column that identifies the person a row is about."""

_EARLIEST_TS = 1  # a timestamp before that of every commit

Record: TypeAlias = Callable[[TableEntry, Erasure, Predicate], Tombstone | None]
"""Makes the tombstone of a predicate on a table; None if no row can match."""


class RememberedKeys(Struct, frozen=True):
    """A memory: a table that remembers deleted keys of another one, its owner (CDC), in columns of the same names."""

    name: str
    entry: TableEntry
    owner: TableEntry

    @classmethod
    def of_owners(
        cls, owners: Iterable[TableEntry], tables: Mapping[str, TableEntry], reader: SegmentReader
    ) -> Iterator[RememberedKeys]:
        """Yields the memories of some tables (whole entries) among the tables of the same version, by name."""
        names = {entry.uuid: name for name, entry in tables.items()}
        for owner in owners:
            name = names.get(owner.sequences.memory) if owner.sequences is not None else None
            if name is not None:
                yield cls(name, reader.whole(tables[name]), owner)

    def unnamed_deletes(self, erasure: Erasure, record: Record) -> Iterator[ErasedTable]:
        """Yields the owner's deletes that may match remembered keys, of an erasure that does not name the memory."""
        if reaches(erasure, self.owner) and not tables_of(erasure, self.entry):
            yield from filter(self.may_hold, deletes_of(erasure, self.owner, record))

    def may_hold(self, erased: ErasedTable) -> bool:
        """Whether a delete in the owner names rows by the key alone, so that it may match remembered keys."""
        return set(erased.tombstone.columns) <= set(self.owner.primary_key)

    def keys(self, tombstone: KeysTombstone, read: Callable[[Blob], bytes]) -> Keys:
        """The keys of a delete in the owner, by the memory's own columns."""
        keys = inline_keys(tombstone)
        if keys is None:
            keys = decode_keys(read(tombstone.blob), tombstone)
        ids = self._ids(tombstone.columns)
        order = sorted(ids, key=ids.__getitem__)
        names = [str(ids[id_]) for id_ in order]
        renamed = keys.select([str(id_) for id_ in order]).rename_columns(names)
        return renamed.sort_by([(name, "ascending") for name in names])

    def predicate(self, tombstone: WhereTombstone, read: Callable[[Blob], bytes]) -> Predicate:
        """The predicate of a delete in the owner, over the memory's own columns."""
        inline = tombstone.predicate
        body = to_builtins(recorded_predicate(read(tombstone.blob), tombstone.blob)) if inline is None else inline
        return from_builtins(_with_ids(body, self._ids(tombstone.columns)))

    def columns(self, erased: ErasedTable) -> tuple[Field, ...]:
        """The memory's columns, with the types of the delete's values."""
        ids, by_id = self._ids(erased.tombstone.columns), self.entry.schema.by_id
        return tuple(
            msgspec.structs.replace(by_id[ids[field.id]], type=field.type, widened_ts=field.widened_ts)
            for field in erased.columns
        )

    def delete_for_readers(self, erased: ErasedTable, read: Callable[[Blob], bytes]) -> ErasedTable:
        """The delete of the same keys from the memory, without a record: it must not be stored."""
        tombstone = erased.tombstone
        blob = Blob(f"tombstone/{self.entry.uuid}", tombstone.ts, 0, 0)
        if isinstance(tombstone, KeysTombstone):
            keys = self.keys(tombstone, read)
            ids = self._ids(tombstone.columns)
            bounds = {ids[id_]: ends for id_, ends in zip(tombstone.columns, tombstone.bounds, strict=True)}
            hidden: KeysTombstone | WhereTombstone = KeysTombstone(
                tuple(map(int, keys.column_names)),
                tuple(str(column.type) for column in keys.columns),
                keys.num_rows,
                tuple(bounds[int(name)] for name in keys.column_names),
                blob,
                tuple(tuple(map(to_json, to_plain(column.combine_chunks()))) for column in keys.columns),
                tombstone.ts,
            )
        else:
            columns = tuple(sorted(self._ids(tombstone.columns).values()))
            hidden = WhereTombstone(columns, blob, to_builtins(self.predicate(tombstone, read)), tombstone.ts)
        return ErasedTable(self.entry.uuid, hidden, self.columns(erased))

    def with_types_of_owner(self) -> TableEntry:
        """The memory's entry with the types of the owner's columns, which may be wider."""
        entry = self.entry
        for field in entry.schema.fields:
            own = next((other for other in self.owner.schema.fields if other.name == field.name), None)
            if own and own.type != field.type and not widening_problem(field.arrow_type, own.arrow_type):
                entry = WidenColumn(field.name, own.arrow_type).widen(entry, own.widened_ts)
        return entry

    def _ids(self, columns: tuple[int, ...]) -> dict[int, int]:
        """The memory's ids of columns, by the owner's ids."""
        schema = self.entry.schema
        return {id_: schema.field(self.owner.schema.by_id[id_].name).id for id_ in columns}


def _with_ids(node: Any, ids: Mapping[int, int]) -> Any:
    """A predicate as JSON, with other ids of columns."""
    if isinstance(node, dict):
        changed = {name: _with_ids(value, ids) for name, value in node.items()}
        return {**changed, "id": ids[node["id"]]} if node.get("kind") == "column" else changed
    return [_with_ids(each, ids) for each in node] if isinstance(node, list | tuple) else node


def erasure_timestamps(manifest: Manifest, reader: SegmentReader) -> frozenset[int]:
    """The timestamps of all listed erasures. A tombstone with such a timestamp belongs to an erasure."""
    return frozenset(erasure.ts for erasure in erasures_of(manifest, reader))


def apply_later_erasures(manifest: Manifest, newest: Manifest, reader: SegmentReader) -> Manifest:
    """Hides the rows of a version that were erased since, by the newest version. The result is for reading only."""
    erasures = erasures_of(newest, reader, after=manifest.commit_ts) if manifest.version else ()
    if not erasures:
        return manifest
    tables = {name: with_erasures(entry, erasures, reader) for name, entry in manifest.tables.items()}
    for name, entry in _memories(manifest, erasures, reader):
        tables[name] = with_deletes(reader.whole(tables[name]), entry)
    return msgspec.structs.replace(
        manifest,
        tables={
            name: entry if entry is manifest.tables[name] else _keep_types(entry, reader.whole(manifest.tables[name]))
            for name, entry in tables.items()
        },
    )


def _keep_types(entry: TableEntry, own: TableEntry) -> TableEntry:
    """An entry with deletes, whose readers still get the types of the version's own entry."""
    types = {field.id: field.type for field in entry.schema.fields}
    narrower = tuple(field for field in own.schema.fields if types.get(field.id, field.type) != field.type)
    if not narrower:
        return entry
    return msgspec.structs.replace(entry, schema=msgspec.structs.replace(entry.schema, narrower=narrower))


def _memories(
    manifest: Manifest, erasures: Sequence[Erasure], reader: SegmentReader
) -> Iterator[tuple[str, list[ErasedTable]]]:
    """Yields the memories that erasures do not name, with the deletes of the same keys.

    An erasure names the memory of its own version. After a restore an older version has another one.
    """
    read = partial(read_blob, reader.store)
    reached = [entry for entry in manifest.tables.values() if any(reaches(each, entry) for each in erasures)]
    for memory in RememberedKeys.of_owners(map(reader.whole, reached), manifest.tables, reader):
        deletes = chain.from_iterable(memory.unnamed_deletes(erasure, _for_readers) for erasure in erasures)
        if hidden := [memory.delete_for_readers(each, read) for each in deletes]:
            yield memory.name, hidden


def with_erasures(
    entry: TableEntry, erasures: Iterable[Erasure], reader: SegmentReader, record: Record | None = None
) -> TableEntry:
    """A table's entry with the tombstones of erasures that reach it; the same entry if none does.

    Args:
        entry: an idle table's whole entry is fetched only if an erasure reaches it.
        erasures: all younger than the entry's version, oldest first.
        record: makes the tombstones of forgotten subjects, for tables that the erasure does not name; by default they
            are for readers only.
    """
    reaching = [erasure for erasure in erasures if reaches(erasure, entry)]
    if not reaching:
        return entry
    entry = reader.whole(entry)
    for erasure in reaching:
        entry = with_deletes(entry, deletes_of(erasure, entry, record or _for_readers))
    return entry


def deletes_of(erasure: Erasure, entry: TableEntry, record: Record) -> tuple[ErasedTable, ...]:
    """The deletes of an erasure in a table that it reaches (whole entry)."""
    return tables_of(erasure, entry) or _subject_deletes(erasure, entry, record)


def reaches(erasure: Erasure, entry: TableEntry) -> bool:
    """Whether an erasure may concern a table (its entry in the manifest)."""
    return bool(tables_of(erasure, entry)) or (bool(erasure.subject) and entry.properties.get(SUBJECT) is not None)


def tables_of(erasure: Erasure, entry: TableEntry) -> tuple[ErasedTable, ...]:
    """The deletes of an erasure in a table, and in those that it was cloned from."""
    lineage = entry.lineage
    return tuple(erased for erased in erasure.tables if erased.uuid in lineage)


def with_deletes(entry: TableEntry, erased: Iterable[ErasedTable]) -> TableEntry:
    """A table's whole entry with deletes and their columns, without deletes whose column ids now mean other columns."""
    tombstones = entry.tombstones
    for each in erased:
        by_id = entry.schema.by_id
        if any(field.id in by_id and _has_other_ids(field, by_id[field.id]) for field in each.columns):
            continue
        entry = _with_wider_columns(entry, each.columns)
        schema = entry.schema
        missing = tuple(field for field in each.columns if field.id not in by_id)
        ids = [inner.id for field in each.columns for inner in (field, *fields_inside(field.type))]
        next_id = max([schema.next_id, *(id_ + 1 for id_ in ids)])
        if missing or next_id > schema.next_id:
            schema = msgspec.structs.replace(schema, next_id=next_id, dropped=(*schema.dropped, *missing))
        tombstones = (*tombstones, each.tombstone)
        entry = msgspec.structs.replace(entry, schema=schema)
    return msgspec.structs.replace(entry, tombstones=tombstones)


def _has_other_ids(field: Field, now: Field) -> bool:
    """Whether the id of a delete's column, or of a field in it, now belongs to another one."""
    added = {each.id: each.added_ts for each in (now, *fields_inside(now.type))}
    return any(added.get(each.id, each.added_ts) != each.added_ts for each in (field, *fields_inside(field.type)))


def _with_wider_columns(entry: TableEntry, columns: Iterable[Field]) -> TableEntry:
    """The entry with the types of the deletes' columns: a delete must not have a wider type than its column."""
    for field in columns:
        own = next((column for column in entry.schema.fields if column.id == field.id), None)
        if own is None or own.type == field.type or is_nested(field.arrow_type):
            continue
        if not widening_problem(own.arrow_type, field.arrow_type):
            entry = WidenColumn(own.name, field.arrow_type).widen(entry, field.widened_ts)
    return entry


def fitting_values(entry: TableEntry, values: Sequence[Json]) -> list[Json]:
    """The values that fit the type of a table's subject."""
    if _match_any(entry, values) is not None:
        return list(values)
    return [value for value in values if _match_any(entry, [value]) is not None]


def subject_predicate(entry: TableEntry, values: Sequence[Json]) -> Predicate | None:
    """The predicate of the rows about any of these subjects; None if the table's subject has none of the values."""
    return _match_any(entry, fitting_values(entry, values))


def _match_any(entry: TableEntry, values: Sequence[Json]) -> Predicate | None:
    try:
        field = entry.schema.field(str(entry.properties[SUBJECT]).strip())
        if not values or not all(_is_of_type(value, field.arrow_type) for value in values):
            return None
        return parse({field.name: list(values)}, entry.schema, now_us=0)
    except (PredicateError, SchemaError):
        return None


def _is_of_type(value: Json, arrow_type: pa.DataType) -> bool:
    """Whether a value is a number, if the column has numbers: a predicate would also take the text "007" for 7."""
    is_number: bool = pa.types.is_integer(arrow_type) or pa.types.is_decimal(arrow_type)
    return isinstance(value, int) == is_number


def _subject_deletes(erasure: Erasure, entry: TableEntry, record: Record) -> tuple[ErasedTable, ...]:
    """The delete of the forgotten subjects in a table that the erasure does not name, because it was dropped."""
    predicate = subject_predicate(entry, erasure.subject)
    tombstone = None if predicate is None else record(entry, erasure, predicate)
    return () if tombstone is None else (ErasedTable(entry.uuid, tombstone.stamp(erasure.ts)),)


def _for_readers(entry: TableEntry, erasure: Erasure, predicate: Predicate) -> Tombstone:
    """A tombstone without a record, which must not be stored."""
    blob = Blob(f"tombstone/{entry.uuid}", erasure.ts, 0, 0)
    return WhereTombstone(tuple(sorted(columns(predicate))), blob, to_builtins(predicate))


def least_erasure(tables: Iterable[TableEntry], reader: SegmentReader, timestamps: Container[int] | None = None) -> int:
    """The least timestamp of an erasure whose rows, or whose tombstones, these tables may still have; 0 if none.

    Rows of erasures with a lesser timestamp are neither in the tables' files nor in bounds of their entries. In doubt
    the result is too small. Without ``timestamps`` of listed erasures, every tombstone may belong to one.
    """
    entries = tuple(tables)
    erasing = [_EARLIEST_TS] if any(stale_sections(entries)) else []  # an obsolete entry may have rows of any erasure
    for stub in entries:
        entry = reader.whole(stub)
        erasing += [file.erasing for file in entry.files]
        erasing += [segment.erasing for segment in entry.segments_of("files")]
        erasing += [segment.least for segment in entry.segments_of("tombstones")]
        erasing += [t.ts for t in entry.tombstones if timestamps is None or t.ts in timestamps]
    return least_erasing(erasing)


def last_rewritten_ts(tables: Iterable[TableEntry], reader: SegmentReader, listed: Sequence[Erasure]) -> int:
    """Timestamp of the youngest listed erasure such that no file holds rows of it or of older ones; 0 if none."""
    least_ts = least_erasure(tables, reader, {erasure.ts for erasure in listed})
    return max((erasure.ts for erasure in listed if not least_ts or erasure.ts < least_ts), default=0)


def first_rewritten_version(notes: Iterable[RewrittenErasures], ts: int) -> int:
    """The first version that is noted to hold no rows of the erasure with this timestamp; 0 if there is none yet."""
    return min((note.version for note in notes if note.through >= ts), default=0)


def rewritten_before(notes: Iterable[RewrittenErasures], version: int) -> int:
    """Timestamp up to which no version from this one on has rows of an erasure, or shows them without it; 0 if none."""
    return max((note.through for note in notes if note.version <= version), default=0)


def stale_sections(tables: Iterable[TableEntry]) -> Iterator[Segment]:
    """Sections of idle tables that also have an obsolete entry, with bounds of old files."""
    sections: dict[str, tuple[Segment, set[str]]] = {}
    for stub in tables:
        if stub.section is not None:
            sections.setdefault(stub.section.object, (stub.section, set()))[1].add(stub.uuid)
    for section, users in sections.values():
        if section.count > len(users):
            yield section
