"""The deletes of an erasure from the memories of deleted keys (CDC), as a commit records them."""

from __future__ import annotations

from functools import partial

from dolmen.commit.delete_records import record_keys, record_predicate
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.remembered_keys import RememberedKeys
from dolmen.format.entries import KeysTombstone, Tombstone
from dolmen.format.erasures import ErasedTable


def delete_remembered(memory: RememberedKeys, erased: ErasedTable, uploads: PendingUploads) -> ErasedTable:
    """The delete of the same keys from a memory."""
    target, tombstone = partial(uploads.shared_object, memory.name), erased.tombstone
    recorded: Tombstone | None
    if isinstance(tombstone, KeysTombstone):
        recorded = record_keys(target, memory.keys(tombstone, uploads.read_blob))
    else:
        recorded = record_predicate(target, memory.entry.schema, memory.predicate(tombstone, uploads.read_blob))
    assert recorded is not None, "it names rows, as the one that it is made of"
    return ErasedTable(memory.entry.uuid, recorded, memory.columns(erased))
