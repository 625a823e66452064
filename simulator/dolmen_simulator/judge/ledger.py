"""What was really committed: read from the store at the moment each pointer lands, never from the code's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from dolmen.format.layout import memory_name
from dolmen.results import Commit
from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.account import check_size, count_merges, count_upkeep
from dolmen_simulator.judge.answers import has_reason
from dolmen_simulator.judge.chronicle import Chronicle, LandedVersion
from dolmen_simulator.judge.deeds import check_deeds, requests_of
from dolmen_simulator.judge.following import find_strayed_effect, tables_of
from dolmen_simulator.judge.isolation import check
from dolmen_simulator.judge.model import (
    Effect,
    ExpireEffect,
    Identity,
    Operation,
    OperationRun,
    OverwriteEffect,
    Row,
    SettingsEffect,
    fold,
    user_tables,
)
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable
from dolmen_simulator.judge.promises import check_promises
from dolmen_simulator.judge.retention import JITTER_US, setting
from dolmen_simulator.judge.seen import check_remembered, check_rows
from dolmen_simulator.judge.stored import StoredCommit, StoredPointer, StoredVersion

SETTLED_US = 20 * 60 * 1_000_000
EXPIRED = "ttl_expired"
_HISTORY = 64


class CommitLedger(Chronicle):
    """The chronicle of versions, and the judge of what lands and of what callers are told.

    Args:
        counts: what happened how often; shared with the whole simulation.
    """

    def __init__(self, bucket: MemoryBucket, counts: Counter[str]) -> None:
        super().__init__(bucket, counts)
        self._runs: dict[str, OperationRun] = {}
        self._timestamps: dict[int, int] = {}
        self._uuids: dict[Identity, str] = {}
        self._unknown: list[tuple[Operation, str]] = []

    def record_sent(self, pointer: bytes, run: OperationRun | None) -> None:
        """Notes whose commit a pointer is that is on its way."""
        commit_id = msgspec.json.decode(pointer, type=StoredPointer).commit_id
        if run is None:
            raise ViolationError(Never.TWICE, f"commit {commit_id} by nobody")
        if self._runs.setdefault(commit_id, run) is not run:
            raise ViolationError(Never.TWICE, f"commit id {commit_id} was used for two runs of {run.operation}")

    def record_version(self, body: bytes, now_us: int) -> None:
        """Takes note of a pointer that has just landed: a version. Raises ViolationError."""
        pointer = msgspec.json.decode(body, type=StoredPointer)
        try:
            view = self.reader.version(pointer.manifest)
        except KeyError as error:
            raise ViolationError(
                Never.UNREADABLE, f"the pointer names {pointer.manifest}, of which {error} is not there"
            ) from error
        manifest = view.manifest
        version, before = self.version + 1, self.chain[-1]
        if (manifest.version, manifest.commit_id) != (pointer.version, pointer.commit_id):
            raise ViolationError(Never.UNREADABLE, f"pointer {pointer} names another version's manifest")
        if (manifest.version, manifest.previous or "") != (version, before.key):
            raise ViolationError(
                Never.LOST,
                f"version {manifest.version} after {manifest.previous} does not follow version {version - 1}",
            )
        if manifest.commit_ts <= before.commit_ts:
            raise ViolationError(
                Never.REVIVED, f"commit_ts of version {version} is not greater than that of the version before"
            )
        if manifest.created_at < before.created_at:
            raise ViolationError(
                Never.UNREADABLE, f"created_at of version {version} is before that of the version before"
            )
        if not now_us - SETTLED_US <= manifest.created_at <= now_us + JITTER_US:
            raise ViolationError(
                Never.COLLECTED,
                f"version {version} landed {(now_us - manifest.created_at) / 1e6} s after its created_at",
            )
        self._check_history(view)
        run = self._runs.get(manifest.commit_id)
        if run is None:
            raise ViolationError(Never.TWICE, f"version {version} has a commit id that nobody sent")
        self._check_operation(run.operation, version)
        self._check_applied(view, run, version)
        self._check_tables(run, version)
        applied = frozenset(self.applied)
        self._fold(view, run, version)
        told = manifest.as_history
        self.chain.append(
            LandedVersion(pointer.manifest, manifest.commit_id, manifest.commit_ts, manifest.created_at, run, told)
        )
        self.horizons.append(manifest.horizon)
        self.counts["commits"] += 1
        self.recording.record_version(now_us, str(run.operation))
        count_merges(self, run, version)
        count_upkeep(self, view, run)
        check_size(self, view)
        self.retention.check_there(view)
        changed = self._check_rows(view, version)
        if self.retention.newest:
            check_promises(self.content, self.retention.newest, view, run, changed, self._overwritten(run, version))
        self.retention.record_version(view)
        check_deeds(view, run, self.states, applied)

    def _fold(self, view: StoredVersion, run: OperationRun, version: int) -> None:
        manifest, before = view.manifest, self.states[-1]
        if run.operation.upkeep:
            run.effects = self._expiries(view) if manifest.operation == "expire" else []
        state = fold(self.states, run, self.applied, version)
        for id_ in view.applied:
            self.applied.setdefault(id_.id, id_.version)
            self.digests.setdefault(id_.id, id_.digest)
        self.written_in.update(
            (row.u, version) for rows in state.values() for row in rows.rows if row.u not in self.written_in
        )
        self.states.append(state)
        same = all(
            (state[name].rows if name in state else ()) == (before[name].rows if name in before else ())
            for name in state.keys() | before.keys()
        )
        if not same and not manifest.data_change:
            raise ViolationError(
                Never.MISREPORTED, f"version {version} by {run.operation} changed rows and says that it did not"
            )
        if run.operation.upkeep and not run.effects and manifest.data_change:
            raise ViolationError(Never.LOST, f"version {version} by {run.operation} says that it changed rows")
        if set(user_tables(view.tables)) != state.keys():
            raise ViolationError(Never.LOST, f"version {version} has tables {sorted(view.tables)}, not {sorted(state)}")
        for name in state:
            table = view.tables[name]
            if self._uuids.setdefault(state[name].identity, table.uuid) != table.uuid:
                raise ViolationError(Never.STRAYED, f"version {version} calls another table {name!r} than it should")
            told = {key: value for key, value in table.properties.items() if key != EXPIRED}
            if told != state[name].settings:
                raise ViolationError(
                    Never.LOST, f"version {version}: {name!r} has settings {told}, not {state[name].settings}"
                )
        settings = self.settings[-1]
        for effect in run.effects:
            if isinstance(effect, SettingsEffect) and not effect.table:
                settings = effect.merged(settings)
        if manifest.properties != settings:
            raise ViolationError(Never.LOST, f"version {version} has settings {manifest.properties}, not {settings}")
        self.settings.append(settings)

    def _check_rows(self, view: StoredVersion, version: int) -> set[str]:
        """What has just landed holds the rows that it should, by its objects: whoever reads it later, and however.

        Returns the tables of which rows are gone.
        """
        before, state = self.retention.newest, self.states[version]
        was = {rows.identity: rows.rows for rows in self.states[version - 1].values()}
        changed: set[str] = set()
        for name, expected in state.items():
            table, memory = view.tables[name], view.tables.get(memory_name(name))
            if before and before.tables.get(name) is table and self.states[version - 1].get(name) is expected:
                continue
            what = f"what version {version} holds"
            with raising_unreadable(what):
                stored = self.content.rows(table)
                remembered = self.content.rows(memory) if memory else ()
            rows = [Row(*row.values) for row in stored]
            self.recording.record_rows(name, rows)
            if not {row.u for row in was.get(expected.identity, ())} <= {row.u for row in rows}:
                changed.add(name)
            check_rows(self, rows, version, name, what)
            self.check_timestamps(name, {row.u: one.ts for row, one in zip(rows, stored, strict=True)})
            check_remembered((row.values[:2] for row in remembered), expected, what)
            self.counts["tables decoded"] += 1
        for name in sorted(self.states[version - 1].keys() - state.keys()):
            self.recording.record_rows(name, ())
        return changed

    def _overwritten(self, run: OperationRun, version: int) -> set[str]:
        """Tables that were there before, and that a run overwrites, by the names that they have after it."""
        tables = tables_of(self.states[version - 1], run.effects)
        own = {
            table
            for effect, table in zip(run.effects, tables, strict=True)
            if isinstance(effect, OverwriteEffect) and table
        }
        return {name for name, rows in self.states[version].items() if rows.identity in own}

    def _expiries(self, view: StoredVersion) -> list[Effect]:
        """What a commit of expiry did, by what it remembers of itself; judged by the tables' time to live."""
        effects: list[Effect] = []
        for name, table in view.tables.items():
            said = table.properties.get(EXPIRED)
            if said is None or all(tombstone.ts <= self.chain[-1].commit_ts for tombstone in table.tombstones):
                continue  # two that look at the same version say the same, and each leaves a tombstone
            before = self.states[-1].get(name)
            ttl = before.settings.get("ttl") if before else None
            age_us = setting({"retention": ttl.rpartition(" ")[2]}, "retention") if ttl else None
            if age_us is None or said["before"] > view.manifest.created_at - age_us + JITTER_US:
                raise ViolationError(
                    Never.LOST, f"rows of {name!r} expired before {said['before']}: they live for {ttl}"
                )
            effects.append(ExpireEffect(name, said["before"]))
        self.counts["tables expired"] += len(effects)
        return effects

    def _check_history(self, view: StoredVersion) -> None:
        manifest = view.manifest
        version, horizon = manifest.version, max(manifest.horizon, 1)
        recent = [(entry.version, entry.commit_id) for entry in manifest.history[-_HISTORY:]]
        if recent != [(index, self.chain[index].commit_id) for index in range(max(1, version - _HISTORY), version)]:
            raise ViolationError(Never.MISREPORTED, f"the newest history of version {version} is not that of its chain")
        told = [entry.version for entry in view.history if entry.version >= horizon]
        if told != list(range(horizon, version)):
            raise ViolationError(
                Never.MISREPORTED, f"version {version} with horizon {horizon} tells of versions {told}"
            )
        for entry in view.history:
            if entry != self.chain[entry.version].commit:
                raise ViolationError(
                    Never.MISREPORTED, f"the history of version {version} is not that of its chain: {entry}"
                )

    def _check_operation(self, operation: Operation, version: int) -> None:
        if operation.landed_version is not None and not operation.upkeep:
            raise ViolationError(
                Never.TWICE, f"{operation} was committed twice: as versions {operation.landed_version} and {version}"
            )
        if operation.failed is not None:
            raise ViolationError(
                Never.MISREPORTED, f"{operation} was reported as failed ({operation.failed!r}) and landed as {version}"
            )
        operation.landed_version = version

    def _check_applied(self, view: StoredVersion, run: OperationRun, version: int) -> None:
        there = {id_.id: id_ for id_ in view.applied}
        if len(there) != len(view.applied):
            raise ViolationError(Never.TWICE, f"version {version} tells of an id twice")
        kept_us = min(setting(settings, "applied_retention") for settings in self.settings[-30:])
        for id_, applied in self.applied.items():
            told = there.get(id_)
            if told is None and self.chain[applied].created_at < view.manifest.created_at - kept_us + JITTER_US:
                self.counts["ids forgotten"] += 1
            elif told is None or told.version != applied:
                raise ViolationError(
                    Never.TWICE, f"version {version} forgot that id {id_} was applied by version {applied}"
                )
        new = {id_.id: id_.digest for id_ in view.applied if id_.id not in self.applied}
        expected = {id_: digest for id_, digest in run.operation.digests.items() if id_ not in self.applied}
        if new != expected or any(there[id_].version != version for id_ in new):
            raise ViolationError(Never.TWICE, f"version {version} applied ids {sorted(new)}, not {sorted(expected)}")
        self.counts["partial overlaps"] += 0 < len(new) < len(run.operation.digests)

    def _check_tables(self, run: OperationRun, version: int) -> None:
        if run.operation.upkeep:
            return
        effect = find_strayed_effect(self.states, run.operation, run, self.applied)
        if effect is not None:
            raise ViolationError(
                Never.STRAYED,
                f"version {version} by {run.operation} was made for a table {effect.table!r} that is not the one of "
                "that name any more",
            )

    # ---- what callers are told ---------------------------------------------------------------------------------------

    def check_acknowledged(self, operation: Operation, run: OperationRun, commit: Commit | None) -> None:
        """The call returned. Raises ViolationError if that is not the truth."""
        landed = operation.landed_version
        if lost := [id_ for id_, digest in operation.digests.items() if self.digests.get(id_) != digest]:
            raise ViolationError(Never.TWICE, f"{operation} was acknowledged, and {lost} were not applied")
        if operation.upkeep or (commit is None and landed is not None):
            return
        if commit is None or commit.operation == "nothing":
            if landed is not None:
                raise ViolationError(
                    Never.MISREPORTED, f"{operation} was reported as nothing to do, and landed as {landed}"
                )
            self._check_nothing(operation, run, commit)
            return
        if landed != commit.version or self.chain[landed].commit_id != commit.commit_id:
            raise ViolationError(
                Never.MISREPORTED, f"{operation} was acknowledged as {commit!r} and landed as {landed}"
            )
        if StoredCommit.of(commit) != self.chain[landed].commit or set(commit.requests) != requests_of(
            self.applied, landed
        ):
            raise ViolationError(
                Never.MISREPORTED, f"{operation} was acknowledged as {commit!r}; it is {self.chain[landed].commit}"
            )
        for id_, version in commit.already.items():
            if self.applied.get(id_) != version:
                raise ViolationError(
                    Never.MISREPORTED, f"{operation}: id {id_} was applied by {self.applied.get(id_)}, not {version}"
                )

    def _check_nothing(self, operation: Operation, run: OperationRun, commit: Commit | None) -> None:
        if operation.digests:
            self.counts["applied twice prevented"] += 1
        if commit is not None and commit.already:
            if any(self.applied.get(id_) != version for id_, version in commit.already.items()):
                raise ViolationError(Never.MISREPORTED, f"{operation}: {commit.already} is not what applied its ids")
            return
        base = run.base if commit is None else commit.version
        if base is None:
            raise ViolationError(Never.MISREPORTED, f"{operation} made no commit, and had looked at no version")
        after = fold(self.states[: base + 1], run, self.applied, base + 1)
        if {name: rows.rows for name, rows in after.items()} != {
            name: rows.rows for name, rows in self.states[base].items()
        }:
            raise ViolationError(
                Never.MISREPORTED, f"{operation} made no commit, though it had something to do in version {base}"
            )
        self.counts["nothing to do"] += 1

    def check_refused(self, operation: Operation, run: OperationRun | None, error: BaseException) -> None:
        """The call raised an error that says that nothing landed. Raises ViolationError if that is not the truth."""
        if operation.landed_version is not None and not operation.upkeep:
            raise ViolationError(
                Never.MISREPORTED,
                f"{operation} landed as {operation.landed_version} and was reported as failed: {error!r}",
            )
        operation.failed = error
        self.counts[f"{type(error).__name__}"] += 1
        if not self.has_reason(operation, run, error):
            raise ViolationError(Never.MISREPORTED, f"{operation} failed without a reason: {error!r}") from error

    def record_unknown(self, operation: Operation, commit_id: str) -> None:
        """The call told its caller that this commit may have landed, or may do so."""
        self._unknown.append((operation, commit_id))

    def check_unknown(self) -> None:
        """At the end: what callers were told to look for is what they find if it has landed. Raises ViolationError."""
        for operation, commit_id in self._unknown:
            landed = operation.landed_version
            if not operation.upkeep and landed is not None and self.chain[landed].commit_id != commit_id:
                raise ViolationError(
                    Never.MISREPORTED,
                    f"the caller of {operation} was told that commit {commit_id} may have landed; version {landed}, "
                    f"which is that call, is commit {self.chain[landed].commit_id}",
                )

    def may_be_unknown(self, run: OperationRun) -> bool:
        """Whether a run's attempt was for a version that no history tells of any more."""
        attempts = (int(key.removeprefix("manifest/v")[:20]) for key in run.manifests)
        return any(version < min(self.retention.horizon, self.version - _HISTORY + 1) for version in attempts)

    def has_reason(self, operation: Operation, run: OperationRun | None, error: BaseException) -> bool:
        """Whether something happened during an operation for which it may raise this, having committed nothing."""
        return has_reason(self, operation, run, error)

    # ---- what is checked later ---------------------------------------------------------------------------------------

    def check_timestamps(self, table: str, timestamps: Mapping[int, int]) -> None:
        """Each row's commit timestamp is within its first commit's, and the same whenever it is read."""
        for u, ts in timestamps.items():
            version = self.written_in[u]
            if not self.chain[version - 1].commit_ts < ts <= self.chain[version].commit_ts:
                raise ViolationError(
                    Never.HALF, f"row {u} of {table!r}, written by version {version}, has _commit_ts {ts}"
                )
            if self._timestamps.setdefault(u, ts) != ts:
                raise ViolationError(
                    Never.HALF, f"row {u} of {table!r} had _commit_ts {self._timestamps[u]}; now it is {ts}"
                )

    def check_isolation(self) -> None:
        """At the end: what transactions saw of each other. Raises ViolationError with the story."""
        runs = {version: landed.run for version, landed in enumerate(self.chain)}
        history = self.recording.history(runs, self.applied)
        self.counts["transactions with reads"] += sum(bool(each.reads) for each in history.transactions)
        check(history)

    def check_dates(self) -> None:
        """At the end: every answer to ``at(timestamp)`` is still the right one."""
        for timestamp, answered in self.timestamp_answers:
            right = max(
                (index for index in range(1, self.version + 1) if self.chain[index].created_at <= timestamp), default=0
            )
            if right != answered:
                raise ViolationError(
                    Never.HALF, f"at(timestamp={timestamp}) answered version {answered}; now it is {right}"
                )
