"""Mutations of the change feed."""

from __future__ import annotations

from mutations.mutation import Mutation, mutation

FEEDS: tuple[Mutation, ...] = (
    mutation(
        "rows that an older delete hid are fed again",
        "a delete is fed with the rows that were visible before its commit",
        "rows/changes/table_state.py",
        "    older = FilePlanner(before, columns)\n    deletes = [",
        "    older = FilePlanner(before, columns, ())\n    deletes = [",
    ),
    mutation(
        "a delete by position is not fed",
        "the feed contains rows that a commit's vectors hide, too",
        "rows/changes/table_state.py",
        "    replaced = _replaced_vectors(before, after)\n",
        "    replaced: dict[str, DataFile] = {}\n",
    ),
    mutation(
        "an overwrite is fed by its new files alone",
        "for a commit that starts a new epoch, the feed contains the difference of the visible rows",
        "rows/changes/changed_files.py",
        "        return before.entry.epoch == after.entry.epoch and before.shows_same(after, self.key_columns)\n",
        "        return before.shows_same(after, self.key_columns)\n",
    ),
    mutation(
        "rows that compaction moved count as deleted and new",
        "if files were replaced between two versions, files do not show their difference",
        "rows/changes/table_state.py",
        "                if file.live_rows:\n                    return None\n",
        "",
    ),
    mutation(
        "all rows of a compacted file count as new",
        "rows keep their timestamps through compaction: those up to the first version are not new",
        "rows/changes/changed_files.py",
        "        if group.file.file.least_row_ts <= since:\n",
        "        if False:\n",
    ),
)
