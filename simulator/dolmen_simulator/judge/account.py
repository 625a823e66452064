"""Counts what each new version did, and checks the size of its root."""

from __future__ import annotations

from dolmen_simulator.judge.chronicle import Chronicle
from dolmen_simulator.judge.model import DeletePositionsEffect, OperationRun, user_tables
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.retention import setting
from dolmen_simulator.judge.stored import StoredVersion

TIME_TO_SPILL = 4
"""Versions after which an entry has had the time to leave the root."""


def check_size(chronicle: Chronicle, view: StoredVersion) -> None:
    """Raises ViolationError if a root exceeds its budget by more than young entries and a few small tails.

    A commit spills one tail of its base, and may itself add to several.
    """
    before = chronicle.retention.newest
    if before is None:
        return
    budget = setting(chronicle.settings[-2], "root_bytes")
    if view.size <= budget or any(setting(earlier, "root_bytes") != budget for earlier in chronicle.settings[-32:]):
        return  # a commit spills one tail, so that reaching a smaller budget takes several commits
    tails = chronicle.reader.tails(view.key)
    for earlier in chronicle.chain[-1 - TIME_TO_SPILL : -1]:
        tails &= chronicle.reader.tails(earlier.key)
    over = sum(len(entry) * times for entry, times in tails.items()) - budget
    chronicle.counts["roots over their budget"] += 1
    memories = len(view.tables) - len(user_tables(view.tables))
    if over > budget // 4 + memories * budget // 8:  # each has two more tails, of which a sixteenth may stay
        raise ViolationError(
            Never.UNREADABLE,
            f"version {view.manifest.version} could spill {over} bytes more than its budget of {budget} allows for",
        )


def count_merges(chronicle: Chronicle, run: OperationRun, version: int) -> None:
    tables = {effect.table for effect in run.effects if isinstance(effect, DeletePositionsEffect)}
    if not tables or run.base is None:
        return
    for index in range(run.base + 1, version):
        other = chronicle.chain[index].run
        if other and any(isinstance(e, DeletePositionsEffect) and e.table in tables for e in other.effects):
            chronicle.counts["positions rebased over positions"] += 1
            return


def count_upkeep(chronicle: Chronicle, view: StoredVersion, run: OperationRun) -> None:
    counts, manifest = view.manifest.counts, view.manifest
    before = chronicle.retention.newest
    if run.operation.upkeep:
        chronicle.upkeep_version = manifest.version
        chronicle.counts[f"commits of {manifest.operation}"] += 1
    chronicle.named_segments |= view.segments
    chronicle.counts["files compacted"] += counts.files_removed if manifest.operation == "compact" else 0
    chronicle.counts["files resolved"] += counts.files_resolved
    chronicle.counts["tombstones dropped"] += counts.tombstones_removed
    attempt = run.manifests.index(view.key)
    for key in view.segments - (before.segments if before else frozenset()):
        if key in run.spills:
            chronicle.counts["spills"] += 1
            chronicle.counts["spills reused"] += attempt > run.spills[key]
