"""Judges the deeds that a version tells: no deed too many, none too few, and none that holds a value of a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dolmen.format.layout import memory_name
from dolmen_simulator.judge.effects import Ingest, UpsertOn
from dolmen_simulator.judge.following import tables_of
from dolmen_simulator.judge.model import (
    Add,
    Append,
    AppendIfAbsent,
    Changes,
    Create,
    Delete,
    DeletePositions,
    Drop,
    Effect,
    Expire,
    Overwrite,
    Rename,
    Row,
    Run,
    Settings,
    State,
    Upsert,
)
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.stored import Did, View

_MOST = 4
"""So many deeds a version tells of, and so many names a deed."""

_UPKEEP = {"resolve": {"resolve"}, "compact": {"compact"}, "merge": {"merge"}, "expire": {"delete", "set"}}
"""What background work may say, by its operation; all other of it says nothing."""

_ROWS = {"append", "upsert", "delete", "overwrite"}
"""Deeds that change rows."""


def check_deeds(view: View, run: Run, states: Sequence[State], applied: Collection[str]) -> None:
    """Raises ViolationError unless a version tells truly, in words, what it did.

    Args:
        states: up to this version's.
        applied: ids of the requests that had been applied before it.
    """
    manifest, before, after = view.manifest, states[-2], states[-1]
    where = f"version {manifest.version} by {run.operation}"
    if manifest.message != run.operation.message:
        raise ViolationError(Never.MISREPORTED, f"{where} has the message {manifest.message!r}")
    if len(manifest.did) > _MOST or (manifest.did_more and len(manifest.did) < _MOST):
        raise ViolationError(Never.MISREPORTED, f"{where} tells of {len(manifest.did)} deeds, and {manifest.did_more}")
    effects = [effect for effect in run.effects if effect.request is None or effect.request not in applied]
    due = [each for effect in effects for each in _deeds(effect)]
    may = {*due, *((did.table, did.what) for did in manifest.did if did.what in _UPKEEP.get(manifest.operation, ()))}
    passing = {did.table for did in manifest.did} - before.keys() - after.keys() - {effect.table for effect in effects}
    for did in manifest.did:
        if (did.table, did.what) not in may and did.table not in passing:
            raise ViolationError(Never.MISREPORTED, f"{where} tells of {did}, which it did not do")
        if strange := set(did.over) - _names(did, effects):
            raise ViolationError(Never.MISREPORTED, f"{where} tells of {did}, in which nobody knows {sorted(strange)}")
    if not manifest.did_more:
        _check_told(where, manifest.did, effects, before, after)


def requests_of(applied: dict[str, int], version: int) -> set[str]:
    """Ids of the requests that a version applied."""
    return {id_ for id_, by in applied.items() if by == version}


def _check_told(where: str, told: Sequence[Did], effects: Sequence[Effect], before: State, after: State) -> None:
    pairs = {(did.table, did.what) for did in told}
    for effect in effects:
        if isinstance(effect, (Create, Drop, Rename, Settings)) and not set(_deeds(effect)) <= pairs:
            raise ViolationError(Never.MISREPORTED, f"{where} does not tell of {effect}")
    was = {rows.identity: set(rows.rows) for rows in before.values()}
    changed = {rows.identity for rows in after.values() if was.get(rows.identity, set(rows.rows)) != set(rows.rows)}
    tables = zip(effects, tables_of(before, effects), strict=True)
    told_of = {table for effect, table in tables if any((effect.table, what) in pairs for what in _ROWS)}
    if left := changed - told_of:
        raise ViolationError(Never.MISREPORTED, f"{where} changed rows of {left}, and tells only of {sorted(pairs)}")


def _deeds(effect: Effect) -> Iterator[tuple[str, str]]:
    """What a version may say of a statement: a table and a word."""
    memory = memory_name(effect.table)
    match effect:
        case Rename():
            words = ["rename"]
        case Create():
            words = ["create"]
        case Drop():
            words = ["drop"]
        case Settings():
            words = ["set"]
        case Append() | AppendIfAbsent():
            words = ["append"]
        case Upsert() | Add() | UpsertOn():
            words = ["upsert"]
        case Delete() | DeletePositions() | Expire():
            words = ["delete"]
        case Overwrite():
            words = ["overwrite"]
        case Ingest():
            words = ["append", "upsert"]
        case Changes():
            words = ["append", "upsert", "delete"]
            yield from ((memory, word) for word in ("create", *words))
        case _:
            raise NotImplementedError(f"{effect} has no deed")
    yield from ((effect.table, word) for word in words)


def _names(did: Did, effects: Sequence[Effect]) -> set[str]:
    """What may stand in a deed."""
    if did.what == "rename":
        return {effect.to for effect in effects if isinstance(effect, Rename) and effect.table == did.table}
    if did.what == "set":
        said = (effect.changes for effect in effects if isinstance(effect, Settings) and effect.table == did.table)
        return {"ttl_expired"}.union(*said)
    return set(Row._fields) if did.what in _ROWS else set()
