"""Checks, at each new version and each deleted object, that every object that must be kept is there.

Every kept version must be readable, and no commit that can still land may miss an object. The check reads the bucket
alone (``stored``), never the state of collection.
"""

from __future__ import annotations

import bisect
from collections import Counter
from itertools import pairwise
from typing import Any

from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.stored import BucketReader, StoredVersion

JITTER_US = 60_000_000
"""Maximum difference of servers' clocks, and travel time of an answer."""
DEFAULTS = {
    "retention": "30d",
    "keep_versions": 1000,
    "reader_grace": "1h",
    "orphan_age": "7d",
    "applied_retention": "35d",
    "root_bytes": 262_144,
}
_RECEIPTS = "receipt/"
"""Receipts of erasures are never deleted."""

_UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def setting(properties: dict[str, Any], name: str) -> int:
    """A setting of a database, durations in microseconds."""
    value = properties.get(name, DEFAULTS[name])
    return value if isinstance(value, int) else int(value[:-1]) * _UNITS[value[-1]]


class Retention:
    """The kept versions and the objects that they need.

    Args:
        bucket: the bucket.
        reader: decodes its objects.
        counts: counts of events.
    """

    def __init__(self, bucket: MemoryBucket, reader: BucketReader, counts: Counter[str]) -> None:
        self.counts = counts
        self.horizon = 0
        self.last_needed: dict[str, int] = {}
        self.revoked: dict[str, int] = {}
        self._bucket, self._reader = bucket, reader
        self._manifests: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._released: dict[int, frozenset[str]] = {}
        self._moves: list[tuple[int, int, int]] = []  # (horizon, version that moved it, when)
        self._created: list[int] = [0]
        self._settings: list[tuple[int, dict[str, Any]]] = [(0, {})]
        self._view: StoredVersion | None = None
        self._tag_needs: dict[str, frozenset[str]] = {}
        self._untagged: dict[int, int] = {}

    @property
    def newest(self) -> StoredVersion | None:
        """The newest version."""
        return self._view

    @property
    def tagged(self) -> dict[int, frozenset[str]]:
        """The versions that have tags, with the keys of their manifests and of all that they need."""
        tags = self._view.manifest.tags.values() if self._view else ()
        return {tag.version: self._tag_needs[tag.manifest] for tag in tags}

    def is_kept(self, version: int) -> bool:
        """Whether a version may be read."""
        return version >= self.horizon or version in self.tagged

    def check_there(self, view: StoredVersion) -> None:
        """Raises ViolationError unless all objects of a version exist, and no collection was free to remove them."""
        before, manifest = self._view, view.manifest
        for key in sorted(view.needs - (before.needs if before else frozenset())):
            there = self._bucket.objects.get(key)
            where = f"version {manifest.version} landed and names {key}, which"
            if there is None:
                gone = key in self._deleted
                raise ViolationError(
                    Never.COLLECTED if gone else Never.UNREADABLE,
                    f"{where} {'was deleted before' if gone else 'is not there'}",
                )
            if before is None or key in self.last_needed:
                continue
            if there.last_modified_us + JITTER_US < before.manifest.orphan_cutoff:
                raise ViolationError(Never.COLLECTED, f"{where} is behind the fence: any collection may remove it")
            if key.rpartition("/")[2].partition("-")[0] in before.manifest.revoked_intents:
                raise ViolationError(Never.COLLECTED, f"{where} is of a revoked job: any collection may remove it")

    def record_version(self, view: StoredVersion) -> None:
        """Records and checks a version that has just landed. Raises ViolationError."""
        before, manifest = self._view, view.manifest
        version = manifest.version
        old = before.needs if before else frozenset()
        self._check_released(view, old - view.needs)
        if before:
            self._check_work(view, before)
        self.last_needed.update(dict.fromkeys(view.needs, version))
        self._manifests[view.key] = version
        self._created.append(manifest.created_at)
        if manifest.properties != self._settings[-1][1]:
            self._settings.append((version, manifest.properties))
        if manifest.horizon > self.horizon:
            self._check_horizon(view)
            self.counts["versions expired"] += manifest.horizon - max(self.horizon, 1)
            self._moves.append((manifest.horizon, version, manifest.created_at))
            self.horizon = manifest.horizon
        fresh = manifest.revoked_intents.keys() - self.revoked.keys()
        self.counts["intents revoked"] += len(fresh)
        self.revoked.update(dict.fromkeys(fresh, version))
        self._view = view
        for tag in manifest.tags.values():
            if tag.manifest not in self._tag_needs:
                self._tag_needs[tag.manifest] = self._reader.version(tag.manifest).needs | {tag.manifest}

    def check_delete(self, key: str, now_us: int) -> None:
        """Checks a delete just before it happens, at ``now_us`` of the server's clock. Raises ViolationError."""
        view, there = self._view, self._bucket.objects.get(key)
        if there is None or key.startswith(("intent/", "iceberg/")):
            return  # publications are judged by themselves
        if view is None or "/" not in key or key.startswith(_RECEIPTS):
            raise ViolationError(Never.COLLECTED, f"{key} was deleted")
        version = self._manifests.get(key, self.last_needed.get(key))
        self.counts["objects deleted"] += 1
        for tagged, needs in self.tagged.items():
            if key in needs:
                raise ViolationError(Never.COLLECTED, f"{key} was deleted, which the tagged version {tagged} needs")
        self._deleted.add(key)
        if version is not None:
            self._check_expired(key, version, now_us)
            return
        self.counts["orphans deleted"] += 1
        if key.startswith("manifest/") and int(key.removeprefix("manifest/v")[:20]) <= view.manifest.version:
            return  # lost: another commit has its version
        txid = key.rpartition("/")[2].partition("-")[0]
        if txid in self.revoked and not key.startswith("manifest/"):
            self.counts["objects of revoked jobs deleted"] += 1
            return
        if there.last_modified_us > view.manifest.orphan_cutoff:
            raise ViolationError(
                Never.COLLECTED,
                f"{key}, uploaded at {there.last_modified_us}, was deleted by {now_us}, but the fence stands at "
                f"{view.manifest.orphan_cutoff}: a commit that names it may still land",
            )

    def expired_since(self, version: int) -> int | None:
        """The server's time from which on a version may be unreadable; None while it is kept."""
        if version in self.tagged:
            return None
        return self._free_since(max(version, self._untagged.get(version, 0)))  # until then its tag could be read

    def _free_since(self, version: int) -> int | None:
        """The server's time from which on objects that were last needed by a version may be missing."""
        index = bisect.bisect_right(self._moves, version, key=lambda move: move[0])
        if index == len(self._moves):
            return None
        _, mover, at_us = self._moves[index]
        return at_us + min(setting(properties, "reader_grace") for properties in self._in_force(mover - 10)) - JITTER_US

    def leftovers(self) -> set[str]:
        """All objects that no kept version needs, and that no version after the horizon released.

        A kept version may have released a segment with objects that were replaced long before.
        """
        kept = {key for key, version in self.last_needed.items() if version >= self.horizon}
        kept |= {key for key, version in self._manifests.items() if version >= self.horizon}
        kept = kept.union(*(keys for version, keys in self._released.items() if version > self.horizon))
        kept = kept.union(*self.tagged.values())
        own = (_RECEIPTS, "iceberg/")
        return {key for key in self._bucket.objects if "/" in key and not key.startswith(own)} - kept

    def _check_expired(self, key: str, version: int, now_us: int) -> None:
        free_us = self._free_since(version)
        if free_us is None:
            raise ViolationError(
                Never.COLLECTED, f"{key} was deleted, which version {version} needs; the horizon is {self.horizon}"
            )
        if now_us < free_us:
            raise ViolationError(
                Never.COLLECTED,
                f"{key} was deleted {(free_us - now_us) / 1e6} s before the grace of the readers of version {version} "
                "was over",
            )

    def _in_force(self, since: int) -> list[dict[str, Any]]:
        """All settings in force from version ``since`` on."""
        later = [properties for version, properties in self._settings if version > since]
        return [*later, next(p for version, p in reversed(self._settings) if version <= max(since, 0))]

    def _check_released(self, view: StoredVersion, gone: frozenset[str]) -> None:
        manifest = view.manifest
        releases = [release for release in view.released if release.version == manifest.version]
        own = frozenset[str]().union(*map(self._reader.reached, releases))
        if lost := gone - own:
            raise ViolationError(
                Never.COLLECTED, f"version {manifest.version} let go of {sorted(lost)} and does not say so"
            )
        self._check_lost_tags(view, own)
        if own:
            self._released[manifest.version] = own
        for key in own:  # also objects of a table that this commit created and dropped, which no version ever showed
            self.last_needed.setdefault(key, manifest.version - 1)
        recorded = [release.version for release in view.released]
        due = [version for version in self._released if version > manifest.freed]
        if any(a >= b for a, b in pairwise(recorded)) or not set(due) <= set(recorded):
            raise ViolationError(
                Never.COLLECTED,
                f"version {manifest.version} tells of what versions {recorded} released; it should be {due}",
            )

    def _check_lost_tags(self, view: StoredVersion, own: frozenset[str]) -> None:
        """Checks that a version that had expired is released with its last tag. Its readers may still need it."""
        before, manifest = self._view, view.manifest
        named = {tag.manifest for tag in manifest.tags.values()}
        if before is None:
            return
        lost = {tag.manifest: tag for tag in before.manifest.tags.values() if tag.manifest not in named}
        for key, tag in lost.items():
            if tag.version >= before.manifest.horizon:
                continue
            self._untagged[tag.version] = manifest.version - 1
            if key not in own:
                raise ViolationError(
                    Never.COLLECTED, f"version {manifest.version} took the tag from {key} and did not release it"
                )
            self.counts["tagged versions released"] += 1
            self._manifests[key] = manifest.version - 1
            for needed in self._tag_needs[key] - {key}:
                self.last_needed[needed] = max(self.last_needed.get(needed, 0), manifest.version - 1)

    def _check_work(self, view: StoredVersion, before: StoredVersion) -> None:
        new, old = view.manifest, before.manifest
        for name in ("horizon", "horizon_at", "orphan_cutoff", "freed", "swept"):
            if getattr(new, name) < getattr(old, name):
                raise ViolationError(
                    Never.COLLECTED, f"version {new.version} moved {name} back to {getattr(new, name)}"
                )
        if new.horizon > new.version or new.freed > new.version:
            raise ViolationError(
                Never.COLLECTED, f"version {new.version} has horizon {new.horizon}, and has freed {new.freed}"
            )
        if new.horizon_at != (new.created_at if new.horizon != old.horizon else old.horizon_at):
            raise ViolationError(
                Never.COLLECTED, f"version {new.version} says that its horizon was moved at {new.horizon_at}"
            )
        age_us = min(setting(p, "orphan_age") for p in self._in_force(new.version - 1))
        if new.orphan_cutoff != old.orphan_cutoff and new.orphan_cutoff > new.created_at - age_us + JITTER_US:
            raise ViolationError(
                Never.COLLECTED, f"version {new.version} moved the fence too far, to {new.orphan_cutoff}"
            )
        if new.freed != old.freed:
            self._check_freed(view, max(old.horizon, 1))

    def _check_freed(self, view: StoredVersion, horizon: int) -> None:
        """Checks that released objects up to ``freed`` are deleted, unless another version released or needs them.

        Args:
            view: the version.
            horizon: the horizon while they were deleted.
        """
        new = view.manifest
        done = [(version, self._released.pop(version)) for version in list(self._released) if version <= new.freed]
        again = frozenset[str]().union(*self._released.values())
        tagged = frozenset[str]().union(*self.tagged.values())
        for version, keys in done:
            for key in sorted(keys - again):
                there = self._bucket.objects.get(key)
                needed = self.last_needed.get(key, 0) >= horizon or key in view.needs or key in tagged
                if there and not needed and there.last_modified_us <= self._created[version] + JITTER_US:
                    raise ViolationError(
                        Never.COLLECTED, f"{key}, released by version {version}, is there, though freed is {new.freed}"
                    )

    def _check_horizon(self, view: StoredVersion) -> None:
        new = view.manifest
        for name, cursor in (self._view.manifest.cursors if self._view else {}).items():
            lasts = cursor.moved_at + cursor.age_us > new.created_at + JITTER_US
            if lasts and cursor.version < new.horizon:
                raise ViolationError(
                    Never.COLLECTED,
                    f"version {new.version} moved the horizon to {new.horizon}, and cursor {name!r} is at "
                    f"{cursor.version}",
                )
        settings = self._in_force(new.version - 1)
        keep = min(setting(properties, "keep_versions") for properties in settings)
        retention_us = min(setting(properties, "retention") for properties in settings)
        if new.horizon > new.version - keep + 1:
            raise ViolationError(
                Never.COLLECTED, f"version {new.version} moved the horizon to {new.horizon}: fewer than {keep} are kept"
            )
        if self._created[new.horizon - 1] > new.created_at - retention_us + JITTER_US:
            raise ViolationError(
                Never.COLLECTED, f"version {new.version} moved the horizon to {new.horizon}, which expires too early"
            )
