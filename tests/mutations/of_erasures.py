"""Mutations of erasures."""

# quotes lines that are as long as lines may be

from __future__ import annotations

from mutations.mutation import Edit, Mutation, mutation

ERASURES: tuple[Mutation, ...] = (
    mutation(
        "older versions show erased rows",
        "an older version is read with the erasures since",
        "entries/segments/erasures_in_force.py",
        "    erasures = erasures_of(newest, reader, after=manifest.commit_ts) if manifest.version else ()\n",
        "    erasures = erasures_of(newest, reader, after=newest.commit_ts) if manifest.version else ()\n",
    ),
    mutation(
        "an erasure stays in its own table",
        "an erasure reaches the clones of its table",
        "entries/segments/erasures_in_force.py",
        "    lineage = entry.lineage\n",
        "    lineage = entry.lineage[:1]\n",
    ),
    mutation(
        "a restore brings erased rows back",
        "a restore adds the deletes of all erasures since then",
        "commit/statements/restore.py",
        "        tables = self.erased.hide(self.tables, self.then_ts, draft)\n",
        "        tables = self.tables\n",
    ),
    mutation(
        "a clone of an older version has erased rows",
        "a clone gets the deletes of all erasures since then",
        "commit/statements/restore.py",
        "        clones = self.erased.hide(self._clones(), self.then_ts, draft)\n",
        "        clones = self._clones()\n",
    ),
    mutation(
        "late drops bring erased rows back",
        "rows that were dropped before an erasure are held against it",
        "format/erasures.py",
        "        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US\n",
        "        return dropped_us is None\n",
    ),
    mutation(
        "late drops are held against erasures by the names of today",
        "a late file has the names of the time at which it was dropped",
        "ingest/late.py",
        "        return bool(self.others) or self.then != (self.now,) or not self.is_complete\n",
        "        return False\n",
    ),
    mutation(
        "the names that columns lose are forgotten",
        "a schema records the names that its columns had",
        "commit/statements/catalog.py",
        "            schema = record_names(entry.schema, changed.schema, ts)\n",
        "            schema = msgspec.structs.replace(record_names(entry.schema, changed.schema, ts), former=())\n",
    ),
    mutation(
        "late drops land on an erasure that they were not held against",
        "a commit of late rows depends on the erasures that were known to it",
        "commit/statements/statement.py",
        "            if erasure.is_later_than(self.dropped_us) and reaches(erasure, entry):\n",
        "            if erasure.is_later_than(self.dropped_us) and not reaches(erasure, entry):\n",
    ),
    mutation(
        "an erasure is not listed",
        "the manifest lists the erasures that older versions must heed",
        "commit/statements/erasures.py",
        "        draft.erasures = (*draft.erasures, erasure)\n",
        "",
    ),
    mutation(
        "writers do not see that rows were erased",
        "an erasure moves the time of the last delete",
        "commit/statements/erasures.py",
        "            draft.tables[name] = msgspec.structs.replace(changed, last_delete_ts=ts)\n",
        "            draft.tables[name] = changed\n",
    ),
    mutation(
        "a tombstone of an erasure has no timestamp in the list",
        "the list has the tombstones as they landed",
        "commit/statements/erasures.py",
        "    return ErasedTable(erased.uuid, erased.tombstone.stamped(ts), columns)\n",
        "    return ErasedTable(erased.uuid, erased.tombstone.stamped(ts - 5_000_000), columns)\n",
    ),
    Mutation(
        "who is forgotten stays in dropped tables",
        "an older version's tables are forgotten in by their subject",
        (
            Edit(
                "entries/segments/erasures_in_force.py",
                "    return tables_of(erasure, entry) or _of_subject(erasure, entry, record)\n",
                "    return tables_of(erasure, entry)\n",
            ),
        ),
    ),
    mutation(
        "the feed tells of erased rows",
        "a feed is that of the versions as whoever reads them now sees them",
        "rows/changes/table_state.py",
        "        younger = [erasure for erasure in erasures if erasure.ts > manifest.commit_ts]\n",
        "        younger: list[Erasure] = []\n",
    ),
    mutation(
        "erased rows stay with whoever follows the feed",
        "the commit that erased rows is fed as deletes with their keys",
        "rows/changes/changed_files.py",
        "        erasures = [erasure for erasure in self._erasures if erasure.ts > first.commit_ts]\n",
        "        erasures: list[Erasure] = []\n",
    ),
    mutation(
        "the keys of erased rows are remembered",
        "an erasure by key reaches the memory of deleted keys",
        "commit/statements/erasures.py",
        "            memories = _memories(draft, erased)\n",
        "            memories: list[RememberedKeys] = []\n",
    ),
    mutation(
        "erasures that have left the root are forgotten",
        "the list is that of the root and of its segments",
        "entries/segments/erasures_in_force.py",
        "    spilled = [segment for segment in segments if segment.greatest > after]\n",
        "    spilled = [segment for segment in segments if segment.least > segment.greatest]\n",
    ),
    mutation(
        "files that were dropped nobody knows when bring erased rows back",
        "a drop without a time is held against all erasures",
        "format/erasures.py",
        "        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US\n",
        "        return dropped_us is not None and dropped_us <= self.requested_at + CLOCK_STEP_US\n",
    ),
    mutation(
        "rows that are dropped after an erasure are left out",
        "what is dropped after the request is new",
        "format/erasures.py",
        "        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US\n",
        "        return True\n",
    ),
)
