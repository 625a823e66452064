"""Reads and writes receipts. A receipt is replaced by compare-and-swap, so that facts of several writers all stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from dolmen.base.retry import RECEIPT, attempts
from dolmen.base.runtime import Runtime
from dolmen.commit.context import Context
from dolmen.errors import CorruptionError, ObjectNotFoundError, StoreUnavailableError
from dolmen.format.erasures import Erasure
from dolmen.format.manifest import Manifest
from dolmen.format.pointer import FORMAT_VERSION
from dolmen.format.receipts import HeldFile, Receipt, receipt_key, receipt_of
from dolmen.maintenance.erasures.progress import ErasureWork
from dolmen.store.base import Object, ObjectStore, Stored


def load_receipt(store: ObjectStore, id_: str) -> Receipt | None:
    """The receipt of an erasure; None if nobody has written it yet.

    Raises:
        CorruptionError: it is damaged.
    """
    found = _get(store, receipt_key(id_))
    return Receipt.decode(found.body, receipt_key(id_)) if found else None


def update_receipt(
    store: ObjectStore, runtime: Runtime, id_: str, change: Callable[[Receipt | None], Receipt]
) -> Receipt:
    """Adds facts to a receipt, whoever else does so meanwhile. Nothing is written if it has them.

    Args:
        change: makes the new receipt of the present one, or of None. It may be called several times.

    Raises:
        CorruptionError: the receipt is damaged: it is left as it is.
        StoreUnavailableError: it cannot be known whether it was written.
    """
    key = receipt_key(id_)
    for _ in attempts(runtime, RECEIPT):
        found = _get(store, key)
        before = Receipt.decode(found.body, key) if found else None
        after = change(before)
        if after == before:
            return after
        outcome = store.put(key, after.encode(), if_match=found.etag if found else None)
        if isinstance(outcome, Stored):
            return after
    raise StoreUnavailableError(f"cannot write {key!r} in {store.url}: others write it, or no answer comes")


def note_held_files(
    store: ObjectStore,
    runtime: Runtime,
    manifest: Manifest,
    held: Sequence[tuple[Erasure, Mapping[str, int | None]]],
) -> None:
    """Notes which files hold rows of erasures. It must be called before these files may be replaced.

    Args:
        held: erasures, each with the number of its rows by path of the file; None if nobody counted.
    """

    def write(item: tuple[Erasure, Mapping[str, int | None]]) -> None:
        erasure, rows_of = item

        def with_files(receipt: Receipt | None) -> Receipt:
            receipt = receipt or receipt_of(erasure, manifest)
            if receipt.gone_at:
                return receipt
            known = {file.path for file in receipt.files}
            files = [HeldFile(path, rows) for path, rows in sorted(rows_of.items()) if path not in known]
            return msgspec.structs.replace(receipt, files=(*receipt.files, *files)) if files else receipt

        with suppress(CorruptionError):  # whoever closes the erasure reports it: deletes go on meanwhile
            update_receipt(store, runtime, erasure.id, with_files)

    for _ in runtime.map(write, held):
        pass


def describe_erasures(context: Context, manifest: Manifest, work: ErasureWork) -> None:
    """Writes the receipts of erasures that leave the manifest's list, which knows them best, and of lost tags.

    Args:
        work: what the next commit of collection does. It is done again until it lands, so all that is noted here
            becomes true.
    """
    notes = sorted(manifest.rewritten, key=lambda note: note.version)
    forgets = {erasure.id for erasure in work.forgets}

    def write(erasure: Erasure) -> None:
        note = next((note for note in notes if note.through >= erasure.ts), None)
        first = note.version if note else 0
        tags = tuple(name for name in work.tags if manifest.tags[name].version < first)

        def described(receipt: Receipt | None) -> Receipt:
            receipt = receipt or receipt_of(erasure, manifest)
            if receipt.gone_at:
                return receipt
            receipt = _with_tags(erasure.id, tags, receipt)
            if erasure.id not in forgets:
                return receipt
            rewritten_at = receipt.rewritten_at if receipt.rewritten_version == first else work.now_us
            return msgspec.structs.replace(receipt, rewritten_version=first, rewritten_at=rewritten_at)

        with suppress(CorruptionError):
            update_receipt(context.store, context.runtime, erasure.id, described)

    wanted = work.listed if work.tags else work.forgets
    for _ in context.runtime.map(write, wanted):
        pass
    for entry in manifest.leaving if work.tags else ():
        for id_ in entry.ids:
            tags = tuple(name for name in work.tags if manifest.tags[name].version < entry.version)
            with suppress(CorruptionError):
                update_receipt(context.store, context.runtime, id_, partial(_with_tags, id_, tags))


def _with_tags(id_: str, tags: Sequence[str], receipt: Receipt | None) -> Receipt:
    """A receipt that names these lost tags, too."""
    receipt = receipt or Receipt(format_version=FORMAT_VERSION, id=id_)
    return msgspec.structs.replace(receipt, tags=(*receipt.tags, *(name for name in tags if name not in receipt.tags)))


def _get(store: ObjectStore, key: str) -> Object | None:
    try:
        return store.get(key)
    except ObjectNotFoundError:
        return None
