"""What each version promises to the commits after it: timestamps, pairs and marks by which conflicts and deletes are
judged. A wrong one shows in rows only when others come at the right moment; here it shows as it lands."""

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
) -> None:
    """Holds a version against the one before it. Raises ViolationError.

    Args:
        changed: tables of which rows are gone.
        overwritten: those that were there before, and that it overwrites.
    """
    known = {table.uuid: table for table in before.tables.values()}  # it may have another name by now
    for name, table in view.tables.items():
        old = known.get(table.uuid)
        if old is table:
            continue
        where = f"table {name!r} of version {view.manifest.version}"
        _check_timestamps(where, before, view, old, table, run)
        if old is None:
            continue
        _check_epoch(where, old, table, view, run, name in overwritten)
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
    """New deletes and files have a time of this very commit; what background work writes, one of before."""
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
    """It says when all rows were last replaced: never in the background, always by an overwrite."""
    right = {view.manifest.version} if overwritten else {old.epoch}
    if not run.operation.upkeep:
        right.add(view.manifest.version)  # other statements replace all rows, too
    if table.epoch not in right:
        raise ViolationError(Never.REVIVED, f"{where} has epoch {table.epoch}; it was {old.epoch}")


def _check_pairs(
    where: str, content: Content, before: StoredVersion, old: StoredTable, table: StoredTable, merge: bool
) -> None:
    """A file's pair is only ever replaced by a greater one, and deleted positions stay deleted.

    Only a merge may say less of files whose segment was resolved while it was planned: where that found anything, the
    file has a pair of its own.
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
    """The times of the last deletes, by which later commits see what they have missed."""
    for what in ("last_delete_ts", "unseen_delete_ts"):
        if getattr(table, what) < getattr(old, what):
            raise ViolationError(Never.HALF, f"{where} moves {what} back to {getattr(table, what)}")
    left = {(tombstone.blob, tombstone.ts) for tombstone in table.tombstones}
    dropped = [tombstone.ts for tombstone in old.tombstones if (tombstone.blob, tombstone.ts) not in left]
    if dropped and table.unseen_delete_ts < max(dropped):
        raise ViolationError(
            Never.HALF,
            f"{where} drops a tombstone of {max(dropped)} and says that the last such was {table.unseen_delete_ts}: "
            "whoever read before it does not see that rows are gone",
        )
    if deleted and table.last_delete_ts <= before.manifest.commit_ts:
        raise ViolationError(
            Never.HALF,
            f"{where} deletes rows and says that the last delete was at {table.last_delete_ts}: whoever read before it "
            "does not see that they are gone",
        )
    seen = any(tombstone.ts > before.manifest.commit_ts for tombstone in table.tombstones)
    if deleted and not seen and table.unseen_delete_ts <= before.manifest.commit_ts:
        raise ViolationError(
            Never.HALF, f"{where} deletes rows without a tombstone and does not say so: {table.unseen_delete_ts}"
        )


def _pair(file: StoredFile) -> tuple[int, int]:
    return file.applied_through, file.vector.cardinality if file.vector else 0
