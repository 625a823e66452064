"""Finds the table of each statement of a run, by the table's identity and not by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from dolmen_simulator.judge.model import (
    CreateEffect,
    DeletePositionsEffect,
    DropEffect,
    Effect,
    Identity,
    Operation,
    OperationRun,
    RenameEffect,
    State,
)
from dolmen_simulator.judge.past import CloneEffect


class Names(NamedTuple):
    """The names that a run's statements require of the version they are applied to.

    Args:
        needed: names that must be in use.
        free: names that must not be in use.
    """

    needed: frozenset[str]
    free: frozenset[str]


def names_asked(effects: Iterable[Effect]) -> Names:
    """The names that statements require, without those that earlier statements of the run gave or took."""
    needed, free, decided = set[str](), set[str](), {""}
    for effect in effects:
        if effect.table not in decided:
            (free if isinstance(effect, (CreateEffect, CloneEffect)) else needed).add(effect.table)
        decided.add(effect.table)
        if isinstance(effect, RenameEffect):
            if effect.to not in decided:
                free.add(effect.to)
            decided.add(effect.to)
    return Names(frozenset(needed), frozenset(free))


def tables_of(state: State, effects: Iterable[Effect]) -> list[Identity | None]:
    """The table of each statement in this version; None if it does not exist, or is new."""
    called: dict[str, Identity | None] = {name: rows.identity for name, rows in state.items()}
    found = []
    for effect in effects:
        found.append(called.get(effect.table))
        if isinstance(effect, (CreateEffect, CloneEffect)):
            called[effect.table] = None
        elif isinstance(effect, DropEffect):
            called.pop(effect.table, None)
        elif isinstance(effect, RenameEffect):
            called[effect.to] = called.pop(effect.table, None)
    return found


def find_strayed_effect(
    states: list[State], operation: Operation, run: OperationRun, applied: Collection[str]
) -> Effect | None:
    """Finds the first statement whose table in the newest version differs from that in every possible base version.

    Args:
        states: states of all versions.
        operation: the operation.
        run: its run.
        applied: ids applied before, whose statements have no effect.
    """
    assert run.first_put is not None
    effects = [effect for effect in run.effects if effect.request not in applied or effect.request is None]
    now = tables_of(states[-1], effects)
    bases = range(operation.known, run.first_put + 1) if run.base is None else (run.base,)
    wrong: list[Effect] = []
    for base in bases:
        then = tables_of(states[base], effects)
        differs = (
            effect
            for effect, here, there in zip(effects, now, then, strict=True)
            if here is not None
            and here != there
            and not isinstance(effect, (CreateEffect, CloneEffect, DeletePositionsEffect))
        )  # a delete by position may have found no rows
        first = next(differs, None)
        if first is None:
            return None
        wrong.append(first)
    return wrong[-1] if wrong else None
