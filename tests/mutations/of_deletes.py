"""Mutations of deletes, upserts, resolution, compaction, expiry, and changes (CDC)."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Mutation, mutation

DELETES: tuple[Mutation, ...] = (
    mutation(
        "a tombstone hides its own upsert's rows",
        "a tombstone hides rows in files with applied_through < T, and not those with <= T",
        "rows/scan/row_groups.py",
        "lookup.hidden_mask(rows[lookup.columns], group.file.file.applied_through)",
        "lookup.hidden_mask(rows[lookup.columns], group.file.file.applied_through - 1)",
    ),
    mutation(
        "fresh files are a tick older than their tombstone",
        "an upsert's rows and its keys tombstone have the SAME T",
        "format/entries.py",
        "        return msgspec.structs.replace(self, row_ts=ts, applied_through=ts)\n",
        "        return msgspec.structs.replace(self, row_ts=ts, applied_through=ts - 1)\n",
    ),
    mutation(
        "fresh files have every delete behind them",
        "a fresh file's applied_through is its own statement's T, so that later deletes of the same commit hide its rows",
        "commit/statements/row_changes.py",
        "            files=(*entry.files, *(file.stamp(ts) for file in files)),\n",
        "            files=(*entry.files, *(file.stamp(ts + 16) for file in files)),\n",
    ),
    mutation(
        "keys deleted twice are remembered by their first delete",
        "all keys tombstones are one lookup, value -> GREATEST T",
        "rows/scan/tombstone_keys.py",
        "        ts = ts[: len(firsts)] if _is_one(ts) else np.maximum.reduceat(ts, firsts)\n",
        "        ts = ts[: len(firsts)] if _is_one(ts) else np.minimum.reduceat(ts, firsts)\n",
    ),
    mutation(
        "the first of equal keys wins in an upsert",
        "of duplicates within one upsert the last wins",
        "format/del_object.py",
        "        last[:-1] = ~reduce(pc.and_, same).to_numpy()\n",
        "        last[1:] = ~reduce(pc.and_, same).to_numpy()\n",
    ),
    mutation(
        "a tombstone is dropped once one file has resolved it",
        "a tombstone is dropped only when EVERY live file has applied_through >= T or cannot match",
        "commit/statements/background.py",
        "    for file in lagging:\n",
        "    for file in lagging[:1]:\n",
    ),
    mutation(
        "a tombstone is dropped without checking segments",
        "a segment that is not loaded counts as a live file with the least applied_through of its files",
        "commit/statements/background.py",
        '    lagging: list[DataFile | Segment] = [*entry.segments_of("files"), *entry.files]\n',
        "    lagging: list[DataFile | Segment] = [*entry.files]\n",
    ),
    mutation(
        "a segment of tombstones is dropped with its oldest",
        "a segment of tombstones is dropped only when the youngest in it is resolved",
        "commit/statements/background.py",
        'unneeded = [s for s in entry.segments_of("tombstones") if settled is None or s.greatest <= settled]',
        'unneeded = [s for s in entry.segments_of("tombstones") if settled is None or s.least <= settled]',
    ),
    mutation(
        "resolution marks files through the version it lands on",
        "resolution at base S sets applied_through = S, whatever was deleted in the meantime",
        "commit/statements/background.py",
        "            through = max(file.applied_through, self.through)\n",
        "            through = max(file.applied_through, draft.base.commit_ts)\n",
    ),
    mutation(
        "resolution marks segments that it has read only in part",
        "a segment's resolved_through covers every live file in it",
        "maintenance/resolution.py",
        "        if not self.is_stopped:\n            self.segments += [key",
        "        if self.entry is not None:\n            self.segments += [key",
    ),
    mutation(
        "resolution replaces the vector of another commit",
        "vectors only grow: concurrent resolutions and deletes by position merge by OR",
        "commit/statements/background.py",
        "        merged = uploads.merge_positions(file, positions)\n        if not merged",
        "        merged = positions\n        if not merged",
    ),
    mutation(
        "a delete by position replaces the vector of another commit",
        "vectors only grow: concurrent deletes by position of the same file merge by OR",
        "commit/statements/row_changes.py",
        "            merged = uploads.merge_positions(file, positions)\n",
        "            merged = positions\n",
    ),
    mutation(
        "positions are counted after filtering",
        "positions are physical: (row group, row in it), never counted after a filter",
        "rows/scan/scan.py",
        "        return path, everything if keep is None else vector_of_mask(keep, group.first)\n",
        "        return path, everything if keep is None else BitMap(range(group.first, group.first + int(keep.sum())))\n",
    ),
    mutation(
        "a delete by position skips files that were compacted in the meantime",
        "a delete by position whose files were replaced is planned again",
        "commit/statements/row_changes.py",
        "        if lost := self.positions.keys() - files.keys():\n"
        "            raise ConflictError(\n"
        '                f"table {self.name!r}: {len(lost)} files, {min(lost)} first, were replaced since the delete was planned"\n'
        "            )\n"
        "        vectors: dict[str, tuple[DataFile, Vector]] = {}\n"
        "        for path, positions in self.positions.items():\n",
        "        vectors: dict[str, tuple[DataFile, Vector]] = {}\n"
        "        for path, positions in self.positions.items():\n"
        "            if path not in files:\n"
        "                continue\n",
    ),
    mutation(
        "a delete by position of compacted files takes the same positions of another file",
        "a delete by position whose files were replaced is planned again",
        "commit/statements/row_changes.py",
        "        if lost := self.positions.keys() - files.keys():\n"
        "            raise ConflictError(\n"
        '                f"table {self.name!r}: {len(lost)} files, {min(lost)} first, were replaced since the delete was planned"\n'
        "            )\n",
        "        for path in self.positions.keys() - files.keys():\n"
        "            live = list(LiveFiles.of(entry, draft.segments))\n"
        "            if not live:\n"
        '                raise ConflictError(f"table {self.name!r} is empty")\n'
        "            files[path] = max(live, key=lambda file: file.rows)\n",
    ),
    mutation(
        "compaction does not compare entries when it rebases",
        "a group is committed only if each input's (applied_through, vector) is as it was at base",
        "commit/statements/background.py",
        "            return now is not None and _pair(now) == _pair(file)\n",
        "            return now is not None\n",
    ),
    mutation(
        "compaction replaces files that are no longer there",
        "a group is committed only if all of its inputs are still there",
        "commit/statements/background.py",
        "            return now is not None and _pair(now) == _pair(file)\n",
        "            return now is None or _pair(now) == _pair(file)\n",
    ),
    mutation(
        "compaction's files have the applied_through of its own commit",
        "a compaction's output has applied_through = its base snapshot's commit_ts, never its own commit's",
        "commit/statements/background.py",
        "        outputs = [file for group in self.fitting for file in group.outputs]\n",
        "        outputs = [\n"
        "            msgspec.structs.replace(file, applied_through=ts) for group in self.fitting for file in group.outputs\n"
        "        ]\n",
    ),
    mutation(
        "compaction gives the rows it moves new timestamps",
        "rows that compaction moves keep the commit timestamp they were written with",
        "commit/statements/background.py",
        "        outputs = [file for group in self.fitting for file in group.outputs]\n",
        "        outputs = [\n"
        "            file if file.row_ts is None else msgspec.structs.replace(file, row_ts=ts)\n"
        "            for group in self.fitting\n"
        "            for file in group.outputs\n"
        "        ]\n",
    ),
    mutation(
        "the first of several deletes of a file is left out",
        "every tombstone with a later timestamp hides the rows it matches, in scans, compaction and resolution",
        "rows/scan/row_groups.py",
        "        yield from ((predicate, None) for predicate in first)\n",
        "        yield from ((predicate, None) for predicate in first[1:])\n",
    ),
    mutation(
        "of two pairs of a file the older one is used",
        "of two pairs of a file the one with the greater (applied_through, cardinality) is newer",
        "entries/segments/live.py",
        "        if earlier is None or pair_of(earlier) < pair_of(overlay):\n",
        "        if earlier is None or pair_of(earlier) > pair_of(overlay):\n",
    ),
    mutation(
        "a pair is replaced by a smaller one",
        "a pair is replaced only by a greater one: a file's applied_through never falls",
        "commit/statements/row_changes.py",
        "            through = max(file.applied_through, newer.applied_through)\n",
        "            through = newer.applied_through\n",
    ),
    mutation(
        "rows expire by a time to live that is no longer set",
        "an expiry is committed only if its time to live is still set",
        "maintenance/ttl.py",
        '    unit.add(Expect(name, entry.uuid, entry.properties, ["ttl"]))  # if the ttl became longer, these rows must live\n',
        "",
    ),
    mutation(
        "of equal sequences the later change is applied",
        "a change applies only if its sequence is GREATER than the last one of its key",
        "ingest/cdc/apply_changes.py",
        "pc.or_(pc.greater(sequences, latest), is_same_file)",
        "pc.or_(pc.greater_equal(sequences, latest), is_same_file)",
    ),
    mutation(
        "changes with sequences within those of the table are applied without a comparison",
        "a file is applied without a comparison only if its sequences are ABOVE all sequences of the table",
        "commit/statements/row_changes.py",
        "    return all(value < least for value in values)\n",
        "    return all(value <= least for value in values)\n",
    ),
    mutation(
        "deletes of changes are not remembered",
        "a delete that arrives before an older change of its key is remembered",
        "ingest/cdc/apply_changes.py",
        "        if memory_rows.num_rows:\n            memory_table",
        "        if memory_rows.num_rows > 1:\n            memory_table",
    ),
    mutation(
        "a late change does not supply its value to a row that kept an older one",
        "a kept value is that of the last change before it, however late that change arrives",
        "ingest/cdc/previous.py",
        "            amended |= row_sources >= 0\n",
        "",
    ),
    mutation(
        "kept values are not remembered",
        "for each value that is older than its row, the memory records since when it is kept",
        "ingest/cdc/apply_changes.py",
        "(kept := previous.select_kept(upserts)).num_rows:\n",
        "(kept := previous.select_kept(upserts)).num_rows > 99:\n",
    ),
    mutation(
        "changes applied without a comparison are not checked when they rebase",
        "each rebase checks changes that were applied without a comparison",
        "commit/statements/row_changes.py",
        "        if self.above is not None and not is_above_all(entry, field, self.above):\n",
        "        if self.above is not None and not field:\n",
    ),
    mutation(
        "a file is pruned although its greatest value matches",
        "statistics prune a file only if no row of it can match: a value at its bounds can",
        "predicate/prune.py",
        "    may_be: Fact = a is None or b is None or a <= b\n",
        "    may_be: Fact = a is None or b is None or a < b\n",
    ),
    mutation(
        "a delete removes rows with NULL where statistics match all other rows",
        "a delete removes rows for which the predicate is TRUE: NULL is not",
        "predicate/prune.py",
        "    return StatsVerdict.MAYBE if possible.false or possible.null else StatsVerdict.ALWAYS\n",
        "    return StatsVerdict.MAYBE if possible.false else StatsVerdict.ALWAYS\n",
    ),
    mutation(
        "a column with a NULL counts as all NULL",
        "null_count is the number of NULL values",
        "predicate/prune.py",
        "        if nulls is not None and nulls >= self._rows:\n",
        "        if nulls is not None and nulls > 0:\n",
    ),
    mutation(
        "a delete removes rows for which its predicate is unknown",
        "three-valued logic: a delete removes rows for which the predicate is TRUE",
        "predicate/evaluate.py",
        "    return mask.fill_null(False) if mask.null_count else mask\n",
        "    return mask.fill_null(True) if mask.null_count else mask\n",
    ),
)
