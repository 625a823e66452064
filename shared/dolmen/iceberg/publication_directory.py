"""The directory of a table's publications: finding the newest metadata, and replacing it atomically.

``v<N>.metadata.json`` is created with If-None-Match, which is the commit of a publication. ``version-hint.text`` says
where to begin to look. Readers that trust the hint see a publication when the hint is replaced.

Manifests of the last publication, and what of them the next one may carry over.

Writes manifests of a snapshot, and sums them up.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from dolmen.base.runtime import Runtime, attempts
from dolmen.errors import CorruptionError, ObjectNotFoundError, StoreUnavailableError
from dolmen.format.layout import OWN_SCHEME, AdoptedPath
from dolmen.iceberg.manifests import Content, FileEntry, ManifestBody, ManifestFile, ManifestTally, encode_manifest
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.schemas import FormatVersion
from dolmen.store.base import ObjectStore, Stored, create, scheme_of

PREFIX = "iceberg/"
_METADATA = re.compile(r"v([1-9]\d{0,17})\.metadata\.json")
_HINT = "version-hint.text"
_WRITTEN = re.compile(r".*-[0-9a-f]{16}([0-9a-f]{16})\.(?:avro|parquet|puffin)")
"""The name of an object that ``write`` created ends with a digest of its bytes."""


@dataclass(frozen=True)
class Newest:
    """The newest metadata of a publication.

    Args:
        number: its N; 0 if there is none.
        metadata: None if there is none, or if another writer made it.
        hint: the N that the hint has; 0 if there is no hint, or no such metadata.
        hint_etag: None if there is no hint.
    """

    number: int
    metadata: TableMetadata | None
    hint: int
    hint_etag: str | None


class PublicationDirectory:
    """Objects of the publications of one table.

    Args:
        table: the table's uuid.

    Attributes:
        objects, bytes: what was written so far.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, table: str) -> None:
        self._store, self._runtime = store, runtime
        self._root = _root(store)
        self.prefix = f"{PREFIX}{table}/metadata/"
        self.hint_key = f"{self.prefix}{_HINT}"
        self.location = f"{self._root}/{PREFIX}{table}"
        self.objects = self.bytes = 0
        self._lock = threading.Lock()

    def path(self, key: str) -> str:
        """The absolute path of an object, as Iceberg's readers need it; of an adopted file, that of the file."""
        adopted = AdoptedPath.parse(key)
        if adopted is None:
            return f"{self._root}/{key}"
        return f"{self._root}/{adopted.key}" if adopted.scheme == OWN_SCHEME else adopted.label

    def key(self, path: str) -> str:
        """The key of an object by its absolute path. Raises CorruptionError for one outside of the database."""
        if not path.startswith(f"{self._root}/"):
            raise CorruptionError(path, "a publication names it, and it is not in the database")
        return path[len(self._root) + 1 :]

    def is_of_database(self, path: str) -> bool:
        """Whether an absolute path is that of a publication of this database, of whichever table."""
        return path.startswith(f"{self._root}/{PREFIX}")

    def number(self, path: str) -> int:
        """The N of this table's metadata by its absolute path; 0 if another writer gave it the path."""
        match = _METADATA.fullmatch(path.removeprefix(self.path(self.prefix)))
        return int(match[1]) if match else 0

    def has(self, number: int) -> bool:
        """Whether there is such metadata, by a GET."""
        return self._body(number) is not None

    def metadata_path(self, number: int) -> str:
        """The absolute path of ``v<number>.metadata.json``."""
        return self.path(self._metadata_key(number))

    def newest(self, *, thorough: bool = False) -> Newest:
        """Finds the newest metadata: 3 GETs, or 2 and a LIST if the hint is missing or wrong.

        Args:
            thorough: list all metadata whatever the hint says, since it may be damaged.
        """
        hint, etag = self._hint()
        number, body = hint, self._body(hint) if hint else None
        if body is None:
            hint = 0  # another writer's, or none
        if body is None or thorough:
            number = max((found for found, _ in self.numbers()), default=0)
            body = self._body(number) if number else None
        while (following := self._body(number + 1)) is not None:
            number, body = number + 1, following
        metadata = None if body is None else TableMetadata.decode(body)
        return Newest(number, metadata, hint if hint <= number else 0, etag)

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
        """Creates ``v<number>.metadata.json``. Returns False if another publisher or writer was first.

        Raises:
            StoreUnavailableError: it is unknown whether it is there. Publishing again is safe.
        """
        key, body = self._metadata_key(number), metadata.encode()
        for _ in attempts(self._runtime):
            outcome = self._store.put(key, body)
            if isinstance(outcome, Stored):
                break
            found = self._body(number)
            if found == body:
                break
            if found is not None:
                return False
        else:
            raise StoreUnavailableError(f"it is unknown whether {key!r} was stored: publish again, which is safe")
        self._count(len(body))
        return True

    def point(self, newest: Newest, number: int) -> None:
        """Makes the hint name this number, or a later one.

        Raises:
            StoreUnavailableError: the hint could not be replaced. The next publication does it.
        """
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
            found = self._store.get(self.hint_key)
        except ObjectNotFoundError:
            return 0, None
        text = found.body.decode("ascii", "replace").strip()
        return (int(text) if re.fullmatch(r"[1-9]\d{0,17}", text, re.ASCII) else 0), found.etag

    def _body(self, number: int) -> bytes | None:
        try:
            return self._store.get(self._metadata_key(number)).body
        except ObjectNotFoundError:
            return None

    def _metadata_key(self, number: int) -> str:
        return f"{self.prefix}v{number}.metadata.json"


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _root(store: ObjectStore) -> str:
    """The URL of the database as Iceberg's readers need it: they take paths of files as they are, without escapes."""
    scheme = scheme_of(store.url)
    return unquote(store.url) if scheme is not None and scheme.is_quoted else store.url


