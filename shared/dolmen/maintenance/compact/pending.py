"""The groups of a compaction that are still to be done, wherever it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from dolmen.maintenance.compact.plan import PlannedGroup

_TRIES_ALONE = 2
"""So often a single file is tried: who changes it so often will go on doing it."""


@dataclass(frozen=True)
class PendingGroup:
    """A group, or what is left of one, whose turn has come.

    Args:
        uuids: of its files.
        tries: how often a single file was tried before.
    """

    uuids: tuple[str, ...]
    tries: int = 0


class PendingGroups:
    """Takes groups one by one; those that others have changed meanwhile come back in halves.

    So a file that others keep changing costs the rewriting of ever fewer others.
    """

    def __init__(self, groups: Iterable[PlannedGroup]) -> None:
        self._turns = deque(PendingGroup(tuple(file.uuid for file in group.inputs)) for group in groups)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._turns)

    def take(self) -> PendingGroup:
        """The next group."""
        return self._turns.popleft()

    def retry_in_halves(self, turn: PendingGroup) -> None:
        """Takes a group back that could not be committed."""
        uuids = turn.uuids
        if len(uuids) > 1:
            middle = len(uuids) // 2
            self._turns += [PendingGroup(uuids[:middle]), PendingGroup(uuids[middle:])]
        elif turn.tries + 1 < _TRIES_ALONE:
            self._turns.append(PendingGroup(uuids, turn.tries + 1))
