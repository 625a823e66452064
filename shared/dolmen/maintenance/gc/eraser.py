"""Deletes objects in batches, and checks the outcome of every key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dolmen.format.adopted import is_adopted
from dolmen.store.base import ObjectStore

BATCH = 1000
"""The number of objects that are deleted at once. A run may stop between two batches."""


@dataclass(frozen=True)
class Amount:
    """A number of objects, and their size as far as it is known."""

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.objects + other.objects, self.bytes + other.bytes)


class ObjectEraser:
    """Deletes objects, or only counts them in a dry run. Adopted files stay, whoever asks.

    Args:
        dry_run: delete nothing.
    """

    def __init__(self, store: ObjectStore, *, dry_run: bool = False) -> None:
        self._store, self._dry_run = store, dry_run
        self.deleted: dict[str, Amount] = {}
        self.errors: dict[str, str] = {}

    def erase(self, reason: str, keys: Sequence[str], sizes: Sequence[int] = ()) -> set[str]:
        """Deletes objects. Returns the keys that could not be deleted.

        Args:
            reason: the reason, by which deleted objects are counted.
            sizes: the objects' sizes in bytes, if known.
        """
        if any(is_adopted(key) for key in keys):  # they are others' files, which nothing here deletes
            sizes = [size for key, size in zip(keys, sizes, strict=False) if not is_adopted(key)]
            keys = [key for key in keys if not is_adopted(key)]
        failed: set[str] = set()
        for start in range(0, len(keys), BATCH):
            some = keys[start : start + BATCH]
            if not self._dry_run:
                for outcome in self._store.delete(some):
                    if outcome.error is not None:
                        failed.add(outcome.key)
                        self.errors[outcome.key] = outcome.error
        size = sum(size for key, size in zip(keys, sizes, strict=False) if key not in failed)
        done = Amount(len(keys) - len(failed), size)
        if done.objects:
            self.deleted[reason] = self.deleted.get(reason, Amount()) + done
        return failed
