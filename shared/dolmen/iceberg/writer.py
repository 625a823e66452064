"""Writes manifests of a snapshot, and sums them up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dolmen.iceberg.directory import PublicationDirectory
from dolmen.iceberg.manifests import Content, ManifestBody, ManifestFile
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
    written: int = field(default=0, init=False)

    def write(self, content: Content, identity: str, body: ManifestBody) -> ManifestFile:
        """Creates a manifest.

        Args:
            identity: 16 digits that name its content.
        """
        data = body.encode(self.format_version, content, self.schema, self.snapshot)
        path = self.directory.write(f"{content}-{identity}", "avro", data)
        self.written += 1
        return ManifestFile.of(path, len(data), content, body.entries, self.snapshot, self.sequence)
