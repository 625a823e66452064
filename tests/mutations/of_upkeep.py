"""Mutations of spilling, merging segments, snapshots, and collection."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Edit, Mutation, mutation

UPKEEP: tuple[Mutation, ...] = (
    mutation(
        "a spill is used again without comparing its entries",
        "a spill is reused only if the inline entries still begin with exactly its entries",
        "commit/root_budget.py",
        "        if entries[:count] != tuple(self.tail.entries):\n            return None\n",
        "        if len(entries) < count:\n            return None\n",
    ),
    mutation(
        "an old spill is used without checking the fence",
        "a spill uploaded before the fence may have been collected: it is uploaded again",
        "commit/root_budget.py",
        "self._uploaded_us <= base.orphan_cutoff:",
        "self._uploaded_us < 0:",
    ),
    mutation(
        "a spill of tombstones is forgotten",
        "entries that leave the root are in a segment that the root names",
        "commit/root_budget.py",
        "        return msgspec.structs.replace(owner, **{kind: entries[count:]}, segments=(*segments, self.segment))\n",
        '        segments = segments if kind == "tombstones" else (*segments, self.segment)\n'
        "        return msgspec.structs.replace(owner, **{kind: entries[count:]}, segments=segments)\n",
    ),
    mutation(
        "a merge takes the greatest resolved_through of its inputs",
        "a merged segment's resolved_through is the LEAST of its inputs' at the commit",
        "commit/statements/background.py",
        '        resolved = min((s.resolved_through for s in inputs if s.kind == "files"), default=0)\n',
        '        resolved = max((s.resolved_through for s in inputs if s.kind == "files"), default=0)\n',
    ),
    mutation(
        "a merge drops overlays of files that it does not fold",
        "overlays and removals of files that a merge did not fold stay",
        "maintenance/segment_merging.py",
        "        frozenset(overlay for overlay in overlays if overlay.file in folded_uuids),\n",
        "        frozenset(overlays),\n",
    ),
    mutation(
        "a merge drops overlays that were added in the meantime",
        "a merge carries removals and overlays added since it was planned",
        "commit/statements/background.py",
        "            overlays=tuple(overlay for overlay in entry.overlays if overlay not in self.overlays),\n",
        "            overlays=(),\n",
    ),
    mutation(
        "a merge drops removals that were added in the meantime",
        "a merge carries removals and overlays added since it was planned",
        "commit/statements/background.py",
        "            removed=tuple(uuid for uuid in entry.removed if uuid not in self.removed),\n",
        "            removed=(),\n",
    ),
    mutation(
        "a merge does not check that its segments are still there",
        "a merge needs its segments unchanged",
        "commit/statements/background.py",
        "        if len(inputs) < len(self.inputs):\n            return None\n",
        "        if not inputs:\n            return None\n",
    ),
    mutation(
        "a snapshot's second table is read from the newest version",
        "a snapshot is one version, of all its tables",
        "transactions/snapshot.py",
        "        return PinnedTable(self._context, name, self._manifest, settled=self.settled)\n",
        "        newest = self._context.head.refresh().manifest\n"
        "        first = name == min(self._manifest.tables) or name not in newest.tables\n"
        "        return PinnedTable(self._context, name, self._manifest if first else newest, settled=self.settled)\n",
    ),
    mutation(
        "a transaction reads the newest version of each table",
        "a transaction sees one version and its own statements",
        "transactions/transaction_table.py",
        "        return self._unit.manifest\n",
        "        newest = self._unit.context.head.refresh().manifest\n"
        "        own = self._unit.changes(self.name) or self.name not in newest.tables\n"
        "        return self._unit.manifest if own else newest\n",
    ),
    mutation(
        "collection uses the local clock",
        "collection uses the server's clock",
        "maintenance/gc/collection.py",
        "    now_us = head.server_now(manifest)\n",
        "    now_us = head.runtime.clock_us()\n",
    ),
    Mutation(
        "collection sweeps without a fence",
        "a commit moves the fence BEFORE orphans are deleted, and writers check it",
        (
            Edit(
                "commit/statements/background.py",
                "        draft.orphan_cutoff = max(base.orphan_cutoff, self.orphan_cutoff)\n",
                "        draft.orphan_cutoff = base.orphan_cutoff\n",
            ),
            Edit(
                "maintenance/gc/collection.py",
                "        cutoff = self.plan.orphan_cutoff if self.dry_run else self.manifest.orphan_cutoff\n",
                "        cutoff = self.plan.orphan_cutoff\n",
            ),
        ),
    ),
    mutation(
        "orphans as young as the fence are swept",
        "orphans are older than the fence by an hour: clocks differ, and S3 dates a multipart object from its beginning",
        "maintenance/gc/sweep.py",
        "    return max(0, hour_floor(orphan_cutoff - SLACK_US))\n",
        "    return max(0, hour_floor(orphan_cutoff + SLACK_US))\n",
    ),
    mutation(
        "orphans are swept although versions need them",
        "only what no kept version references is an orphan",
        "maintenance/gc/sweep.py",
        "        orphans = [item for item, needed in zip(batch, is_needed, strict=True) if not needed]\n",
        "        orphans = [item for item, _ in zip(batch, is_needed, strict=True)]\n",
    ),
    Mutation(
        "a silent job's objects are collected without revoking it",
        "a job is revoked by a commit before its objects are removed",
        (
            Edit(
                "commit/statements/background.py",
                "        draft.revoked = tuple(txid for txid in self.revoke if txid not in base.revoked_intents)\n",
                "        draft.revoked = ()\n",
            ),
            Edit(
                "maintenance/gc/sweep.py",
                "    return [intent for intent in intents.values() if intent.is_done or intent.txid in manifest.revoked_intents]\n",
                "    return list(intents.values())\n",
            ),
            Edit(
                "maintenance/gc/sweep.py",
                "        before_us = manifest.revoked_intents[intent.txid] - SLACK_US\n",
                "        before_us = manifest.created_at - SLACK_US // 4\n",
            ),
        ),
    ),
    mutation(
        "a revoked job's objects are deleted although a version names them",
        "of a revoked job's objects, those that no kept version references are deleted",
        "maintenance/gc/sweep.py",
        "zip(uploads, is_needed.tolist(), strict=True) if not needed]\n        failed",
        "zip(uploads, is_needed.tolist(), strict=True)]\n        failed",
    ),
    mutation(
        "readers have no grace",
        "objects of expired versions are deleted after reader_grace",
        "maintenance/gc/collection.py",
        "    is_over = manifest.horizon_at + settings.reader_grace_us <= now_us\n",
        "    is_over = manifest.horizon_at <= now_us\n",
    ),
    mutation(
        "versions are freed before the commit that lets them expire",
        "one commit moves the horizon, and the objects to delete are computed from that commit's manifest",
        "maintenance/gc/collection.py",
        "        self._last_deletable = last_deletable_version(self.manifest, self.settings, self._now_us)\n",
        "        self._last_deletable = max(\n"
        "            last_deletable_version(self.manifest, self.settings, self._now_us),\n"
        "            next_horizon(self.context.head, self.manifest, self.settings, self._now_us),\n"
        "        )\n",
    ),
    mutation(
        "released objects are deleted although they are needed",
        "a released object is deleted only if it is not in the full reference set of the current version",
        "maintenance/gc/deletion.py",
        "zip(keys, is_needed.tolist(), strict=True) if not needed)\n",
        "zip(keys, is_needed.tolist(), strict=True))\n",
    ),
    mutation(
        "an object that was released again is deleted",
        "a released object is deleted only if no kept version after the horizon released it",
        "maintenance/gc/mark.py",
        "        if released.version > after:\n",
        "        if released.version > manifest.version:\n",
    ),
    mutation(
        "the mark forgets deletion vectors",
        "one registry of all fields that hold references",
        "format/manifest.py",
        '    DataFile: ("vector",),\n',
        "",
    ),
    mutation(
        "the newest versions expire by their age",
        "a version expires when it is old enough AND not among the newest keep_versions",
        "maintenance/gc/collection.py",
        "manifest.version - settings.keep_versions + 1,",
        "manifest.version,",
    ),
    mutation(
        "young versions expire by their number",
        "a version expires when it is older than the retention AND not among the newest",
        "maintenance/gc/collection.py",
        "        oldest_kept = min(oldest_kept, newest_at(head, manifest, now_us - settings.retention_us))\n",
        "        oldest_kept = min(oldest_kept, manifest.version)\n",
    ),
    mutation(
        "a fence rebases over other settings",
        "a fence never rebases over another fence or other settings, it plans again",
        "commit/statements/background.py",
        "        if self.settings is not None and self.settings != DatabaseSettings.of(base):\n",
        "        if self.settings is not None and not self.settings:\n",
    ),
    Mutation(
        "a fence moves back",
        "neither orphan_cutoff nor the horizon ever moves back",
        (
            Edit(
                "maintenance/gc/collection.py",
                "    orphan_cutoff = max(manifest.orphan_cutoff, now_us - settings.orphan_age_us)\n",
                "    orphan_cutoff = now_us - settings.orphan_age_us\n",
            ),
            Edit(
                "commit/statements/background.py",
                "        draft.orphan_cutoff = max(base.orphan_cutoff, self.orphan_cutoff)\n",
                "        draft.orphan_cutoff = self.orphan_cutoff\n",
            ),
        ),
    ),
    mutation(
        "manifests are deleted before their readers finish",
        "expired manifests are deleted last: those before the horizon whose grace is over",
        "maintenance/gc/deletion.py",
        "takewhile(lambda item: item[0] < self.through, versions)",
        "takewhile(lambda item: item[0] < self.manifest.horizon + 1, versions)",
    ),
    mutation(
        "an expired version is read",
        "a change that reads a version before the horizon gets VersionExpiredError",
        "commit/head.py",
        "            if error.is_missing:\n                self.head.check_kept(version, last)\n",
        "            if error.is_missing and version < 0:\n                self.head.check_kept(version, last)\n",
    ),
    Mutation(
        "row groups with rows that a vector deletes are copied",
        "only row groups all of whose rows are live are copied as they are, and rows out are rows in less deleted ones",
        (
            Edit(
                "maintenance/compact/splice.py",
                "        if group.deleted or group.tested_ids or not self._file_fits(group.file):\n",
                "        if group.tested_ids or not self._file_fits(group.file):\n",
            ),
            Edit(
                "maintenance/compact/rewrite.py",
                "            or written != physical - rows.hidden\n            or rows.hidden < by_vector\n",
                "",
            ),
            Edit("maintenance/compact/rewrite.py", "(is_exact and rows.hidden != by_vector)", "(is_exact and False)"),
        ),
    ),
    mutation(
        "row groups with rows that a tombstone may hide are copied",
        "only row groups all of whose rows are live are copied as they are",
        "maintenance/compact/splice.py",
        "        if group.deleted or group.tested_ids or not self._file_fits(group.file):\n",
        "        if group.deleted or not self._file_fits(group.file):\n",
    ),
    mutation(
        "a copied row group is read at its old offset",
        "a copied row group has the new offsets of its pages",
        "format/parquet_footer.py",
        "        _move(self._meta, (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE), moved.by)\n",
        "",
    ),
    mutation(
        "a file is of the partition of its least value",
        "bounds prove a partition only where both ends are of it",
        "entries/partitions.py",
        "    return [least] if least == greatest else None\n",
        "    return [least]\n",
    ),
    mutation(
        "a hash of the least value is that of all rows",
        "bounds prove a bucket only where all rows have one value",
        "entries/partitions.py",
        "        return [_value(transform, bounds.min, field.arrow_type)] if bounds.min == bounds.max else None\n",
        "        return [_value(transform, bounds.min, field.arrow_type)]\n",
    ),
    mutation(
        "rows are divided by the first term alone",
        "a file has rows of one partition, by all terms",
        "rows/write/partitioning.py",
        "            found, numbers = np.unique(codes, return_inverse=True)\n",
        "            found, numbers = np.unique(codes // len(own) * len(own), return_inverse=True)\n",
    ),
)
