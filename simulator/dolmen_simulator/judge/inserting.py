"""Inserts in the model: rows whose keys the table has not; and when an insert may be refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dolmen.errors import DuplicateKeyError
from dolmen_simulator.judge.model import AppendEffect, Effect, Row, State, rows_of
from dolmen_simulator.judge.never import Never, ViolationError


@dataclass(frozen=True)
class InsertEffect:
    """Adds rows, provided that the version that they land on has none of their keys."""

    table: str
    rows: tuple[Row, ...]
    request: str | None = None

    def apply(self, state: State, seen: State, version: int) -> None:
        """See Effect. The keys are compared with the committed ones, so that a double is found."""
        if taken := self.keys() & {row.k for row in rows_of(state, self.table).rows}:
            raise ViolationError(
                Never.DOUBLED, f"version {version} inserts keys {sorted(taken)} that {self.table!r} has already"
            )
        AppendEffect(self.table, self.rows).apply(state, seen, version)

    def keys(self) -> set[int]:
        """The keys of its rows."""
        return {row.k for row in self.rows}


def is_duplicate(error: DuplicateKeyError, effects: Iterable[Effect], states: Iterable[State]) -> bool:
    """Whether an insert was refused with the keys that one of these versions had, or that two of its rows have.

    Args:
        effects: those of the call.
        states: the versions on which it may have been tried.
    """
    told = {key for (key,) in error.keys}
    effects = list(effects)
    if error.in_rows:
        return any(
            isinstance(effect, InsertEffect)
            and told == {k for k, n in Counter(r.k for r in effect.rows).items() if n > 1}
            for effect in effects
        )
    return any(told == _taken(effects, dict(state)) for state in states)


def _taken(effects: Iterable[Effect], state: State) -> set[int]:
    """The keys for which the first insert is refused in a version."""
    for effect in effects:
        if effect.table not in state:
            return set()
        if isinstance(effect, InsertEffect):
            taken = effect.keys() & {row.k for row in state[effect.table].rows}
            if taken:
                return taken
        effect.apply(state, dict(state), 0)
    return set()
