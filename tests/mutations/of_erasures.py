"""Mutations of erasures."""

# quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Edit, Mutation, mutation

ERASURES: tuple[Mutation, ...] = (
    mutation(
        "older versions show erased rows",
        "an older version is read with all later erasures",
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
        "a restore adds the deletes of all later erasures",
        "commit/statements/catalog.py",
        "        tables = self.erased.hide(self.tables, self.then_ts, draft)\n",
        "        tables = self.tables\n",
    ),
    mutation(
        "a clone of an older version has erased rows",
        "a clone gets the deletes of all later erasures",
        "commit/statements/catalog.py",
        "        clones = self.erased.hide(self._clones(), self.then_ts, draft)\n",
        "        clones = self._clones()\n",
    ),
    mutation(
        "late drops bring erased rows back",
        "an erasure applies to rows that were dropped before it",
        "format/manifest.py",
        "        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US\n",
        "        return dropped_us is None\n",
    ),
    mutation(
        "erasures apply to late drops by current column names",
        "a late file has the column names of the time at which it was dropped",
        "ingest/late.py",
        "        return bool(self.others) or self.at_drop != (self.now,) or not self.is_complete\n",
        "        return False\n",
    ),
    mutation(
        "former column names are forgotten",
        "a schema records the names that its columns had",
        "commit/statements/catalog.py",
        "            schema = record_names(entry.schema, changed.schema, ts)\n",
        "            schema = msgspec.structs.replace(record_names(entry.schema, changed.schema, ts), former=())\n",
    ),
    mutation(
        "late drops land after an erasure that was not applied to them",
        "a commit of late rows depends on the erasures that were applied to them",
        "commit/change.py",
        "            if erasure.is_later_than(self.dropped_us) and reaches(erasure, entry):\n",
        "            if erasure.is_later_than(self.dropped_us) and not reaches(erasure, entry):\n",
    ),
    mutation(
        "an erasure is not listed",
        "the manifest lists the erasures that apply to older versions",
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
        "    return ErasedTable(erased.uuid, erased.tombstone.stamp(ts), columns)\n",
        "    return ErasedTable(erased.uuid, erased.tombstone.stamp(ts - 5_000_000), columns)\n",
    ),
    Mutation(
        "the rows of a forgotten subject stay in dropped tables",
        "forgetting a subject applies to the tables of older versions, too",
        (
            Edit(
                "entries/segments/erasures_in_force.py",
                "    return tables_of(erasure, entry) or _subject_deletes(erasure, entry, record)\n",
                "    return tables_of(erasure, entry)\n",
            ),
        ),
    ),
    mutation(
        "the feed contains erased rows",
        "a feed shows the versions as they are read now",
        "rows/changes/table_state.py",
        "        younger = [erasure for erasure in erasures if erasure.ts > manifest.commit_ts]\n",
        "        younger: list[Erasure] = []\n",
    ),
    mutation(
        "the feed does not delete erased rows",
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
        "erasures in segments are forgotten",
        "the list is in the root and in its segments",
        "entries/segments/segment_reader.py",
        "    spilled = [segment for segment in segments if segment.greatest > after]\n",
        "    spilled = [segment for segment in segments if segment.least > segment.greatest]\n",
    ),
    mutation(
        "files without a drop time bring erased rows back",
        "all erasures apply to a drop without a time",
        "format/manifest.py",
        "        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US\n",
        "        return dropped_us is not None and dropped_us <= self.requested_at + CLOCK_STEP_US\n",
    ),
    mutation(
        "rows that are dropped after an erasure are erased",
        "rows that are dropped after the request are new",
        "format/manifest.py",
        "        return dropped_us is None or dropped_us <= self.requested_at + CLOCK_STEP_US\n",
        "        return True\n",
    ),
)
