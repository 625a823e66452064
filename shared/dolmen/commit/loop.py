"""The commit loop. A version is committed when the pointer names it, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dolmen.commit.change import Change
from dolmen.commit.head import Base, Head
from dolmen.commit.readback import Readback, read_back
from dolmen.commit.statements.base import Statement
from dolmen.commit.uploads import PendingUploads
from dolmen.errors import CorruptionError, Error, StoreUnavailableError, UnknownOutcomeError
from dolmen.format.layout import POINTER
from dolmen.format.manifest import Manifest
from dolmen.format.pointer import Pointer
from dolmen.store.backoff import attempts
from dolmen.store.base import Stored, Unknown

STAMP_SECONDS = 240.0
"""Seconds within which a pointer PUT must be signed after the ``Date`` that the version is stamped with. S3 accepts
a signature for 15 minutes, so no version can land more than 20 minutes after its date (docs/protocol.md)."""
_RESENDS = 8
_BACKOFF_CAP_SECONDS = 5.0


@dataclass(frozen=True)
class Committed:
    """The outcome of a commit.

    Args:
        manifest: the version that the change became; None if there was nothing left to apply.
        already: the versions of requests that were applied before and left out, by request id.
        attempts: how often the pointer was put.
    """

    manifest: Manifest | None
    already: dict[str, int]
    attempts: int


def commit(head: Head, change: Change, uploads: PendingUploads) -> Committed:
    """Makes ``change`` the next version, whatever others commit meanwhile.

    Raises:
        ConflictError, TableExistsError, ...: raised by the change's statements on the newest version.
        InputError: the version would not be readable.
        StoreUnavailableError: the store can't be reached; nothing was committed.
        UnknownOutcomeError: an attempt was sent, and its outcome cannot be found out.
    """
    runtime, already, tries = head.runtime, dict[str, int](), 0
    # An old base would lose its first attempt, and its successor may expire before readback looks for it.
    fresh = head.cached is None or max(head.age_seconds, head.store.clock.age_seconds) > STAMP_SECONDS
    base = head.refresh() if fresh or head.cached is None else head.cached
    if base.etag is None:
        base = head.check_new(base)
    while True:
        began = runtime.monotonic()
        try:
            already |= change.already_applied(base.manifest, head.segments)
            change = change.without(set(already))
            if already and not change.applied and not change.statements:
                return Committed(None, already, tries)
            change = change.prepare(base.manifest, uploads)
            if uploads.has_objects:
                change = change.with_first_upload(head.store.clock.now_us)
            now_us, stamped = head.server_now(base.manifest)
            manifest = change.apply(base.manifest, now_us, runtime.attempt(), head.segments)
            if manifest is None:
                return Committed(None, already, tries)
            manifest = uploads.root_budget.fit(manifest, base.manifest)
            manifest, body = manifest.as_read()
        except Error as error:
            gone = isinstance(error, CorruptionError) and error.is_missing
            if fresh and not gone:
                raise
            newest = head.refresh()
            if fresh and base.manifest.version >= newest.manifest.horizon:
                raise  # otherwise the base expired while the change was fitted to it
            base, fresh = newest, True  # an error on a cached base proves nothing
            continue
        uploads.upload(manifest.key, body)
        if runtime.monotonic() - stamped < STAMP_SECONDS:
            tries += 1
            if (etag := _swing(head, base, manifest, stamped + STAMP_SECONDS)) is not None:
                head.advance(Base(manifest, etag))
                return Committed(manifest, already, tries)
            # Another writer won: wait in proportion to an attempt's cost, so that N writers do not make N^2 attempts.
            spread = (runtime.monotonic() - began) * 2 ** min(tries, 6)
            runtime.sleep(runtime.random.uniform(0, min(_BACKOFF_CAP_SECONDS, spread)))
        base, fresh = head.refresh(), True


def submit(
    head: Head,
    operation: str,
    statements: Sequence[Statement],
    *,
    first_upload_us: int | None = None,
    txid: str | None = None,
    uploads: PendingUploads | None = None,
) -> Committed:
    """Commits background work (see ``commit``). Makes no version when others have left nothing to do.

    Args:
        operation: a word for ``history``.
        first_upload_us: the server's clock before its first object was uploaded; None without uploads.
        txid: the intent under which they were uploaded.
        uploads: holds ``.del`` objects that the statements refer to already.
    """
    change = Change(
        commit_id=head.runtime.uuid(),
        operation=operation,
        statements=tuple(statements),
        first_upload_us=first_upload_us,
        txid=txid,
        upkeep=True,
    )
    return commit(head, change, uploads or PendingUploads(head.store, head.runtime, head.segments))


def _swing(head: Head, base: Base, manifest: Manifest, deadline: float) -> str | None:
    """Puts the pointer. Returns its new ETag if that committed, None if another commit certainly took the place.

    The ETag is "" if the commit landed and the pointer has moved on since.
    """
    pointer = Pointer(manifest.version, manifest.key, manifest.commit_id).encode()
    unknown, refusal = "", "the store answers that it changed, and shows that it did not"
    for _ in attempts(head.runtime, _RESENDS):
        if head.runtime.monotonic() >= deadline:
            break
        try:
            outcome = head.store.put(POINTER, pointer, if_match=base.etag)
        except StoreUnavailableError as error:  # this put did not land, but an earlier one may have
            refusal = str(error)
            continue
        except Error as error:
            if unknown:
                raise UnknownOutcomeError(manifest.commit_id, f"{unknown}, then {error}") from error
            raise
        if isinstance(outcome, Stored):
            return outcome.etag
        verdict = read_back(head, base, manifest.commit_id)
        if verdict is Readback.OURS:
            return ""
        if verdict is Readback.THEIRS:
            return None
        if isinstance(outcome, Unknown):
            unknown = outcome.reason
        elif verdict is Readback.UNKNOWN:
            unknown = unknown or "the pointer was replaced, and by whom can't be read"
    if unknown:
        raise UnknownOutcomeError(manifest.commit_id, unknown)
    raise StoreUnavailableError(f"the pointer could not be replaced: {refusal}")