_NAME = re.compile(r".*/(?:data|deletes)-([0-9a-f]{16})-[0-9a-f]{32}\.avro")


class BaseManifests:
    """The manifests of the snapshot that was published last.

    Args:
        manifests: none if they cannot be carried over.
    """

    def __init__(self, directory: PublicationDirectory, manifests: Sequence[ManifestFile]) -> None:
        self._directory = directory
        self._by_identity: dict[tuple[Content, str], ManifestFile] = {}
        for each in manifests:
            if match := _NAME.fullmatch(each.path):
                self._by_identity[each.content, match[1]] = each
        self._kept: set[tuple[Content, str]] = set()
        self._bodies: dict[Content, list[ManifestBody]] = {}
        self._data_files: dict[str, FileEntry] | None = None

    def keep(self, content: Content, identities: Iterable[str]) -> None:
        """Notes which manifests the next snapshot carries over, so that they are not read."""
        self._kept.update((content, identity) for identity in identities)

    def carry_over(self, content: Content, identity: str) -> ManifestFile | None:
        """The manifest with this identity; None if there is none."""
        return self._by_identity.get((content, identity))

    def replaced(self, content: Content) -> list[ManifestBody]:
        """The content of the manifests that are not carried over, one GET each."""
        if content not in self._bodies:
            gone = [each for key, each in self._by_identity.items() if key[0] == content and key not in self._kept]
            self._bodies[content] = [
                ManifestBody.decode(self._directory.read(each.path), self._directory.key(each.path)) for each in gone
            ]
        return self._bodies[content]

    def data_file(self, path: str) -> FileEntry | None:
        """The entry of a data file in a manifest that is not carried over; None if there is none."""
        if self._data_files is None:
            self._data_files = {entry.path: entry for body in self.replaced("data") for entry in body.entries}
        return self._data_files.get(path)


@dataclass
class ManifestWriter:
    """Writes manifests under names that tell their content.

    Args:
        schema: the table's schema in Iceberg's JSON.
        snapshot, sequence: id and sequence number of the snapshot.
    """

    directory: PublicationDirectory
    format_version: FormatVersion
    schema: dict[str, Any]
    snapshot: int
    sequence: int

    def write(
        self,
        content: Content,
        identity: str,
        entries: Iterable[FileEntry],
        coverage: Mapping[str, int] | None = None,
    ) -> ManifestFile:
        """Creates a manifest.

        Args:
            identity: 16 digits that name its content.
            coverage: of a manifest of deletes; see ``ManifestBody``.
        """
        tally = ManifestTally(self.snapshot)
        watched = tally.watch(entries)
        data = encode_manifest(watched, self.format_version, content, self.schema, self.snapshot, coverage)
        path = self.directory.write(f"{content}-{identity}", "avro", data)
        return tally.sum_up(path, len(data), content, self.sequence)
