"""Changes that break no promise: second lines of defence, and what only costs time."""

from __future__ import annotations

from dataclasses import dataclass

from mutations.mutation import Mutation, mutation


@dataclass(frozen=True)
class Harmless:
    """A change that nothing can catch.

    Args:
        because: why no user can ever see it.
    """

    mutation: Mutation
    because: str


HARMLESS: tuple[Harmless, ...] = (
    Harmless(
        mutation(
            "a spill may hold the commit's own entries",
            "a spill takes only entries of the base",
            "commit/root_budget.py",
            "            shared = _common_front(getattr(before, kind), getattr(entry, kind))\n",
            "            shared = getattr(entry, kind)\n",
        ),
        "their timestamps change with each rebase, so a spill that was uploaded for a lost attempt differs from the "
        "next attempt's, and is uploaded again: it costs a PUT.",
    ),
    Harmless(
        mutation(
            "a manifest is put without If-None-Match",
            "every object but the pointer is created with If-None-Match",
            "store/s3/bucket_store.py",
            '            request["IfNoneMatch"] = "*"\n',
            '            request.pop("IfMatch", None)\n',
        ),
        "each name is used once, with its own random digits, so a second PUT of a name has the same bytes. Combined "
        "with colliding names it is fatal: see the manifests that are put over each other.",
    ),
    Harmless(
        mutation(
            "an upload is completed without If-None-Match",
            "an upload is completed with If-None-Match",
            "store/s3/bucket_store.py",
            'MultipartUpload={"Parts": self._parts}, IfNoneMatch="*"\n',
            'MultipartUpload={"Parts": self._parts}\n',
        ),
        "the name of a data file is a fresh uuid, and an upload id can be completed only once.",
    ),
    Harmless(
        mutation(
            "an error of a cached base reaches the caller",
            "a cached base proves nothing: an error is raised only after the pointer was read afresh",
            "commit/loop.py",
            "        if is_fresh and not is_missing:\n            return True\n",
            "        if not is_missing:\n            return True\n",
        ),
        "each statement was applied to its transaction's own base when it was added, after a fresh read if it depends"
        " on whether a name exists. A statement that fails on a cached base also fails on a version after that one, "
        "and the error was true during the call. It costs the caller one more attempt.",
    ),
    Harmless(
        mutation(
            "a listing ends with its first page",
            "a listing is read to its end",
            "store/s3/bucket_store.py",
            '            if not page.get("IsTruncated"):\n                return\n            request["Cont',
            '            if page:\n                return\n            request["Cont',
        ),
        "only garbage collection lists, to find objects to delete. It keeps the objects that it does not see: that "
        "costs storage, and breaks no promise.",
    ),
    Harmless(
        mutation(
            "the objects of a released segment are released, too",
            "a merged-away segment is released alone, a dropped one with all that it reaches",
            "commit/statements/background.py",
            "        draft.release(self.inputs)\n        draft.tables[self.name] = msgspec.structs.replace(\n",
            "        for segment in entry.segments:\n"
            "            if segment.object in self.inputs:\n"
            "                draft.release_tree(segment)\n"
            "        draft.tables[self.name] = msgspec.structs.replace(\n",
        ),
        "an object that a merged segment names and the newest version does not was released by an earlier commit, so "
        "it may be deleted too. The mark protects objects that are still named, or that a kept version released. It "
        "costs a GET.",
    ),
    Harmless(
        mutation(
            "an overlay is used although its file's own pair is greater",
            "of two pairs of a file the one with the greater (applied_through, cardinality) is newer",
            "format/entries.py",
            "        return pair_of(self) < _pair(applied_through, vector)\n",
            "        return pair_of(self) != _pair(applied_through, vector)\n",
        ),
        "a merge removes all overlays that it folds into entries, except one that a spill has moved in the meantime. "
        "Nothing had replaced that one, so it has the same vector as the entry. Its applied_through may be less, "
        "because the entry also has the one of its segment: then tombstones are evaluated again, for rows that are in"
        " the vector. Elsewhere pairs only grow: they are made from the effective pair of the base they land on.",
    ),
)
