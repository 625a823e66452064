"""A change: the statements of one transaction as data, which can be applied to any base version."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dolmen import arguments
from dolmen.commit.applied import find_applied
from dolmen.commit.deeds import deed_of, summarize
from dolmen.commit.draft import Draft
from dolmen.commit.statements.base import Statement, is_prepared
from dolmen.commit.statements.names import NamesClaim
from dolmen.commit.statements.rows import Claim, DeletePositions, Write
from dolmen.commit.uploads import PendingUploads
from dolmen.errors import AppliedIdError, ConflictError, StaleWriterError
from dolmen.format.manifest import AppliedId, Deed, Manifest
from dolmen.segments.reader import SegmentReader


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
    claims: tuple[Claim | NamesClaim, ...] = ()
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
                    f"id {entry.id!r} was applied by version {entry.version} with other content: use a new id"
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

    def with_first_upload(self, now_us: int) -> Change:
        """The same change with the time of its first upload, which is now; unchanged if there was an upload before."""
        return self if self.first_upload_us is not None else replace(self, first_upload_us=now_us)

    def prepare(self, base: Manifest, uploads: PendingUploads) -> Change:
        """This change, fitted to ``base``. May read and may add uploads; most statements need neither."""
        if not any(is_prepared(statement) for statement in self.statements):
            return self
        draft = Draft(base, uploads.segments)  # each statement must see the effects of those before it
        statements: list[Statement] = []
        for index, statement in enumerate(self.statements):
            prepared = statement.prepare(draft, uploads) if is_prepared(statement) else statement
            prepared.apply(draft, base.commit_ts + 1 + index)
            statements.append(prepared)
        return replace(self, statements=tuple(statements))

    def apply(self, base: Manifest, now_us: int, attempt: str, segments: SegmentReader) -> Manifest | None:
        """The manifest of the next version; None if background work has nothing left to do. Pure.

        Args:
            now_us: the server's clock, in microseconds.
            attempt: the name of this attempt.
            segments: holds what ``prepare`` has read.

        Raises:
            StaleWriterError: the change's objects may have been collected.
            ConflictError: the base contradicts what the change was made on.
        """
        self._check_fence(base)
        draft = Draft(base, segments)
        for claim in self.claims:
            claim.check(draft)
        deeds: list[Deed] = []
        first_ts = max(base.commit_ts, now_us) + 1
        for index, statement in enumerate(self.statements):
            statement.apply(draft, first_ts + index)
            if (deed := deed_of(statement, draft)) is not None:
                deeds.append(deed)
        if self.upkeep and not draft.has_changes:
            return None
        did, did_more = summarize(deeds)
        return draft.finish(
            attempt=attempt,
            commit_id=self.commit_id,
            operation=self.operation,
            commit_ts=first_ts + max(len(self.statements) - 1, 0),  # of the last statement
            created_at=max(base.created_at, now_us),
            did=did,
            did_more=did_more,
            message=self.message,
            applied=tuple(AppliedId(id_, digest, draft.version) for id_, digest in self.applied.items()),
        )

    def _check_fence(self, base: Manifest) -> None:
        if self.txid is not None and self.txid in base.revoked_intents:
            raise StaleWriterError(
                f"intent {self.txid} was revoked after an hour without a heartbeat: start the job anew"
            )
        if self.first_upload_us is not None and self.first_upload_us <= base.orphan_cutoff:
            raise StaleWriterError("uncommitted objects of that age may have been collected: write them again")


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
