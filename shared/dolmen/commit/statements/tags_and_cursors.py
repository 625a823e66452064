"""Statements that name versions (tags), and that move the places of readers of changes (cursors)."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.commit.draft import Draft
from dolmen.errors import ConflictError, InputError, LimitError, TagExistsError, TagNotFoundError, VersionExpiredError
from dolmen.format.manifest import TAGS
from dolmen.format.pointer import Cursor, Tag

MAX_NAMES = 1_000
"""The most tags, and the most cursors, of a database: every manifest holds them all."""


@dataclass(frozen=True)
class PutTag:
    """Gives a name to a version.

    Args:
        move: whether the tag may name another version so far.
    """

    tag: str
    value: Tag
    move: bool = False
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Keeps the version.

        Raises:
            TagExistsError: the name is taken.
            VersionExpiredError: the version has expired, so that collection may have begun to delete its objects.
        """
        old = draft.tags.get(self.tag)
        if old is not None and not self.move:
            raise TagExistsError(f"tag {self.tag!r} names version {old.version}: move=True moves it")
        if old is None and len(draft.tags) >= MAX_NAMES:
            raise LimitError(f"there are {MAX_NAMES:,} tags, the most of a database: drop some")
        draft.check_kept(self.value.version)
        draft.require([TAGS])
        draft.put_tag(self.tag, self.value)


@dataclass(frozen=True)
class DropTag:
    """Takes a name from its version, which may expire from now on."""

    tag: str
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Removes the tag. Raises TagNotFoundError if there is none."""
        if self.tag not in draft.tags:
            raise TagNotFoundError(f"no tag {self.tag!r}; tags: {', '.join(sorted(draft.tags)) or 'none'}")
        draft.put_tag(self.tag, None)


@dataclass(frozen=True)
class PutCursor:
    """Makes a cursor, moves it, or removes it.

    Args:
        seen: the cursor as its reader saw it; None if there was none.
        value: what it becomes; None removes it.
    """

    cursor: str
    seen: Cursor | None
    value: Cursor | None
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        """Replaces the cursor.

        Raises:
            ConflictError: another reader moved it.
            VersionExpiredError: the new place has expired, so that changes after it may not be known any more.
        """
        there = draft.cursors.get(self.cursor)
        if there != self.seen:
            told = "was removed" if there is None else f"is at version {there.version}"
            raise ConflictError(f"cursor {self.cursor!r} {told}, since another reader uses it: open it again")
        others = {name: each for name, each in draft.cursors.items() if name != self.cursor}
        if self.value is None:
            draft.cursors = others
            return
        if there is None and len(others) >= MAX_NAMES:
            raise LimitError(f"there are {MAX_NAMES:,} cursors, the most of a database: remove some")
        if self.value.version < draft.base.horizon:
            raise VersionExpiredError(
                f"version {self.value.version} has expired: the oldest kept is {draft.base.horizon}"
            )
        if self.value.version > draft.base.version:
            raise InputError(f"cursor {self.cursor!r}: no version {self.value.version} yet")
        draft.require([TAGS])
        draft.cursors = {**others, self.cursor: self.value}
