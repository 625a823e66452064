"""Checks the contents of older kept versions, as far as the checked version does not have them; each object once."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, field

from dolmen.commit.context import Context
from dolmen.commit.intent import PREFIX, Heartbeat, parse_intent_key
from dolmen.errors import CorruptionError, ObjectNotFoundError, UnsupportedFormatError
from dolmen.format.entries import DataFile, Vector
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.maintenance.verify.data import DataCheck
from dolmen.maintenance.verify.deletes import DeleteObjects, check_deletes
from dolmen.maintenance.verify.report import FindingLog
from dolmen.maintenance.verify.segments import TableContents, read_segment


@dataclass
class KeptContents:
    """Collects data files, deletes and segments of older versions, and checks them.

    Args:
        seen: data files, blobs and segments that were added, or are checked with the checked version.
    """

    seen: set[tuple[str, int]] = field(default_factory=set)
    _files: list[tuple[str, TableEntry, list[DataFile]]] = field(default_factory=list)
    _deletes: DeleteObjects = field(default_factory=DeleteObjects)

    def leave(self, view: TableContents) -> None:
        """Leaves out what a table of the checked version needs, as it is checked there."""
        for file in view.files():
            self.seen.add((file.path, 0))
            if file.vector:
                self.seen.add((file.vector.object, file.vector.offset))
        self.seen.update((tombstone.blob.object, tombstone.blob.offset) for tombstone in view.tombstones)

    def take(self, view: TableContents, new: Collection[str]) -> None:
        """Adds what one table of one version needs.

        Args:
            new: keys of its segments that no earlier version had.
        """
        entry = view.entry
        if entry is None:
            return
        files = []
        for file in view.files(new):
            if self._is_new(file.path, 0):
                files.append(file)
            if file.vector:
                self._take_vector(file.vector, file.uuid, file.rows, view, entry)
        if files:
            self._files.append((view.name, entry, files))
        for uuid, overlay in view.overlays.items():
            if overlay.vector and uuid not in view.removed:
                self._take_vector(overlay.vector, uuid, sys.maxsize, view, entry)
        for tombstone in view.tombstones:
            if self._is_new(tombstone.blob.object, tombstone.blob.offset):
                self._deletes.add_tombstone(tombstone, view.name, entry)

    def take_segments(self, context: Context, manifest: Manifest, log: FindingLog) -> None:
        """Reads the database's own segments of one version that were not read before."""
        for segment in manifest.segments:
            if self._is_new(segment.object, 0):
                read_segment(context, segment, log)

    def check(self, context: Context, log: FindingLog, skip: set[str]) -> None:
        """Reads everything that was added, except the objects in ``skip``."""
        objects = [one for key, one in self._deletes.by_key.items() if key not in skip]
        check_deletes(context, objects, len(objects), log)
        for name, entry, files in self._files:
            DataCheck(context, name, entry, log, skip).check_data(iter(files), len(files))

    def _take_vector(self, vector: Vector, file: str, rows: int, view: TableContents, entry: TableEntry) -> None:
        if self._is_new(vector.object, vector.offset):
            self._deletes.add_vector_of(vector, file, rows, view.name, entry)

    def _is_new(self, key: str, offset: int) -> bool:
        if (key, offset) in self.seen:
            return False
        self.seen.add((key, offset))
        return True


def check_intents(context: Context, log: FindingLog) -> None:
    """Reads all heartbeats of jobs."""
    store = context.store
    for info in store.list(PREFIX):
        parsed = parse_intent_key(info.key)
        if parsed is None:
            continue
        log.count("intents")
        try:
            heartbeat = Heartbeat.decode(store.get(info.key).body, info.key)
        except ObjectNotFoundError:  # the job has ended meanwhile
            continue
        except UnsupportedFormatError as error:
            log.add("newer-format", info.key, str(error))
        except CorruptionError as error:
            log.add("intent-damaged", info.key, error.reason)
        else:
            if heartbeat.txid != parsed[0]:
                log.add("intent-damaged", info.key, f"it is of job {heartbeat.txid}")
