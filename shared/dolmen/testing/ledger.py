"""What was really committed: read from the store at the moment each pointer lands, never from the code's answers."""

from __future__ import annotations

from collections import Counter

import msgspec

from dolmen.errors import AppliedIdError, ConflictError, StoreUnavailableError, TableExistsError, TableNotFoundError
from dolmen.results import Commit
from dolmen.store.memory import MemoryBucket
from dolmen.testing.model import Create, DeletePositions, Operation, Run, State, ViolationError, fold

SETTLED_US = 20 * 60 * 1_000_000


class _Pointer(msgspec.Struct):
    version: int
    manifest: str
    commit_id: str


class _Id(msgspec.Struct):
    id: str
    digest: str
    version: int


class _Commit(msgspec.Struct):
    version: int
    commit_id: str


class _Manifest(msgspec.Struct):
    """As much of a manifest as the checks need, declared apart from the code under test."""

    version: int
    commit_id: str
    commit_ts: int
    created_at: int
    previous: str | None = None
    applied: tuple[_Id, ...] = ()
    history: tuple[_Commit, ...] = ()


class Landed(msgspec.Struct, frozen=True):
    """A version as the store shows it."""

    key: str
    commit_id: str
    commit_ts: int
    created_at: int
    run: Run | None


class Ledger:
    """The chain of versions, the rows of each, and the judge of what callers are told.

    Args:
        counts: what happened how often; shared with the whole simulation.
    """

    def __init__(self, bucket: MemoryBucket, counts: Counter[str]) -> None:
        self.counts = counts
        self.chain: list[Landed] = [Landed("", "", 0, 0, None)]
        self.states: list[State] = [{}]
        self.applied: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.dated: list[tuple[int, int]] = []
        self._bucket = bucket
        self._runs: dict[str, Run] = {}

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.chain) - 1

    def sent(self, pointer: bytes, run: Run | None) -> None:
        """Notes whose commit a pointer is that is on its way."""
        commit_id = msgspec.json.decode(pointer, type=_Pointer).commit_id
        if run is None:
            raise ViolationError(f"commit {commit_id} by nobody")
        if self._runs.setdefault(commit_id, run) is not run:
            raise ViolationError(f"commit id {commit_id} was used for two runs of {run.operation}")

    def landed(self, body: bytes, now_us: int) -> None:
        """Takes note of a pointer that has just landed: a version. Raises ViolationError."""
        pointer = msgspec.json.decode(body, type=_Pointer)
        there = self._bucket.objects.get(pointer.manifest)
        if there is None:
            raise ViolationError(f"the pointer names {pointer.manifest}, which is not there")
        manifest = msgspec.json.decode(there.body, type=_Manifest)
        version, before = self.version + 1, self.chain[-1]
        if (manifest.version, manifest.commit_id) != (pointer.version, pointer.commit_id):
            raise ViolationError(f"pointer {pointer} names another version's manifest")
        if (manifest.version, manifest.previous or "") != (version, before.key):
            raise ViolationError(
                f"version {manifest.version} after {manifest.previous} does not follow version {version - 1}"
            )
        if manifest.commit_ts <= before.commit_ts:
            raise ViolationError(f"commit_ts of version {version} is not greater than that of the version before")
        if manifest.created_at < before.created_at:
            raise ViolationError(f"created_at of version {version} is before that of the version before")
        if not now_us - SETTLED_US <= manifest.created_at <= now_us + 60_000_000:
            raise ViolationError(
                f"version {version} landed {(now_us - manifest.created_at) / 1e6} s after its created_at"
            )
        expected = [(index, self.chain[index].commit_id) for index in range(max(1, version - 64), version)]
        if [(entry.version, entry.commit_id) for entry in manifest.history] != expected:
            raise ViolationError(f"the history of version {version} is not that of its chain")
        run = self._runs.get(manifest.commit_id)
        if run is None:
            raise ViolationError(f"version {version} has a commit id that nobody sent")
        self._check_operation(run.operation, version)
        self._check_applied(manifest, run, version)
        self._check_tables(run, version)
        state = fold(self.states, run, self.applied, version)
        for id_ in manifest.applied:
            self.applied.setdefault(id_.id, id_.version)
            self.digests.setdefault(id_.id, id_.digest)
        self.states.append(state)
        self.chain.append(Landed(pointer.manifest, manifest.commit_id, manifest.commit_ts, manifest.created_at, run))
        self.counts["commits"] += 1
        self._count_merges(run, version)

    def _check_operation(self, operation: Operation, version: int) -> None:
        if operation.landed is not None:
            raise ViolationError(f"{operation} was committed twice: as versions {operation.landed} and {version}")
        if operation.failed is not None:
            raise ViolationError(f"{operation} was reported as failed ({operation.failed!r}) and landed as {version}")
        operation.landed = version

    def _check_applied(self, manifest: _Manifest, run: Run, version: int) -> None:
        there = {id_.id: id_ for id_ in manifest.applied}
        for id_, applied in self.applied.items():
            if id_ not in there or there[id_].version != applied:
                raise ViolationError(f"version {version} forgot that id {id_} was applied by version {applied}")
        new = {id_.id: id_.digest for id_ in manifest.applied if id_.id not in self.applied}
        expected = {id_: digest for id_, digest in run.operation.digests.items() if id_ not in self.applied}
        if new != expected or any(there[id_].version != version for id_ in new):
            raise ViolationError(f"version {version} applied ids {sorted(new)}, not {sorted(expected)}")
        self.counts["partial overlaps"] += 0 < len(new) < len(run.operation.digests)

    def _check_tables(self, run: Run, version: int) -> None:
        assert run.first_put is not None
        for effect in run.effects:
            there = self.states[-1].get(effect.table)
            if there is None or there.epoch <= run.first_put or effect.request in self.applied:
                continue
            if not isinstance(effect, (Create, DeletePositions)):  # positions may have found nothing to delete
                raise ViolationError(
                    f"version {version} by {run.operation} was made for the table {effect.table!r} that was dropped "
                    f"before version {there.epoch} created another"
                )

    def _count_merges(self, run: Run, version: int) -> None:
        tables = {effect.table for effect in run.effects if isinstance(effect, DeletePositions)}
        if not tables or run.base is None:
            return
        for index in range(run.base + 1, version):
            other = self.chain[index].run
            if other and any(isinstance(e, DeletePositions) and e.table in tables for e in other.effects):
                self.counts["positions rebased over positions"] += 1
                return

    # ---- what callers are told ---------------------------------------------------------------------------------------

    def acknowledged(self, operation: Operation, run: Run, commit: Commit | None) -> None:
        """The call returned. Raises ViolationError if that is not the truth."""
        landed = operation.landed
        if lost := [id_ for id_, digest in operation.digests.items() if self.digests.get(id_) != digest]:
            raise ViolationError(f"{operation} was acknowledged, and {lost} were not applied")
        if commit is None and landed is not None:
            return
        if commit is None or commit.operation == "nothing":
            if landed is not None:
                raise ViolationError(f"{operation} was reported as nothing to do, and landed as {landed}")
            self._check_nothing(operation, run, commit)
            return
        if landed != commit.version or self.chain[landed].commit_id != commit.commit_id:
            raise ViolationError(f"{operation} was acknowledged as {commit!r} and landed as {landed}")
        for id_, version in commit.already.items():
            if self.applied.get(id_) != version:
                raise ViolationError(f"{operation}: id {id_} was applied by {self.applied.get(id_)}, not {version}")

    def _check_nothing(self, operation: Operation, run: Run, commit: Commit | None) -> None:
        if operation.digests:
            self.counts["applied twice prevented"] += 1
        if commit is not None and commit.already:
            if any(self.applied.get(id_) != version for id_, version in commit.already.items()):
                raise ViolationError(f"{operation}: {commit.already} is not what applied its ids")
            return
        base = run.base if commit is None else commit.version
        assert base is not None
        after = fold(self.states[: base + 1], run, self.applied, base + 1)
        if {name: rows.rows for name, rows in after.items()} != {
            name: rows.rows for name, rows in self.states[base].items()
        }:
            raise ViolationError(f"{operation} made no commit, though it had something to do in version {base}")
        self.counts["nothing to do"] += 1

    def refused(self, operation: Operation, run: Run | None, error: BaseException) -> None:
        """The call raised an error that says that nothing landed. Raises ViolationError if that is not the truth."""
        if operation.landed is not None:
            raise ViolationError(f"{operation} landed as {operation.landed} and was reported as failed: {error!r}")
        operation.failed = error
        self.counts[f"{type(error).__name__}"] += 1
        during = range(operation.began, self.version + 1)
        names = {effect.table for effect in run.effects} if run else set()
        match error:
            case TableNotFoundError():
                justified = any(name not in self.states[version] for version in during for name in names)
            case TableExistsError():
                justified = any(name in self.states[version] for version in during for name in names)
            case AppliedIdError():
                justified = any(self.digests.get(id_, digest) != digest for id_, digest in operation.digests.items())
            case ConflictError():
                # A call may be made on the version that its process knew: it is told to open the table anew.
                known = range(operation.known, self.version + 1)
                creations = {
                    (name, rows.epoch)
                    for version in known
                    for name, rows in self.states[version].items()
                    if name in names
                }
                overtaken = operation.reads and self.version > operation.began
                justified = not operation.replays and (overtaken or len(creations) > len(names))
            case StoreUnavailableError():
                justified = operation.faults > 0
            case _:
                justified = False
        if not justified:
            raise ViolationError(f"{operation} failed without a reason: {error!r}") from error

    def check_dates(self) -> None:
        """At the end: every answer to ``at(timestamp)`` is still the right one."""
        for timestamp, answered in self.dated:
            right = max(
                (index for index in range(1, self.version + 1) if self.chain[index].created_at <= timestamp), default=0
            )
            if right != answered:
                raise ViolationError(f"at(timestamp={timestamp}) answered version {answered}; now it is {right}")
