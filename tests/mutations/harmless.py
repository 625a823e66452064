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
        "their timestamps change with each rebase, so that a spill that was uploaded for a lost attempt is not equal "
        "to what stands in the next one, and is made anew: it costs a PUT.",
    ),
    Harmless(
        mutation(
            "a manifest is put without If-None-Match",
            "every object but the pointer is created with If-None-Match",
            "store/s3/bucket_store.py",
            '            request["IfNoneMatch"] = "*"\n',
            '            request.pop("IfMatch", None)\n',
        ),
        "names are given out once, each with random digits of its own, so that a second PUT of a name has the same "
        "bytes. Together with names that meet it is fatal: see the manifests that are put over each other.",
    ),
    Harmless(
        mutation(
            "an upload is completed without If-None-Match",
            "an upload is completed with If-None-Match",
            "store/s3/upload.py",
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
            "        if is_fresh and not gone:\n            return True\n",
            "        if not gone:\n            return True\n",
        ),
        "each statement was applied to its transaction's own base when it was added, after a fresh look where a name "
        "is there or is not; what fails on a cached base fails on one that came after that, and is true during the "
        "call. It is one more attempt for the caller.",
    ),
    Harmless(
        mutation(
            "a listing ends with its first page",
            "a listing is read to its end",
            "store/s3/bucket_store.py",
            '            if not page.get("IsTruncated"):\n',
            "            if page:\n",
        ),
        "nothing but collection lists, to find what it may delete; what it does not see it leaves: that costs "
        "storage, and breaks no promise.",
    ),
    Harmless(
        mutation(
            "a released segment takes along what it names",
            "a merged-away segment is released alone, a dropped one with all that it reaches",
            "commit/statements/background.py",
            "        draft.release(self.inputs)\n        draft.tables[self.name] = msgspec.structs.replace(\n",
            "        for segment in entry.segments:\n"
            "            if segment.object in self.inputs:\n"
            "                draft.release_tree(segment)\n"
            "        draft.tables[self.name] = msgspec.structs.replace(\n",
        ),
        "what a merged segment names and the newest version does not was released by an earlier commit, so that it may "
        "go as well; what is named still, or was released by a kept version, is held back by the mark. It costs a GET.",
    ),
    Harmless(
        mutation(
            "an overlay counts though its file's own pair is greater",
            "of two pairs of a file the one with the greater (applied_through, cardinality) is newer",
            "format/entries.py",
            "        return (applied_through, cardinality) > (self.applied_through, own)\n",
            "        return (applied_through, cardinality) != (self.applied_through, own)\n",
        ),
        "a merge takes out all overlays that it folds into entries, but for one that a spill has moved meanwhile: "
        "nothing had replaced that, so it holds the very vector of the entry. Its applied_through may be less, since "
        "the entry also has what its segment was resolved through: then tombstones are asked again, for rows that are "
        "in the vector. Elsewhere pairs only grow: they are made of the one that counts, on the base they land on.",
    ),
)
