"""Registers publications in the AWS Glue Data Catalog, for Athena and other readers.

Glue's ``VersionId`` makes the update a compare-and-swap. A registration only moves forward: to a greater N of the same
table, or to a later version of another table that has taken its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dolmen.base.runtime import GLUE_REGISTRATION, PerProcess, Runtime, attempts
from dolmen.errors import (
    ConflictError,
    Error,
    InputError,
    InvalidNameError,
    NotFoundError,
    StoreUnavailableError,
    TableExistsError,
)
from dolmen.iceberg.metadata import TableMetadata
from dolmen.iceberg.publication_directory import PublicationDirectory
from dolmen.store.base import S3, scheme_of
from dolmen.store.s3 import aws_environment
from dolmen.store.s3.aws_service import AwsService

VARIABLE = "DOLMEN_GLUE_DATABASE"  # environment variable with the Glue database for publications of databases in S3
_DATABASE = re.compile(r"[a-z0-9_]{1,255}")
_TYPE, _VERSION = "table_type", "dolmen.version"
_LOCATION, _PREVIOUS = "metadata_location", "previous_metadata_location"
_CONFIG = {"retries": {"mode": "standard", "total_max_attempts": 3}, "connect_timeout": 3, "read_timeout": 10}
_LONGEST_TEXT = 255
_KEPT = ("Description", "Owner", "Retention", "PartitionKeys")
"""Members that an update repeats unchanged, because Glue removes all members that are not in an update."""
_HIVE = {"long": "bigint", "timestamptz": "timestamp"}


@dataclass(frozen=True)
class GlueCatalog:
    """A database of the Glue Data Catalog of this account and region."""

    database: str

    @classmethod
    def of(cls, url: str, database: str | None) -> GlueCatalog | None:
        """The catalog for publications of the database at ``url``; by default the environment's, None for "".

        Raises InvalidNameError if it is not the name of a Glue database, and InputError if ``url`` is not in S3.
        """
        is_in_s3 = scheme_of(url) is S3
        name = os.environ.get(VARIABLE, "") if database is None and is_in_s3 else database
        if not name:
            return None
        if not isinstance(name, str) or not _DATABASE.fullmatch(name):
            raise InvalidNameError(f"Glue database {name!r}: lower-case letters, digits and _, at most 255 of them")
        if not is_in_s3:
            raise InputError(f"Glue shows publications in S3 alone, and this database is at {url}")
        return cls(name)

    def register(
        self, table: str, directory: PublicationDirectory, number: int, metadata: TableMetadata, runtime: Runtime
    ) -> str:
        """Makes the table in Glue name this metadata, or a later one, by a GetTable and at most one other request.

        Returns the table's name in Glue, as ``database.table``. After an error, the next publication registers it.

        Raises:
            NotFoundError: there is no such Glue database.
            TableExistsError: it has a table of this name that is not a publication of dolmen's database.
        """
        service = _service(self.database, aws_environment())
        for _ in attempts(runtime, GLUE_REGISTRATION):
            current = self._get(service, table)
            registration = _Registration(table, directory, number, metadata)
            try:
                if current is None:
                    service.ask("create_table", DatabaseName=self.database, TableInput=registration.input({}))
                elif registration.is_later_than(current, f"{self.database}.{table}"):
                    service.ask(
                        "update_table",
                        DatabaseName=self.database,
                        TableInput=registration.input(current),
                        VersionId=current["VersionId"],
                        SkipArchive=True,  # Glue keeps old versions of its tables otherwise, up to a limit
                    )
            except ConflictError:
                continue
            except NotFoundError as error:
                if current is None:
                    raise NotFoundError(f"there is no Glue database {self.database!r}: create it first") from error
                continue  # another client dropped the table
            return f"{self.database}.{table}"
        raise ConflictError(f"Glue table {self.database}.{table}: other clients kept changing it: publish again later")

    def _get(self, service: AwsService, table: str) -> Mapping[str, Any] | None:
        try:
            table_entry: Mapping[str, Any] = service.ask("get_table", DatabaseName=self.database, Name=table)["Table"]
        except NotFoundError:
            return None
        return table_entry


@dataclass(frozen=True)
class _Registration:
    """Metadata of a publication, as a table in Glue names it."""

    table: str
    directory: PublicationDirectory
    number: int
    metadata: TableMetadata

    def is_later_than(self, entry: Mapping[str, Any], name: str) -> bool:
        """Whether Glue's entry is to be replaced. Raises TableExistsError if that is not one of this database."""
        parameters = entry.get("Parameters") or {}
        path = parameters.get(_LOCATION, "")
        if parameters.get(_TYPE, "").upper() != "ICEBERG" or not self.directory.is_of_database(path):
            raise TableExistsError(
                f"Glue has a table {name} that is not a publication of this database: choose another Glue database, "
                "or drop that table"
            )
        if not path.startswith(f"{self.directory.location}/"):  # of a table that had this name before
            version = parameters.get(_VERSION, "")
            return not re.fullmatch(r"\d{1,18}", version, re.ASCII) or int(version) < self.metadata.current.version
        number = self.directory.number(path)
        # Another writer may have written any name. A later number counts only if its metadata exists.
        return number < self.number or (number > self.number and not self.directory.has_metadata(number))

    def input(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        parameters_before = entry.get("Parameters") or {}
        parameters = {
            **parameters_before,
            _TYPE: "ICEBERG",
            _LOCATION: self.directory.metadata_path(self.number),
            _VERSION: str(self.metadata.current.version),
        }
        if _LOCATION in parameters_before:
            parameters[_PREVIOUS] = parameters_before[_LOCATION]
        fields = self.metadata.schemas[self.metadata.current_schema]["fields"]
        return {
            **{name: entry[name] for name in _KEPT if entry.get(name)},  # Glue rejects empty ones
            "Name": self.table,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": parameters,
            "StorageDescriptor": {"Columns": list(_columns(fields)), "Location": self.metadata.location},
        }


def _columns(fields: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """The columns as Glue shows them. Readers take the schema from the metadata."""
    seen = set[str]()
    for field in fields:
        name = field["name"]
        if len(name) > _LONGEST_TEXT or name.lower() in seen:
            continue
        seen.add(name.lower())
        column = {
            "Name": name,
            "Type": hive_type(field["type"]),
            "Parameters": {
                "iceberg.field.id": str(field["id"]),
                "iceberg.field.optional": str(not field["required"]).lower(),
                "iceberg.field.current": "true",
            },
        }
        if comment := " ".join(field.get("doc", "").split())[:_LONGEST_TEXT]:
            column["Comment"] = comment
        yield column


def hive_type(iceberg_type: Any) -> str:
    """Turns a type in Iceberg's JSON into Hive's text for it, which Glue uses."""
    if isinstance(iceberg_type, str):
        if iceberg_type.startswith("fixed["):
            return "binary"
        return _HIVE.get(iceberg_type, iceberg_type.replace(" ", ""))
    if iceberg_type["type"] == "list":
        return f"array<{hive_type(iceberg_type['element'])}>"
    if iceberg_type["type"] == "map":
        return f"map<{hive_type(iceberg_type['key'])},{hive_type(iceberg_type['value'])}>"
    fields = (f"{field['name']}:{hive_type(field['type'])}" for field in iceberg_type["fields"])
    return f"struct<{','.join(fields)}>"


@PerProcess
def _service(database: str, environment: tuple[tuple[str, str], ...]) -> AwsService:
    """The service by the environment (``aws_environment``). It is cached, because making a client is slow."""
    return AwsService("glue", f"Glue database {database}", _CONFIG, translate=_translate)


def _translate(code: str, text: str) -> Error | None:
    if code in ("AlreadyExistsException", "ConcurrentModificationException"):
        return ConflictError(text)
    if code == "EntityNotFoundException":
        return NotFoundError(text)
    if code in ("OperationTimeoutException", "ResourceNotReadyException"):
        return StoreUnavailableError(f"Glue refuses for the moment: {text}")
    return None
