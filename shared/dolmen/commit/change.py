"""A change: the statements of one commit as data, which can be applied to any base version, and what they depend on.

``Expect`` statements and dependencies change nothing: the commit is valid only if what they name is unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from difflib import get_close_matches
from inspect import Parameter, signature
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypedDict, TypeGuard, TypeVar
from uuid import UUID

import pyarrow as pa
from msgspec import Struct, field

from dolmen.base import arguments
from dolmen.base.records import replace
from dolmen.commit.draft import ColumnsChangedError, Draft, Statement
from dolmen.commit.uploads import PendingUploads
from dolmen.entries.segments.erasures_in_force import reaches
from dolmen.entries.segments.row_bounds import may_hold_matches
from dolmen.entries.segments.segment_reader import SegmentReader
from dolmen.errors import AppliedIdError, ConflictError, InputError, StaleWriterError
from dolmen.format.entries import DataFile
from dolmen.format.manifest import AppliedId, Counts, Manifest, Segment, TableEffect
from dolmen.format.schema import Schema, is_nested
from dolmen.predicate.ast import Predicate


class PreparableStatement(Statement, Protocol):
    """A statement that must be prepared for each base version before it is applied to that."""

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Statement:
        """Returns the statement for the draft's base. May read files and upload objects for that."""


def needs_preparing(statement: Statement) -> TypeGuard[PreparableStatement]:
    """Whether a statement has ``prepare``. ``isinstance`` would check the whole protocol each time."""
    return hasattr(statement, "prepare")


class RowsDependency(Struct, frozen=True):
    """A read of a transaction: its commit is valid only if the result is still the same."""

    name: str
    uuid: str
    # epoch, base_ts: the table's epoch, and ``commit_ts``, in the version that was read
    epoch: int
    base_ts: int
    where: Predicate | None = None  # the rows that were read, by the columns of ``schema``; None = all
    advice: str = "repeat the transaction"  # what the user can do about a conflict; the end of the error's message
    schema: Schema | None = None  # the table's columns in that version; None if they may change

    def check(self, draft: Draft) -> None:
        """Raises ConflictError if the result may differ in this base. In doubt it raises."""
        base = draft.base
        if base.commit_ts == self.base_ts:
            return
        entry = draft.table(self.name, self.uuid)
        prefix = f"table {self.name!r}, read at commit_ts {self.base_ts}: version {base.version} "
        if entry.epoch != self.epoch:
            raise ConflictError(prefix + f"has overwritten or restored it; {self.advice}")
        if entry.last_delete_ts > self.base_ts:
            raise ConflictError(prefix + f"or one before it deleted rows; {self.advice}")
        if any(field.widened_ts > self.base_ts for field in entry.schema.fields):
            raise ConflictError(prefix + f"or one before it widened a column; {self.advice}")
        if self.schema is not None and _ids_and_names(self.schema) != _ids_and_names(entry.schema):
            raise ConflictError(prefix + f"or one before it added, dropped, renamed or moved a column; {self.advice}")
        files = any(file.greatest_row_ts > self.base_ts and self._may_hold(file) for file in entry.files)
        spilled = (segment for segment in entry.segments_of("files") if segment.greatest > self.base_ts)
        if files or any(self._may_hold(segment) for segment in spilled):
            raise ConflictError(prefix + f"or one before it added rows that may match; {self.advice}")

    def _may_hold(self, file: DataFile | Segment) -> bool:
        """Whether a data file, or any file of a segment, may hold rows that were read, by its statistics."""
        return self.where is None or self.schema is None or may_hold_matches(file, self.where, self.schema)


def _ids_and_names(schema: Schema) -> list[tuple[int, str]]:
    return [(field.id, field.name) for field in schema.fields]


class NamesDependency(Struct, frozen=True):
    """A read of the names of tables: the commit is valid only if no table was created, dropped or renamed since.

    ``among``: the names that the transaction looked for; None for all. ``seen`` has the ones that existed.
    """

    seen: frozenset[str]
    among: frozenset[str] | None = None
    uuid = "*"  # no table's uuid, so that ``Change.without_requests`` never finds it among the changed tables

    @property
    def name(self) -> str:
        """The names that the transaction looked for, for a message."""
        return "*" if self.among is None else ", ".join(sorted(self.among))

    def check(self, draft: Draft) -> None:
        names = frozenset(draft.base.tables)
        now = names if self.among is None else names & self.among
        if other := sorted(now ^ self.seen):
            raise ConflictError(
                f"table {other[0]!r} was created, dropped or renamed by version {draft.base.version} or one before it, "
                "after the transaction had looked for it: repeat the transaction"
            )


