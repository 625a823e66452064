"""Deletes objects of publications (``iceberg/``) that neither the newest metadata needs, nor one replaced lately."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dolmen.commit.context import Context
from dolmen.errors import CorruptionError
from dolmen.format.manifest import Manifest
from dolmen.format.properties import DatabaseSettings
from dolmen.iceberg.erased_tables import asks_for_publication
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.publication_directory import PREFIX, Newest, PublicationDirectory
from dolmen.iceberg.published_versions import (
    add_objects,
    pins_of,
    published_tables,
    published_tables_of,
    unpin_versions,
)
from dolmen.maintenance.gc.deletion import ObjectDeleter
from dolmen.maintenance.gc.gc_plan import newest_at
from dolmen.store.base import ObjectInfo

REASON = "publications"


class PublicationSweep:
    """Sweeps the directories of publications.

    Metadata that was the newest, or that the hint named, less than ``reader_grace`` ago is kept with all that it names,
    as readers may have opened it, and so is metadata of a version that is still pinned, as Glue may name it. Other
    objects go at ``orphan_age``: until then a publication under way may name them. Of a dropped table the metadata goes
    at once, and all else, the pins last, when no publication under way can need it: the table may be restored, and what
    is then found as its publication must be whole. A table that is published by hand alone is unpublished likewise, at
    ``orphan_age``, once an erasure has taken the version that was published: its files are gone, so nobody can read it,
    and what is left still holds values.

    Args:
        manifest: the newest version.
        now_us: the server's clock.
        full: also look for publications that no pin names any more.
    """

    def __init__(
        self,
        context: Context,
        deleter: ObjectDeleter,
        manifest: Manifest,
        settings: DatabaseSettings,
        now_us: int,
        deadline: Callable[[], bool],
        *,
        full: bool,
        dry_run: bool,
    ) -> None:
        self._context, self._deleter, self._manifest, self._settings = context, deleter, manifest, settings
        self._now_us, self._deadline, self._full, self._dry_run = now_us, deadline, full, dry_run

    def run(self) -> bool:
        """Sweeps all directories. Returns False at the deadline. Makes no request where nothing is published."""
        there = {entry.uuid for entry in self._manifest.tables.values()}
        pinned = published_tables(self._manifest)
        for table in sorted({*pinned, *(published_tables_of(self._context.store) if self._full else ())}):
            if self._deadline():
                return False
            if table in there:
                try:
                    self._sweep(table)
                except CorruptionError as error:
                    self._deleter.errors[error.key] = f"{error.reason}: publish the table anew"
            else:
                self._sweep_dropped(table)
        return True

    def _sweep_abandoned(self, directory: PublicationDirectory, found: Sequence[ObjectInfo]) -> None:
        """Deletes the metadata first, and in a later round all else.

        A concurrent publisher pins a version before it looks for metadata. So this run sees its pin, or the publisher
        finds no metadata that names what is deleted.
        """
        documents, others = _divide(info for info in found if info.last_modified_us < self._before_us)
        documents.sort(key=lambda info: directory.number(directory.path(info.key)))
        if documents:
            for some in (documents[:-1], documents[-1:]):  # the newest last
                if self._erase(some):
                    return
        elif not any(info.key.endswith(".json") for info in found):
            self._erase(others)

    def _is_abandoned(self, directory: PublicationDirectory, metadata: TableMetadata | None, table: str) -> bool:
        leaving = self._manifest.leaving
        if not leaving or pins_of(self._manifest, table):
            return False
        entry = next(entry for entry in self._manifest.tables.values() if entry.uuid == table)
        if asks_for_publication(self._context, self._manifest, entry):
            return False
        is_own = metadata is not None and metadata.location == directory.location
        return metadata is None or not is_own or metadata.current.version < max(each.version for each in leaving)

    @property
    def _before_us(self) -> int:
        return self._now_us - self._settings.orphan_age_us

    def _sweep(self, table: str) -> None:
        directory = PublicationDirectory(self._context.store, self._context.runtime, table)
        newest = directory.newest(thorough=True)
        found = list(self._context.store.list(f"{PREFIX}{table}/"))
        if self._is_abandoned(directory, newest.metadata, table):
            self._sweep_abandoned(directory, found)
            return
        needed = set[str]()
        if newest.number:  # else a publisher stopped before its first publication
            if newest.metadata is None or newest.metadata.location != directory.location:
                return  # another writer's: the next publication replaces it
            pointed_us = max((info.last_modified_us for info in found if info.key == directory.hint_key), default=0)
            needed = self._needed(directory, newest, newest.metadata, table, pointed_us)
        old = [info for info in found if info.key not in needed and info.last_modified_us < self._before_us]
        documents, others = _divide(old)
        if not self._erase(documents):  # until it is gone, metadata is whole
            self._erase(others)

    def _sweep_dropped(self, table: str) -> None:
        """Deletes the metadata, its newest last; once none is left, what is old enough; and then removes the pins.

        The publisher of a version that had the table may still be under way, and create metadata whenever it likes
        before ``orphan_age`` has passed. The objects that it names must be there, because the table may be restored.
        """
        directory = PublicationDirectory(self._context.store, self._context.runtime, table)
        pins = pins_of(self._manifest, table)
        found = list(self._context.store.list(f"{PREFIX}{table}/"))
        documents, others = _divide(found)
        before_us = self._now_us + 1 if pins else self._before_us
        gone = [info for info in documents if info.last_modified_us < before_us]
        gone.sort(key=lambda info: directory.number(directory.path(info.key)))
        if self._erase(gone[:-1]) or self._erase(gone[-1:]) or len(gone) < len(documents):
            return
        old = [info for info in others if info.last_modified_us < self._before_us]
        if old and self._is_there_again(table):
            return  # its publisher may have read the metadata before it was deleted
        if self._erase(old) or len(old) < len(others):
            return
        if pins and self._are_settled(pins) and not self._dry_run:
            unpin_versions(self._context, table, max(pins) + 1)  # no others: the table may be there again

    def _is_there_again(self, table: str) -> bool:
        """Whether the table has been restored since."""
        return any(entry.uuid == table for entry in self._context.head.refresh().manifest.tables.values())

    def _are_settled(self, pins: dict[int, str]) -> bool:
        """Whether no process still publishes one of these versions: none was the newest since ``orphan_age``."""
        newest = newest_at(self._context.head, self._manifest, self._before_us)
        if newest:
            return max(pins) < newest
        return all(self._manifest.tags[name].created_at < self._before_us for name in pins.values())  # no history

    def _needed(
        self, directory: PublicationDirectory, newest: Newest, metadata: TableMetadata, table: str, pointed_us: int
    ) -> set[str]:
        """Keys of the objects to keep.

        Metadata is the newest until the next is created, and readers who trust the hint find it until the hint is
        replaced. Nobody records when that was; the first metadata of which the publisher saw a later hint came after.

        Args:
            pointed_us: when the hint was last replaced.
        """
        needed = {directory.hint_key, directory.key(directory.metadata_path(newest.number))}
        read = set[str]()
        left_us = self._now_us - self._settings.reader_grace_us
        replaced_ms = metadata.updated_ms
        named = _Named(pointed_us)
        named.add(newest.number, metadata)
        pinned = [version for version in pins_of(self._manifest, table) if version < metadata.current.version]
        add_objects(directory, metadata, needed, read)
        if 0 < newest.hint < newest.number:  # its publisher stopped: readers that trust the hint are still there
            needed |= self._objects_of(directory, directory.metadata_path(newest.hint), read)
            between = range(newest.hint + 1, newest.number)  # through which the newest is found from the hint
            needed.update(directory.key(directory.metadata_path(number)) for number in between)
        for published_ms, path in reversed(metadata.log):
            number = directory.number(path)
            is_late = replaced_ms * 1_000 < left_us
            is_named = named.until_us(number) >= left_us
            if is_late and (not (is_named or pinned) or not directory.has(number)):
                break
            earlier = TableMetadata.decode(directory.read(path))
            if is_late and not is_named and (earlier is None or earlier.current.version < min(pinned)):
                break
            if not is_late or is_named or (earlier is not None and earlier.current.version in pinned):
                needed.add(directory.key(path))
                if earlier is not None:
                    add_objects(directory, earlier, needed, read)
            if earlier is not None:
                named.add(number, earlier)
            replaced_ms = published_ms
        return needed

    def _objects_of(self, directory: PublicationDirectory, path: str, read: set[str]) -> set[str]:
        """Keys of earlier metadata and of all that it names."""
        needed = {directory.key(path)}
        earlier = TableMetadata.decode(directory.read(path))
        if earlier is not None:
            add_objects(directory, earlier, needed, read)
        return needed

    def _erase(self, found: Sequence[ObjectInfo]) -> bool:
        return bool(self._deleter.erase(REASON, [info.key for info in found], [info.size for info in found]))


def _divide(found: Iterable[ObjectInfo]) -> tuple[list[ObjectInfo], list[ObjectInfo]]:
    """Metadata, and all other objects."""
    documents, others = list[ObjectInfo](), list[ObjectInfo]()
    for info in found:
        (documents if info.key.endswith(".json") else others).append(info)
    return documents, others


@dataclass
class _Named:
    """Tells until when the hint may have named each metadata.

    Args:
        pointed_us: when the hint was last replaced.
    """

    pointed_us: int
    _later: list[tuple[int, int]] = field(default_factory=list)

    def add(self, number: int, metadata: TableMetadata) -> None:
        """Learns what the publisher of this metadata saw in the hint. Call it for the newest one first."""
        hint = number - 1 if metadata.hint is None else metadata.hint
        self._later.append((hint, metadata.updated_ms * 1_000))

    def until_us(self, number: int) -> int:
        """A time by which the hint named a later metadata than this one."""
        return next((at_us for hint, at_us in reversed(self._later) if hint > number), self.pointed_us)
