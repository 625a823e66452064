"""Columns whose values are in the names of a file's folders, as in ``orders/day=2026-11-27/x.csv``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from dolmen.adopt.hive_folders import folder_values, infer_type, parse_value
from dolmen.errors import SchemaError
from dolmen.format.schema import own_names
from dolmen.format.types import to_json, to_plain
from dolmen.ingest.formats.source_file import SourceFile


def read_with_folders(
    source: SourceFile, schema: pa.Schema, read: Callable[[SourceFile, pa.Schema], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Reads a file, with the columns that its options name from its folders. Raises SchemaError.

    A file may have such a column, too, if it has the same value, or NULL, in all rows. One of delimited text without
    a header has the other columns alone.
    """
    values = _folder_scalars(source, schema)
    options = source.options
    is_positional = source.format.traits.delimiter is not None and not options.dialect.header
    if is_positional:
        own = pa.schema([field for field in schema if field.name not in values])
    else:
        own = pa.schema([field.with_nullable(True) if field.name in values else field for field in schema])
        defaults = {name: to_json(to_plain(pa.array([value]))[0]) for name, value in values.items()}
        options = replace(options, defaults={**options.defaults, **defaults})
    for batch in read(replace(source, options=replace(options, folders=())), own):
        arrays = []
        for field in schema:
            value = values.get(field.name)
            if value is None:
                arrays.append(batch[field.name])
                continue
            if not is_positional and not _agrees(batch[field.name], value):
                raise SchemaError(
                    f"{source.name}: column {field.name!r} has another value in the file than {value} in its folder"
                )
            arrays.append(pa.repeat(value, batch.num_rows))
        yield pa.record_batch(arrays, schema)


def _folder_scalars(source: SourceFile, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """The values of the columns, by name in the schema."""
    try:
        texts = folder_values(source.name.split("/")[:-1])
        wanted = own_names(source.options.folders, schema)
        found = dict(zip(own_names(texts, schema), texts.values(), strict=True))
        if unknown := sorted(found.keys() - set(wanted)):
            raise SchemaError(f"no column {unknown[0]!r} is read from folders: they are {', '.join(wanted)}")
        scalars = {}
        for name in wanted:
            if name not in schema.names:
                continue  # only some columns are read
            if name not in found:
                raise SchemaError(f"no folder has a value of column {name!r}, as in {name}=...")
            try:
                scalars[name] = parse_value(found[name], schema.field(name).type)
            except SchemaError as error:
                raise SchemaError(f"column {name!r}: {error}") from None
            if found[name] is None and not schema.field(name).nullable:
                raise SchemaError(f"column {name!r} is NULL in a folder, and it cannot be NULL")
    except SchemaError as error:
        raise SchemaError(f"{source.name}: {error}") from None
    return scalars


def _agrees(column: pa.Array, value: pa.Scalar) -> bool:
    """True if all values are this one, or NULL."""
    if not value.is_valid:
        return bool(column.null_count == len(column))
    return pc.all(pc.equal(column, value), min_count=0).as_py() is not False


def folder_fields(columns: Sequence[str], files: Iterable[str]) -> list[pa.Field]:
    """These columns of a new table, with types that fit the folders of all files."""
    values = [folder_values(name.split("/")[:-1]) for name in files]
    return [pa.field(name, infer_type(each.get(name) for each in values)) for name in columns]
