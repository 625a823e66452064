"""A change: the statements of one transaction as data, which can be applied to any base version.

Request ids that are applied exactly once: the digest of a request's content, and the search for applied ids.

Deeds: short descriptions of statements for the history. They contain no value of any row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

import pyarrow as pa

from dolmen.base import arguments
from dolmen.commit.draft import Draft
from dolmen.commit.statements.background import Compact, MergeSegments, PutIndexParts, Resolve, SetProperties
from dolmen.commit.statements.catalog import (
    AdoptTable,
    AlterTable,
    CreateTable,
    DropTable,
    DropTag,
    PutCursor,
    PutTag,
    RenameTable,
)
from dolmen.commit.statements.erasures import Erase
from dolmen.commit.statements.restore import CloneTable, Restore
from dolmen.commit.statements.row_changes import Claim, DeletePositions, InsertRows, Overwrite, Write
from dolmen.commit.statements.statement import ColumnsClaim, NamesClaim, Statement, is_prepared
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import AppliedIdError, ConflictError, InputError, StaleWriterError
from dolmen.format.manifest import AppliedId, Counts, Manifest, TableEffect


def find_applied(manifest: Manifest, ids: Collection[str], segments: SegmentReader) -> dict[str, AppliedId]:
    """Finds those of ``ids`` that a version has applied.

    A segment's Bloom filter rules an id out without a request. The segment's ids are fetched only on a hit.
    """
    if not ids:
        return {}
    known = {entry.id: entry for entry in manifest.applied if entry.id in ids}
    for segment in reversed(manifest.segments_of("applied")):
        if missing := [id_ for id_ in ids if id_ not in known]:
            known |= {entry.id: entry for entry in segments.applied(segment, missing)}
    return known


def applied_by(manifest: Manifest, versions: range, segments: SegmentReader) -> dict[int, list[str]]:
    """The request ids that some versions applied, by version. One GET for each segment that holds any of them."""
    found: dict[int, list[str]] = {}
    held = [s for s in manifest.segments_of("applied") if s.least < versions.stop and s.greatest >= versions.start]
    for entry in chain(chain.from_iterable(map(segments.applied, held)), manifest.applied):
        if entry.version in versions:
            found.setdefault(entry.version, []).append(entry.id)
    return found


def digest_of(request: Any) -> str:
    """The digest of a request's content: SHA-256 over canonical JSON (sorted keys, no spaces).

    Raises:
        InputError: the content can be read only once, or has no canonical form.
    """
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), default=_canonical)
    return hashlib.sha256(text.encode()).hexdigest()


def is_raw_digest(digest: str, request: Any) -> bool:
    """Whether a digest is that of a request's raw arguments. Digests of deletes were once made so."""
    try:
        return digest == digest_of(request)
    except (InputError, TypeError, ValueError):
        return False


