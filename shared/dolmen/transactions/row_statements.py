"""Turns what users ask for into statements: rows into data files, predicates and keys into tombstones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.context import Context
from dolmen.commit.statements.row_changes import DeletePositions, Write
from dolmen.commit.uploads import Intent, LateIntent, PendingUploads, keys_in, record_keys, record_predicate
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.delete_object import Keys, keys_from_arrow
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.schema import Field, is_nested, storable
from dolmen.format.types import Json, can_be_key, short_type, to_plain
from dolmen.format.types import to_json as to_json_value
from dolmen.predicate import (
    Predicate,
    Where,
    columns,
    parse,
    to_json,
)
from dolmen.predicate.domains import Domain, domain_of
from dolmen.rows.scan.plan import View
from dolmen.rows.scan.scan import matching_positions
from dolmen.rows.scan.scan_deletes import ErasedRowsFilter
from dolmen.rows.write.casts import lossless_cast, lossy_cast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.data_file import write_data_files
from dolmen.rows.write.row_digest import RowDigest
from dolmen.rows.write.row_input import as_batches, dedupe_last, frame_cast, values_of

Mode: TypeAlias = Literal["tombstone", "positions"]


def append(
    context: Context,
    name: str,
    entry: TableEntry,
    data: Any,
    request: str | None = None,
    intent: Callable[[], Intent] | None = None,
    digest: RowDigest | None = None,
    uploads: PendingUploads | None = None,
    erased: ErasedRowsFilter | None = None,
) -> Write:
    """Writes rows into data files. They are not compared with existing rows.

    Args:
        uploads: of the commit, which may hold small files; None = every file is uploaded at once.
        intent: returns the intent to write under; called when a second file begins. None for no intent.
        digest: updated with the rows.
        erased: counts rows that were erased, and may leave them out.

    Raises:
        SchemaError, RowError: the data does not fit; none of it becomes visible.
    """
    batches = rows_of(entry, data, digest, erased)
    files = write_rows(context, name, entry, batches, intent, uploads)
    return Write(name, entry.uuid, files=files, request=request, schema=entry.schema)


def upsert(
    context: Context,
    uploads: PendingUploads,
    name: str,
    entry: TableEntry,
    data: Any,
    on: Sequence[str] | None = None,
    request: str | None = None,
    intent: Callable[[], Intent] | None = None,
    digest: RowDigest | None = None,
    erased: ErasedRowsFilter | None = None,
) -> Write:
    """Writes rows, and a tombstone for older rows with their keys. Among equal keys in ``data`` the last wins.

    Args:
        intent, digest, erased: as for ``append``.

    Raises:
        InputError: there is no key, or a key column holds floats.
        RowError: a key is NULL, or a row does not fit.
        LimitError: there are more than 1,000,000 keys.
    """
    fields = key_fields(entry, on)
    batches, keys = dedupe_last(rows_of(entry, data, digest, erased), fields)
    if keys.num_rows == 0:
        return Write(name, entry.uuid, request=request)
    files = write_rows(context, name, entry, batches, intent, uploads)
    tombstone = record_keys(partial(uploads.tombstone_object, name, entry.uuid), keys)
    assert tombstone is not None, "there are keys"
    return Write(name, entry.uuid, files, (tombstone,), request, schema=entry.schema)


def replace(
    context: Context,
    uploads: PendingUploads,
    name: str,
    entry: TableEntry,
    data: Any,
    keys: Keys,
    request: str | None = None,
    intent: Callable[[], Intent] | None = None,
    digest: RowDigest | None = None,
    erased: ErasedRowsFilter | None = None,
) -> Write:
    """Writes rows, and a tombstone for older rows with ``keys``, which may be keys of other rows. Reads no data.

    Args:
        keys: values of the primary key (see ``take_keys``).
        intent, digest, erased: as for ``append``.
    """
    files = append(context, name, entry, data, request, intent, digest, erased=erased).files
    tombstones = delete_keys(uploads, name, entry, keys, request).tombstones
    return Write(name, entry.uuid, files, tombstones, request, schema=entry.schema)


def rows_of(
    entry: TableEntry, data: Any, digest: RowDigest | None = None, erased: ErasedRowsFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Fits rows to a table, batch by batch, and updates ``digest`` with them, and ``erased`` after it."""
    source = as_batches(data, entry.schema.arrow)
    batches = conform(source, entry.schema, frame_cast(data) or lossless_cast)
    batches = digest.passing(batches, source.schema) if digest else batches
    return erased.passing(batches) if erased else batches


def cast_rows(entry: TableEntry, data: Any) -> pa.RecordBatchReader:
    """Fits rows to a table, with a loss where necessary (see ``lossy_cast``)."""
    schema = entry.schema.arrow
    return pa.RecordBatchReader.from_batches(schema, conform(as_batches(data, schema), entry.schema, lossy_cast))


