"""A change: the statements of one transaction as data, which can be applied to any base version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dolmen.base import arguments
from dolmen.commit.applied import find_applied
from dolmen.commit.deeds import deed_of, summarize
from dolmen.commit.draft import Draft
from dolmen.commit.statements.base import Statement, is_prepared
from dolmen.commit.statements.names import ColumnsClaim, NamesClaim
from dolmen.commit.statements.rows import Claim, DeletePositions, Write
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.reader import SegmentReader
from dolmen.errors import AppliedIdError, ConflictError, StaleWriterError
from dolmen.format.manifest import AppliedId, Counts, Deed, Manifest

GROUP = "group"
"""The operation of a version with changes of different operations."""


@dataclass(frozen=True)
class Change:
    """The content of one commit.

    Args:
        commit_id: names the change; the same in all attempts.
        operation: a word for ``history``.
        statements: in order; statement i gets the i-th timestamp after the base's.
        applied: the digest of each request's content, by request id. Each request is applied only once, ever.
        claims: reads that the commit's validity depends on.
        first_upload_us: the server's clock before its first object was uploaded; None before any upload.
        txid: the intent under which its objects were uploaded, if any.
        message: the author's message for ``history``.
        excluded: ids of requests that exclude this change: it is refused if a version has applied one of them.
        upkeep: whether this is background work, which makes no version when others have left nothing to do.
    """

    commit_id: str
    operation: str
    statements: tuple[Statement, ...]
    applied: dict[str, str] = field(default_factory=dict)
    claims: tuple[Claim | ColumnsClaim | NamesClaim, ...] = ()
    first_upload_us: int | None = None
    txid: str | None = None
    upkeep: bool = False
    message: str = ""
    excluded: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        arguments.operation(self.operation)
        arguments.message(self.message)
        for id_, digest in self.applied.items():
            arguments.request_id(id_)
            arguments.text("digest", digest)

    def already_applied(self, base: Manifest, segments: SegmentReader) -> dict[str, int]:
        """Returns the versions that applied requests of this change before, by request id.

        Segments are read only where they may hold an id.

        Raises:
            AppliedIdError: an id was applied with another digest, so another request has the same id. An empty digest
                matches any other.
            ConflictError: an excluded id was applied.
        """
        found = find_applied(base, self.applied.keys() | self.excluded, segments)
        for id_ in sorted(self.excluded & found.keys()):
            raise ConflictError(
                f"request {id_!r}, which excludes this one, was applied by version {found[id_].version}"
            )
        known = {id_: entry for id_, entry in found.items() if id_ in self.applied}
        for entry in known.values():
            digest = self.applied[entry.id]
            if entry.digest and digest and entry.digest != digest:
                raise AppliedIdError(
                    f"id {entry.id!r} was applied by version {entry.version} with other content, or by other columns: "
                    "use a new id for another request; the same one is applied"
                )
        return {entry.id: entry.version for entry in known.values()}

    def without(self, ids: set[str]) -> Change:
        """The same change without the requests ``ids`` and their statements.

        Raises:
            ConflictError: a delete by position, or a claim, is based on rows as these requests left them, so that it
                would differ without them; or the requests' rows share a file with those of others.
        """
        if not ids:
            return self
        gone = set[str]()  # uuids of tables changed by a removed request; names may change in between
        taken_out = [_belongs_to(statement, ids) for statement in self.statements]
        for statement, is_out in zip(self.statements, taken_out, strict=True):
            if is_out:
                gone.add(statement.uuid)
            elif isinstance(statement, DeletePositions) and statement.uuid in gone:
                raise ConflictError(
                    f"table {statement.name!r}: rows were looked up after a request applied meanwhile: repeat"
                )
        left = tuple(one for one, is_out in zip(self.statements, taken_out, strict=True) if not is_out)
        for claim in self.claims if left else ():  # when nothing is left to commit, no claim can fail
            if claim.uuid in gone:
                raise ConflictError(
                    f"table {claim.name!r} was read beside a request that was applied meanwhile: repeat"
                )
        return replace(
            self,
            statements=left,
            applied={id_: digest for id_, digest in self.applied.items() if id_ not in ids},
        )

    @property
    def is_prepared(self) -> bool:
        """Whether ``prepare`` does anything, such as reading rows."""
        return any(is_prepared(statement) for statement in self.statements)

    def with_first_upload(self, now_us: int) -> Change:
        """The same change with the time of its first upload, which is now; unchanged if there was an upload before."""
        return self if self.first_upload_us is not None else replace(self, first_upload_us=now_us)

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Change:
        """This change, fitted to the base of ``draft``. May read and may add uploads; most statements need neither."""
        if not self.is_prepared:
            return self
        draft, base = draft.copy(), draft.base  # each statement must see the effects of those before it
        statements: list[Statement] = []
        for index, statement in enumerate(self.statements):
            prepared = statement.prepare(draft, uploads) if is_prepared(statement) else statement
            prepared.apply(draft, base.commit_ts + 1 + index)
            statements.append(prepared)
        return replace(self, statements=tuple(statements))

    def apply(self, draft: Draft, first_ts: int) -> Effects:
        """Adds the effects of this change to a draft. Pure.

        Args:
            first_ts: the timestamp of its first statement.

        Raises:
            StaleWriterError: the change's objects may have been collected.
            ConflictError: the base contradicts what the change was made on.
        """
        self._check_fence(draft.base)
        for claim in self.claims:
            claim.check(draft)
        deeds: list[Deed] = []
        for index, statement in enumerate(self.statements):
            statement.apply(draft, first_ts + index)
            if (deed := deed_of(statement, draft)) is not None:
                deeds.append(deed)
        applied = tuple(AppliedId(id_, digest, draft.version) for id_, digest in self.applied.items())
        return Effects(first_ts + max(len(self.statements) - 1, 0), draft.counts, tuple(deeds), applied)

    def _check_fence(self, base: Manifest) -> None:
        if self.txid is not None and self.txid in base.revoked_intents:
            raise StaleWriterError(
                f"intent {self.txid} was revoked after an hour without a heartbeat: start the job anew"
            )
        if self.first_upload_us is not None and self.first_upload_us <= base.orphan_cutoff:
            raise StaleWriterError("uncommitted objects of that age may have been collected: write them again")


@dataclass(frozen=True)
class Effects:
    """The effects of one change on a version, which may have those of others beside them.

    Args:
        commit_ts: the timestamp of its last statement.
        counts, deeds: its own, without those of others.
        applied: the requests that it applied.
    """

    commit_ts: int
    counts: Counts
    deeds: tuple[Deed, ...]
    applied: tuple[AppliedId, ...]


def make_version(
    changes: Sequence[Change], base: Manifest, now_us: int, attempt: str, commit_id: str, segments: SegmentReader
) -> tuple[Manifest | None, list[Effects]]:
    """Makes the manifest of the next version, with one change or several. Pure.

    Args:
        changes: in order; each meets a base with the effects of those before it.
        now_us: the server's clock, in microseconds.
        attempt: the name of this attempt.
        commit_id: names what becomes the version.
        segments: holds what ``prepare`` has read.

    Returns:
        The manifest, None if background work has nothing left to do; and what each change did.

    Raises:
        StaleWriterError, ConflictError: see ``Change.apply``.
    """
    draft, effects = Draft(base, segments), list[Effects]()
    first_ts = max(base.commit_ts, now_us) + 1
    for change in changes:
        if effects:
            draft = draft.following(effects[-1].commit_ts, effects[-1].applied)
        effects.append(change.apply(draft, first_ts))
        first_ts = effects[-1].commit_ts + 1
    if changes[0].upkeep and not draft.has_changes:
        return None, effects
    did, did_more = summarize(deed for each in effects for deed in each.deeds)
    draft.counts = sum((each.counts for each in effects), Counts())
    words = {change.operation for change in changes}
    manifest = draft.finish(
        attempt=attempt,
        commit_id=commit_id,
        operation=words.pop() if len(words) == 1 else GROUP,
        commit_ts=effects[-1].commit_ts,
        created_at=max(base.created_at, now_us),
        did=did,
        did_more=did_more,
        message=join_messages(changes),
        applied=tuple(id_ for each in effects for id_ in each.applied),
    )
    return manifest, effects


def join_messages(changes: Sequence[Change]) -> str:
    """The message of a version with these changes: their different messages."""
    return "; ".join(dict.fromkeys(change.message for change in changes if change.message))


def _belongs_to(statement: Statement, ids: set[str]) -> bool:
    """Whether a statement belongs to these requests. Raises ConflictError if only a part of it does."""
    if not isinstance(statement, Write) or not statement.requests:
        return statement.request in ids
    applied = statement.requests & ids
    if applied and applied != statement.requests:
        raise ConflictError(
            f"table {statement.name!r}: {len(applied)} of {len(statement.requests)} requests, {min(applied)!r} first, "
            "were applied meanwhile, and their rows stand in one file with those of the others: write these alone"
        )
    return bool(applied)
