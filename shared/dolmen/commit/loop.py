"""The commit loop. The pointer is the only truth: nothing is committed until it says so."""

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
"""A pointer PUT is signed within this time of the ``Date`` it is stamped with: 4 minutes, so that with S3's 15 for
old signatures no version is ever dated more than 20 minutes after it could still land (docs/protocol.md)."""
_RESENDS = 8
_BACKOFF_CAP_SECONDS = 5.0


@dataclass(frozen=True)
class Committed:
    """A commit's outcome.

    Args:
        manifest: the version that the change became; None if there was nothing left to apply.
        already: versions by id of the requests that had been applied before and were left out.
        attempts: how often the pointer was tried.
    """

    manifest: Manifest | None
    already: dict[str, int]
    attempts: int


def commit(head: Head, change: Change, uploads: PendingUploads) -> Committed:
    """Makes ``change`` the next version, whatever others commit meanwhile.

    Raises:
        ConflictError, TableExistsError, ...: what the change's statements raise on the newest version.
        InputError: the version would be one that nobody can read.
        StoreUnavailableError: the store can't be reached; nothing was committed.
        UnknownOutcomeError: no answer could be had about an attempt that was sent.
    """
    runtime, already, tries = head.runtime, dict[str, int](), 0
    # A base of long ago would lose its first attempt, and its successor may have expired before readback looks for it.
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
                raise  # else the base has expired while the change was fitted to it
            base, fresh = newest, True  # a cached base proves nothing
            continue
        uploads.upload(manifest.key, body)
        if runtime.monotonic() - stamped < STAMP_SECONDS:
            tries += 1
            if (etag := _swing(head, base, manifest, stamped + STAMP_SECONDS)) is not None:
                head.advance(Base(manifest, etag))
                return Committed(manifest, already, tries)
            # Lost to another writer: wait in proportion to what an attempt costs, so that N writers don't make N^2.
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
    """Commits background work; see ``commit``. Makes no version when others have left it nothing to do.

    Args:
        operation: a word for ``history``.
        first_upload_us: the server's clock before the first of its objects was uploaded; None if none was.
        txid: the intent that they were uploaded under.
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
    """Puts the pointer; its new ETag if that committed, None if it is certain that another commit took the place.

    An ETag of "" means committed, and moved on since.
    """
    pointer = Pointer(manifest.version, manifest.key, manifest.commit_id).encode()
    unknown, refusal = "", "the store answers that it changed, and shows that it did not"
    for _ in attempts(head.runtime, _RESENDS):
        if head.runtime.monotonic() >= deadline:
            break
        try:
            outcome = head.store.put(POINTER, pointer, if_match=base.etag)
        except StoreUnavailableError as error:  # nothing landed by this put, and perhaps by an earlier one
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
