"""Manifests of the last publication, and what of them the next one may carry over.

Writes manifests of a snapshot, and sums them up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dolmen.iceberg.manifests import Content, FileEntry, ManifestBody, ManifestFile, ManifestTally, encode_manifest
from dolmen.iceberg.publication_directory import PublicationDirectory
from dolmen.iceberg.schemas import FormatVersion

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
