"""Erasures as readers apply them: which ones a version lists, and which tombstones they put on a table's entry.

An older version is read with the erasures that came after it, and that the newest version lists. This is exact by the
one rule for deletes: in an older version each file has an ``applied_through`` below the erasure's timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import pyarrow as pa

from dolmen.entries.segments.reader import SegmentReader
from dolmen.entries.segments.remembered_keys import RememberedKeys
from dolmen.errors import CorruptionError, ObjectNotFoundError, PredicateError, SchemaError
from dolmen.format.entries import Blob, Tombstone, WhereTombstone
from dolmen.format.erasures import ErasedTable, Erasure
from dolmen.format.evolution import WidenColumn
from dolmen.format.manifest import Manifest, Segment, TableEntry
from dolmen.format.schema import Field, is_nested
from dolmen.format.tombstone_object import check_blob
from dolmen.format.values import Json
from dolmen.format.widening import narrowing
from dolmen.predicate import Predicate, columns, parse, to_builtins

SUBJECT = "subject"
"""The property of a table that names the column which says whom a row is about."""

Record: TypeAlias = Callable[[TableEntry, Erasure, Predicate], Tombstone | None]
"""Makes the tombstone of a predicate on a table; None if no row can match."""


def erasures_of(manifest: Manifest, reader: SegmentReader, after: int = 0) -> tuple[Erasure, ...]:
    """The erasures in a version's list, spilled and inline, oldest first.

    Args:
        after: a timestamp: only those with a greater one. Segments without any are not fetched.
    """
    return listed_erasures(manifest.segments_of("erasures"), manifest.erasures, reader, after)


def listed_erasures(
    segments: Iterable[Segment], inline: Sequence[Erasure], reader: SegmentReader, after: int = 0
) -> tuple[Erasure, ...]:
    """The same, of a list in parts."""
    spilled = [segment for segment in segments if segment.greatest > after]
    listed = (*(erasure for some in reader.runtime.map(reader.erasures, spilled) for erasure in some), *inline)
    return tuple(sorted((erasure for erasure in listed if erasure.ts > after), key=lambda erasure: erasure.ts))


def erasure_timestamps(manifest: Manifest, reader: SegmentReader) -> frozenset[int]:
    """The timestamps of all listed erasures. A tombstone of such a timestamp is an erasure's."""
    return frozenset(erasure.ts for erasure in erasures_of(manifest, reader))


def as_read_now(manifest: Manifest, newest: Manifest, reader: SegmentReader) -> Manifest:
    """A version as whoever knows the newest version may read it: without the rows that were erased since.

    It costs nothing unless the newest version lists an erasure that is younger than the version. The result is for
    reading only: it is no object of the store.
    """
    erasures = erasures_of(newest, reader, after=manifest.commit_ts) if manifest.version else ()
    if not erasures:
        return manifest
    tables = {name: with_erasures(entry, erasures, reader) for name, entry in manifest.tables.items()}
    for name, entry in _memories(manifest, erasures, reader):
        tables[name] = with_deletes(reader.whole(tables[name]), entry)
    return msgspec.structs.replace(
        manifest,
        tables={
            name: entry if entry is manifest.tables[name] else _as_shown(entry, reader.whole(manifest.tables[name]))
            for name, entry in tables.items()
        },
    )


def _as_shown(entry: TableEntry, own: TableEntry) -> TableEntry:
    """An entry with deletes, whose readers get the types of the version's own entry."""
    types = {field.id: field.type for field in entry.schema.fields}
    narrower = tuple(field for field in own.schema.fields if types.get(field.id, field.type) != field.type)
    if not narrower:
        return entry
    return msgspec.structs.replace(entry, schema=msgspec.structs.replace(entry.schema, narrower=narrower))


def _memories(
    manifest: Manifest, erasures: Sequence[Erasure], reader: SegmentReader
) -> Iterator[tuple[str, list[ErasedTable]]]:
    """Yields the memories of deleted keys (CDC) of which erasures name others, with the deletes of the same keys.

    An erasure names the memory of its time. After a restore that is another one than that of an older version.
    """
    reached = {name: entry for name, entry in manifest.tables.items() if any(reaches(each, entry) for each in erasures)}
    owners = {name: owner for name in reached if (owner := reader.whole(reached[name])).sequences is not None}
    if not owners:
        return
    names, read = {entry.uuid: name for name, entry in manifest.tables.items()}, partial(_read_blob, reader)
    for owner in owners.values():
        assert owner.sequences is not None
        name = names.get(owner.sequences.memory)
        if name is None:
            continue
        memory = RememberedKeys(name, reader.whole(manifest.tables[name]), owner)
        missed = [erasure for erasure in erasures if reaches(erasure, owner) and not tables_of(erasure, memory.entry)]
        deletes = [each for erasure in missed for each in deletes_of(erasure, owner, _for_readers)]
        hidden = [memory.delete_for_readers(each, read) for each in deletes if memory.may_hold(each)]
        if hidden:
            yield name, hidden


def _read_blob(reader: SegmentReader, blob: Blob) -> bytes:
    try:
        return check_blob(reader.store.get(blob.object, (blob.offset, blob.offset + blob.length)).body, blob)
    except ObjectNotFoundError as error:
        raise CorruptionError(blob.object, "the object is missing; it records deletes") from error


