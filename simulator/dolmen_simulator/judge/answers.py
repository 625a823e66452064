"""Decides whether an error has a reason: an event during the call that justifies it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    DuplicateKeyError,
    RowError,
    SchemaError,
    StaleWriterError,
    StoreUnavailableError,
    TableExistsError,
    TableNotFoundError,
    TagExistsError,
    TagNotFoundError,
    VersionExpiredError,
)
from dolmen_simulator.judge.altering import may_be_refused
from dolmen_simulator.judge.chronicle import Chronicle
from dolmen_simulator.judge.following import names_asked
from dolmen_simulator.judge.ingesting import IngestEffect
from dolmen_simulator.judge.inserting import is_duplicate
from dolmen_simulator.judge.model import ChangesEffect, Operation, OperationRun
from dolmen_simulator.judge.past import CursorEffect, RestoreEffect, TagEffect
from dolmen_simulator.judge.retention import JITTER_US


def has_reason(chronicle: Chronicle, operation: Operation, run: OperationRun | None, error: BaseException) -> bool:
    """Whether an event during an operation that committed nothing justifies its error."""
    during = range(operation.began, chronicle.version + 1)
    # A call may use the version that its process knew, and gets an error that says to open the table again.
    known = range(operation.known, chronicle.version + 1)
    asked = names_asked(run.effects if run else ())
    names = asked.needed.union(operation.about) if run else frozenset[str]()
    match error:
        case TableNotFoundError():
            restores = any(isinstance(effect, RestoreEffect) for effect in run.effects) if run else False
            gone = any(name not in chronicle.states[version] for version in during for name in names)
            return gone or (restores and _names_moved(chronicle, during, names))  # to one that did not exist then
        case TableExistsError():
            taken = any(name in chronicle.states[version] for version in during for name in asked.free)
            changes = any(isinstance(effect, ChangesEffect) for effect in run.effects) if run else False
            # The first file of changes creates a memory, whose name may be taken although no user's table has it.
            return (
                taken
                or (changes and _names_moved(chronicle, known, names))
                or _changes_created_memory(chronicle, during, names)
            )
        case TagExistsError() | TagNotFoundError():
            missing = isinstance(error, TagNotFoundError)
            named = {effect.tag for effect in run.effects if isinstance(effect, TagEffect)} if run else set[str]()
            cursors = (
                {effect.cursor for effect in run.effects if isinstance(effect, CursorEffect)} if run else set[str]()
            )
            return any((tag in chronicle.tags[version]) != missing for version in known for tag in named) or any(
                cursor not in chronicle.cursors[version] for version in known for cursor in cursors
            )
        case AppliedIdError():
            return any(chronicle.digests.get(id_, digest) != digest for id_, digest in operation.digests.items())
        case DuplicateKeyError():
            # One statement is tried on the newest version; a transaction sees its base, which its process knew.
            tried = known if run and len(run.effects) > 1 else during
            return is_duplicate(error, run.effects if run else (), [chronicle.states[version] for version in tried])
        case RowError() | SchemaError():
            states = [chronicle.states[version] for version in known]
            return may_be_refused(run.effects if run else (), states, for_rows=isinstance(error, RowError))
        case ConflictError():
            overtaken = (operation.reads or operation.upkeep) and chronicle.version > min(
                operation.began, operation.known
            )
            moved = _names_moved(chronicle, known, names) or _columns_changed(chronicle, known, names)
            changing = (
                any(isinstance(effect, IngestEffect) and effect.extra for effect in run.effects) if run else False
            )
            return not operation.replays and (overtaken or moved or changing)
        case StaleWriterError():
            newest = chronicle.retention.newest
            assert newest is not None
            revoked = any(at >= operation.began for at in chronicle.retention.revoked.values())
            return revoked or newest.manifest.orphan_cutoff + JITTER_US >= operation.began_us
        case VersionExpiredError():
            return operation.reading < chronicle.retention.horizon
        case StoreUnavailableError():
            return operation.faults > 0
    return False


def _names_moved(chronicle: Chronicle, versions: Iterable[int], names: Collection[str]) -> bool:
    """Whether one of the names moved to another table, or one of the tables was renamed."""
    states = [chronicle.states[version] for version in versions]
    tables = {state[name].identity for state in states for name in names if name in state}
    called = {
        (name, rows.identity)
        for state in states
        for name, rows in state.items()
        if name in names or rows.identity in tables
    }
    return len(called) > min(len(tables), len({name for name, _ in called}))


def _columns_changed(chronicle: Chronicle, versions: Iterable[int], names: Collection[str]) -> bool:
    """Whether the columns of one of the tables changed, or their types, or its check."""
    states = [chronicle.states[version] for version in versions]
    return any(
        len({(state[name].columns, state[name].shape, state[name].is_checked) for state in states if name in state}) > 1
        for name in names
    )


def _changes_created_memory(chronicle: Chronicle, versions: Iterable[int], names: Collection[str]) -> bool:
    """Whether another file of changes was applied to one of the tables, the first of which creates the memory."""
    runs = (chronicle.chain[version].run for version in versions)
    return any(
        isinstance(effect, ChangesEffect) and effect.table in names for run in runs if run for effect in run.effects
    )
