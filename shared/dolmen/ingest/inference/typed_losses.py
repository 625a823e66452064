"""Lists the content of a typed file (Parquet, Arrow, Avro, ORC) that a table does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
from pyarrow import types as t

from dolmen.errors import short_repr
from dolmen.ingest.formats.typed_batches import MOST_DIGITS, ordinary_type

_MOST_NAMES_SHOWN = 8
_EXTENSION = b"ARROW:extension:name"
_OF_WRITERS = (b"ARROW:", b"PARQUET:", b"pandas", b"org.apache.", b"parquet.", b"writer.", b"iceberg.", b"avro.")
"""The first letters of keys of metadata that repeat the columns, or name the writer."""


def typed_losses(schema: pa.Schema, others: Iterable[tuple[str, str]] = ()) -> Iterator[str]:
    """Lists, in short sentences, what the columns of a table do not hold of columns like these.

    Values that do not fit are errors, not losses. ``others`` are paths of columns, with what else is lost.
    """
    about: dict[str, list[str]] = {}
    found = ((path, text) for path, field in _fields(schema, "") for text in _losses(field))
    for path, text in chain(found, others):
        about.setdefault(text, []).append(path)
    for text, paths in about.items():
        yield f"{'column' if len(paths) == 1 else 'columns'} {_listed(paths)}: {text}"
    keys = [key.decode(errors="replace") for key in schema.metadata or () if not key.startswith(_OF_WRITERS)]
    if keys:
        yield f"the file's metadata is not kept: {_listed(keys)}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES_SHOWN} more" if len(names) > _MOST_NAMES_SHOWN else ""
    return f"{', '.join(map(short_repr, names[:_MOST_NAMES_SHOWN]))}{more}"


def _fields(fields: Iterable[pa.Field], path: str) -> Iterator[tuple[str, pa.Field]]:
    """The fields and those inside them, each with its path; the items of lists have the path of their list."""
    for field in fields:
        own = f"{path}.{field.name}" if path else field.name
        yield own, field
        yield from _inner(_decoded(field.type), own)


def _inner(kind: pa.DataType, path: str) -> Iterator[tuple[str, pa.Field]]:
    if t.is_struct(kind):
        yield from _fields(kind, path)
    elif t.is_nested(kind) and not t.is_union(kind):
        for index in range(kind.num_fields):
            yield path, kind.field(index)
            yield from _inner(_decoded(kind.field(index).type), path)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if t.is_dictionary(kind) or t.is_run_end_encoded(kind) else kind


def _losses(field: pa.Field) -> Iterator[str]:
    kind, metadata = field.type, field.metadata or {}
    extension = kind.extension_name if isinstance(kind, pa.BaseExtensionType) else metadata.get(_EXTENSION)
    if extension is not None:
        name = extension.decode(errors="replace") if isinstance(extension, bytes) else extension
        yield f"the type {short_repr(name)} is not kept, only its values are"
    if t.is_dictionary(kind) and kind.ordered:
        yield "the order of its categories is not kept"
    kind = _decoded(kind)
    if t.is_null(kind):
        yield "it has no type: it is text"
    elif t.is_timestamp(kind) and kind.tz not in (None, "UTC", "+00:00"):
        yield f"the time zone {short_repr(kind.tz)} is not kept: its instants are in UTC"
    elif t.is_duration(kind):
        yield "durations are integers, in microseconds"
    elif t.is_decimal256(kind) and kind.precision > MOST_DIGITS:
        yield f"decimals have {MOST_DIGITS} digits"
    elif t.is_fixed_size_list(kind):
        yield f"that each list has {kind.list_size} items is not kept"
    elif t.is_struct(kind) and not kind.num_fields:
        yield "it has no fields: it is text"
    elif t.is_union(kind) and t.is_struct(ordinary_type(kind)):
        yield "its union is a struct with a member for each type"
    keys = [key.decode(errors="replace") for key in metadata if not key.startswith(_OF_WRITERS)]
    if keys:
        yield f"metadata is not kept: {_listed(keys)}"


def may_not_fit(kind: pa.DataType) -> bool:
    """Whether values of a type may have more digits than a column holds, at any depth."""
    kind = _decoded(kind)
    if t.is_nested(kind):
        return any(may_not_fit(kind.field(index).type) for index in range(kind.num_fields))
    return getattr(kind, "unit", "") == "ns" or (t.is_decimal256(kind) and kind.precision > MOST_DIGITS)
