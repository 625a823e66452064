"""Arguments of statements: the rows to write, and the predicate or keys of rows; and what a request's digest covers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.head import Context
from dolmen.commit.uploads import keys_in
from dolmen.errors import InputError, RowError, SchemaError
from dolmen.format.column_history import with_field_ids
from dolmen.format.del_object import Keys
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Schema, own_names
from dolmen.format.types import to_mask
from dolmen.predicate.ast import Predicate, columns, to_json
from dolmen.predicate.evaluate import matches
from dolmen.predicate.parse import Parameters, Where, with_parameters
from dolmen.rows.scan.conditions import SqlCondition, read_condition, read_predicate
from dolmen.rows.scan.load_deletes import ErasedRowsFilter
from dolmen.rows.write.casts import lossless_cast, lossy_cast
from dolmen.rows.write.conform import conform
from dolmen.rows.write.row_digest import RowDigest
from dolmen.rows.write.row_input import RowStream, as_batches, frame_cast
from dolmen.transactions.keys import take_keys

NewColumns: TypeAlias = Literal["refuse", "add", "ignore"]


def divide_columns(name: str, entry: TableEntry, data: Any, new_columns: NewColumns) -> tuple[Any, Sequence[pa.Field]]:
    """Rows, and those of their columns that will be added to a table. Other columns that it lacks are left out.

    Columns of the type null are never added. Raises SchemaError if the table has none of the columns.
    """
    if arguments.one_of("new_columns", new_columns, get_args(NewColumns)) == "refuse":
        return data, ()
    rows = RowStream.of(data, entry.schema.arrow)
    columns = rows.reader.schema
    names, known = own_names(columns.names, entry.schema), set(entry.schema.arrow.names)
    extra = [field for field, own in zip(columns, names, strict=True) if own not in known]
    if len(extra) == len(columns):
        raise SchemaError(f"none of the columns {', '.join(columns.names)} is one of table {name!r}")
    added = [field for field in extra if new_columns == "add" and not pa.types.is_null(field.type)]
    return rows.without([field.name for field in extra if field not in added]), added


def rows_of(
    schema: Schema,
    data: Any,
    digest: RowDigest | None = None,
    erased: ErasedRowsFilter | None = None,
    *,
    cast: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Fits rows to columns, batch by batch; passes them through ``digest``, and then through ``erased``.

    ``cast``: with a loss where necessary (see ``lossy_cast``).
    """
    source = as_batches(data, schema.arrow)
    batches = conform(source, schema, lossy_cast if cast else frame_cast(data) or lossless_cast)
    batches = digest.passing(batches, source.schema) if digest else batches
    return erased.filter(batches) if erased else batches


def only_matching(batches: Iterable[pa.RecordBatch], predicate: Predicate, schema: Schema) -> Iterator[pa.RecordBatch]:
    """Passes rows on. Raises RowError for one for which the predicate is not TRUE."""
    fields, row = [schema.by_id[id_] for id_ in columns(predicate)], 1
    for batch in batches:
        values = {field.id: with_field_ids(batch[field.name], field.arrow_type) for field in fields}
        mask = to_mask(matches(predicate, values, batch.num_rows))
        if not mask.all():
            raise RowError(
                "it is not one of the rows that are overwritten (where): check=False adds it anyway",
                row=row + int(np.argmin(mask)),
            )
        row += batch.num_rows
        yield batch


def choose_rows(
    verb: str, entry: TableEntry, where: Where, parameters: Parameters | None, keys: Any, on: str | Sequence[str] | None
) -> tuple[Where, Keys | None]:
    """Checks the arguments that choose the rows to delete; returns a predicate, or None and keys."""
    where = with_parameters(where, parameters)
    if (keys is None) == (where is None):
        raise InputError(f"{verb} takes either a predicate or keys=...")
    if on is not None and keys is None:
        raise InputError("on=... is for keys: a predicate names its own columns")
    return where, None if keys is None else take_keys(entry, keys, on)


def rows_content(entry: TableEntry, where: Where, keys: Keys | None) -> list[Any]:
    """The content of a delete for its request's digest: equal for predicates that parse alike, at any ``now()``."""
    if keys is not None:
        return keys_content(entry, keys)
    condition = read_condition("" if where is None else where, entry.schema, now_us=0)
    if isinstance(condition, SqlCondition):
        return ["sql", condition.text]
    compared = keys_in(condition, entry.schema)
    return ["where", to_json(condition).decode()] if compared is None else keys_content(entry, compared)


def keys_content(entry: TableEntry, keys: Keys) -> list[Any]:
    """The content of keys for a request's digest. Their order and repetitions make no difference."""
    names = entry.schema.names_of(map(int, keys.column_names))
    digest = RowDigest(pa.schema([(name, kind) for name, kind in zip(names, keys.schema.types, strict=True)]))
    for batch in keys.to_batches():
        digest.update(batch)
    return ["keys", digest.hexdigest()]


def parse_where(context: Context, entry: TableEntry, where: Where) -> Predicate:
    """Parses and binds a predicate. Raises PredicateError. To delete everything, the predicate must be ``"TRUE"``."""
    return read_predicate(not_empty(where), entry.schema, now_us=context.store.clock.current_us)


def not_empty(where: Where) -> Where:
    if where is None or (isinstance(where, (str, Mapping)) and not where):
        raise InputError('no rows to delete were named: give a predicate or keys; "TRUE" deletes all rows')
    return where
