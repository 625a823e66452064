"""Finds the files that a change concerns, from manifests and segments alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from dolmen.entries.segments.row_bounds import RowBounds, may_match_mask
from dolmen.entries.segments.tombstone_judge import FileTombstones, TombstoneJudge
from dolmen.format.entries import DataFile, Tombstone
from dolmen.format.schema import Schema
from dolmen.predicate import StatsVerdict
from dolmen.rows.changes.table_state import FeedColumns, TableState
from dolmen.rows.scan.plan import FilePlan

_TOGETHER = 4096
"""The most files of one version that are looked up in the other at once."""


@dataclass(frozen=True)
class AffectedFile:
    """A file that may have lost rows.

    Args:
        before: the file as it was, with the deletes that hid rows of it.
        after: its entry as it is.
        tombstones: deletes that may have taken rows of it; None if one of them certainly took all.
    """

    before: FilePlan
    after: DataFile
    tombstones: FileTombstones | None

    @property
    def has_other_vector(self) -> bool:
        """Whether rows may have been taken by position."""
        return self.after.vector != self.before.file.vector


class FilePlanner:
    """Plans the reading of one version's files. Nothing is fetched before the first file.

    Args:
        tombstones: the deletes that count; all of the version by default.
    """

    def __init__(
        self, state: TableState, columns: FeedColumns, tombstones: tuple[Tombstone, ...] | None = None
    ) -> None:
        self.state, self._columns, self._given = state, columns, tombstones
        self._where = state.where(columns)
        self._judge: TombstoneJudge | None = None

    @property
    def tombstones(self) -> tuple[Tombstone, ...]:
        """The deletes that count, oldest first."""
        return self.state.tombstones if self._given is None else self._given

    @property
    def judge(self) -> TombstoneJudge:
        """Judges files by statistics against these deletes."""
        if self._judge is None:
            self._judge = TombstoneJudge(self.tombstones, self.state.entry.schema)
        return self._judge

    def plan(self, file: DataFile) -> FilePlan | None:
        """The file with the deletes that may hide rows of it; None if no row of it both matches and is visible."""
        if not file.live_rows:
            return None
        verdict = StatsVerdict.ALWAYS
        if self._where is not None:
            verdict = RowBounds.of(file, self.state.entry.schema, self._columns.filtered).judge(self._where)
        tombstones = None if verdict is StatsVerdict.NEVER else self.judge.of_file(file)
        return None if tombstones is None else FilePlan(file, verdict is StatsVerdict.MAYBE, tombstones)


def younger_files(state: TableState, columns: FeedColumns, commit_ts: int) -> Iterator[DataFile]:
    """Yields the files that may hold matching rows of commits after ``commit_ts``."""
    where = state.where(columns)
    requested = [segment for segment in state.live.segments_for(where) if segment.greatest > commit_ts]
    for each in state.live.live_segments(requested) if requested else ():
        positions = None if where is None else each.positions(may_match_mask(where, each.table))
        yield from (file for file in each.entries(positions) if file.greatest_row_ts > commit_ts)
    yield from (file for file in state.entry.files if file.greatest_row_ts > commit_ts)


def affected_by_commit(before: TableState, after: TableState, columns: FeedColumns) -> Iterator[AffectedFile]:
    """Yields the files of ``before`` of which the commit that made ``after`` may have taken rows.

    Of the table's segments it reads those that may have such files, and no other.
    """
    older = FilePlanner(before, columns)
    own = [each for each in after.tombstones_since(before.commit_ts) if each.ts <= after.commit_ts]
    judge_ = TombstoneJudge(own, after.entry.schema)
    replaced = _replaced_vectors(before, after)
    for file in _judged_files(before, judge_):
        now = replaced.pop(file.uuid, None)
        tombstones = judge_.of_file(file)
        if now is None and tombstones is not None and not tombstones:
            continue
        if (plan := older.plan(file)) is not None:
            yield AffectedFile(plan, now or file, tombstones)
    for file in before.live.find(list(replaced)).values():
        if (plan := older.plan(file)) is not None:
            yield AffectedFile(plan, replaced[file.uuid], FileTombstones())


def affected_by_deletes(
    before: TableState, deletes: tuple[Tombstone, ...], schema: Schema, columns: FeedColumns
) -> Iterator[AffectedFile]:
    """Yields the files of which some deletes may take rows.

    Args:
        schema: the table's columns, with all that the deletes name.
    """
    older, judge_ = FilePlanner(before, columns), TombstoneJudge(deletes, schema)
    for file in _judged_files(before, judge_):
        tombstones = judge_.of_file(file)
        if (tombstones is None or tombstones) and (plan := older.plan(file)) is not None:
            yield AffectedFile(plan, file, tombstones)


def affected_between(
    before: TableState, after: TableState, columns: FeedColumns, planner: FilePlanner
) -> Iterator[AffectedFile] | None:
    """The files of ``before`` that may have lost rows up to a later version of the same epoch.

    Args:
        planner: plans files of ``after``.

    Returns:
        None if files were replaced in between: their rows must be compared.
    """
    affected: list[AffectedFile] = []
    older = FilePlanner(before, columns)
    for some in _batches(before.live):
        found = after.live.find([file.uuid for file in some])
        for file in some:
            now = found.get(file.uuid)
            if now is None:
                if file.live_rows:
                    return None
                continue
            tombstones = planner.judge.of_file(now)
            if now.vector == file.vector and tombstones is not None and not tombstones:
                continue
            if (plan := older.plan(file)) is not None:
                affected.append(AffectedFile(plan, now, tombstones))
    return iter(affected)


def unlike_files(state: TableState, other: TableState | None, columns: FeedColumns) -> Iterator[FilePlan]:
    """Yields the files whose visible rows may not be the same in the other version."""
    planner = FilePlanner(state, columns)
    others = None if other is None else FilePlanner(other, columns)
    for some in _batches(state.live):
        found = {} if other is None else other.live.find([file.uuid for file in some])
        for file in some:
            there = found.get(file.uuid)
            plan = planner.plan(file)
            if plan is None or (others and there and _is_alike(plan, there, others)):
                continue
            yield plan


def _is_alike(plan: FilePlan, there: DataFile, others: FilePlanner) -> bool:
    if plan.file.vector != there.vector:
        return False
    other = others.plan(there)
    return other is not None and tuple(other.tombstones) == tuple(plan.tombstones)


def _judged_files(state: TableState, judge_: TombstoneJudge) -> Iterator[DataFile]:
    """The files of which some delete may hide rows, by the bounds of segments, and all inline files."""
    if not judge_:
        return
    judged = {segment.object: judge_.of_segment(segment) for segment in state.live.segments}
    requested = [segment for segment in state.live.segments if judged[segment.object]]
    for each in state.live.live_segments(requested) if requested else ():
        yield from each.entries(each.positions(judged[each.segment.object].mask(each)))
    yield from state.entry.files


def _replaced_vectors(before: TableState, after: TableState) -> dict[str, DataFile]:
    """Files of ``before`` to which the next commit gave other vectors, as they are after it, by uuid.

    The pairs that a commit changes are inline: in an overlay, or in the file's own inline entry.
    """
    inline = {file.uuid: file.vector for file in before.entry.files}
    found = {file.uuid: file for file in after.entry.files if inline.get(file.uuid, file.vector) != file.vector}
    known = set(before.entry.overlays)
    changed = [overlay.file for overlay in after.entry.overlays if overlay not in known]
    if changed:
        was = before.live.find(changed)
        now = after.live.find(was)
        found |= {uuid: file for uuid, file in now.items() if was[uuid].vector != file.vector}
    return found


def _batches(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    iterator = iter(files)
    while some := list(islice(iterator, _TOGETHER)):
        yield some
