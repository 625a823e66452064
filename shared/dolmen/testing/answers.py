"""For which errors there is a reason: what must have happened meanwhile for a call to be told so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dolmen.errors import (
    AppliedIdError,
    ConflictError,
    StaleWriterError,
    StoreUnavailableError,
    TableExistsError,
    TableNotFoundError,
    VersionExpiredError,
)
from dolmen.testing.model import Operation, Run
from dolmen.testing.retention import JITTER_US

if TYPE_CHECKING:
    from dolmen.testing.ledger import Ledger


def justified(ledger: Ledger, operation: Operation, run: Run | None, error: BaseException) -> bool:
    """Whether something happened during an operation for which it may raise this, having committed nothing."""
    during = range(operation.began, ledger.version + 1)
    # A call may be made on the version that its process knew: it is told to open the table anew.
    known = range(operation.known, ledger.version + 1)
    names = {*operation.about, *(effect.table for effect in run.effects if run)} - {""} if run else set()
    match error:
        case TableNotFoundError():
            return any(name not in ledger.states[version] for version in during for name in names)
        case TableExistsError():
            return any(name in ledger.states[version] for version in during for name in names)
        case AppliedIdError():
            return any(ledger.digests.get(id_, digest) != digest for id_, digest in operation.digests.items())
        case ConflictError():
            creations = {
                (name, rows.epoch)
                for version in known
                for name, rows in ledger.states[version].items()
                if name in names
            }
            overtaken = (operation.reads or operation.upkeep) and ledger.version > min(operation.began, operation.known)
            return not operation.replays and (overtaken or len(creations) > len(names))
        case StaleWriterError():
            newest = ledger.retention.newest
            assert newest is not None
            revoked = any(at >= operation.began for at in ledger.retention.revoked.values())
            return revoked or newest.manifest.orphan_cutoff + JITTER_US >= operation.began_us
        case VersionExpiredError():
            return operation.reading < ledger.retention.horizon
        case StoreUnavailableError():
            return operation.faults > 0
    return False
