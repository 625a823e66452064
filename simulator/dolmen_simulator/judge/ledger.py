"""Records what was really committed, read from the store when each pointer lands, never from the code's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dolmen.format.layout import memory_name
from dolmen.store.memory import MemoryBucket
from dolmen.transactions.unit_of_work import Commit
from dolmen_simulator.judge.account import check_size, count_merges, count_upkeep
from dolmen_simulator.judge.answers import has_reason
from dolmen_simulator.judge.chronicle import Chronicle, LandedVersion
from dolmen_simulator.judge.content import compile_predicate
from dolmen_simulator.judge.deeds import check_deeds, check_own_deeds, requests_of
from dolmen_simulator.judge.erasing import EraseEffect, ForgetEffect, LandedErasure
from dolmen_simulator.judge.following import find_strayed_effect, tables_of
from dolmen_simulator.judge.ingesting import IngestEffect
from dolmen_simulator.judge.isolation import History, check
from dolmen_simulator.judge.model import (
    Effect,
    ExpireEffect,
    Identity,
    Operation,
    OperationRun,
    OverwriteEffect,
    Row,
    SettingsEffect,
    TableRows,
    fold,
    user_tables,
)
from dolmen_simulator.judge.never import Never, ViolationError, raising_unreadable
from dolmen_simulator.judge.past import CloneEffect, CursorEffect, RestoreAllEffect, RestoreEffect, TagEffect
from dolmen_simulator.judge.promises import check_promises
from dolmen_simulator.judge.publications import PINS
from dolmen_simulator.judge.retention import JITTER_US, setting
from dolmen_simulator.judge.seen import check_remembered, check_rows, row_of
from dolmen_simulator.judge.stored import StoredCommit, StoredPointer, StoredTable, StoredVersion

DATED_EARLY_US = 22 * 1_000_000
"""How much a commit may be dated early: clocks of the server's answers differ by 20 s, and show whole seconds."""

SETTLED_US = 20 * 60 * 1_000_000
EXPIRED = "ttl_expired"
_HISTORY = 16


