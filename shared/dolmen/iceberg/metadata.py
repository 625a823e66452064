"""Table metadata: the JSON object that names a publication's schemas and snapshots.

See "Table Metadata" and appendix C of https://iceberg.apache.org/spec/.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import msgspec

from dolmen.format.schema import MappedColumn
from dolmen.iceberg.schemas import NAME_MAPPING, FormatVersion, PublishedSchema, decode_mapping, encode_mapping

MAIN = "main"
VERSION, COMMIT_ID, STATE = "dolmen.version", "dolmen.commit-id", "dolmen.state"
"""Keys in the summary of a snapshot: the version that it shows, its commit, and a digest of the table's entry."""
_CHECKSUM = "dolmen.checksum"
_HINT = "dolmen.hint"
_LOG_LENGTH = 100
_PROPERTIES = {
    "gc.enabled": "false",
    "write.location-provider.impl": "dolmen.ThisTableIsReadOnly",
    "write.py-location-provider.impl": "dolmen.ThisTableIsReadOnly",
    "dolmen.read-only": "published by dolmen: what others commit here is replaced by the next publication",
}
"""Properties that keep other writers away: the first one refuses to delete files, the next two have no such class."""


@dataclass(frozen=True)
class PublishedSnapshot:
    """A version of a table as an Iceberg snapshot.

    Args:
        version: the version, which is also the snapshot's id.
        commit_id, commit_ts, created_at: of the version; ``commit_ts`` is the snapshot's sequence number.
        state: digest of the table's entry in that version.
        epoch: of the table in that version.
        manifest_list: absolute path.
        schema_id: the schema that the version had.
        files, rows, delete_files, positions: totals.
        first_row_id, added_rows: v3: row lineage.
    """

    version: int
    commit_id: str
    commit_ts: int
    created_at: int
    state: str
    epoch: int
    manifest_list: str
    schema_id: int
    files: int
    rows: int
    delete_files: int
    positions: int
    first_row_id: int = 0
    added_rows: int = 0

    @property
    def timestamp_ms(self) -> int:
        """The time of the version in Iceberg's unit."""
        return self.created_at // 1_000

    def to_json(self, format_version: FormatVersion) -> dict[str, Any]:
        """The snapshot as an element of ``snapshots``."""
        found: dict[str, Any] = {
            "snapshot-id": self.version,
            "sequence-number": self.commit_ts,
            "timestamp-ms": self.timestamp_ms,
            "manifest-list": self.manifest_list,
            "schema-id": self.schema_id,
            "summary": {
                "operation": "overwrite",
                "total-data-files": str(self.files),
                "total-records": str(self.rows),
                "total-delete-files": str(self.delete_files),
                "total-position-deletes": str(self.positions),
                "total-equality-deletes": "0",
                VERSION: str(self.version),
                COMMIT_ID: self.commit_id,
                STATE: self.state,
                "dolmen.epoch": str(self.epoch),
                "dolmen.created-at": str(self.created_at),
            },
        }
        if format_version == 3:
            found |= {"first-row-id": self.first_row_id, "added-rows": self.added_rows}
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> PublishedSnapshot:
        """Reads a snapshot that ``to_json`` made. Raises KeyError, ValueError for others."""
        summary = found["summary"]
        return cls(
            found["snapshot-id"],
            summary[COMMIT_ID],
            found["sequence-number"],
            int(summary["dolmen.created-at"]),
            summary[STATE],
            int(summary["dolmen.epoch"]),
            found["manifest-list"],
            found["schema-id"],
            int(summary["total-data-files"]),
            int(summary["total-records"]),
            int(summary["total-delete-files"]),
            int(summary["total-position-deletes"]),
            found.get("first-row-id", 0),
            found.get("added-rows", 0),
        )


