"""Which table each statement of a run is about: tables are followed by what they are, whatever they are called."""

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


class Names(NamedTuple):
    """What a run's statements ask of the version they are applied to.

    Args:
        needed: names that tables must have.
        free: names that no table may have.
    """

    needed: frozenset[str]
    free: frozenset[str]


def names_asked(effects: Iterable[Effect]) -> Names:
    """The names that statements ask for, less those that statements before them have given or taken away."""
    needed, free, decided = set[str](), set[str](), {""}
    for effect in effects:
        if effect.table not in decided:
            (free if isinstance(effect, CreateEffect) else needed).add(effect.table)
        decided.add(effect.table)
        if isinstance(effect, RenameEffect):
            if effect.to not in decided:
                free.add(effect.to)
            decided.add(effect.to)
    return Names(frozenset(needed), frozenset(free))


def tables_of(state: State, effects: Iterable[Effect]) -> list[Identity | None]:
    """Of each statement the table that it is about in this version; None for one that is not there, or is new."""
    called: dict[str, Identity | None] = {name: rows.identity for name, rows in state.items()}
    found = []
    for effect in effects:
        found.append(called.get(effect.table))
        if isinstance(effect, CreateEffect):
            called[effect.table] = None
        elif isinstance(effect, DropEffect):
            called.pop(effect.table, None)
        elif isinstance(effect, RenameEffect):
            called[effect.to] = called.pop(effect.table, None)
    return found


def find_strayed_effect(
    states: list[State], operation: Operation, run: OperationRun, applied: Collection[str]
) -> Effect | None:
    """The first statement that is about another table in the newest version than in any that it may have been made on.

    Args:
        applied: ids of requests that had been applied before: their statements do nothing.
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
            if here is not None and here != there and not isinstance(effect, (CreateEffect, DeletePositionsEffect))
        )  # positions may have found nothing to delete
        first = next(differs, None)
        if first is None:
            return None
        wrong.append(first)
    return wrong[-1] if wrong else None
