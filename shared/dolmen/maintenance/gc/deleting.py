"""Deletes objects in batches, and checks the outcome of every key.

Reads names of objects: the table, and the hour in which the name was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dolmen.base.units import HOUR_US, SECOND_US
from dolmen.format.adopted_files import is_adopted
from dolmen.format.layout import data_key, tombstone_key
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


_DATED = re.compile(r"(?:data|tombstone)/[a-z0-9_]{1,64}/(\d{4})/(\d\d)/(\d\d)/(\d\d)/[^/]+")


_AFTER_DATES = "~"  # sorts after every digit


def hour_floor(time_us: int) -> int:
    """The beginning of the hour, in microseconds."""
    return time_us - time_us % HOUR_US


def hour_of(key: str) -> int | None:
    """The hour in which a data or tombstone object was named, in microseconds; None for other names."""
    match = _DATED.fullmatch(key)
    if match is None:
        return None
    try:
        year, month, day, hour = map(int, match.groups())
        return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * SECOND_US
    except ValueError:
        return None


def hour_prefix(directory: str, time_us: int) -> str:
    """``data/<table>/YYYY/MM/DD/HH/``, or the same under ``tombstone/``, for a directory ``data/<table>/``."""
    kind, table, _ = directory.split("/")
    name = {"data": data_key, "tombstone": tombstone_key}[kind](table, max(time_us, 0), "")
    return name[: name.rindex("/") + 1]


def directories(store: ObjectStore, kind: str) -> Iterator[str]:
    """``<kind>/<table>/`` of every table with objects, dropped tables included: one request each, whatever they
    hold."""
    last = ""
    while True:
        first = next(iter(store.list(f"{kind}/", last)), None)
        if first is None:
            return
        parts = first.key.split("/")
        if len(parts) < 3:  # not an object of dolmen
            last = first.key
            continue
        directory = f"{kind}/{parts[1]}/"
        if hour_of(f"{directory}2000/01/01/00/x") is not None:  # a table's name
            yield directory
        last = directory + _AFTER_DATES
