"""Writes manifests of a snapshot, and sums them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dolmen.iceberg.directory import PublicationDirectory
from dolmen.iceberg.manifests import Content, FileEntry, ManifestFile, ManifestTally, encode_manifest
from dolmen.iceberg.schemas import FormatVersion


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
