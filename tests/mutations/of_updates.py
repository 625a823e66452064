"""Mutations of updates and merges."""

from __future__ import annotations

from mutations.mutation import Mutation, mutation

UPDATES: tuple[Mutation, ...] = (
    mutation(
        "an update commits whatever has changed",
        "what an update or a merge read is claimed: nobody has changed it by the commit",
        "transactions/merge/update.py",
        "    unit.claim(name, predicate)\n",
        "    unit.pin()\n",
    ),
    mutation(
        "rows that are updated stay beside the new ones",
        "a row that is updated is hidden in the commit that writes it anew",
        "transactions/merge/update.py",
        "    if hidden.positions or unit.changes(entry.uuid):\n",
        "    if unit.changes(entry.uuid):\n",
    ),
    mutation(
        "a merge inserts what it has met",
        "source rows that match a row of the table are not inserted",
        "transactions/merge/merge.py",
        "            self._met[right] = True\n",
        "            self._met[right[:1]] = True\n",
    ),
    mutation(
        "rows of joined files are hidden in the first of them",
        "a position is one of the file that the row is in",
        "transactions/merge/update.py",
        "            self.positions.setdefault(placed.paths[file], BitMap()).update(BitMap(own))\n",
        "            self.positions.setdefault(placed.paths[0], BitMap()).update(BitMap(own))\n",
    ),
)
