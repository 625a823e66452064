"""Records what a delete names: in a ``.del`` object, and in the tombstone that refers to it. Reads no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from dolmen.errors import LimitError
from dolmen.format.entries import KeysTombstone, Tombstone, WhereTombstone
from dolmen.format.keys import Keys, add_keys, keys_from_arrow
from dolmen.format.manifest import PREDICATE_EXPRESSIONS
from dolmen.format.schema import Schema
from dolmen.format.tombstone_object import TombstoneObject
from dolmen.format.values import to_array
from dolmen.predicate import Predicate, as_keys, check_evaluates, columns, to_builtins, to_json, uses_calls

MAX_KEYS = 1_000_000
MAX_REQUEST_BYTES = 64 * 1024 * 1024
INLINE_BYTES = 1024
"""The longest predicate, as JSON, that is also in the manifest entry."""

Target: TypeAlias = Callable[[], TombstoneObject]
"""Opens the ``.del`` object that is written to; called only if there is something to write."""


def record_predicate(target: Target, schema: Schema, predicate: Predicate) -> Tombstone | None:
    """The tombstone of a predicate: of keys if it only compares key columns. None if no row can match it.

    Args:
        schema: the columns that it is bound to.

    Raises:
        LimitError: the predicate is too long, or has too many keys.
    """
    keys = keys_in(predicate, schema)
    if keys is not None:
        return record_keys(target, keys)
    check_evaluates(predicate)
    body = to_json(predicate)
    if len(body) > MAX_REQUEST_BYTES:
        raise LimitError(f"a predicate of {len(body):,} bytes: at most {MAX_REQUEST_BYTES:,} are allowed")
    ids = tuple(sorted(columns(predicate)))
    blob = target().add_where(body, ids)
    inline = to_builtins(predicate) if len(body) <= INLINE_BYTES else None
    needs = (PREDICATE_EXPRESSIONS,) if uses_calls(predicate) else ()
    return WhereTombstone(ids, blob, inline, needs=needs)


def record_keys(target: Target, keys: Keys) -> KeysTombstone | None:
    """The tombstone of keys; None without any. Raises LimitError."""
    if keys.num_rows == 0:  # also for equalities with NULL, which equals nothing
        return None
    if keys.num_rows > MAX_KEYS:
        raise LimitError(f"{keys.num_rows:,} keys in one request: at most {MAX_KEYS:,} are allowed, so split it")
    return add_keys(target(), keys)


def keys_in(predicate: Predicate, schema: Schema) -> Keys | None:
    """The keys in a predicate that only compares key columns; None for other predicates."""
    tuples = as_keys(predicate)
    if tuples is None:
        return None
    ids, values = tuples
    fields = tuple(schema.by_id[id_] for id_ in ids)
    by_column = zip(*values, strict=True) if values else [()] * len(fields)
    arrays = [to_array(list(column), field.arrow_type) for field, column in zip(fields, by_column, strict=True)]
    return keys_from_arrow(pa.table(arrays, names=[field.name for field in fields]), fields)
