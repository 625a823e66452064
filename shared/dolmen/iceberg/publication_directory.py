"""The directory of a table's publications, and pins, which keep the published versions.

``v<N>.metadata.json`` is created with If-None-Match, which commits a publication. ``version-hint.text`` has the N where
the search for the newest begins. Readers that trust the hint see a publication when the hint is replaced.

A pin is a reserved tag. A version is pinned before it is published, and earlier pins are removed afterwards, so that
collection never deletes an object that the newest publication names.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from dolmen.base.runtime import Runtime, attempts
from dolmen.base.units import SECOND_US
from dolmen.commit.draft import Draft
from dolmen.commit.head import Context
from dolmen.commit.loop import submit
from dolmen.commit.statements.catalog import PutTag
from dolmen.errors import CorruptionError, ObjectNotFoundError, StoreUnavailableError
from dolmen.format.layout import OWN_SCHEME, RESERVED_TAGS, AdoptedPath, Tag
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import TableSettings
from dolmen.iceberg.metadata import TableMetadata
from dolmen.store.base import ObjectStore, Stored, create, unquoted_url

PREFIX = "iceberg/"

OPERATION = "publish"

_METADATA = re.compile(r"v([1-9]\d{0,17})\.metadata\.json")

_HINT = "version-hint.text"

_WRITTEN = re.compile(r".*-[0-9a-f]{16}([0-9a-f]{16})\.(?:avro|parquet|puffin)")
"""The name of an object that ``write`` created ends with a digest of its bytes."""


@dataclass(frozen=True)
class NewestMetadata:
    """The newest metadata of a publication."""

    number: int  # its N; 0 if there is none
    metadata: TableMetadata | None  # None if there is none, or if another writer made it
    hint: int  # the N in the hint; 0 if there is no hint, or no such metadata
    hint_etag: str | None


class PublicationDirectory:
    """Objects of the publications of one table; ``objects`` and ``bytes`` count written objects."""

    def __init__(self, store: ObjectStore, runtime: Runtime, table: str) -> None:
        self._store, self._runtime = store, runtime
        self._root = unquoted_url(store.url)  # Iceberg's readers take paths of files as they are
        self.prefix = f"{PREFIX}{table}/metadata/"
        self.hint_key = f"{self.prefix}{_HINT}"
        self.location = f"{self._root}/{PREFIX}{table}"
        self.objects = self.bytes = 0
        self._lock = threading.Lock()

    def path(self, key: str) -> str:
        """The absolute path of an object, or of an adopted file, for Iceberg's readers."""
        adopted = AdoptedPath.parse(key)
        if adopted is None:
            return f"{self._root}/{key}"
        return f"{self._root}/{adopted.key}" if adopted.scheme == OWN_SCHEME else adopted.label

    def key(self, path: str) -> str:
        """The key of an object at an absolute path. Raises CorruptionError for a path outside of the database."""
        if not path.startswith(f"{self._root}/"):
            raise CorruptionError(path, "a publication names it, and it is not in the database")
        return path[len(self._root) + 1 :]

    def is_of_database(self, path: str) -> bool:
        """Whether an absolute path belongs to a publication of any table of this database."""
        return path.startswith(f"{self._root}/{PREFIX}")

    def number(self, path: str) -> int:
        """The N of this table's metadata at an absolute path; 0 for another writer's path."""
        match = _METADATA.fullmatch(path.removeprefix(self.path(self.prefix)))
        return int(match[1]) if match else 0

    def has_metadata(self, number: int) -> bool:
        return self._body(number) is not None

    def metadata_path(self, number: int) -> str:
        return self.path(self._metadata_key(number))

    def newest(self, *, thorough: bool = False) -> NewestMetadata:
        """Finds the newest metadata: 3 GETs, or 2 and a LIST if the hint is missing or wrong.

        If ``thorough``, lists all metadata, because the hint may be damaged.
        """
        hint, etag = self._hint()
        number, body = hint, self._body(hint) if hint else None
        if body is None:
            hint = 0  # another writer's, or none
        if body is None or thorough:
            number = max((n for n, _ in self.numbers()), default=0)
            body = self._body(number) if number else None
        while (next_body := self._body(number + 1)) is not None:
            number, body = number + 1, next_body
        metadata = None if body is None else TableMetadata.decode(body)
        return NewestMetadata(number, metadata, hint if hint <= number else 0, etag)

    def numbers(self) -> list[tuple[int, str]]:
        """The numbers and keys of all metadata files, by a LIST."""
        keys = [info.key for info in self._store.list(self.prefix + "v")]
        matches = [(_METADATA.fullmatch(key.removeprefix(self.prefix)), key) for key in keys]
        return [(int(match[1]), key) for match, key in matches if match]

    def read(self, path: str) -> bytes:
        """The bytes of an object by its absolute path. Raises CorruptionError if it is missing or damaged."""
        key = self.key(path)
        try:
            body = self._store.get(key).body
        except ObjectNotFoundError as error:
            raise CorruptionError(key, "it is missing, and the newest publication names it") from error
        if (match := _WRITTEN.fullmatch(key)) and match[1] != _digest(body):
            raise CorruptionError(key, "its bytes are not those that were written")
        return body

    def write(self, kind: str, ending: str, body: bytes) -> str:
        """Creates an object under a fresh name and returns its absolute path. Raises StoreUnavailableError."""
        key = f"{self.prefix}{kind}-{self._runtime.uuid()[:16]}{_digest(body)}.{ending}"
        create(self._store, key, body, self._runtime)
        self._count(len(body))
        return self.path(key)

    def commit(self, number: int, metadata: TableMetadata) -> bool:
        """Creates ``v<number>.metadata.json``. Returns False if another publisher or writer was first."""
        key, body = self._metadata_key(number), metadata.encode()
        for _ in attempts(self._runtime):
            outcome = self._store.put(key, body)
            if isinstance(outcome, Stored):
                break
            stored = self._body(number)
            if stored == body:
                break
            if stored is not None:
                return False
        else:
            raise StoreUnavailableError(f"it is unknown whether {key!r} was stored: publish again, which is safe")
        self._count(len(body))
        return True

    def set_hint(self, newest: NewestMetadata, number: int) -> None:
        """Makes the hint name this number, or a later one."""
        hint, etag = newest.hint, newest.hint_etag
        for _ in attempts(self._runtime):
            if hint >= number:
                return
            body = str(number).encode()
            if isinstance(self._store.put(self.hint_key, body, if_match=etag), Stored):
                self._count(len(body))
                return
            hint, etag = self._hint()
        raise StoreUnavailableError(f"{self.hint_key!r} could not be replaced: publish again, which is safe")

    def _count(self, size: int) -> None:
        with self._lock:
            self.objects += 1
            self.bytes += size

    def _hint(self) -> tuple[int, str | None]:
        try:
            response = self._store.get(self.hint_key)
        except ObjectNotFoundError:
            return 0, None
        text = response.body.decode("ascii", "replace").strip()
        return (int(text) if re.fullmatch(r"[1-9]\d{0,17}", text, re.ASCII) else 0), response.etag

    def _body(self, number: int) -> bytes | None:
        try:
            return self._store.get(self._metadata_key(number)).body
        except ObjectNotFoundError:
            return None

    def _metadata_key(self, number: int) -> str:
        return f"{self.prefix}v{number}.metadata.json"


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def pins_of(manifest: Manifest, table: str) -> dict[int, str]:
    """The names of a table's pins by their version."""
    return {tag.version: name for name, tag in manifest.tags.items() if name.startswith(f"{RESERVED_TAGS}{table}.")}


