"""Mutations of the change feed."""

from __future__ import annotations

from mutations.mutation import Mutation, mutation

FEEDS: tuple[Mutation, ...] = (
    mutation(
        "rows that an older delete hid are fed again",
        "a delete is fed with the rows that were visible before its commit",
        "rows/changes/affected_files.py",
        "    older = FilePlanner(before, columns)\n    own = [",
        "    older = FilePlanner(before, columns, ())\n    own = [",
    ),
    mutation(
        "a delete by position is not fed",
        "what a commit's vectors hide is fed too, not only what its tombstones do",
        "rows/changes/affected_files.py",
        "    replaced = _replaced_vectors(before, after)\n",
        "    replaced: dict[str, DataFile] = {}\n",
    ),
    mutation(
        "an overwrite is fed by its new files alone",
        "a commit that makes a new epoch is fed as the difference of what was and is visible",
        "rows/changes/changed_files.py",
        "        return before.entry.epoch == after.entry.epoch and before.shows_like(after, self.key_columns)\n",
        "        return before.shows_like(after, self.key_columns)\n",
    ),
    mutation(
        "rows that compaction has moved are taken for deleted and new ones",
        "if files were replaced between two versions, files do not tell their difference",
        "rows/changes/affected_files.py",
        "                if file.live_rows:\n                    return None\n",
        "",
    ),
    mutation(
        "all rows of a compacted file count as new",
        "rows keep their timestamps through compaction: those up to the first version are not new",
        "rows/changes/changed_rows.py",
        "        if group.file.file.least_row_ts <= since:\n",
        "        if False:\n",
    ),
)