def write_rows(
    context: Context,
    name: str,
    entry: TableEntry,
    batches: Iterable[pa.RecordBatch],
    intent: Callable[[], Intent] | None,
    uploads: PendingUploads | None = None,
) -> tuple[DataFile, ...]:
    """Writes rows that fit the table into data files; without rows, none.

    Args:
        intent, uploads: as for ``append``.
    """
    store, runtime = context.store, context.runtime
    write = partial(write_data_files, store, name, entry, batches, runtime)
    open_output = uploads.files.open if uploads else None
    if intent is None:
        return tuple(write(open_output=open_output))
    late = LateIntent(runtime, intent)
    return tuple(write(name=late.name, beat=late.beat, open_output=open_output))


def delete_where(
    context: Context, uploads: PendingUploads, name: str, entry: TableEntry, where: Where, request: str | None = None
) -> Write:
    """Makes a tombstone for the rows for which a predicate is TRUE. Reads no data.

    Equalities on a tuple of columns become a keys tombstone, any other predicate a where tombstone.
    """
    predicate = parse_where(context, entry, where)
    target = partial(uploads.tombstone_object, name, entry.uuid)
    return _delete(name, entry, record_predicate(target, entry.schema, predicate), request)


def delete_keys(uploads: PendingUploads, name: str, entry: TableEntry, keys: Keys, request: str | None = None) -> Write:
    """Makes a tombstone for the rows with these keys (see ``take_keys``). Reads no data."""
    return _delete(name, entry, record_keys(partial(uploads.tombstone_object, name, entry.uuid), keys), request)


def _delete(name: str, entry: TableEntry, tombstone: Tombstone | None, request: str | None) -> Write:
    tombstones = () if tombstone is None else (tombstone,)
    return Write(name, entry.uuid, tombstones=tombstones, request=request, schema=entry.schema)


def take_keys(entry: TableEntry, keys: Any, on: str | Sequence[str] | None = None) -> Keys:
    """Reads keys as callers give them.

    Args:
        keys: values of the one key column, as a list, a Series, or an Arrow or NumPy array; tuples for several columns;
            or Arrow data with columns of their names.
        on: names of the key columns; the primary key by default.
    """
    fields = key_fields(entry, on)
    return keys_from_arrow(_key_rows(keys, fields), fields)


def where_content(entry: TableEntry, where: Where) -> list[Any]:
    """The content of a delete by predicate for its request's digest; equal for predicates that parse alike.

    ``now()`` counts as the epoch, so that a request that is tried again has the same content.
    """
    predicate = parse(where or "", entry.schema, now_us=0)
    keys = keys_in(predicate, entry.schema)
    return ["where", to_json(predicate).decode()] if keys is None else keys_content(entry, keys)


def keys_content(entry: TableEntry, keys: Keys) -> list[Any]:
    """The content of keys for a request's digest. Their order and repetitions make no difference."""
    names = [entry.schema.by_id[int(id_)].name for id_ in keys.column_names]
    digest = RowDigest(pa.schema([(name, kind) for name, kind in zip(names, keys.schema.types, strict=True)]))
    for batch in keys.to_batches():
        digest.update(batch)
    return ["keys", digest.hexdigest()]


def delete_positions(
    context: Context,
    uploads: PendingUploads,
    manifest: Manifest,
    name: str,
    where: Where,
    request: str | None = None,
    *,
    epoch: int = 0,
) -> DeletePositions | None:
    """Finds the rows of one version that match, for deletion by position; None if there are none.

    Reads the predicate's columns.

    Args:
        epoch: the table's epoch in the version that the transaction is made on; 0 = it did not exist there.
    """
    with context.reading(manifest.version):
        entry = context.segments.whole(manifest.table(name))
        predicate = parse_where(context, entry, where)
        found = matching_positions(View(context, manifest, name, uploads.read), predicate)
    if not found:
        return None
    return DeletePositions(name, entry.uuid, found, request, tuple(sorted(columns(predicate))), epoch)


def parse_where(context: Context, entry: TableEntry, where: Where) -> Predicate:
    """Parses and binds a predicate. Raises PredicateError. To delete everything, the predicate must be ``"TRUE"``."""
    if where is None or (isinstance(where, (str, Mapping)) and not where):
        raise InputError('nothing says what to delete: give a predicate or keys; "TRUE" deletes all rows')
    return parse(where, entry.schema, now_us=context.store.clock.current_us)


