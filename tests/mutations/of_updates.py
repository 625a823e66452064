"""Mutations of updates and merges."""

from __future__ import annotations

from mutations.mutation import Mutation, mutation

UPDATES: tuple[Mutation, ...] = (
    mutation(
        "an update commits whatever has changed",
        "an update or a merge depends on what it read: no other commit may change it before it lands",
        "transactions/row_statements.py",
        "        self.unit.depend_on_rows(self.name, implied_by(condition))\n        view = View(",
        "        self.unit.keep_base()\n        view = View(",
    ),
    mutation(
        "updated rows stay, in addition to the new ones",
        "an updated row is hidden in the commit that writes its new version",
        "transactions/row_statements.py",
        "        if hidden or unit.has_changed(uuid):\n",
        "        if unit.has_changed(uuid):\n",
    ),
    mutation(
        "a merge inserts rows that matched",
        "source rows that match a row of the table are not inserted",
        "transactions/merge/merge.py",
        "            self._is_matched[sources] = True\n",
        "            self._is_matched[sources[:1]] = True\n",
    ),
    mutation(
        "rows of several files are hidden in the first of them",
        "a position belongs to the file of its row",
        "transactions/row_locations.py",
        "            hidden.setdefault(self.paths[file], BitMap()).update(BitMap(positions))\n",
        "            hidden.setdefault(self.paths[0], BitMap()).update(BitMap(positions))\n",
    ),
)
