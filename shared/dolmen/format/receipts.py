"""Receipts of erasures: ``receipt/<id>.json`` says which objects of a database still have erased rows.

Receipts are never deleted, and only grow: each statement in one stays true. The newest manifest has the progress that
they lack yet.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal, TypeAlias

import msgspec

from dolmen.errors import CorruptionError
from dolmen.format.layout import build_decoders, decode_sealed, seal


def erasure_id(request: str) -> str:
    """The id of the erasure that a request asks for: the same whenever the request is repeated."""
    return hashlib.sha256(b"erasure\0" + request.encode()).hexdigest()[:32]


State: TypeAlias = Literal["hidden", "rewritten", "gone"]
"""In this order: no version shows the rows; no file of the newest version has them; no object of the database does."""
MOST_OUTSIDE = 100_000  # the most objects outside the database that a receipt counts at one URL
RECEIPT_PREFIX = "receipt/"
_KEY = re.compile(r"receipt/([0-9a-f]{32})\.json")


class ErasedFrom(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table of an erasure: its name when the receipt was written ("" if it had been dropped), and what was named."""

    uuid: str
    name: str = ""
    columns: tuple[str, ...] = ()  # names of the columns that the erasure named
    keys: int = 0  # number of keys; 0 for a predicate


class ErasedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A data file that had rows of an erasure."""

    path: str
    # how many, deleted ones included; None if all rows of the file were deleted: then they are not counted
    rows: int | None = None
    absent_at: int = 0  # when collection found that the object is deleted, in microseconds; 0 = not yet
    # uuids of tables that still have the file at the end, because the erasure does not reach them: those from which one
    # of its tables was cloned
    shared: tuple[str, ...] = ()


class Remains(msgspec.Struct, frozen=True, omit_defaults=True):
    """Older versions of objects that the bucket itself keeps; the oldest was last modified at ``oldest_at``."""

    objects: int = 0
    bytes: int = 0
    oldest_at: int = 0


class Outside(msgspec.Struct, frozen=True, omit_defaults=True):
    """Objects outside the database, which may contain rows too: a person must look there.

    ``objects``: how many were older than the erasure's removal from the manifest; at most ``MOST_OUTSIDE`` are counted.
    None if they could not be listed.
    """

    url: str
    objects: int | None = None
    bytes: int = 0
    oldest_at: int = 0


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The receipt of one erasure: see "Receipts" in docs/format.md."""

    format_version: int
    id: str
    ts: int = 0
    version: int = 0  # the first version that does not show the rows
    requested_at: int = 0
    due_at: int = 0
    tables: tuple[ErasedFrom, ...] = ()
    files: tuple[ErasedFile, ...] = ()
    tags: tuple[str, ...] = ()
    rewritten_version: int = 0  # the first version without a file that contains the rows
    rewritten_at: int = 0
    forgotten_version: int = 0  # the first version that no longer lists the erasure
    gone_version: int = 0  # the newest version when no object contained the rows any more
    gone_at: int = 0
    # the older versions of objects that the bucket itself kept then; None if that is not known
    noncurrent: Remains | None = None
    outside: tuple[Outside, ...] = ()

    @property
    def state(self) -> State:
        return "gone" if self.gone_at else "rewritten" if self.rewritten_at else "hidden"

    def encode(self) -> bytes:
        return seal(msgspec.json.encode(self))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Receipt:
        """Reads a receipt. Raises as ``decode_sealed`` does, and CorruptionError for another erasure's."""
        receipt = decode_sealed(body, key, cls, "not a receipt")
        if receipt_key(receipt.id) != key:
            raise CorruptionError(key, f"it is the receipt of erasure {receipt.id}")
        return receipt


def receipt_key(id_: str) -> str:
    return f"{RECEIPT_PREFIX}{id_}.json"


def parse_receipt_key(key: str) -> str | None:
    """The id of the erasure whose receipt has this key; None for other keys."""
    match = _KEY.fullmatch(key)
    return match[1] if match else None


build_decoders(Receipt)