def key_fields(entry: TableEntry, on: str | Sequence[str] | None) -> tuple[Field, ...]:
    """The key columns. Raises InputError when ``on`` is empty, or None and there is no primary key."""
    if on is not None:
        fields = tuple(entry.schema.field(name) for name in arguments.names("on", on))
        if not fields:
            raise InputError("on is empty: name the key's columns, on=[...]")
        return check_key(fields)
    fields = tuple(entry.schema.by_id[id_] for id_ in entry.primary_key)
    if not fields:
        raise InputError("the table has no primary key: name the columns, on=[...]")
    return check_key(fields)


def check_key(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Returns ``fields`` if they can be a key. Raises SchemaError for floats, nested columns and repeated columns."""
    if len({field.id for field in fields}) < len(fields):
        raise SchemaError("a column stands twice in the key")
    for field in fields:
        if not can_be_key(field.arrow_type):
            raise SchemaError(f"column {field.name!r} of type {short_type(field.arrow_type)} can't be part of a key")
    return fields


def check_sortable(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Returns ``fields`` if rows can be sorted by them. Raises SchemaError for nested columns."""
    for field in fields:
        if is_nested(field.arrow_type):
            raise SchemaError(f"rows can't be sorted by column {field.name!r} of type {short_type(field.arrow_type)}")
    return fields


def default_json(name: str, arrow_type: pa.DataType, value: Any) -> Json:
    """A default as callers give it, in JSON form; it must fit the column as a value of a row does.

    Raises:
        InputError: it is no value of the type, or the type can have no default.
    """
    if value is None:
        return None
    stored = storable(arrow_type)
    if is_nested(stored):
        raise InputError(f"column {name!r} of type {short_type(stored)} can have no default but NULL")
    schema = pa.schema([pa.field(name, stored)])
    try:
        [batch] = conform(as_batches([{name: value}], schema), schema, lossless_cast)
        [plain] = to_plain(batch.column(0))
        return to_json_value(plain)
    except (SchemaError, RowError, InputError) as error:
        is_text = not isinstance(value, str) or domain_of(stored) is Domain.TEXT
        hint = "" if is_text and not hasattr(value, "sql") else "; a default is a value, and no expression"
        raise InputError(f"default {arguments.short_repr(value)} of column {name!r}: {error}{hint}") from error


def _key_rows(keys: Any, fields: tuple[Field, ...]) -> pa.Table:
    """Key columns with their names and stored types. Values are refused as in rows, so that none is cut to another key.

    Raises:
        InputError: a value does not fit.
    """
    if isinstance(keys, (list, tuple, set, frozenset, range)):
        wanted = pa.schema([(field.name, field.arrow_type) for field in fields])
        columns = _key_columns(list(keys), fields)
        try:
            exact = {field.name: _exact(column, field) for column, field in zip(columns, fields, strict=True)}
            return pa.Table.from_batches(conform(as_batches(exact, wanted), wanted, lossless_cast), wanted)
        except (SchemaError, RowError, ValueError) as error:
            listed = ", ".join(f"{field.name} {short_type(field.arrow_type)}" for field in fields)
            reason = error.reason if isinstance(error, RowError) else error
            raise InputError(f"keys do not fit {listed}: {reason}") from error
    wanted = pa.schema([(field.name, field.arrow_type, field.nullable) for field in fields])  # defaults are no keys
    if (found := values_of(keys, fields[0].name, fields[0].arrow_type)) is not None:
        if len(fields) > 1:
            listed = ", ".join(field.name for field in fields)
            raise InputError(f"an array has no columns, and this key has several: give rows of {listed}")
        column = pa.table([found[0]], [fields[0].name])
        return pa.Table.from_batches(conform(as_batches(column), wanted, found[1]), wanted)
    return pa.Table.from_batches(conform(as_batches(keys, wanted), wanted, frame_cast(keys) or lossless_cast), wanted)


def _key_columns(keys: list[Any], fields: tuple[Field, ...]) -> list[list[Any]]:
    """The values of each key column."""
    if len(fields) == 1:
        return [keys]
    if wrong := [key for key in keys if not isinstance(key, (list, tuple)) or len(key) != len(fields)]:
        raise InputError(f"key {wrong[0]!r} is not a tuple of {', '.join(field.name for field in fields)}")
    return [list(column) for column in zip(*keys, strict=True)] or [[] for _ in fields]


def _exact(values: list[Any], field: Field) -> list[Any]:
    """Values of one key column, in which floats are the integers or decimals that they stand for.

    Raises:
        ValueError: a float for an integer column is no whole number.
    """
    if pa.types.is_decimal(field.arrow_type):
        return [Decimal(repr(float(value))) if isinstance(value, float) else value for value in values]
    if not pa.types.is_integer(field.arrow_type):
        return values
    floats = float, np.floating
    if wrong := [value for value in values if isinstance(value, floats) and not value.is_integer()]:
        raise ValueError(f"{arguments.short_repr(wrong[0])} is no whole number")
    return [int(value) if isinstance(value, floats) else value for value in values]