def published_tables(manifest: Manifest) -> set[str]:
    """The uuids of the tables that have pins, dropped ones included."""
    return {
        name.removeprefix(RESERVED_TAGS).partition(".")[0] for name in manifest.tags if name.startswith(RESERVED_TAGS)
    }


def pin_version(context: Context, manifest: Manifest, table: str) -> None:
    """Keeps a version and its objects; makes no commit if it is pinned. Raises VersionExpiredError, LimitError."""
    tag = Tag(manifest.version, manifest.key, manifest.created_at)
    name = f"{RESERVED_TAGS}{table}.{manifest.version}"
    submit(context.head, OPERATION, [PutTag(name, tag, may_move=True)])


def unpin_versions(context: Context, table: str, before: int | None) -> None:
    """Removes the pins of a table's versions before this one, or all of them; makes no commit if there are none."""
    submit(context.head, OPERATION, [UnpinVersions(table, before)])


@dataclass(frozen=True)
class UnpinVersions:
    """Removes pins of versions before the published one, or all pins."""

    table: str
    before: int | None
    name: str | None = None
    uuid: str = ""
    request: str | None = None

    def apply(self, draft: Draft, ts: int) -> None:
        prefix = f"{RESERVED_TAGS}{self.table}."
        for name, tag in list(draft.tags.items()):
            if name.startswith(prefix) and (self.before is None or tag.version < self.before):
                draft.put_tag(name, None)


@dataclass(frozen=True)
class PublicationLag:
    """How far a publication is behind."""

    version: int  # the version that all readers see, or a later one; 0 if there is none yet
    lag_us: int  # age of the oldest known change that is not published, at the newest commit; 0 if none is known


_CLOCKS_DIFFER_US = 10 * SECOND_US  # the timestamp of a commit may be later than the time of its version by this much

_SHOWS_THE_SAME = frozenset(("set", "resolve", "compact", "index", "merge"))


def publication_lag(manifest: Manifest, name: str, entry: TableEntry) -> PublicationLag | None:
    """The lag of a table's publication, by its whole entry; None without a publication and the setting ``iceberg``."""
    pins = pins_of(manifest, entry.uuid)
    if not pins and entry.properties.get("iceberg") is None:
        return None
    version = min(pins, default=0)  # an earlier pin stays until the next publication is done
    created_at = manifest.tags[pins[version]].created_at if pins else 0
    oldest = min(_change_times(manifest, name, entry, version, created_at), default=manifest.created_at)
    return PublicationLag(version, max(0, manifest.created_at - oldest))


def _change_times(manifest: Manifest, name: str, entry: TableEntry, version: int, created_at: int) -> Iterator[int]:
    """Yields times of changes since a version: commits in the manifest's history, or the newest row or delete."""
    commits = [*manifest.history, manifest.as_history()]
    for commit in commits:
        if commit.version > version and any(
            change.table == name and change.what not in _SHOWS_THE_SAME for change in commit.did
        ):
            yield commit.created_at
    if commits[0].version > version:  # the history in the manifest does not reach back to that version
        newest = max(
            [entry.last_delete_ts, entry.schema.altered_ts]
            + [file.greatest_row_ts for file in entry.files]
            + [segment.greatest for segment in entry.segments_of("files")]
        )
        if newest > created_at + _CLOCKS_DIFFER_US:
            yield newest


def asks_for_publication(context: Context, manifest: Manifest, entry: TableEntry) -> bool:
    """Whether a table has the setting ``iceberg``. Costs no request unless it was published before and is idle.

    An idle table's entry in the manifest has no settings, but its pin shows that it was published.
    """
    may_ask = entry.properties.get("iceberg") is not None or bool(pins_of(manifest, entry.uuid))
    return may_ask and TableSettings.of(context.segments.whole(entry)).iceberg is not None