def with_erasures(
    entry: TableEntry, erasures: Iterable[Erasure], reader: SegmentReader, record: Record | None = None
) -> TableEntry:
    """A table's entry with the tombstones of erasures that reach it; the same entry if none does.

    Args:
        entry: it may be that of an idle table, which is fetched only if an erasure reaches it.
        erasures: all younger than the entry's version, oldest first.
        record: makes the tombstones of who is forgotten, for tables that the erasure does not name; by default they
            are for readers only.
    """
    wanted = [erasure for erasure in erasures if reaches(erasure, entry)]
    if not wanted:
        return entry
    entry = reader.whole(entry)
    for erasure in wanted:
        entry = with_deletes(entry, deletes_of(erasure, entry, record or _for_readers))
    return entry


def deletes_of(erasure: Erasure, entry: TableEntry, record: Record) -> tuple[ErasedTable, ...]:
    """The deletes of an erasure in a table that it reaches, by the table's whole entry."""
    return tables_of(erasure, entry) or _of_subject(erasure, entry, record)


def reaches(erasure: Erasure, entry: TableEntry) -> bool:
    """Whether an erasure may concern a table, by its entry in the root."""
    return bool(tables_of(erasure, entry)) or (bool(erasure.subject) and entry.properties.get(SUBJECT) is not None)


def tables_of(erasure: Erasure, entry: TableEntry) -> tuple[ErasedTable, ...]:
    """The deletes of an erasure that a table shares with those that it was cloned from."""
    lineage = entry.lineage
    return tuple(erased for erased in erasure.tables if erased.uuid in lineage)


def with_deletes(entry: TableEntry, erased: Iterable[ErasedTable]) -> TableEntry:
    """A table's whole entry with deletes, each with the columns that it names.

    A delete is left out if it names a column that is another one in this table, which a clone has added itself.
    """
    tombstones = entry.tombstones
    for each in erased:
        known = entry.schema.by_id
        if any(field.id in known and known[field.id].added_ts != field.added_ts for field in each.columns):
            continue
        entry = _with_wider_columns(entry, each.columns)
        schema = entry.schema
        if missing := tuple(field for field in each.columns if field.id not in known):
            next_id = max(schema.next_id, *(field.id + 1 for field in missing))
            schema = msgspec.structs.replace(schema, next_id=next_id, dropped=(*schema.dropped, *missing))
        tombstones = (*tombstones, each.tombstone)
        entry = msgspec.structs.replace(entry, schema=schema)
    return msgspec.structs.replace(entry, tombstones=tombstones)


def _with_wider_columns(entry: TableEntry, columns: Iterable[Field]) -> TableEntry:
    """The entry with the types that columns had when they were erased by, as a delete never has a wider type."""
    for field in columns:
        there = next((own for own in entry.schema.fields if own.id == field.id), None)
        if there is None or there.type == field.type or is_nested(field.arrow_type):
            continue
        if not narrowing(there.arrow_type, field.arrow_type):
            entry = WidenColumn(there.name, field.arrow_type).widen(entry, field.widened_ts)
    return entry


def fitting_values(entry: TableEntry, values: Sequence[Json]) -> list[Json]:
    """Those of some values that the type of a table's subject has."""
    if _equal_to_any(entry, values) is not None:
        return list(values)
    return [value for value in values if _equal_to_any(entry, [value]) is not None]


def subject_predicate(entry: TableEntry, values: Sequence[Json]) -> Predicate | None:
    """The rows of a table that are about any of these subjects; None if its subject can have none of the values."""
    return _equal_to_any(entry, fitting_values(entry, values))


def _equal_to_any(entry: TableEntry, values: Sequence[Json]) -> Predicate | None:
    try:
        field = entry.schema.field(str(entry.properties[SUBJECT]).strip())
        if not values or not all(_is_of_type(value, field.arrow_type) for value in values):
            return None
        return parse({field.name: list(values)}, entry.schema, now_us=0)
    except (PredicateError, SchemaError):
        return None


def _is_of_type(value: Json, arrow_type: pa.DataType) -> bool:
    """Whether a value is a number where the column has numbers: a predicate would also read a number from a text.

    Where one person's id is the text "007", another's may be the number 7.
    """
    is_number: bool = pa.types.is_integer(arrow_type) or pa.types.is_decimal(arrow_type)
    return isinstance(value, int) == is_number


def _of_subject(erasure: Erasure, entry: TableEntry, record: Record) -> tuple[ErasedTable, ...]:
    """The delete of who is forgotten, in a table that the erasure does not name since it is not there any more."""
    predicate = subject_predicate(entry, erasure.subject)
    tombstone = None if predicate is None else record(entry, erasure, predicate)
    return () if tombstone is None else (ErasedTable(entry.uuid, tombstone.stamped(erasure.ts)),)


def _for_readers(entry: TableEntry, erasure: Erasure, predicate: Predicate) -> Tombstone:
    """A tombstone without a record, which nobody may store."""
    place = Blob(f"tombstone/{entry.uuid}", erasure.ts, 0, 0)
    return WhereTombstone(tuple(sorted(columns(predicate))), place, to_builtins(predicate))
