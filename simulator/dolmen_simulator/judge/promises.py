"""Checks the timestamps, pairs and marks of each version, by which later commits judge conflicts and deletes.

A wrong value affects rows only if other commits come at the right moment; this check finds it when it lands.
"""

from __future__ import annotations

from dolmen_simulator.judge.content import Content
from dolmen_simulator.judge.model import OperationRun
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.stored import StoredFile, StoredTable, StoredVersion


def check_promises(
    content: Content,
    before: StoredVersion,
    view: StoredVersion,
    run: OperationRun,
    changed: set[str],
    overwritten: set[str],
    revived: set[str],
) -> None:
    """Checks a version against the one before it. Raises ViolationError.

    Args:
        content: reads deletion vectors.
        before: the version before.
        view: the version.
        run: the run that committed it.
        changed: names of tables that lost rows.
        overwritten: names of existing tables that it overwrites.
        revived: names of tables whose files come from an earlier version.
    """
    known = {table.uuid: table for table in before.tables.values()}  # it may have another name by now
    for name, table in view.tables.items():
        old = known.get(table.uuid)
        if old is table:
            continue
        where = f"table {name!r} of version {view.manifest.version}"
        if name not in revived:
            _check_timestamps(where, before, view, old, table, run)
        if old is None:
            continue
        _check_epoch(where, old, table, view, run, name in overwritten)
        if name not in revived:
            _check_pairs(where, content, before, old, table, view.manifest.operation == "merge")
        _check_marks(where, before, old, table, name in changed)


def _check_timestamps(
    where: str,
    before: StoredVersion,
    view: StoredVersion,
    old: StoredTable | None,
    table: StoredTable,
    run: OperationRun,
) -> None:
    """Checks that new deletes and files have timestamps of this commit, and files of background work earlier ones."""
    least, most = before.manifest.commit_ts, view.manifest.commit_ts
    known = {(tombstone.blob, tombstone.ts) for tombstone in old.tombstones} if old else set()
    for tombstone in table.tombstones:
        if (tombstone.blob, tombstone.ts) not in known and not least < tombstone.ts <= most:
            raise ViolationError(
                Never.REVIVED, f"{where} has a new tombstone with the timestamp {tombstone.ts}, not of its commit"
            )
    there = {file.path for file in old.files} if old else set()
    for file in table.files:
        if file.path in there:
            continue
        if run.operation.upkeep:
            if file.applied_through > least:
                raise ViolationError(
                    Never.REVIVED,
                    f"{where}: {file.path} claims to know deletes up to {file.applied_through}, "
                    "which no version had when it was written",
                )
        elif not least < file.applied_through <= most or file.row_ts != file.applied_through:
            raise ViolationError(
                Never.REVIVED,
                f"{where}: the new file {file.path} has row_ts {file.row_ts} and applied_through "
                f"{file.applied_through}, not the timestamp of its statement",
            )


def _check_epoch(
    where: str, old: StoredTable, table: StoredTable, view: StoredVersion, run: OperationRun, overwritten: bool
) -> None:
    """Checks the epoch, the last replacement of all rows: background work keeps it, and an overwrite moves it."""
    right = {view.manifest.version} if overwritten else {old.epoch}
    if not run.operation.upkeep:
        right.add(view.manifest.version)  # other statements replace all rows, too
    if table.epoch not in right:
        raise ViolationError(Never.REVIVED, f"{where} has epoch {table.epoch}; it was {old.epoch}")


def _check_pairs(
    where: str, content: Content, before: StoredVersion, old: StoredTable, table: StoredTable, merge: bool
) -> None:
    """Checks that a file's pair only grows, and that deleted positions stay deleted.

    Only a merge may lower ``applied_through`` of files whose segment was resolved while the merge was planned: where
    the resolution found deleted rows, the file has a pair of its own.
    """
    known = {file.path: file for file in old.files}
    for file in table.files:
        was = known.get(file.path)
        if was is None or (was.applied_through, was.vector) == (file.applied_through, file.vector):
            continue
        if merge and file.vector == was.vector and file.applied_through < was.applied_through:
            continue
        if _pair(file) < _pair(was) or (file.applied_through > max(was.applied_through, before.manifest.commit_ts)):
            raise ViolationError(
                Never.REVIVED, f"{where}: {file.path} goes from the pair {_pair(was)} to {_pair(file)}"
            )
        if was.vector and was.vector != file.vector:
            lost = content.positions(was.vector) - (content.positions(file.vector) if file.vector else set())
            if lost:
                raise ViolationError(Never.REVIVED, f"{where}: {file.path} forgets that rows {sorted(lost)} are gone")


def _check_marks(where: str, before: StoredVersion, old: StoredTable, table: StoredTable, deleted: bool) -> None:
    """Checks the times of the last deletes, by which later commits find the deletes that they missed."""
    for what in ("last_delete_ts", "unseen_delete_ts"):
        if getattr(table, what) < getattr(old, what):
            raise ViolationError(Never.HALF, f"{where} moves {what} back to {getattr(table, what)}")
    left = {(tombstone.blob, tombstone.ts) for tombstone in table.tombstones}
    dropped = [tombstone.ts for tombstone in old.tombstones if (tombstone.blob, tombstone.ts) not in left]
    if dropped and table.unseen_delete_ts < max(dropped):
        raise ViolationError(
            Never.HALF,
            f"{where} drops a tombstone of {max(dropped)} and says that the last such was {table.unseen_delete_ts}: "
            "an earlier reader does not see that rows are gone",
        )
    if deleted and table.last_delete_ts <= before.manifest.commit_ts:
        raise ViolationError(
            Never.HALF,
            f"{where} deletes rows and says that the last delete was at {table.last_delete_ts}: an earlier reader "
            "does not see that they are gone",
        )
    seen = any(tombstone.ts > before.manifest.commit_ts for tombstone in table.tombstones)
    if deleted and not seen and table.unseen_delete_ts <= before.manifest.commit_ts:
        raise ViolationError(
            Never.HALF, f"{where} deletes rows without a tombstone and does not say so: {table.unseen_delete_ts}"
        )


def _pair(file: StoredFile) -> tuple[int, int]:
    return file.applied_through, file.vector.cardinality if file.vector else 0