class CommitLedger(Chronicle):
    """The chronicle of versions, with checks of each version and of each answer to a caller.

    Args:
        bucket: the bucket.
        counts: counts of events, shared with the whole simulation.
    """

    def __init__(self, bucket: MemoryBucket, counts: Counter[str]) -> None:
        super().__init__(bucket, counts)
        self._runs: dict[str, OperationRun] = {}
        self._timestamps: dict[int, int] = {}
        self._uuids: dict[Identity, str] = {}
        self._unknown: list[tuple[Operation, str]] = []

    def record_sent(self, pointer: bytes, run: OperationRun | None, beside: Sequence[OperationRun] = ()) -> None:
        """Records the run to which a pointer on its way belongs; one with a turn makes no version.

        Args:
            run: that of the thread that sends it.
            beside: those of all threads of the process. Each call of several threads has a message of its own, so the
                manifest tells whose changes it has.
        """
        sent = msgspec.json.decode(pointer, type=StoredPointer)
        if sent.turn is not None:
            return
        commit_id = sent.commit_id
        if run is None:
            raise ViolationError(Never.TWICE, f"commit {commit_id} by nobody")
        known = self._runs.get(commit_id)
        if len(beside) > 1:
            by_message = {each.operation.message: each for each in beside}
            told = self.reader.messages(sent.manifest)
            members = tuple(by_message[message] for message in told if message in by_message)
            if known is not None and known.parts == members:
                return
            if members:
                run = OperationRun.of_group(members, run) if len(members) > 1 else members[0]
        if self._runs.setdefault(commit_id, run) is not run:
            raise ViolationError(Never.TWICE, f"commit id {commit_id} was used for two runs of {run.operation}")

    def record_pointer(self, body: bytes, now_us: int) -> bool:
        """Records and checks a pointer that has just landed. Raises ViolationError.

        Returns:
            Whether it is a new version; otherwise it names the newest one again, and a turn.
        """
        pointer = msgspec.json.decode(body, type=StoredPointer)
        if pointer.turn is None:
            self._record_version(pointer, now_us)
            return True
        newest = self.chain[-1]
        if (pointer.version, pointer.manifest, pointer.commit_id) != (self.version, newest.key, newest.commit_id):
            raise ViolationError(Never.LOST, f"pointer {pointer} takes a turn at another version than {self.version}")
        self.counts["turns taken"] += 1
        return False

    def _record_version(self, pointer: StoredPointer, now_us: int) -> None:
        """Records and checks the version of a pointer that has just landed. Raises ViolationError."""
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
        for part in dict.fromkeys((run, *run.parts)):
            self._check_operation(part.operation, version)
            if (early_us := part.operation.began_us - manifest.created_at) > DATED_EARLY_US:
                raise ViolationError(
                    Never.MISDATED, f"version {version} is dated {early_us / 1e6} s before {part.operation} began"
                )
        self._check_applied(view, run, version)
        self._check_tables(run, version)
        applied = frozenset(self.applied)
        self._fold(view, run, version)
        self._record_erasures(view, run, applied, version)
        commit = manifest.as_history
        self.chain.append(
            LandedVersion(pointer.manifest, manifest.commit_id, manifest.commit_ts, manifest.created_at, run, commit)
        )
        self._check_tags(view, run)
        self.horizons.append(manifest.horizon)
        self.counts["commits"] += 1
        self.counts["calls committed together"] += len(run.members)
        self.recording.record_version(now_us, str(run.operation))
        count_merges(self, run, version)
        count_upkeep(self, view, run)
        check_size(self, view)
        self.retention.check_there(view)
        changed = self._check_rows(view, version)
        if self.retention.newest:
            overwritten, revived = self._overwritten(run, version), _revived(run, view)
            check_promises(self.content, self.retention.newest, view, run, changed, overwritten, revived)
        self.retention.record_version(view)
        self.publications.record_version(view)
        check_deeds(view, run, self.states, applied)

    def _fold(self, view: StoredVersion, run: OperationRun, version: int) -> None:
        manifest, before = view.manifest, self.states[-1]
        if run.operation.upkeep:
            run.effects = self._expiries(view) if manifest.operation == "expire" else self._pins(view)
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
            found = {key: value for key, value in table.properties.items() if key != EXPIRED}
            if found != state[name].settings:
                raise ViolationError(
                    Never.LOST, f"version {version}: {name!r} has settings {found}, not {state[name].settings}"
                )
        settings = self.settings[-1]
        for effect in run.effects:
            if isinstance(effect, SettingsEffect) and not effect.table:
                settings = effect.merged(settings)
        if manifest.properties != settings:
            raise ViolationError(Never.LOST, f"version {version} has settings {manifest.properties}, not {settings}")
        self.settings.append(settings)

    def _record_erasures(self, view: StoredVersion, run: OperationRun, applied: frozenset[str], version: int) -> None:
        """Records what the version erased, in which earlier versions too, and checks that it lists all erasures."""
        effects = [effect for effect in run.effects if effect.request is None or effect.request not in applied]
        self._record_late_rows(effects, run, version)
        asked = [effect.reach(self.states[-2]) for effect in effects if isinstance(effect, EraseEffect | ForgetEffect)]
        known, listed = {erasure.id for erasure in self.erasures}, {each.id for each in view.erasures}
        new = [each for each in view.erasures if each.id not in known]
        if len(new) != len(asked) or not known <= listed:
            raise ViolationError(
                Never.SEEN,
                f"version {version} by {run.operation} lists {len(new)} new erasures, not {len(asked)}, and does not "
                f"list {sorted(known - listed)} any more",
            )
        judged = set[int]()
        for each, reach in zip(new, asked, strict=True):
            self.erasures.append(LandedErasure(each.id, version, each.requested_at, reach))
            self.counts["erasures"] += 1
            for state in self.states[:-1]:
                for table in state.values():
                    if id(table) not in judged and reach.concerns(table):
                        lost = set(table.rows).difference(reach.left(table, table.rows))
                        self.erased.update((table.identity, row.u) for row in lost)
                    judged.add(id(table))

    def _record_late_rows(self, effects: Iterable[Effect], run: OperationRun, version: int) -> None:
        for effect in effects:
            base = self.states[-2 if run.base is None else run.base]
            if isinstance(effect, IngestEffect) and effect.table in base:
                table = base[effect.table]
                late = set(effect.rows).difference(effect.rows_left(table, version))
                self.erased.update((table.identity, row.u) for row in late)
                self.counts["late rows left out"] += len(late)

    def _check_rows(self, view: StoredVersion, version: int) -> set[str]:
        """Checks the rows of a new version, decoded from its objects, against the model.

        Returns the names of the tables that lost rows.
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
            rows = [row_of(row.values) for row in stored]
            self.recording.record_rows(name, rows)
            if not {row.u for row in was.get(expected.identity, ())} <= {row.u for row in rows}:
                changed.add(name)
            check_rows(self, rows, version, name, what)
            self._check_checks(table, rows, expected, f"{name!r} of version {version}")
            self.check_timestamps(name, {row.u: one.ts for row, one in zip(rows, stored, strict=True)})
            check_remembered((row.values[:2] for row in remembered), expected, what)
            self.counts["tables decoded"] += 1
        for name in sorted(self.states[version - 1].keys() - state.keys()):
            self.recording.record_rows(name, ())
        return changed

    def _check_checks(self, table: StoredTable, rows: Sequence[Row], expected: TableRows, what: str) -> None:
        """Checks that a table has the checks that it should, and that no row breaks one of them."""
        if bool(table.checks) != expected.is_checked:
            raise ViolationError(Never.UNCHECKED, f"{what} has {len(table.checks)} checks, not {expected.is_checked}")
        for predicate in table.checks:
            self.counts["tables compared with a check"] += 1
            truth = compile_predicate(predicate)
            if broken := [row for row in rows if truth(dict(enumerate(row, 1))) is False]:
                raise ViolationError(Never.UNCHECKED, f"{what} has rows that its check forbids: {broken}")

    def _overwritten(self, run: OperationRun, version: int) -> set[str]:
        """The names, after a run, of existing tables that it overwrites."""
        tables = tables_of(self.states[version - 1], run.effects)
        own = {
            table
            for effect, table in zip(run.effects, tables, strict=True)
            if isinstance(effect, OverwriteEffect) and table
        }
        return {name for name, rows in self.states[version].items() if rows.identity in own}

    def _check_tags(self, view: StoredVersion, run: OperationRun) -> None:
        """Checks the tags of a new version: only a tag that has come to its end is removed by others."""
        manifest, expected = view.manifest, self.tags[-1]
        for effect in run.effects:
            if isinstance(effect, TagEffect) and not effect.tag.startswith(PINS):
                expected = effect.merged(expected)
        before = self.retention.newest.manifest.tags if self.retention.newest else {}
        if run.operation.upkeep:
            ended = {name for name, tag in before.items() if 0 < tag.until <= manifest.created_at + JITTER_US}
            expected = {name: to for name, to in expected.items() if name in manifest.tags or name not in ended}
        found = {name: tag.version for name, tag in manifest.tags.items() if not name.startswith(PINS)}
        self.publications.check_pins(view, before, is_background=run.operation.upkeep)
        if found != expected:
            raise ViolationError(Never.LOST, f"version {manifest.version} has tags {found}, not {expected}")
        for name, tag in manifest.tags.items():
            there = self.chain[tag.version]
            if (tag.manifest, tag.created_at) != (there.key, there.created_at):
                raise ViolationError(Never.LOST, f"tag {name!r} of version {manifest.version} is {tag}, not {there}")
        self.tags.append(found)
        cursors = frozenset(manifest.cursors)
        if cursors != self.cursors[-1] and not any(isinstance(effect, CursorEffect) for effect in run.effects):
            raise ViolationError(Never.LOST, f"version {manifest.version} has cursors {sorted(cursors)}")
        self.cursors.append(cursors)

    def _pins(self, view: StoredVersion) -> list[Effect]:
        """The pins of published versions that a commit gave."""
        before = self.retention.newest.manifest.tags if self.retention.newest else {}
        tags = view.manifest.tags.items()
        return [TagEffect(name, tag.version) for name, tag in tags if name.startswith(PINS) and name not in before]

    def _expiries(self, view: StoredVersion) -> list[Effect]:
        """The effects of an expiry commit, read from the properties that it set, after a check against the ttl."""
        effects: list[Effect] = []
        for name, table in view.tables.items():
            expired = table.properties.get(EXPIRED)
            if expired is None or all(tombstone.ts <= self.chain[-1].commit_ts for tombstone in table.tombstones):
                continue  # two expiries of the same version set the same property, and each leaves a tombstone
            before = self.states[-1].get(name)
            ttl = before.settings.get("ttl") if before else None
            age_us = setting({"retention": ttl.rpartition(" ")[2]}, "retention") if ttl else None
            if age_us is None or expired["before"] > view.manifest.created_at - age_us + JITTER_US:
                raise ViolationError(
                    Never.LOST, f"rows of {name!r} expired before {expired['before']}: they live for {ttl}"
                )
            effects.append(ExpireEffect(name, expired["before"]))
        self.counts["tables expired"] += len(effects)
        return effects

    def _check_history(self, view: StoredVersion) -> None:
        manifest = view.manifest
        version, horizon = manifest.version, max(manifest.horizon, 1)
        recent = [(entry.version, entry.commit_id) for entry in manifest.history[-_HISTORY:]]
        if recent != [(index, self.chain[index].commit_id) for index in range(max(1, version - _HISTORY), version)]:
            raise ViolationError(Never.MISREPORTED, f"the newest history of version {version} is not that of its chain")
        versions = [entry.version for entry in view.history if entry.version >= horizon]
        if versions != list(range(horizon, version)):
            raise ViolationError(
                Never.MISREPORTED, f"version {version} with horizon {horizon} tells of versions {versions}"
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
            found = there.get(id_)
            if found is None and self.chain[applied].created_at < view.manifest.created_at - kept_us + JITTER_US:
                self.counts["ids forgotten"] += 1
            elif found is None or found.version != applied:
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
        for part in run.parts:
            effect = find_strayed_effect(self.states, part.operation, part, self.applied)
            if effect is not None:
                raise ViolationError(
                    Never.STRAYED,
                    f"version {version} by {part.operation} was made for a table {effect.table!r} that is not the one "
                    "of that name any more",
                )

    # ---- answers to callers ------------------------------------------------------------------------------------------

    def check_acknowledged(self, operation: Operation, run: OperationRun, commit: Commit | None) -> None:
        """Checks the answer of a call that returned. Raises ViolationError if it is wrong."""
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
        whole = self.chain[landed].commit
        assert whole is not None
        told, requests = StoredCommit.of(commit), requests_of(self.applied, landed)
        group = self.chain[landed].run
        if group is not None and group.members:
            requests &= operation.digests.keys()
            check_own_deeds(told, run, whole)
        elif told != whole:
            raise ViolationError(Never.MISREPORTED, f"{operation} was acknowledged as {commit!r}; it is {whole}")
        if set(commit.requests) != requests:
            raise ViolationError(
                Never.MISREPORTED, f"{operation} was acknowledged as {commit!r}, and applied {sorted(requests)}"
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
        """Checks an error that says that nothing landed. Raises ViolationError if it is wrong."""
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
        """Records that a caller got the unknown outcome: this commit may have landed, or may still land."""
        self._unknown.append((operation, commit_id))

    def check_unknown(self) -> None:
        """Checks, at the end, that unknown commits that landed have the ids that their callers got."""
        for operation, commit_id in self._unknown:
            landed = operation.landed_version
            if not operation.upkeep and landed is not None and self.chain[landed].commit_id != commit_id:
                raise ViolationError(
                    Never.MISREPORTED,
                    f"the caller of {operation} was told that commit {commit_id} may have landed; version {landed}, "
                    f"which is that call, is commit {self.chain[landed].commit_id}",
                )

    def may_be_unknown(self, run: OperationRun) -> bool:
        """Whether a run attempted a version that is no longer in any history."""
        attempts = (int(key.removeprefix("manifest/v")[:20]) for key in run.manifests)
        return any(version < min(self.retention.horizon, self.version - _HISTORY + 1) for version in attempts)

    def has_reason(self, operation: Operation, run: OperationRun | None, error: BaseException) -> bool:
        """Whether an event during an operation justifies this error."""
        return has_reason(self, operation, run, error)

    # ---- checks at the end -------------------------------------------------------------------------------------------

    def check_timestamps(self, table: str, timestamps: Mapping[int, int]) -> None:
        """Checks that each row's commit timestamp belongs to its first commit, and never changes."""
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
        """Checks, at the end, the isolation of all transactions. Raises ViolationError with the story."""
        history = self.recorded_history()
        self.counts["transactions with reads"] += sum(bool(each.reads) for each in history.transactions)
        check(history)

    def recorded_history(self) -> History:
        """All transactions so far, with what they read and wrote."""
        return self.recording.history({version: landed.run for version, landed in enumerate(self.chain)}, self.applied)

    def check_dates(self) -> None:
        """Checks, at the end, that every answer to ``at(timestamp)`` is still right."""
        for timestamp, answered in self.timestamp_answers:
            right = max(
                (index for index in range(1, self.version + 1) if self.chain[index].created_at <= timestamp), default=0
            )
            if right != answered:
                raise ViolationError(
                    Never.HALF, f"at(timestamp={timestamp}) answered version {answered}; now it is {right}"
                )


def _revived(run: OperationRun, view: StoredVersion) -> set[str]:
    """The names, after a run, of tables and memories whose files come from an earlier version."""
    if any(isinstance(effect, RestoreAllEffect) for effect in run.effects):
        return set(view.tables)
    names = {effect.table for effect in run.effects if isinstance(effect, (RestoreEffect, CloneEffect))}
    return names | set(map(memory_name, names))