class ColumnsDependency(Struct, frozen=True):
    """The names of a table's columns, as a call used them: it is valid only if they still name the same columns."""

    name: str
    uuid: str
    base_ts: int
    schema: Schema

    def check(self, draft: Draft) -> None:
        """Raises ColumnsChangedError if one was dropped or renamed, also inside of a column. New ones do not matter."""
        if draft.base.commit_ts == self.base_ts:
            return
        now = {(field.name, field.id): field for field in draft.table(self.name, self.uuid).schema.fields}
        for column in self.schema.fields:
            column_now = now.get((column.name, column.id))
            if column_now is None or (column_now.type != column.type and is_nested(column_now.arrow_type)):
                raise ColumnsChangedError(
                    f"column {column.name!r} of table {self.name!r} was dropped, renamed or replaced by version "
                    f"{draft.base.version} or one before it: repeat the call"
                )


class Expect(Struct, frozen=True):
    """Requires that settings, and columns if given, are as the writer saw them. Otherwise the whole commit fails."""

    name: str | None  # the table's name; None for the database
    uuid: str
    properties: Mapping[str, Any]  # the settings, as the writer saw them
    names: Collection[str] | None = None  # the settings to compare; all by default
    request: str | None = None  # if it was applied before, nothing is compared
    columns: Schema | None = None  # the table's columns, as the writer saw them; None if they may change

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ConflictError if something has changed, TableNotFoundError if the table was dropped."""
        if self.name is None:
            now = draft.properties
        else:
            entry = draft.table(self.name, self.uuid)
            now = entry.properties
            if self.columns is not None and _reading_properties(self.columns) != _reading_properties(entry.schema):
                raise ConflictError(
                    f"another commit changed columns of table {self.name!r}, in version {draft.base.version} or "
                    "one before it: look at them again"
                )
        names = {*now, *self.properties} if self.names is None else self.names
        if changed := sorted(name for name in names if now.get(name) != self.properties.get(name)):
            what = "the database" if self.name is None else f"table {self.name!r}"
            raise ConflictError(
                f"another commit changed {', '.join(changed)} of {what}, in version {draft.base.version} or one "
                "before it: look at the differences again"
            )


def _reading_properties(schema: Schema) -> list[tuple[Any, ...]]:
    """The properties of columns, and the checks, that decide how a file is read into them, and whether it fits."""
    columns = [
        (field.id, field.name, field.type, field.nullable, field.write_default, field.write_function)
        for field in schema.fields
    ]
    return [*columns, schema.checks]


class ErasedMeanwhileError(ConflictError):
    """Rows were erased after the commit's rows were compared with erasures. The repeated commit leaves them out."""


class ExpectErasures(Struct, frozen=True):
    """Requires that no erasure after ``seen_ts`` reaches the rows of this commit. Otherwise the commit fails."""

    name: str
    uuid: str
    seen_ts: int
    # when the first file with these rows was put under the landing prefix, by the server's clock; None if that is not
    # known
    dropped_us: int | None
    request: str | None = None  # if it was applied before, nothing is compared

    def apply(self, draft: Draft, ts: int) -> None:
        """Raises ErasedMeanwhileError if there is such an erasure, TableNotFoundError if there is no such table."""
        entry = draft.table(self.name, self.uuid)
        for erasure in draft.erasures_after(self.seen_ts):
            if erasure.is_later_than(self.dropped_us) and reaches(erasure, entry):
                raise ErasedMeanwhileError(
                    f"table {self.name!r}: version {erasure.version} erased rows meanwhile, perhaps some of these: "
                    "read them again, and leave out the erased ones"
                )


def find_applied(manifest: Manifest, ids: Collection[str], segments: SegmentReader) -> dict[str, AppliedId]:
    """Finds which of ``ids`` a version has applied. Bloom filters rule ids out without a request."""
    if not ids:
        return {}
    found = {entry.id: entry for entry in manifest.applied if entry.id in ids}
    for segment in reversed(manifest.segments_of("applied")):
        if missing := [id_ for id_ in ids if id_ not in found]:
            found |= {entry.id: entry for entry in segments.applied(segment, missing)}
    return found


