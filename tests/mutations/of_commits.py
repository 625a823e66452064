"""Mutations of the commit: the pointer, its readback, timestamps, exactly once, conflicts."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Edit, Mutation, mutation

COMMITS: tuple[Mutation, ...] = (
    mutation(
        "a pointer PUT without a response is not read back",
        "an unknown outcome is resolved by reading back whose commit followed",
        "commit/loop.py",
        "        verdict = read_back(head, base, manifest.commit_id)\n",
        "        verdict = Readback.UNMOVED if isinstance(outcome, Unknown) else Readback.THEIRS\n",
    ),
    mutation(
        "an unknown outcome counts as lost",
        "an unknown outcome is never taken for a failure",
        "commit/loop.py",
        "        verdict = read_back(head, base, manifest.commit_id)\n",
        "        if isinstance(outcome, Unknown):\n"
        "            return None\n"
        "        verdict = read_back(head, base, manifest.commit_id)\n",
    ),
    mutation(
        "an unknown outcome counts as committed",
        "an unknown outcome is never taken for a success",
        "commit/loop.py",
        "        verdict = read_back(head, base, manifest.commit_id)\n",
        "        if isinstance(outcome, Unknown):\n"
        '            return ""\n'
        "        verdict = read_back(head, base, manifest.commit_id)\n",
    ),
    mutation(
        "an outcome that stays unknown is reported as a failure",
        "three outcomes, three types: while an attempt's outcome is unknown, any error becomes unknown",
        "commit/loop.py",
        "    if unknown:\n        raise UnknownOutcomeError(manifest.commit_id, unknown)\n",
        "",
    ),
    mutation(
        "a refused pointer PUT counts as committed",
        "412 means that another commit won, unless readback finds ours",
        "commit/loop.py",
        "        if isinstance(outcome, Stored):\n            return outcome.etag\n",
        '        if not isinstance(outcome, Unknown):\n            return getattr(outcome, "etag", "")\n',
    ),
    mutation(
        "a refused pointer PUT is not read back",
        "412 can be the answer to our own earlier PUT that has landed",
        "commit/loop.py",
        "        verdict = read_back(head, base, manifest.commit_id)\n",
        "        if not isinstance(outcome, Unknown):\n"
        "            return None\n"
        "        verdict = read_back(head, base, manifest.commit_id)\n",
    ),
    mutation(
        "the pointer is replaced whatever it has become",
        "the pointer is replaced only by compare-and-swap on the ETag that the commit is based on",
        "commit/loop.py",
        "head.store.put(POINTER, pointer, if_match=base.etag)",
        "head.store.put(POINTER, pointer, if_match=head.refresh().etag)",
    ),
    mutation(
        "a turn is taken whatever the pointer has become",
        "a turn is put by compare-and-swap, too, so that it never takes a version back",
        "commit/head.py",
        "self.store.put(POINTER, pointer.encode(), if_match=look.etag)",
        "self.store.put(POINTER, pointer.encode(), if_match=self.store.head(POINTER).etag)",
    ),
    mutation(
        "a commit that made room for a turn counts as landed",
        "a pointer with the base's version and another ETag proves that the attempt has failed",
        "commit/readback.py",
        "            return Readback.TURN  #",
        "            return Readback.OURS  #",
    ),
    mutation(
        "readback reads only the newest version",
        "an attempt based on version n can have landed only as n+1: readback compares that version's commit id",
        "commit/readback.py",
        "commit_of(head, newest.manifest, base.manifest.version + 1)",
        "commit_of(head, newest.manifest, newest.manifest.version)",
    ),
    mutation(
        "a version that history no longer contains counts as another's",
        "unreadable means unknown, never theirs",
        "commit/readback.py",
        "    if successor is None:\n        return Readback.UNKNOWN\n",
        "    if successor is None:\n        return Readback.THEIRS\n",
    ),
    mutation(
        "a name in a cached version is reported as taken",
        "a cached base proves nothing: an error is raised only after the pointer was read afresh",
        "transactions/transaction.py",
        "            if name in unit.base.tables:\n",
        "            if not name:\n",
    ),
    mutation(
        "a pointer is sent however old its date is",
        "a pointer PUT is signed within 4 minutes of the Date it is stamped with",
        "commit/head.py",
        "STAMP_SECONDS = 240.0",
        "STAMP_SECONDS = 86_400.0",
    ),
    mutation(
        "every point in time counts as settled",
        "at(timestamp) is settled once a later version exists or it is over 20 minutes ago",
        "commit/versions.py",
        "SETTLED_AFTER_US = 20 * MINUTE_US",
        "SETTLED_AFTER_US = 0",
    ),
    mutation(
        "a rebase keeps the timestamp of its first attempt",
        "manifest entries contain T, and each attempt assigns it again",
        "commit/change.py",
        "    first_ts = max(base.commit_ts, now_us) + 1\n",
        "    first_ts = vars(Change).get(changes[0].commit_id) or max(base.commit_ts, now_us) + 1\n"
        "    setattr(Change, changes[0].commit_id, first_ts)\n",
    ),
    mutation(
        "timestamps follow the clock, also backwards",
        "commit_ts is strictly increasing: max(previous, server now) + 1 + i",
        "commit/change.py",
        "    first_ts = max(base.commit_ts, now_us) + 1\n",
        "    first_ts = now_us + 1\n",
    ),
    mutation(
        "a transaction's statements share one timestamp",
        "statement i gets max(previous, server now) + 1 + i, so that a later one hides rows of an earlier one",
        "commit/change.py",
        "            statement.apply(draft, first_ts + index)\n",
        "            statement.apply(draft, first_ts)\n",
    ),
    mutation(
        "commits are dated by the local clock",
        "created_at = max(previous created_at, server now): clocks of writers differ by minutes",
        "store/base.py",
        "        return min(max(self.runtime.clock_us(), least_us), least_us + last.uncertainty_us)\n",
        "        return self.runtime.clock_us()\n",
    ),
    mutation(
        "commits are dated by the last answer's Date",
        "a version is dated with the server's time at its attempt: the last Date and its age",
        "store/base.py",
        "        return min(max(self.runtime.clock_us(), least_us), least_us + last.uncertainty_us)\n",
        "        return last.date_us\n",
    ),
    Mutation(
        "a frozen machine's monotonic clock is believed",
        "an age is unknown if the two clocks of a machine disagree about it, and the Date of a response before the "
        "pointer's PUT is compared with the stamp",
        (
            Edit(
                "base/runtime.py",
                '        return seconds if abs(clock_seconds - seconds) <= _CLOCKS_DISAGREE_SECONDS else float("inf")\n',
                "        return seconds\n",
            ),
            Edit(
                "commit/head.py",
                "        return max(self.runtime.elapsed(stamp.made), (least_us - stamp.time_us) / SECOND_US)\n",
                "        return self.runtime.elapsed(stamp.made)\n",
            ),
        ),
    ),
    mutation(
        "responses after the stamp are not compared with it",
        "the Date of a response between the stamp and the pointer's PUT shows that the machine was frozen",
        "commit/head.py",
        "        return max(self.runtime.elapsed(stamp.made), (least_us - stamp.time_us) / SECOND_US)\n",
        "        return self.runtime.elapsed(stamp.made)\n",
    ),
    mutation(
        "history is trimmed",
        "the manifest lists the last 16 commits; older history is spilled, not dropped",
        "commit/draft.py",
        "        history = (*base.history, base.as_history()) if base.version else ()\n",
        "        history = (*base.history[-8:], base.as_history()) if base.version else ()\n",
    ),
    mutation(
        "applied ids are not checked",
        "a commit has applied ids, and each of them is applied only once",
        "commit/change.py",
        "        found = find_applied(base, self.applied.keys() | self.excluded_by, segments)\n",
        "        found = find_applied(base, self.excluded_by, segments)\n",
    ),
    mutation(
        "a file that does not match its table is rejected without a commit",
        "the rejection of an event's file is a commit, which excludes that the file is ingested",
        "ingest/drops/drop_ingestion.py",
        "            if drop.rejection_id is None:\n",
        "            if drop.rejection_id is None or not isinstance(error, TableNotFoundError):\n",
    ),
    mutation(
        "a rejection does not exclude that its file is ingested",
        "a change conflicts if a request was applied that excludes it: of a file and its rejection, one is committed",
        "commit/change.py",
        "        found = find_applied(base, self.applied.keys() | self.excluded_by, segments)\n",
        "        found = find_applied(base, self.applied.keys(), segments)\n",
    ),
    mutation(
        "a request that was applied in the meantime loses its id and keeps its rows",
        "if part of a batch was applied, the rest is built without the statements of those ids",
        "commit/change.py",
        "        return replace(self, statements=tuple(remaining), applied=applied)\n",
        "        return replace(self, applied=applied)\n",
    ),
    mutation(
        "a batch is committed without one of its ids",
        "each applied id is in the manifest of the commit that applied it",
        "commit/change.py",
        "for id_, digest in self.applied.items())\n        return",
        "for id_, digest in [*self.applied.items()][len(self.applied) > 1 :])\n        return",
    ),
    mutation(
        "applied ids are searched only in the root",
        "ids that leave the inline window are spilled to segments, which are searched too",
        "commit/change.py",
        '    for segment in reversed(manifest.segments_of("applied")):\n',
        '    for segment in reversed(manifest.segments_of("applied")[:0]):\n',
    ),
    mutation(
        "a Bloom filter gives a wrong no",
        "a Bloom filter's no is final, so it must never be wrong",
        "format/bloom_filters.py",
        "        np.bitwise_or.at(words[:, word], block, bits[:, word])\n",
        "        words[block, word] = bits[:, word]\n",
    ),
    mutation(
        "applied ids are forgotten with the versions",
        "applied ids are kept longer than a queue and its dead letters, whatever the retention of versions",
        "maintenance/gc/collection.py",
        "    applied_before = now_us - settings.applied_retention_us\n",
        "    applied_before = now_us - settings.retention_us\n",
    ),
    mutation(
        "read-modify-write commits whatever has changed",
        "a commit is valid only if no other commit changed what it read",
        "commit/change.py",
        "        for dependency in self.dependencies:\n            dependency.check(draft)\n",
        "",
    ),
    mutation(
        "a transaction over two tables checks one of them",
        "all that a transaction read is compared with the base, of every table",
        "commit/change.py",
        "        for dependency in self.dependencies:\n            dependency.check(draft)\n",
        "        for dependency in self.dependencies[:1]:\n            dependency.check(draft)\n",
    ),
    mutation(
        "deletes of rows that were read are ignored",
        "a delete of any kind since the base conflicts with read-modify-write",
        "commit/change.py",
        '        if entry.last_delete_ts > self.base_ts:\n            raise ConflictError(prefix + f"or one before it deleted',
        '        if False:\n            raise ConflictError(prefix + f"or one before it deleted',
    ),
    mutation(
        "rows that were added to the read tables are ignored in segments",
        "appended rows are those of files, inline or spilled, with a greater row_ts than the base",
        "commit/change.py",
        "        if files or any(self._may_hold(segment) for segment in spilled):\n",
        "        if files:\n",
    ),
    mutation(
        "an overwrite takes rows away that it has not seen",
        "an overwrite conflicts with rows added since its base, unless it is forced",
        "commit/statements/row_changes.py",
        "            if newer > self.base_ts:\n",
        "            if newer > draft.base.commit_ts:\n",
    ),
    mutation(
        "a new table of the same name replaces the dropped one",
        "a table created again under a name is a new table: statements for the old one conflict",
        "commit/draft.py",
        "        if entry is not None and entry.uuid == uuid:\n",
        "        if entry is not None and uuid:\n",
    ),
    mutation(
        "a table is created over another",
        "if two processes create a table of the same name, one gets TableExistsError",
        "commit/statements/catalog.py",
        'as its epoch."""\n        if self.name in draft.tables:',
        'as its epoch."""\n        if not self.name:',
    ),
    mutation(
        "a writer does not check the fence",
        "a commit whose first upload is not after orphan_cutoff is refused: its objects may be collected",
        "commit/change.py",
        "if self.first_upload_us is not None and self.first_upload_us <= base.orphan_cutoff:",
        "if self.first_upload_us is not None and self.first_upload_us < 0:",
    ),
    mutation(
        "a job that was revoked commits",
        "a commit whose txid is revoked is refused: its objects may be collected",
        "commit/change.py",
        "if self.txid is not None and self.txid in base.revoked_intents:",
        "if self.txid is not None and self.txid in ():",
    ),
    mutation(
        "a read is compared with the version before the group",
        "a change is applied as if those before it in its group were committed: its reads must hold after them, too",
        "commit/draft.py",
        "            commit_ts=commit_ts,\n            applied=(*self.base.applied, *applied),\n",
        "            applied=(*self.base.applied, *applied),\n",
    ),
    mutation(
        "a request is searched only in the version before the group",
        "a request that two changes of a group have is applied once",
        "commit/draft.py",
        "            applied=(*self.base.applied, *applied),\n",
        "            applied=self.base.applied,\n",
    ),
    mutation(
        "changes of a group share their timestamps",
        "statements are numbered through all changes of a version, so that a delete hides rows of those before it",
        "commit/change.py",
        "        first_ts = effects[-1].commit_ts + 1\n",
        "        first_ts = max(base.commit_ts, now_us) + 1\n",
    ),
    mutation(
        "a change of a group is prepared for the version before the group",
        "each change is prepared for the result of those before it in its group: vectors are merged with theirs",
        "commit/loop.py",
        "change.prepare(draft, member.uploads)",
        "change.prepare(Draft(base, segments), member.uploads)",
    ),
    mutation(
        "only the leader of a group gets the unknown outcome",
        "the outcome of the pointer's PUT is that of all changes in the version",
        "commit/loop.py",
        "error if member is self._own_member else copy_error(error)",
        'error if member is self._own_member else StoreUnavailableError("no answer")',
    ),
    mutation(
        "a group that lost is reported as committed to all but its leader",
        "the outcome of the pointer's PUT is that of all changes in the version",
        "commit/loop.py",
        "        self._attempted = []\n        queued",
        "        for each, done in list(zip(group, version.effects, strict=False))[1:]:\n"
        "            self._queue.end(each.member, Committed(manifest, {}, 1, done, each.change))\n"
        "        self._attempted = []\n        queued",
    ),
    mutation(
        "a writer writes to the table that has the name now",
        "a buffered writer writes to the table that it was opened for",
        "api/writer.py",
        "        if entry.uuid != self._uuid:\n",
        "        if not entry.uuid:\n",
    ),
    mutation(
        "the pointer does not wait for a pending upload",
        "the pointer is put only after all objects of its version are known to be stored",
        "commit/uploads.py",
        "            create(self._store, item[0], item[1], self._runtime)\n",
        '            if item[0].startswith("data/"):\n'
        "                self._store.put(*item)\n"
        "            else:\n"
        "                create(self._store, item[0], item[1], self._runtime)\n",
    ),
)
