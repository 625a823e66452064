"""Finds the commits that changed a table's rows, with few requests: most versions of a long chain are never read.

The history tells in words what each commit did. These words only choose which manifests are read first. Whether a table
is the same in two versions follows from its entries: a commit that added rows left a younger timestamp, one that took
rows away moved ``last_delete_ts``, one that replaced all of them made a new epoch, and one that dropped a column of the
feed no longer shows it. Where the entries disagree with the words, every version in between is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from dolmen.commit.context import Context
from dolmen.commit.versions import history_between, manifest_of
from dolmen.entries.segments.reader import SegmentReader
from dolmen.format.manifest import HistoryEntry, Manifest, TableEntry
from dolmen.format.schema import Field
from dolmen.rows.changes.hidden import hidden_columns

_AHEAD = 8
"""Manifests that are fetched at once, each of which takes some megabytes when it is decoded."""

_SAME_ROWS = frozenset(("resolve", "compact", "index", "merge", "set", "alter", "rename"))
"""Effects after which a scan returns the same rows, in the columns that it still has."""

_REACHING = frozenset(("erase", "forget"))
"""Effects on more tables than the one that they name, if they name any."""


@dataclass(frozen=True)
class CommitStep:
    """A version that may have changed a table's rows, and the version before it, or for net changes an earlier one."""

    before: Manifest
    after: Manifest


def entry_of(manifest: Manifest, uuid: str) -> TableEntry | None:
    """The entry of the table with this uuid, whatever its name is; None if the version has no such table."""
    name = manifest.name_of(uuid)
    return None if name is None else manifest.tables[name]


def may_differ(before: Manifest, after: Manifest, uuid: str, segments: SegmentReader, fields: Sequence[Field]) -> bool:
    """Whether a table's rows may differ between two versions, or may have differed from both in between.

    False is certain. It goes by the entries alone; an idle table's is fetched if it has become idle in between.

    Args:
        fields: columns of the feed: a version that does not show one of them differs from one that does.
    """
    first, last = entry_of(before, uuid), entry_of(after, uuid)
    if first is None or last is None:
        return first is not last
    if (first.epoch, first.last_delete_ts) != (last.epoch, last.last_delete_ts):
        return True
    if last.section is not None and last.section == first.section:
        return False
    whole = segments.whole(last)
    since = before.commit_ts
    if any(file.greatest_row_ts > since for file in whole.files) or any(
        segment.greatest > since for segment in whole.segments_of("files")
    ):
        return True
    was = segments.whole(first).schema
    return hidden_columns(was, since, fields) != hidden_columns(whole.schema, after.commit_ts, fields)


def changing_commits(
    context: Context, newest: Manifest, since: Manifest, until: Manifest, uuid: str, fields: Sequence[Field]
) -> Iterator[CommitStep]:
    """Yields the commits after ``since`` and up to ``until`` that may have changed a table's rows, oldest first.

    Reads segments of history, and the manifests of these commits and of the versions before them; several at once.

    Args:
        newest: a version that knows the history of ``until``.
        fields: columns of the feed.

    Raises:
        VersionExpiredError: a version has expired meanwhile.
    """
    if since.version >= until.version:
        return
    history = history_between(context.head, newest, since.version + 1, until.version)
    names = {name for manifest in (since, until) if (name := manifest.name_of(uuid)) is not None}
    for before, after in pairwise(_manifests(context, since, until, _worth_reading(history, names))):
        if not may_differ(before, after, uuid, context.segments, fields):
            continue
        if after.version == before.version + 1:
            yield CommitStep(before, after)
            continue
        between = history_between(context.head, newest, before.version + 1, after.version - 1)
        for step in pairwise(_manifests(context, before, after, between)):
            if may_differ(*step, uuid, context.segments, fields):
                yield CommitStep(*step)


def _manifests(
    context: Context, first: Manifest, last: Manifest, between: Iterable[HistoryEntry]
) -> Iterator[Manifest]:
    read = context.runtime.map(lambda entry: manifest_of(context.head, entry), between, ahead=_AHEAD)
    return chain([first], read, [last])


def _worth_reading(history: Iterable[HistoryEntry], names: set[str]) -> Iterator[HistoryEntry]:
    """The commits that say that they changed rows of the table, and those before them; the last one is left out."""
    before: HistoryEntry | None = None
    is_before_wanted = False
    for entry in history:
        is_wanted = _says_changes(entry, names)
        if before is not None and (is_wanted or is_before_wanted):
            yield before
        before, is_before_wanted = entry, is_wanted


def _says_changes(entry: HistoryEntry, names: set[str]) -> bool:
    """Whether a commit says that it changed rows of a table with one of these names. Adds its new name to them."""
    for deed in entry.did:
        if deed.what == "rename" and deed.table in names:
            names.update(deed.over)
    return bool(entry.did_more) or any(
        deed.what in _REACHING or (deed.table in names and deed.what not in _SAME_ROWS) for deed in entry.did
    )