def reuse_error(entry: AppliedId, digest: str) -> AppliedIdError | None:
    """The error of a request whose id was applied with other content; None for the same. "" matches any digest."""
    if entry.digest and digest and entry.digest != digest:
        return AppliedIdError(
            f"id {entry.id!r} was applied by version {entry.version} with other content, or for other columns: "
            "use a new id for a new request; if it is the same request, it is applied already"
        )
    return None


def request_ids_by_version(manifest: Manifest, versions: range, segments: SegmentReader) -> dict[int, list[str]]:
    """The request ids that some versions applied, by version. One GET for each segment that holds any of them."""
    ids_by_version: dict[int, list[str]] = {}
    spilled = [s for s in manifest.segments_of("applied") if s.least < versions.stop and s.greatest >= versions.start]
    for entry in chain(chain.from_iterable(map(segments.applied, spilled)), manifest.applied):
        if entry.version in versions:
            ids_by_version.setdefault(entry.version, []).append(entry.id)
    return ids_by_version


def digest_of(request: Any) -> str:
    """SHA-256 over a request's content as canonical JSON. Raises InputError if it has no canonical form."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), default=_canonical)
    return hashlib.sha256(text.encode()).hexdigest()


def matches_old_delete_digest(digest: str, raw: Any) -> bool:
    """Whether a digest is that of a delete's raw arguments: older versions of dolmen did not digest the parsed ones."""
    try:
        return digest == digest_of(raw)
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


_MOST_EFFECTS, _MOST_NAMES, _MOST_CHARACTERS = 4, 4, 64
"""The most effects in a commit, names in an effect, and characters in a name. A manifest holds 64 commits, so further
effects and names are only counted, and a longer name is cut."""


def summarize(effects: Iterable[TableEffect]) -> tuple[tuple[TableEffect, ...], int]:
    """The first distinct effects, cut to their limits for the manifest, and how many more there were."""

    def cut(effect: TableEffect) -> TableEffect:
        over = tuple(
            name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 3]}..." for name in effect.over
        )
        return TableEffect(effect.table, effect.what, over[:_MOST_NAMES], max(0, len(over) - _MOST_NAMES))

    distinct = list(dict.fromkeys(effects))
    return tuple(map(cut, distinct[:_MOST_EFFECTS])), max(0, len(distinct) - _MOST_EFFECTS)


Metadata: TypeAlias = Mapping[str, str]  # text by key


class Note(Struct, frozen=True):
    """The message and metadata of a commit, for the history. Raises InputError for too much."""

    message: str = ""
    metadata: Metadata = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments.message(self.message)
        arguments.metadata(self.metadata)

    @classmethod
    def of(cls, message: str | None, metadata: Metadata | None) -> Note:
        """The note of a call with these arguments."""
        if message is None and metadata is None:
            return NO_NOTE
        checked = {} if metadata is None else arguments.metadata(metadata)
        return cls("" if message is None else arguments.message(message), checked)

    @classmethod
    def join(cls, notes: Iterable[Note]) -> Note | None:
        """Their distinct messages, and all metadata. None if that is too much, or two notes differ in a key's value."""
        messages, metadata = dict[str, None](), dict[str, str]()
        for note in notes:
            messages |= {note.message: None} if note.message else {}
            if any(metadata.setdefault(key, value) != value for key, value in note.metadata.items()):
                return None
        message = "; ".join(messages)
        if len(message.encode()) > arguments.MAX_MESSAGE_BYTES or len(metadata) > arguments.MAX_OWN_ENTRIES:
            return None
        return cls(message, metadata) if arguments.metadata_bytes(metadata) <= arguments.MAX_METADATA_BYTES else None


NO_NOTE = Note()


_ABOUT = {"request": "str | None", "message": "str | None", "metadata": "Metadata | None"}
T = TypeVar("T")


class About(TypedDict, total=False):
    """The arguments that every changing call takes besides its own: see ``Table.append``."""

    request: str | None
    message: str | None
    metadata: Metadata | None


def read_about(
    request: str | None = None, message: str | None = None, metadata: Metadata | None = None, **others: object
) -> tuple[Note, str | None]:
    """The note and the request of a call. Raises InputError, and TypeError for an argument of another name."""
    for name in others:
        hint = "".join(f": did you mean {near!r}?" for near in get_close_matches(name, _ABOUT, 1))
        raise TypeError(f"this method has no argument {name!r}{hint}")
    return Note.of(message, metadata), request


