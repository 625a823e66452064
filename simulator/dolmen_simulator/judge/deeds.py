"""Checks the deeds of a version: none is wrong, none is missing, and none holds a value of a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dolmen.format.layout import memory_name
from dolmen_simulator.judge.altering import CHECK, AlterEffect, CheckEffect
from dolmen_simulator.judge.effects import MergeEffect, UpdateEffect, UpsertOnEffect
from dolmen_simulator.judge.erasing import EraseEffect, ForgetEffect
from dolmen_simulator.judge.following import tables_of
from dolmen_simulator.judge.ingesting import IngestEffect
from dolmen_simulator.judge.inserting import InsertEffect
from dolmen_simulator.judge.model import (
    SCHEMA,
    AddEffect,
    AppendEffect,
    AppendIfAbsentEffect,
    ChangesEffect,
    CreateEffect,
    DeleteEffect,
    DeletePositionsEffect,
    DropEffect,
    Effect,
    ExpireEffect,
    OperationRun,
    OverwriteEffect,
    RenameEffect,
    SettingsEffect,
    State,
    UpsertEffect,
)
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.past import CloneEffect, CursorEffect, RestoreAllEffect, RestoreEffect, TagEffect
from dolmen_simulator.judge.stored import StoredCommit, StoredDeed, StoredVersion

_MAX_DEEDS = 4
"""Maximum number of deeds of a version, and of names in a deed."""

_GROUP = "group"
"""The operation of a version with the changes of several calls, if these are different."""

_UPKEEP = {
    "resolve": {"resolve"},
    "compact": {"compact"},
    "merge": {"merge"},
    "expire": {"delete", "set"},
    "index": {"index"},
}
"""Allowed deeds of background work, by operation; other background work has none."""

_ROWS = {"append", "insert", "upsert", "delete", "overwrite", "restore", "erase"}
"""Deeds that change rows."""

_TOLD = (
    AlterEffect,
    CheckEffect,
    CreateEffect,
    DropEffect,
    RenameEffect,
    SettingsEffect,
    RestoreEffect,
    RestoreAllEffect,
    CloneEffect,
    TagEffect,
)
"""Effects that every version tells of, however little they change."""


def check_deeds(view: StoredVersion, run: OperationRun, states: Sequence[State], applied: Collection[str]) -> None:
    """Raises ViolationError unless the deeds of a version are right.

    Args:
        view: the version.
        run: the run that committed it.
        states: states of all versions up to this one.
        applied: applied ids before it.
    """
    manifest, before, after = view.manifest, states[-2], states[-1]
    where = f"version {manifest.version} by {run.operation}"
    if manifest.message != run.operation.message:
        raise ViolationError(Never.MISREPORTED, f"{where} has the message {manifest.message!r}")
    if len(manifest.did) > _MAX_DEEDS or (manifest.did_more and len(manifest.did) < _MAX_DEEDS):
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
        _check_completeness(where, manifest.did, effects, before, after)


def check_own_deeds(told: StoredCommit, run: OperationRun, whole: StoredCommit) -> None:
    """Raises ViolationError unless a commit of one of several calls tells of that call alone.

    Args:
        told: what the call was told.
        run: the call's run.
        whole: the record of the version.
    """
    where, due = f"{run.operation} in version {whole.version}", {each for one in run.effects for each in _deeds(one)}
    if (told.version, told.commit_id, told.created_at) != (whole.version, whole.commit_id, whole.created_at):
        raise ViolationError(Never.MISREPORTED, f"{where} was acknowledged as {told}; it is {whole}")
    if told.message != run.operation.message or whole.operation not in (told.operation, _GROUP):
        raise ViolationError(Never.MISREPORTED, f"{where} was acknowledged as {told}")
    if strange := [did for did in told.did if (did.table, did.what) not in due]:
        raise ViolationError(Never.MISREPORTED, f"{where} is told of {strange}, which it did not do")


def requests_of(applied: dict[str, int], version: int) -> set[str]:
    """The ids that a version applied."""
    return {id_ for id_, by in applied.items() if by == version}


def _check_completeness(
    where: str, deeds: Sequence[StoredDeed], effects: Sequence[Effect], before: State, after: State
) -> None:
    pairs = {(did.table, did.what) for did in deeds}
    for effect in effects:
        if isinstance(effect, _TOLD) and not set(_deeds(effect)) <= pairs:
            raise ViolationError(Never.MISREPORTED, f"{where} does not tell of {effect}")
    was = {rows.identity: set(rows.rows) for rows in before.values()}
    changed = {rows.identity for rows in after.values() if was.get(rows.identity, set(rows.rows)) != set(rows.rows)}
    tables = zip(effects, tables_of(before, effects), strict=True)
    recorded = {table for effect, table in tables if any((effect.table, what) in pairs for what in _ROWS)}
    for effect in effects:
        if isinstance(effect, EraseEffect | ForgetEffect) and set(_deeds(effect)) <= pairs:
            reach = effect.reach(before)
            recorded.update(rows.identity for rows in before.values() if reach.concerns(rows))
    if ("", "restore") in pairs:
        return
    if left := changed - recorded:
        raise ViolationError(Never.MISREPORTED, f"{where} changed rows of {left}, and tells only of {sorted(pairs)}")


def _deeds(effect: Effect) -> Iterator[tuple[str, str]]:
    """Yields the deeds that a version may record for a statement: a table and a word."""
    memory = memory_name(effect.table)
    match effect:
        case RenameEffect():
            words = ["rename"]
        case AlterEffect() | CheckEffect():
            words = ["alter"]
        case CreateEffect():
            words = ["create"]
        case DropEffect():
            words = ["drop"]
        case SettingsEffect():
            words = ["set"]
        case AppendEffect() | AppendIfAbsentEffect():
            words = ["append"]
        case InsertEffect():
            words = ["insert"]
        case UpsertEffect() | AddEffect() | UpsertOnEffect():
            words = ["upsert"]
        case DeleteEffect() | DeletePositionsEffect() | ExpireEffect():
            words = ["delete"]
        case EraseEffect():
            words = ["erase"]
        case ForgetEffect():
            words = ["forget"]
        case UpdateEffect() | MergeEffect():
            words = ["delete", "append"]
        case OverwriteEffect():
            words = ["overwrite"]
        case CursorEffect():
            words = ["cursor"]
        case RestoreEffect() | RestoreAllEffect():
            words = ["restore"]
        case CloneEffect():
            words = ["clone"]
        case TagEffect(then=then):
            words = ["drop tag" if then is None else "tag"]
        case IngestEffect():
            words = ["append", "upsert", *(["alter"] if effect.extra else []), *(["create"] if effect.creates else [])]
        case ChangesEffect():
            words = ["append", "upsert", "delete"]
            yield from ((memory, word) for word in ("create", *words))
        case _:
            raise NotImplementedError(f"{effect} has no deed")
    yield from ((effect.table, word) for word in words)


def _names(did: StoredDeed, effects: Sequence[Effect]) -> set[str]:
    """The names that a deed may hold."""
    if did.what == "rename":
        return {effect.to for effect in effects if isinstance(effect, RenameEffect) and effect.table == did.table}
    if did.what == "alter":
        own = [effect for effect in effects if effect.table == did.table]
        altered = {name for effect in own if isinstance(effect, AlterEffect) for name in effect.names}
        altered |= {CHECK for effect in own if isinstance(effect, CheckEffect)}
        return altered | {each.extra.name for each in own if isinstance(each, IngestEffect) and each.extra}
    if did.what == "set":
        names = (
            effect.changes for effect in effects if isinstance(effect, SettingsEffect) and effect.table == did.table
        )
        return {"ttl_expired"}.union(*names)
    if did.what in ("tag", "drop tag"):
        return {effect.tag for effect in effects if isinstance(effect, TagEffect)} | _versions(effects)
    if did.what == "cursor":
        return {effect.cursor for effect in effects if isinstance(effect, CursorEffect)}
    if did.what in ("restore", "clone"):
        return _versions(effects)
    return set(SCHEMA.names) if did.what in _ROWS else set()


def _versions(effects: Sequence[Effect]) -> set[str]:
    named = (RestoreEffect, RestoreAllEffect, CloneEffect, TagEffect)
    return {f"version {effect.then}" for effect in effects if isinstance(effect, named)}
