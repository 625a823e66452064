"""Finds files that are older than the bucket's notifications, and announces them like their events would.

A drop found by listing has the same id as the object's own event, so each file is ingested once. It lacks the event's
sequencer, so a file that was rejected before is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.base.units import KIB, MIB, cut_by_size
from dolmen.errors import InputError, NotFoundError
from dolmen.format.layout import check_table_name
from dolmen.ingest.announcements import DIRECTORY_BUCKET, DROP_SCHEME, Drop, write_notification, write_record
from dolmen.ingest.landing import PREFIX, REJECTED, Landing
from dolmen.store import open_store
from dolmen.store.base import FILE, VersionedStore

MAX_RECORDS = 20
"""The most drops of one message. The function takes 100 messages at a time, and has half of its time for them."""
MAX_MESSAGE_BYTES = 256 * KIB
"""The most bytes of one message: the limit of queues that were set up before SQS took a megabyte."""
MAX_DATA_BYTES = 64 * MIB
"""The most bytes of the files of one message. A larger file has a message of its own, as S3 would send it."""


class DropSource(Struct, frozen=True):
    """A source of drops: a bucket (``DIRECTORY_BUCKET`` for a directory), and the prefixes of keys to list in turn."""

    landing: Landing
    bucket: str
    prefixes: tuple[str, ...]
    runtime: Runtime

    @classmethod
    def of(
        cls,
        url: str,
        *,
        database: str = "",
        tables: Sequence[str] = (),
        landing_prefix: str = PREFIX,
        rejected_url: str | None = None,
        runtime: Runtime | None = None,
    ) -> DropSource:
        """The source that a URL names. Raises InputError if keys below it can't be drops, NotFoundError.

        Args:
            url: ``s3://bucket/folder``, or with ``*`` at its end all keys that begin so; or a directory that has one
                directory for each table.
            database: its URL. Its objects are never drops, nor are objects below ``rejected_url``.
            tables: look only for files of these tables.
        """
        runtime = runtime or shared_runtime()
        database = open_store(database, runtime).url if database else ""
        for table in tables:
            check_table_name(table)
        scheme, separator, rest = url.partition("://")
        if separator and scheme != FILE.name:
            bucket, _, path = rest.partition("/")
            if scheme != DROP_SCHEME.name or not bucket:
                raise InputError(f"{url!r}: give {DROP_SCHEME.form}, or a directory")
            landing_prefix = f"{landing_prefix.strip('/')}/" if landing_prefix.strip("/") else ""
            requested = _prefix(path)
            if not requested.startswith(landing_prefix) and not landing_prefix.startswith(requested):
                raise InputError(
                    f"{url!r}: only what lies under {landing_prefix!r} becomes rows, as {landing_prefix}<table>/...: "
                    "copy the files there, or give another landing prefix (--landing-prefix)"
                )
            landing = Landing(database, landing_prefix, None, rejected_url, runtime)
            return cls(landing, bucket, _prefixes_to_list(requested, landing_prefix, tables), runtime)
        directory = Path(rest if separator else url).expanduser().absolute()
        if not directory.is_dir():
            raise NotFoundError(f"there is no directory {str(directory)!r}")
        if (directory / "landing").is_dir():
            raise InputError(f"{url!r} has a directory 'landing': if its tables are in there, give that one")
        rejects = rejected_url or str(directory.parent / REJECTED)
        landing = Landing(database, "", directory.as_uri(), rejects, runtime)
        return cls(landing, DIRECTORY_BUCKET, _prefixes_to_list("", "", tables), runtime)

    @property
    def is_directory(self) -> bool:
        return self.landing.url is not None

    def drops(self, start_after: str = "") -> Iterator[Drop | None]:
        """All files in key order after ``start_after``, as drops; None for each that is not a drop."""
        for prefix in self.prefixes:
            for drop in self._list(prefix, start_after):
                yield drop if self.landing.table(drop) else None

    def _list(self, prefix: str, start_after: str) -> Iterator[Drop]:
        store = open_store(self.landing.url or DROP_SCHEME.bucket_url(self.bucket), self.runtime)
        if isinstance(store, VersionedStore):
            listed = store.newest_versions(prefix, start_after)
        else:
            listed = ((info, None) for info in store.list(prefix, start_after))
        for info, version in listed:
            created_us = info.last_modified_us
            yield Drop(self.bucket, info.key, info.size, info.etag.strip('"'), version, created_us=created_us)


class Announcement(Struct, frozen=True):
    body: str
    drops: tuple[Drop, ...]


def announce(drops: Iterable[Drop], *, max_records: int = MAX_RECORDS) -> Iterator[Announcement]:
    """Writes the messages that announce drops, in their order."""
    for group in group_drops(drops, max_records, MAX_DATA_BYTES):
        records = [write_record(drop) for drop in group]
        room = MAX_MESSAGE_BYTES - 16
        start = size = 0
        for index, record in enumerate(records):
            if size + len(record) + 1 > room and index > start:
                yield Announcement(write_notification(records[start:index]), tuple(group[start:index]))
                start, size = index, 0
            size += len(record) + 1
        yield Announcement(write_notification(records[start:]), tuple(group[start:]))


def group_drops(drops: Iterable[Drop], max_files: int, max_bytes: int) -> Iterator[Sequence[Drop]]:
    """Splits drops into groups of at most ``max_files`` and ``max_bytes``; a larger file is a group of its own."""
    return cut_by_size(drops, lambda drop: drop.size, max_bytes, max_files)


def _prefix(path: str) -> str:
    """The prefix of keys for a path; a folder's ends with ``/``, so ``events`` does not match ``events2``."""
    if path.endswith("*"):
        return path[:-1]
    return f"{path.strip('/')}/" if path.strip("/") else ""


def _prefixes_to_list(requested: str, landing_prefix: str, tables: Sequence[str]) -> tuple[str, ...]:
    """The prefixes to list: the longer one of ``requested`` and the landing prefix, narrowed to these tables."""
    narrow = max(requested, landing_prefix, key=len)
    if not tables:
        return (narrow,)
    folders = sorted(f"{landing_prefix}{table}/" for table in set(tables))
    meeting = [folder for folder in folders if folder.startswith(narrow) or narrow.startswith(folder)]
    return tuple(max(folder, narrow, key=len) for folder in meeting)
