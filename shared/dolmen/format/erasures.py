"""Erasures: deletes that reach older versions, late drops and the disk too, as the newest manifest lists them."""

from __future__ import annotations

import hashlib

import msgspec

from dolmen.format.entries import Tombstone
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
        subject: the values, in JSON form, of whoever is forgotten in all tables with a subject; empty if rows of single
            tables are erased.
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
        """Whether it holds for rows that were dropped at a time by the server's clock; None = nobody knows when."""
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
