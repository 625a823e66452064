"""The groups of a compaction that are not done yet, here or on Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from dolmen.maintenance.compact.plan import PlannedGroup

_TRIES_ALONE = 2
"""How often a single file is tried. Whoever changed it that often is likely to go on."""


@dataclass(frozen=True)
class PendingGroup:
    """A group of files, or a part of one.

    Args:
        uuids: the uuids of the files.
        tries: how often it was tried before; counted for single files.
    """

    uuids: tuple[str, ...]
    tries: int = 0


class PendingGroups:
    """The queue of groups. Groups whose files were changed meanwhile come back in halves.

    So a file that others change again and again costs the rewriting of ever fewer others.
    """

    def __init__(self, groups: Iterable[PlannedGroup]) -> None:
        self._turns = deque(PendingGroup(tuple(file.uuid for file in group.inputs)) for group in groups)

    def __bool__(self) -> bool:
        """Whether any group is left."""
        return bool(self._turns)

    def take(self) -> PendingGroup:
        """Removes and returns the next group."""
        return self._turns.popleft()

    def retry_in_halves(self, turn: PendingGroup) -> None:
        """Puts a group back that could not be committed: in two halves, or alone as often as ``_TRIES_ALONE``
        allows."""
        uuids = turn.uuids
        if len(uuids) > 1:
            middle = len(uuids) // 2
            self._turns += [PendingGroup(uuids[:middle]), PendingGroup(uuids[middle:])]
        elif turn.tries + 1 < _TRIES_ALONE:
            self._turns.append(PendingGroup(uuids, turn.tries + 1))
