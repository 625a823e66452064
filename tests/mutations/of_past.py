"""Mutations of tags, restores and clones."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Mutation, mutation

PAST: tuple[Mutation, ...] = (
    mutation(
        "a tag keeps nothing but its name",
        "collection marks the objects of a tagged version, although it has expired",
        "maintenance/gc/mark.py",
        '    parts += (MarkPart("tagged", (), manifests=(key,)) for key in tagged_manifests(manifest))\n',
        "",
    ),
    mutation(
        "the manifest of a tagged version goes with those around it",
        "manifests before the horizon go, but for those that tags name",
        "maintenance/gc/deletion.py",
        'store.list("manifest/") if info.key not in tagged)',
        'store.list("manifest/"))',
    ),
    mutation(
        "a version that has expired is tagged",
        "a tag lands on a version in which the tagged one is kept",
        "commit/statements/catalog.py",
        "        draft.base.check_kept(self.value.version)\n",
        "",
    ),
    mutation(
        "a version that has expired is restored",
        "a restore lands only if the restored version is still kept",
        "commit/statements/catalog.py",
        "        draft.base.check_kept(self.version)\n        if self.name is not None and self.must_exist:\n",
        "        if self.name is not None and self.must_exist:\n",
    ),
    mutation(
        "a table of a version that has expired is cloned",
        "a clone lands only if the cloned version is still kept",
        "commit/statements/catalog.py",
        "        draft.base.check_kept(self.version)\n        for name in clones:\n",
        "        for name in clones:\n",
    ),
    mutation(
        "versions expire though a cursor has not seen them",
        "the horizon stops at a durable cursor, also at one that was made after the plan",
        "commit/statements/background.py",
        "        draft.horizon = max(base.horizon, min([self.horizon, *cursor_versions]), self.expire_before)\n",
        "        draft.horizon = max(base.horizon, self.horizon, self.expire_before, *[0 for _ in cursor_versions])\n",
    ),
    mutation(
        "a lost tag lets go of nothing",
        "a tag that ends or moves releases its version, if that had expired: nothing else finds its objects",
        "commit/draft.py",
        "            self._manifests.add(old.manifest)\n",
        "            self._manifests.discard(old.manifest)\n",
    ),
    mutation(
        "background work checks the table's uuid, and not its epoch",
        "background work that was planned before an overwrite or a restore is skipped, by the epoch",
        "commit/draft.py",
        "if entry and (entry.uuid, entry.epoch) == (uuid, epoch) else None",
        "if entry and entry.uuid == uuid else None",
    ),
    mutation(
        "a restored table has its old epoch",
        "a restore starts a new epoch: transactions that read the table conflict",
        "commit/statements/catalog.py",
        "    return msgspec.structs.replace(entry, epoch=draft.version, last_delete_ts=ts, unseen_delete_ts=ts)\n",
        "    return msgspec.structs.replace(entry, epoch=entry.epoch or draft.version, last_delete_ts=ts, unseen_delete_ts=ts)\n",
    ),
    mutation(
        "a restore forgets the unresolved deletes of the restored version",
        "a restored table has the tombstones of the restored version, with their timestamps",
        "commit/statements/catalog.py",
        "    return msgspec.structs.replace(entry, epoch=draft.version, last_delete_ts=ts, unseen_delete_ts=ts)\n",
        "    return msgspec.structs.replace(entry, epoch=draft.version, tombstones=(), last_delete_ts=ts, unseen_delete_ts=ts)\n",
    ),
    mutation(
        "a restore follows a table to its new name",
        "a restore conflicts when the name belongs to another table, or the table has another name",
        "commit/statements/catalog.py",
        "            draft.table(self.name, self.uuid)\n",
        "            draft.tables.get(self.name)\n",
    ),
    mutation(
        "a restored table does not get its memory of deleted keys",
        "the memory of a table of changes comes back with it",
        "commit/statements/catalog.py",
        "            entries[check_table_name(memory_name(name))] = memory\n",
        "            assert memory_name(name)\n",
    ),
    mutation(
        "a clone shares the memory of its source",
        "a clone of a table of changes has a memory of its own",
        "commit/statements/catalog.py",
        "            clones[self.name] = msgspec.structs.replace(clones[self.name], sequences=sequences)\n",
        "            assert sequences\n",
    ),
)