@dataclass(frozen=True)
class TableMetadata:
    """The metadata of a publication.

    Args:
        format_version: 2 or 3.
        table_uuid: dolmen's uuid of the table.
        location: absolute path of the publication's directory.
        updated_ms: when it was published, by the store's clock.
        last_column_id: the greatest field id ever given out.
        schemas: in Iceberg's JSON, by their place, which is their id.
        current_schema: id of the newest version's schema.
        snapshots: oldest first; the last one is the current one.
        log: earlier metadata files, oldest first: when each was published, and its path.
        next_row_id: v3: the first row id that was never given out.
        mapping: ids of columns by their names in adopted files without field ids.
        hint: the N that the hint had when this was published, 0 if there was no hint; None for the N before this one.
    """

    format_version: FormatVersion
    table_uuid: str
    location: str
    updated_ms: int
    last_column_id: int
    schemas: tuple[dict[str, Any], ...]
    current_schema: int
    snapshots: tuple[PublishedSnapshot, ...]
    log: tuple[tuple[int, str], ...] = ()
    next_row_id: int = 0
    mapping: tuple[MappedColumn, ...] = ()
    hint: int | None = None

    @property
    def current(self) -> PublishedSnapshot:
        """The published version."""
        return self.snapshots[-1]

    def schema_id(self, schema: PublishedSchema) -> int | None:
        """The id of a schema with exactly these columns; None if there is none."""
        fields = list(schema.fields)
        return next((known["schema-id"] for known in self.schemas if known["fields"] == fields), None)

    def encode(self) -> bytes:
        """The bytes of the object."""
        found = self._to_json()
        found["properties"][_CHECKSUM] = _digest(found)
        return msgspec.json.encode(found)

    @classmethod
    def decode(cls, body: bytes) -> TableMetadata | None:
        """Reads metadata; None if it is not exactly as dolmen wrote it, because another writer made it."""
        try:
            found = msgspec.json.decode(body)
            checksum = found["properties"].pop(_CHECKSUM)
            if checksum != _digest(found):
                return None
            return cls(
                found["format-version"],
                UUID(found["table-uuid"]).hex,
                found["location"],
                found["last-updated-ms"],
                found["last-column-id"],
                tuple(found["schemas"]),
                found["current-schema-id"],
                tuple(map(PublishedSnapshot.from_json, found["snapshots"])),
                tuple((each["timestamp-ms"], each["metadata-file"]) for each in found["metadata-log"]),
                found.get("next-row-id", 0),
                decode_mapping(found["properties"].get(NAME_MAPPING, "[]")),
                int(found["properties"][_HINT]) if _HINT in found["properties"] else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError):
            return None

    def after(self, previous: TableMetadata, path: str) -> TableMetadata:
        """The same, with the metadata before it in its log."""
        return replace(self, log=(*previous.log, (previous.updated_ms, path))[-_LOG_LENGTH:])

    def _to_json(self) -> dict[str, Any]:
        current = self.current
        found: dict[str, Any] = {
            "format-version": self.format_version,
            "table-uuid": str(UUID(self.table_uuid)),
            "location": self.location,
            "last-sequence-number": current.commit_ts,
            "last-updated-ms": self.updated_ms,
            "last-column-id": self.last_column_id,
            "schemas": list(self.schemas),
            "current-schema-id": self.current_schema,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": dict(_PROPERTIES),
            "current-snapshot-id": current.version,
            "refs": {MAIN: {"snapshot-id": current.version, "type": "branch"}},
            "snapshots": [snapshot.to_json(self.format_version) for snapshot in self.snapshots],
            "snapshot-log": _snapshot_log(self.snapshots),
            "metadata-log": [{"timestamp-ms": at, "metadata-file": path} for at, path in self.log],
            "statistics": [],
            "partition-statistics": [],
        }
        if self.mapping:
            found["properties"][NAME_MAPPING] = encode_mapping(self.mapping)
        if self.hint is not None:
            found["properties"][_HINT] = str(self.hint)
        if self.format_version == 3:
            found["next-row-id"] = self.next_row_id
        return found


def _snapshot_log(snapshots: Sequence[PublishedSnapshot]) -> list[dict[str, int]]:
    return [{"timestamp-ms": snapshot.timestamp_ms, "snapshot-id": snapshot.version} for snapshot in snapshots]


def _digest(found: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(found)).hexdigest()