def with_full_signatures(cls: type[T]) -> type[T]:
    """Shows help and editors the arguments that ``**about`` stands for in the methods of a class."""
    more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in _ABOUT.items()]
    for method in vars(cls).values():
        if "about" in getattr(method, "__annotations__", ()) and not method.__name__.startswith("_"):
            whole = signature(method)
            own = [each for each in whole.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
            method.__signature__ = whole.replace(parameters=[*own, *more])
    return cls


GROUP_OPERATION = "group"  # the operation of a version with changes of different operations


class Change(Struct, frozen=True):
    """The content of one commit."""

    commit_id: str  # names the change; the same in all attempts
    operation: str  # the word for the history, such as ``append``
    statements: tuple[Statement, ...]  # in order; statement i gets the i-th timestamp after the base's
    # the digest of each request's content, by request id. Each request is applied only once, ever.
    applied: dict[str, str] = field(default_factory=dict)
    # reads that the commit's validity depends on
    dependencies: tuple[RowsDependency | ColumnsDependency | NamesDependency, ...] = ()
    # the server's clock before its first object was uploaded; None before any upload
    first_upload_us: int | None = None
    txid: str | None = None  # the intent under which its objects were uploaded, if any
    is_background: bool = False  # whether this is background work, which makes no version when nothing is left to do
    note: Note = NO_NOTE  # what the author says about it
    # ids of requests that exclude this change: it is refused if a version has applied one of them
    excluded_by: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        arguments.operation(self.operation)
        for id_, digest in self.applied.items():
            arguments.request_id(id_)
            arguments.text("digest", digest)

    def already_applied(self, base: Manifest, segments: SegmentReader) -> dict[str, int]:
        """Returns the versions that applied requests of this change before, by request id.

        Raises:
            AppliedIdError: an id was applied with another digest. An empty digest matches any other.
            ConflictError: a request in ``excluded_by`` was applied.
        """
        found = find_applied(base, self.applied.keys() | self.excluded_by, segments)
        for id_ in sorted(self.excluded_by & found.keys()):
            raise ConflictError(
                f"request {id_!r}, which excludes this one, was applied by version {found[id_].version}"
            )
        repeated = [entry for id_, entry in found.items() if id_ in self.applied]
        for entry in repeated:
            if error := reuse_error(entry, self.applied[entry.id]):
                raise error
        return {entry.id: entry.version for entry in repeated}

    def without_requests(self, ids: set[str]) -> Change:
        """The same change without the requests ``ids`` and their statements.

        Raises ConflictError if a remaining statement or dependency is based on rows that these requests changed, or if
        a file has rows of these requests and of others.
        """
        if not ids:
            return self
        changed = dict[str, str]()  # by a table's uuid, a removed request that changed it; names may change in between
        remaining, dependent = list[Statement](), list[tuple[str | None, str]]()
        for statement in self.statements:
            if _belongs_to(statement, ids):
                changed[statement.uuid] = statement.request or min(getattr(statement, "requests", ids))
                continue
            if getattr(statement, "looks_up_rows", False) and statement.uuid in changed:
                dependent.append((statement.name, changed[statement.uuid]))
            remaining.append(statement)
        if remaining:  # when nothing is left to commit, no dependency can fail
            dependent += ((each.name, changed[each.uuid]) for each in self.dependencies if each.uuid in changed)
        for table, request in dependent[:1]:
            raise ConflictError(
                f"table {table!r}: another writer has applied request {request!r}, on whose rows this commit depends: "
                "repeat the transaction"
            )
        applied = {id_: digest for id_, digest in self.applied.items() if id_ not in ids}
        return replace(self, statements=tuple(remaining), applied=applied)

    @property
    def needs_preparing(self) -> bool:
        """Whether ``prepare`` has anything to do."""
        return any(map(needs_preparing, self.statements))

    def with_first_upload(self, now_us: int) -> Change:
        """The same change, with ``now_us`` as the time of its first upload; unchanged if it had one before."""
        return self if self.first_upload_us is not None else replace(self, first_upload_us=now_us)

    def prepare(self, draft: Draft, uploads: PendingUploads) -> Change:
        """This change for the base of ``draft``. May read and may add uploads; most statements need neither."""
        if not self.needs_preparing:
            return self
        draft, base = draft.copy(), draft.base  # each statement must see the effects of those before it
        statements: list[Statement] = []
        for index, statement in enumerate(self.statements):
            prepared = statement.prepare(draft, uploads) if needs_preparing(statement) else statement
            prepared.apply(draft, base.commit_ts + 1 + index)
            statements.append(prepared)
        return replace(self, statements=tuple(statements))

    def apply(self, draft: Draft, first_ts: int) -> Effects:
        """Adds the effects of this change to a draft. Pure. Its first statement gets ``first_ts``.

        Raises:
            StaleWriterError: the change's objects may have been collected.
            ConflictError: the base contradicts a statement or a read of the change.
        """
        self._check_fence(draft.base)
        for dependency in self.dependencies:
            dependency.check(draft)
        effects: list[TableEffect] = []
        for index, statement in enumerate(self.statements):
            statement.apply(draft, first_ts + index)
            describe: Callable[[Draft], TableEffect | None] | None = getattr(statement, "effect", None)
            if describe is not None and (effect := describe(draft)) is not None:
                effects.append(effect)
        applied = tuple(AppliedId(id_, digest, draft.version) for id_, digest in self.applied.items())
        return Effects(first_ts + max(len(self.statements) - 1, 0), draft.counts, tuple(effects), applied)

    def _check_fence(self, base: Manifest) -> None:
        """Raises StaleWriterError if uploads of this change may have been collected as orphans.

        The fence is the time ``orphan_cutoff``: a collection moves it before it deletes objects uploaded up to then.
        """
        if self.txid is not None and self.txid in base.revoked_intents:
            raise StaleWriterError(
                f"intent {self.txid} was revoked after an hour without a heartbeat: start the job again"
            )
        if self.first_upload_us is not None and self.first_upload_us <= base.orphan_cutoff:
            raise StaleWriterError("uncommitted objects of that age may have been collected: write them again")


class Effects(Struct, frozen=True):
    """The effects of one change on a version; ``commit_ts`` is the timestamp of its last statement."""

    commit_ts: int
    counts: Counts
    on_tables: tuple[TableEffect, ...]
    applied: tuple[AppliedId, ...]


def make_version(
    changes: Sequence[Change], base: Manifest, now_us: int, attempt: str, commit_id: str, segments: SegmentReader
) -> tuple[Manifest | None, list[Effects]]:
    """Makes the manifest of the next version, with one change or several. Pure.

    Each change is applied to a base with the effects of those before it. Returns the manifest, None if background work
    has nothing left to do; and the effects of each change. Raises as ``Change.apply`` does.
    """
    draft, effects = Draft(base, segments), list[Effects]()
    first_ts = max(base.commit_ts, now_us) + 1
    for change in changes:
        if effects:
            draft = draft.next_draft(effects[-1].commit_ts, effects[-1].applied)
        effects.append(change.apply(draft, first_ts))
        first_ts = effects[-1].commit_ts + 1
    if changes[0].is_background and not draft.has_changes:
        return None, effects
    first_effects, further_effects = summarize(effect for each in effects for effect in each.on_tables)
    draft.counts = sum((each.counts for each in effects), Counts())
    operations = {change.operation for change in changes}
    note = Note.join(change.note for change in changes)
    assert note is not None, "only changes whose notes fit together are grouped"
    manifest = draft.finish(
        attempt=attempt,
        commit_id=commit_id,
        operation=operations.pop() if len(operations) == 1 else GROUP_OPERATION,
        commit_ts=effects[-1].commit_ts,
        created_at=max(base.created_at, now_us),
        did=first_effects,
        did_more=further_effects,
        message=note.message,
        metadata=note.metadata,
        applied=tuple(id_ for each in effects for id_ in each.applied),
    )
    return manifest, effects


def _belongs_to(statement: Statement, ids: set[str]) -> bool:
    """Whether a statement belongs to these requests. Raises ConflictError if only a part of it does."""
    requests: frozenset[str] = getattr(statement, "requests", frozenset())
    if not requests:
        return statement.request in ids
    applied = requests & ids
    if applied and applied != requests:
        raise ConflictError(
            f"table {statement.name!r}: {len(applied)} of {len(requests)} requests, {min(applied)!r} first, were "
            "applied meanwhile, and the others' rows are in the same files: write the others again, alone"
        )
    return bool(applied)