def _canonical(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (range, tuple)):
        return list(value)
    if isinstance(value, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        return value.to_pylist()
    if isinstance(value, (date, time, Decimal, UUID)):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise InputError(f"keys are {type(value).__name__}: with a request id, give them as a list or an Arrow table")


MOST_EFFECTS = 4


MOST_NAMES = 4


MOST_CHARACTERS = 64
"""The most effects in a commit, names in an effect, and characters in a name. A manifest holds 64 commits, so further
effects and names are only counted, and a longer name is cut."""


def effect_of(statement: Statement, draft: Draft) -> TableEffect | None:
    """Describes a statement; None for background work of no interest. An effect on the database has the table "".

    Args:
        draft: the draft after the statement was applied.
    """
    match statement:
        case AdoptTable():
            return TableEffect(statement.name, "adopt")
        case CreateTable():
            return TableEffect(statement.name, "create")
        case DropTable():
            return TableEffect(statement.name, "drop")
        case RenameTable(to=to):
            return TableEffect(statement.name, "rename", (to,))
        case Overwrite():
            return TableEffect(statement.name, "overwrite")
        case Write(files=files, tombstones=tombstones) if files or tombstones:
            ids = dict.fromkeys(id_ for tombstone in tombstones for id_ in tombstone.columns)
            what = ("upsert" if files else "delete") if tombstones else "append"
            return TableEffect(statement.name, what, _names(statement, list(ids), draft))
        case InsertRows():
            return TableEffect(statement.name, "insert")
        case DeletePositions(vectors=vectors) if vectors:
            return TableEffect(statement.name, "delete", _names(statement, statement.columns, draft))
        case Erase(name=None):
            return TableEffect("", "forget")
        case Erase(tombstone=tombstone) if tombstone is not None:
            return TableEffect(statement.name or "", "erase", _names(statement, tombstone.columns, draft))
        case Restore():
            return TableEffect(statement.name or "", "restore", (f"version {statement.version}",))
        case CloneTable():
            return TableEffect(statement.name, "clone", (f"version {statement.version}",))
        case PutTag():
            return TableEffect("", "tag", (statement.tag, f"version {statement.value.version}"))
        case DropTag():
            return TableEffect("", "drop tag", (statement.tag,))
        case PutCursor():
            return TableEffect("", "cursor", (statement.cursor,))
        case AlterTable(changes=changes):
            return TableEffect(statement.name, "alter", tuple(name for change in changes for name in change.columns))
        case SetProperties():
            return TableEffect(statement.name or "", "set", tuple(statement.changes))
        case Resolve():
            return TableEffect(statement.name, "resolve")
        case Compact(fitting=fitting) if fitting:
            return TableEffect(statement.name, "compact")
        case MergeSegments():
            return TableEffect(statement.name or "", "merge")
        case PutIndexParts():
            return TableEffect(statement.name, "index")
    return None


def summarize(effects: Iterable[TableEffect]) -> tuple[tuple[TableEffect, ...], int]:
    """Returns at most ``MOST_EFFECTS`` different effects for the manifest, and how many more there were."""
    once = list(dict.fromkeys(effects))
    return tuple(map(_short, once[:MOST_EFFECTS])), max(0, len(once) - MOST_EFFECTS)


def _short(effect: TableEffect) -> TableEffect:
    over = tuple(name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 3]}..." for name in effect.over)
    return TableEffect(effect.table, effect.what, over[:MOST_NAMES], max(0, len(over) - MOST_NAMES))


def _names(statement: Statement, ids: Sequence[int], draft: Draft) -> tuple[str, ...]:
    entry = draft.tables.get(statement.name or "")
    columns = draft.segments.whole(entry).schema.by_id if entry else {}
    return tuple(columns[id_].name for id_ in ids if id_ in columns)


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
        upkeep: whether this is background work, which makes no version when nothing is left to do.
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
        effects: list[TableEffect] = []
        for index, statement in enumerate(self.statements):
            statement.apply(draft, first_ts + index)
            if (effect := effect_of(statement, draft)) is not None:
                effects.append(effect)
        applied = tuple(AppliedId(id_, digest, draft.version) for id_, digest in self.applied.items())
        return Effects(first_ts + max(len(self.statements) - 1, 0), draft.counts, tuple(effects), applied)

    def _check_fence(self, base: Manifest) -> None:
        if self.txid is not None and self.txid in base.revoked_intents:
            raise StaleWriterError(
                f"intent {self.txid} was revoked after an hour without a heartbeat: start the job anew"
            )
        if self.first_upload_us is not None and self.first_upload_us <= base.orphan_cutoff:
            raise StaleWriterError("uncommitted objects of that age may have been collected: write them again")


@dataclass(frozen=True)
class Effects:
    """The effects of one change on a version, which may contain those of others too.

    Args:
        commit_ts: the timestamp of its last statement.
        counts, on_tables: its own, without those of others.
        applied: the requests that it applied.
    """

    commit_ts: int
    counts: Counts
    on_tables: tuple[TableEffect, ...]
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
    did, did_more = summarize(effect for each in effects for effect in each.on_tables)
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
