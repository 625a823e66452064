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
from dolmen.format.checksums import prepare, seal, unseal
from dolmen.format.entries import Tombstone
from dolmen.format.pointer import check_format_version
from dolmen.format.schema import Field
from dolmen.format.types import Json

CLOCK_STEP_US = 1_000_000
"""Servers tell the time in whole seconds: what was dropped within this time after a request may have been before it."""


class ErasedTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """The delete of an erasure in one table, and in all tables that were cloned from it.

    Args:
        uuid: the table.
        tombstone: names the rows.
        columns: the columns that the tombstone names, as the table had them.
    """

    uuid: str
    tombstone: Tombstone
    columns: tuple[Field, ...] = ()


class Erasure(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A delete whose rows no version shows any more, and which leave the disk.

    Args:
        id: 32 hexadecimal digits, which name its receipt.
        ts: its statement's timestamp. The tombstones of this timestamp are its own.
        version: the version that it made.
        requested_at: when it was asked for, in microseconds by the server's clock.
        due_at: when its rows must be gone from the disk.
        tables: the deletes, each of another table.
        subject: the values, in JSON form, of the subject that is forgotten in all tables with a subject; empty if rows
            of single tables are erased.
        request: id of the request; "" if it has none.
        digest: digest of the request's content; "" if it has none.
        has_own_deadline: whether it was asked for with a deadline, other than that of the database's settings.
        hurried_at: when it was asked for that its rows leave the disk as soon as they can; 0 = it was not.
    """

    id: str
    ts: int
    version: int
    requested_at: int
    due_at: int
    tables: tuple[ErasedTable, ...] = ()
    subject: tuple[Json, ...] = ()
    request: str = ""
    digest: str = ""
    has_own_deadline: bool = False
    hurried_at: int = 0

    def memory_us(self, most_us: int) -> int:
        """How long it is held against late drops, in microseconds. A deadline of its own ends that in time.

        Args:
            most_us: what the database's settings say.
        """
        if self.hurried_at:
            return 0
        return min(most_us, (self.due_at - self.requested_at) // 2) if self.has_own_deadline else most_us

    def is_later_than(self, dropped_us: int | None) -> bool:
        """Whether it holds for rows that were dropped at a time by the server's clock; None = unknown."""
        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US


class RewrittenErasures(msgspec.Struct, frozen=True):
    """A version from which on no file of any version holds rows of some erasures.

    Args:
        version: the first such version.
        through: of erasures with timestamps up to this.
    """

    version: int
    through: int


class LeavingErasures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Erasures that left the manifest's list in a version, and whose rows are not known to be gone from the disk.

    Args:
        version: the first version without them.
        ids: of the erasures.
        left_at: a time by the server's clock, in microseconds, after which no object is uploaded that holds their rows.
        expire_at: when all versions before ``version`` expire at the latest.
        due_at: when the first of them is due.
        requested_at: when the first of them was asked for.
    """

    version: int
    ids: tuple[str, ...]
    left_at: int = 0
    expire_at: int = 0
    due_at: int = 0
    requested_at: int = 0


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
