"""Orphans: finds and deletes objects that no kept version needs and no commit can still name.

Data and tombstone objects have their hour in the name, so a sweep goes on where the last one ended. Segments have no
date in their names and are few. Manifests are listed from the version that was the newest at the last sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge

from dolmen.base.units import HOUR_US
from dolmen.commit.head import Head
from dolmen.commit.versions import commits
from dolmen.format.layout import manifest_key, parse_manifest_key
from dolmen.format.manifest import Manifest
from dolmen.maintenance.gc.deletion import BATCH, Amount, ObjectDeleter, directories, hour_floor, hour_of, hour_prefix
from dolmen.maintenance.gc.mark import KeySet
from dolmen.store.base import ObjectInfo, ObjectStore

MARGIN_US = 48 * HOUR_US
"""How much older a name may be than its upload (a slow upload, an idle process) to be found by an ordinary sweep. Older
names are found by a full sweep only."""
SLACK_US = HOUR_US
"""How much older than the fence orphans must be: clocks of servers differ, and S3 dates an upload in parts from its
beginning."""
_KINDS = ("data", "tombstone")


def sweepable(orphan_cutoff: int) -> int:
    """The time before which unmodified orphans may be deleted when the fence is at ``orphan_cutoff``: a full hour."""
    return max(0, hour_floor(orphan_cutoff - SLACK_US))


def has_come_of_age(head: Head, manifest: Manifest, before_us: int) -> bool:
    """Whether a sweep has anything to look at: objects older than ``before_us``, and younger than the last sweep.

    Costs a request or two for each table, whatever it holds. If nothing was written since, it also lists the hours
    before the last sweep, because names may be older than their objects.
    """
    since_us, store = manifest.swept, head.store
    if before_us <= since_us:
        return False
    for directory in _directories(store):
        start = hour_prefix(directory, since_us)
        for info in store.list(directory, start):
            hour = hour_of(info.key)
            if hour is not None:
                if hour < before_us:
                    return True
                break
    if any(since_us <= info.last_modified_us < before_us for info in store.list("segment/")):
        return True
    for directory in _directories(store):
        for info in store.list(directory, hour_prefix(directory, max(0, since_us - MARGIN_US))):
            if (hour_of(info.key) or 0) >= since_us:
                break
            if since_us <= info.last_modified_us < before_us:
                return True
    return any(info.last_modified_us < before_us for info in _losers(head, manifest, since_us))


@dataclass(frozen=True)
class Swept:
    """The result of a sweep.

    Args:
        swept: orphans last modified before this time are deleted.
        complete: True if nothing was left for lack of time.
        waiting: orphans that are too young to delete, including objects of commits under way.
    """

    swept: int
    complete: bool
    waiting: Amount


class Sweep:
    """Deletes orphans last modified before ``before_us``.

    Args:
        manifest: the manifest of the commit that moved the fence, or a later one.
        kept: keys of the objects to keep.
        full: look at all objects, not only at those younger than the last sweep.
    """

    def __init__(
        self,
        head: Head,
        deleter: ObjectDeleter,
        manifest: Manifest,
        kept: KeySet,
        before_us: int,
        deadline: Callable[[], bool],
        *,
        full: bool = False,
    ) -> None:
        self._head, self._store, self._deleter, self._manifest = head, head.store, deleter, manifest
        self._kept, self._before_us, self._deadline = kept, before_us, deadline
        self._from_us = 0 if full else max(0, manifest.swept - MARGIN_US)
        self._waiting = Amount()
        self._failed_us: int | None = None

    def run(self) -> Swept:
        """Sweeps from the oldest hour to the newest, over all tables at once, and returns the progress."""
        start_us = self._manifest.swept
        others = ((0, info) for info in self._undated_objects())
        if self._sweep(others) is not None:
            return self._result(start_us, complete=False)
        reached_us = self._sweep(self._dated_objects())
        return self._result(self._before_us if reached_us is None else reached_us, complete=reached_us is None)

    def _result(self, reached_us: int, *, complete: bool) -> Swept:
        if self._failed_us is not None:
            reached_us = min(reached_us, self._failed_us)
        return Swept(max(self._manifest.swept, min(reached_us, self._before_us)), complete, self._waiting)

    def _sweep(self, dated: Iterable[tuple[int, ObjectInfo]]) -> int | None:
        """Deletes orphans. Returns None at the end, or the hour that it had reached at the deadline."""
        batch: list[tuple[int, ObjectInfo]] = []
        for item in dated:
            batch.append(item)
            if len(batch) >= BATCH:
                self._judge(batch)
                batch = []
                if self._deadline():
                    return item[0]
        self._judge(batch)
        return None

    def _judge(self, batch: list[tuple[int, ObjectInfo]]) -> None:
        held = self._kept.holds([info.key for _, info in batch]).tolist()
        orphans = [item for item, needed in zip(batch, held, strict=True) if not needed]
        old = [item for item in orphans if item[1].last_modified_us < self._before_us]
        young = [info.size for _, info in orphans if info.last_modified_us >= self._before_us]
        self._waiting += Amount(len(young), sum(young))
        if not old:
            return
        failed = self._deleter.erase("orphans", [info.key for _, info in old], [info.size for _, info in old])
        hours = [hour for hour, info in old if info.key in failed]
        if hours:
            self._failed_us = min(hours + ([] if self._failed_us is None else [self._failed_us]))

    def _dated_objects(self) -> Iterator[tuple[int, ObjectInfo]]:
        """Data and tombstone objects with the hours in their names, in the order of hours."""
        return merge(*map(self._in_directory, _directories(self._store)), key=lambda item: item[0])

    def _in_directory(self, directory: str) -> Iterator[tuple[int, ObjectInfo]]:
        start = hour_prefix(directory, self._from_us) if self._from_us else ""
        for info in self._store.list(directory, start):
            hour = hour_of(info.key)
            if hour is not None:  # otherwise not an object of dolmen
                yield hour, info

    def _undated_objects(self) -> Iterator[ObjectInfo]:
        yield from self._store.list("segment/")
        yield from _losers(self._head, self._manifest, self._from_us)


def _directories(store: ObjectStore) -> Iterator[str]:
    for kind in _KINDS:
        yield from directories(store, kind)


def _losers(head: Head, manifest: Manifest, since_us: int) -> Iterator[ObjectInfo]:
    """Manifests of attempts that lost, for versions committed since then; oldest first.

    Somewhat older ones too: a slow PUT may land long after another attempt took its version.
    """
    winners: list[str] = []
    oldest = manifest.version
    for entry in commits(head, manifest):
        if entry.version < oldest - 1:
            break  # without its history it is unknown which attempt won
        winners.append(entry.manifest)
        oldest = entry.version
        if entry.created_at < since_us - SLACK_US:
            break
    won = KeySet(winners)
    for info in head.store.list("manifest/", manifest_key(oldest, "")):
        parsed = parse_manifest_key(info.key)
        if parsed is None or parsed[0] < oldest:
            continue
        if parsed[0] > manifest.version:  # it may still be committed
            return
        if info.key not in won:
            yield info
