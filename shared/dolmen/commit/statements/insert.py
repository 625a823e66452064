"""The statement that adds rows whose keys the table must not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from dolmen.commit.draft import Draft
from dolmen.commit.statements.rows import Write
from dolmen.commit.uploads import PendingUploads

KeysCheck: TypeAlias = Callable[[Draft, PendingUploads, int], None]
"""Reads the table as a draft has it. Raises DuplicateKeyError if a row of a later commit timestamp than the given one
has one of the keys, and is visible."""


@dataclass(frozen=True)
class InsertRows:
    """Adds rows, provided that no visible row of the version that it lands on has one of their keys.

    Each attempt to commit it reads only what was committed since the last one: a row that was not visible then, and is
    now, has a later commit timestamp, unless the table was overwritten or restored, which changes its epoch.

    Args:
        write: the rows.
        check: compares their keys with the table's.
        checked: the table's epoch, and ``commit_ts`` of the version, in which they were compared last; None before.
            What others do in the same version, or this transaction before it, is compared in each attempt.
        checked_on: the key of that version.
    """

    write: Write
    check: KeysCheck
    checked: tuple[int, int] | None = None
    checked_on: str = ""

    @property
    def name(self) -> str:
        """The table's name."""
        return self.write.name

    @property
    def uuid(self) -> str:
        """The table's uuid."""
        return self.write.uuid

    @property
    def request(self) -> str | None:
        """The request that it belongs to."""
        return self.write.request

    def prepare(self, draft: Draft, uploads: PendingUploads) -> InsertRows:
        """Compares the keys with those of rows that are new in this draft. Raises DuplicateKeyError."""
        committed = draft.committed
        unchanged = draft.tables.get(self.name) is committed.tables.get(self.name)
        if self.checked_on == committed.key and unchanged:
            return self
        epoch = draft.table(self.name, self.uuid).epoch
        known = self.checked is not None and self.checked[0] == epoch
        self.check(draft, uploads, self.checked[1] if self.checked and known else -1)
        return replace(self, checked=(epoch, committed.commit_ts), checked_on=committed.key)

    def apply(self, draft: Draft, ts: int) -> None:
        """Appends the rows."""
        assert self.checked_on == draft.committed.key, "keys were compared with those of another version"
        self.write.apply(draft, ts)
