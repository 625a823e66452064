"""An Iceberg table that is to be adopted: its metadata, and what its current snapshot shows."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyroaring import BitMap

from dolmen.adopt.columns import AdoptedColumns, FilesOfShape
from dolmen.adopt.facts import FileFacts
from dolmen.adopt.faults import AdoptionFaults
from dolmen.adopt.iceberg.deletes import deleted_positions
from dolmen.adopt.iceberg.manifests import DATA, EQUALITY_DELETES, IcebergFile, snapshot_files
from dolmen.adopt.iceberg.schema import IcebergColumns, has_column
from dolmen.adopt.places import FilePlace, parse_place
from dolmen.errors import AdoptionError, InputError, ObjectNotFoundError
from dolmen.format.schema import Schema
from dolmen.runtime import Runtime
from dolmen.store.base import ObjectStore

_VERSION = re.compile(r"v?(\d{1,18})(?:-[0-9a-f-]+)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_FORMATS = (1, 2, 3)


def find_iceberg(store: ObjectStore, runtime: Runtime, place: FilePlace) -> IcebergSource | None:
    """The Iceberg table whose metadata or folder is at a place; None if there is none.

    Of a folder it takes the metadata that ``version-hint.text`` names, or that with the greatest number. Where a
    catalog knows which metadata is the newest, name that.

    Raises:
        AdoptionError: its metadata cannot be read.
    """
    metadata: FilePlace | None = place if _VERSION.fullmatch(place.key.rpartition("/")[2]) else None
    if metadata is None and not place.key.endswith(".parquet"):
        folder = f"{place.key}/metadata/".lstrip("/")
        numbers = {}
        for info in place.store.list(folder):
            if match := _VERSION.fullmatch(info.key[len(folder) :]):
                numbers[int(match[1]), info.last_modified_us] = info.key
        if not numbers:
            return None
        metadata = place.beside(_hinted(place, folder, numbers) or numbers[max(numbers)])
    return None if metadata is None else IcebergSource(store, runtime, metadata)


def _hinted(place: FilePlace, folder: str, numbers: Mapping[tuple[int, int], str]) -> str | None:
    try:
        text = place.store.get(f"{folder}version-hint.text").body.decode("ascii", "replace").strip()
    except ObjectNotFoundError:
        return None
    return next((key for (number, _), key in numbers.items() if str(number) == text), None)


class IcebergSource:
    """The current snapshot of an Iceberg table.

    Args:
        store: the database's.
        metadata: the place of the table's metadata.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, metadata: FilePlace) -> None:
        self._store, self._runtime, self._label = store, runtime, metadata.label
        self._metadata = _decode(metadata)
        snapshot = self._metadata.get("current-snapshot-id")
        self.snapshot: int | None = None if snapshot in (None, -1) else int(snapshot)
        self._data: dict[str, IcebergFile] = {}
        self._deletes: list[IcebergFile] = []

    def files(self, faults: AdoptionFaults) -> list[tuple[FilePlace, int | None]]:
        """The places and sizes of all data files. Files that cannot be adopted are noted."""
        found: list[tuple[FilePlace, int | None]] = []
        for file in self._snapshot_files():
            if file.content == EQUALITY_DELETES:
                reason = (
                    f"it deletes rows by values of columns {list(file.columns)} (equality deletes), which has to be "
                )
                faults.add(file.path, reason + "turned into positions first, by rewriting its data files")
            elif file.is_encrypted:
                faults.add(file.path, "it is encrypted")
            elif file.content == DATA:
                if file.format != "PARQUET":
                    faults.add(file.path, f"it is of the format {file.format}, not Parquet")
                    continue
                try:
                    place = parse_place(self._store, file.path, is_quoted=False)
                except InputError as error:
                    faults.add(file.path, str(error))
                    continue
                self._data[place.label] = file
                found.append((place, file.size))
            elif file.blob is None and file.format != "PARQUET":
                faults.add(file.path, f"its deletes are of the format {file.format}, not Parquet")
            else:
                self._deletes.append(file)
        return found

    def columns(self, shapes: Sequence[FilesOfShape], faults: AdoptionFaults) -> AdoptedColumns:
        """The table's current columns. Those that files cannot give are noted."""
        return IcebergColumns(self._metadata, faults).fit(shapes)

    def check_partitions(self, facts: Sequence[FileFacts], schema: Schema, faults: AdoptionFaults) -> None:
        """Notes columns whose values stand only in the metadata of partitions, as of imported Hive tables."""
        specs = self._identities()
        names = {field.id: field.name for field in schema.fields}
        for one in facts:
            for id_ in specs.get(self._data[one.place.label].spec, ()):
                if id_ in names and not has_column(one.shape.columns, id_, schema.mapping):
                    reason = "it stands only in the table's partitions, not in the file, where every column must be"
                    faults.add(one.place.label, reason, names[id_])

    def deleted(self, facts: Sequence[FileFacts], faults: AdoptionFaults) -> dict[str, BitMap]:
        """The positions of deleted rows by the label of their data file."""
        for one in facts:
            told = self._data[one.place.label].rows
            if told != one.rows:
                faults.add(one.place.label, f"it has {one.rows:,} rows, and its manifest tells of {told:,}")
        return deleted_positions(self._deletes, self._data, self._label_of, self._read_range, self._runtime, faults)

    def _snapshot_files(self) -> list[IcebergFile]:
        if self.snapshot is None:
            return []
        for snapshot in self._metadata.get("snapshots") or ():
            if snapshot["snapshot-id"] == self.snapshot:
                return list(snapshot_files(snapshot, self._read, self._runtime))
        raise AdoptionError(self._label, [f"the metadata lacks its current snapshot {self.snapshot}"])

    def _identities(self) -> dict[int, tuple[int, ...]]:
        """By id of a partition spec, the columns whose values are the partition's."""
        specs = self._metadata.get("partition-specs")
        if specs is None:  # of v1
            specs = [{"spec-id": 0, "fields": self._metadata.get("partition-spec") or []}]
        return {
            spec["spec-id"]: tuple(field["source-id"] for field in spec["fields"] if field["transform"] == "identity")
            for spec in specs
        }

    def _label_of(self, url: str) -> str:
        try:
            return parse_place(self._store, url, is_quoted=False).label
        except InputError:  # of no data file of the snapshot
            return url

    def _read(self, url: str) -> bytes:
        place = parse_place(self._store, url, is_quoted=False)
        try:
            return place.store.get(place.key).body
        except ObjectNotFoundError:
            raise AdoptionError(self._label, [f"{place.label}, which it names, is missing"]) from None

    def _read_range(self, url: str, byte_range: tuple[int, int]) -> bytes:
        place = parse_place(self._store, url, is_quoted=False)
        return place.store.get(place.key, byte_range).body


def _decode(place: FilePlace) -> Mapping[str, Any]:
    """Reads table metadata. Raises AdoptionError."""
    try:
        body = place.store.get(place.key).body
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        found: Mapping[str, Any] = msgspec.json.decode(body)
    except ObjectNotFoundError:
        raise AdoptionError(place.label, ["there is no such file"]) from None
    except (msgspec.DecodeError, OSError, EOFError) as error:
        raise AdoptionError(place.label, [f"it is no metadata of an Iceberg table: {error}"]) from None
    version = found.get("format-version") if isinstance(found, dict) else None
    if version not in _FORMATS or "last-column-id" not in found:
        raise AdoptionError(place.label, [f"it is metadata of Iceberg's format version {version}, not of 1, 2 or 3"])
    return found
