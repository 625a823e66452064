"""Erasures, as the newest manifest lists them, and their receipts. Pure.

An erasure is a delete that also reaches older versions, late drops and the disk. Its receipt, ``receipt/<id>.json``,
says what became of it, without any value of a row. Receipts are never deleted, and only grow: each fact in one was true
when it was written, and stays true. The newest manifest has the facts that are not in it yet.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal, TypeAlias

import msgspec

from dolmen.errors import CorruptionError
from dolmen.format.layout import check_format_version, prepare, seal, unseal


def erasure_id(request: str) -> str:
    """The id of the erasure that a request asks for: the same whenever the request is repeated."""
    return hashlib.sha256(b"erasure\0" + request.encode()).hexdigest()[:32]


State: TypeAlias = Literal["hidden", "rewritten", "gone"]
"""In this order: no version shows the rows; no file of the newest version has them; no object of the database does."""
MOST_OUTSIDE = 100_000
"""The most objects of a place outside the database that a receipt counts."""
RECEIPT_PREFIX = "receipt/"
_KEY = re.compile(r"receipt/([0-9a-f]{32})\.json")


class ErasedFrom(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table of an erasure.

    Args:
        uuid: the table.
        name: its name when the receipt was written; "" if it had been dropped.
        columns: names of the columns that the erasure named.
        keys: number of keys; 0 for a predicate.
    """

    uuid: str
    name: str = ""
    columns: tuple[str, ...] = ()
    keys: int = 0


class HeldFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A data file that held rows of an erasure.

    Args:
        path: its key.
        rows: how many, deleted ones included; None if all rows of the file were deleted, because they are not counted
            then.
        absent_at: when collection saw that the object was not there any more, in microseconds; 0 = it has not.
        shared: uuids of tables that still had the file when all else was gone, and that the erasure does not reach:
            those from which one of its tables was cloned.
    """

    path: str
    rows: int | None = None
    absent_at: int = 0
    shared: tuple[str, ...] = ()


class Remains(msgspec.Struct, frozen=True, omit_defaults=True):
    """Older versions of objects, which the bucket itself keeps, at one time.

    Args:
        objects: how many there were.
        bytes: their size.
        oldest_at: when the oldest was last modified, in microseconds; 0 if there were none.
    """

    objects: int = 0
    bytes: int = 0
    oldest_at: int = 0


class Outside(msgspec.Struct, frozen=True, omit_defaults=True):
    """Objects at a place outside the database, which may contain rows too: a person must look there.

    Args:
        url: the place.
        objects: how many had been there since before the erasure left the manifest; at most ``MOST_OUTSIDE`` are
            counted. None if the place could not be listed.
        bytes: their size.
        oldest_at: when the oldest was last modified, in microseconds; 0 if there were none.
    """

    url: str
    objects: int | None = None
    bytes: int = 0
    oldest_at: int = 0


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The receipt of one erasure.

    Args:
        id: the erasure's id.
        ts: its timestamp.
        version: the first version that does not show the rows.
        requested_at: when it was asked for, in microseconds.
        due_at: when its rows had to be gone.
        tables: what it named.
        files: the files that held its rows.
        tags: tags that were removed because their versions held its rows.
        rewritten_version: the first version of which no file held the rows any more.
        rewritten_at: when collection found that.
        forgotten_version: the first version whose manifest did not list the erasure any more.
        gone_version: the version that collection looked at when no object held the rows any more.
        gone_at: when that was.
        noncurrent: the older versions of objects that the bucket itself kept then; None if that is not known.
        outside: what lay then in places that the collection was told of.
    """

    format_version: int
    id: str
    ts: int = 0
    version: int = 0
    requested_at: int = 0
    due_at: int = 0
    tables: tuple[ErasedFrom, ...] = ()
    files: tuple[HeldFile, ...] = ()
    tags: tuple[str, ...] = ()
    rewritten_version: int = 0
    rewritten_at: int = 0
    forgotten_version: int = 0
    gone_version: int = 0
    gone_at: int = 0
    noncurrent: Remains | None = None
    outside: tuple[Outside, ...] = ()

    @property
    def state(self) -> State:
        """The last state that it tells of."""
        return "gone" if self.gone_at else "rewritten" if self.rewritten_at else "hidden"

    def encode(self) -> bytes:
        """The object's bytes: sealed JSON."""
        return seal(msgspec.json.encode(self))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Receipt:
        """Reads a receipt.

        Raises:
            CorruptionError: it is damaged, or another erasure's.
            UnsupportedFormatError: a newer dolmen wrote it.
        """
        document = unseal(body, key)
        check_format_version(document, key)
        try:
            receipt = msgspec.json.decode(document, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptionError(key, f"not a receipt: {error}") from error
        if receipt_key(receipt.id) != key:
            raise CorruptionError(key, f"it is the receipt of erasure {receipt.id}")
        return receipt


def receipt_key(id_: str) -> str:
    """``receipt/<id>.json``."""
    return f"{RECEIPT_PREFIX}{id_}.json"


def parse_receipt_key(key: str) -> str | None:
    """The id of the erasure whose receipt has this key; None for other keys."""
    match = _KEY.fullmatch(key)
    return match[1] if match else None


prepare(Receipt)
