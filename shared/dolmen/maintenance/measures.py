"""Figures of background work: facts for logs and scripts, and measures for metrics and alarms."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, TypeAlias

from dolmen.maintenance.compact.compaction import Compacted
from dolmen.maintenance.debt import Debts
from dolmen.maintenance.gc.collection import Collected
from dolmen.maintenance.resolution import Resolved
from dolmen.maintenance.round import Round
from dolmen.maintenance.segment_merging import Merged
from dolmen.maintenance.ttl import Expired

Unit: TypeAlias = Literal["Count", "Bytes", "Seconds"]
Measures: TypeAlias = dict[str, tuple[Unit, float]]
"""Unit and value of each metric in CloudWatch, by name."""


def facts_of(result: Any) -> dict[str, Any]:
    """The figures of a result: names and numbers, never values of the data."""
    if isinstance(result, Expired):
        return {"tables": sorted(result.cutoffs), "version": result.commit.version if result.commit else None}
    if isinstance(result, Collected):
        deleted = {reason: amount.objects for reason, amount in result.deleted.items() if amount.objects}
        return {
            "version": result.version,
            "horizon": result.horizon,
            "versions_expired": result.versions_expired,
            "deleted": deleted,
            "objects": result.objects,
            "bytes": result.bytes,
            "revoked": len(result.revoked),
            "erasures_pending": result.erasures.pending,
            "erasures_gone": result.erasures_gone,
            "finished": result.finished,
        }
    return {
        field.name: getattr(result, field.name)
        for field in fields(result)
        if field.name != "table" and isinstance(getattr(result, field.name), int)
    }


def changed_anything(result: Any) -> bool:
    """Whether it made a version or deleted an object. Most rounds find nothing to do."""
    if isinstance(result, Collected):
        return bool(result.objects or result.versions_expired or result.revoked)
    return bool(result.commits > 0)


def measures_of_round(done: Round) -> Measures:
    """Measures of a round, summed over all tables."""
    resolved: list[Resolved] = done.results("resolve")
    compacted: list[Compacted] = done.results("compact")
    merged: list[Merged] = done.results("merge")
    expired: list[Expired] = done.results("expire")
    return {
        "TablesExpired": ("Count", sum(len(one.cutoffs) for one in expired)),
        "TombstonesResolved": ("Count", sum(one.dropped for one in resolved)),
        "RowsResolved": ("Count", sum(one.rows for one in resolved)),
        "FilesCompacted": ("Count", sum(one.files_in for one in compacted)),
        "BytesCompacted": ("Bytes", sum(one.bytes_in for one in compacted)),
        "RowsRemoved": ("Count", sum(one.rows_deleted for one in compacted)),
        "GroupsDropped": ("Count", sum(one.dropped for one in compacted)),
        "SegmentsMerged": ("Count", sum(one.inputs for one in merged)),
        "TablesPublished": ("Count", sum(one.commits for one in done.results("publish"))),
        "IndexesBehind": ("Count", len(done.indexes_behind)),
        "StepsFailed": ("Count", len(done.failures)),
        "RoundsUnfinished": ("Count", int(not done.finished)),
    }


def measures_of_debt(debts: Debts) -> Measures:
    """Measures of the work that is left to do."""
    return {
        "TombstoneDebt": ("Count", debts.total("tombstones")),
        "OldestUnresolvedDeleteSeconds": ("Seconds", debts.oldest_unresolved_age_us / 1e6),
        "SmallFileDebt": ("Count", debts.total("files_saved")),
        "DeadRows": ("Count", debts.total("dead_rows")),
        "IndexLagRows": ("Count", debts.total("index_lag_rows")),
        "PublicationLagSeconds": ("Seconds", debts.publication_lag_us / 1e6),
        "ManifestBytes": ("Bytes", debts.manifest_bytes),
        "ManifestBudget": ("Bytes", debts.manifest_budget),
    }


def measures_of_collection(collected: Collected) -> Measures:
    """Measures of a collection, and of the objects that wait for one. A dry run has deleted nothing."""
    waiting = collected.waiting
    did = 0 if collected.dry_run else 1
    measures: Measures = {
        "ObjectsDeleted": ("Count", collected.objects * did),
        "BytesDeleted": ("Bytes", collected.bytes * did),
        "VersionsExpired": ("Count", collected.versions_expired * did),
        "JobsRevoked": ("Count", len(collected.revoked) * did),
        "DeletesFailed": ("Count", len(collected.errors)),
        "ErasuresGone": ("Count", collected.erasures_gone * did),
        "ErasuresPending": ("Count", collected.erasures.pending),
        "ErasuresInDanger": ("Count", collected.erasures.in_danger),
        "OldestErasureSeconds": ("Seconds", collected.erasures.oldest_age_us / 1e6),
    }
    if collected.erasures.deadline_us is not None:
        measures["ErasureDeadlineSeconds"] = ("Seconds", collected.erasures.deadline_us / 1e6)
    if waiting is not None:
        measures |= {"OrphanBytes": ("Bytes", waiting.bytes), "OrphanObjects": ("Count", waiting.objects)}
    return measures
