"""The AWS Glue Data Catalog: the table that Athena and others read, and the metadata that it names.

Glue's ``VersionId`` makes the update a compare-and-swap. A registration only moves forward: to a greater N of the same
table, or to a later version of another table of the database that has the name now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dolmen.base.runtime import GLUE_REGISTRATION, Runtime, attempts
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
from dolmen.store.s3.aws_service import AwsService

VARIABLE = "DOLMEN_GLUE_DATABASE"
"""Environment variable with the Glue database for publications of databases in S3."""
_DATABASE = re.compile(r"[a-z0-9_]{1,255}")
_TYPE, _VERSION = "table_type", "dolmen.version"
_LOCATION, _PREVIOUS = "metadata_location", "previous_metadata_location"
_CONFIG = {"retries": {"mode": "standard", "total_max_attempts": 3}, "connect_timeout": 3, "read_timeout": 10}
_LONGEST_TEXT = 255
_KEPT = ("Description", "Owner", "Retention", "PartitionKeys")
"""The members that an update gives back unchanged: Glue removes all that an update does not name."""
_HIVE = {"long": "bigint", "timestamptz": "timestamp"}


@dataclass(frozen=True)
class GlueCatalog:
    """A database of the Glue Data Catalog of this account and region."""

    database: str

    @classmethod
    def of(cls, url: str, database: str | None) -> GlueCatalog | None:
        """The catalog for publications of the database at ``url``: the one named, or the environment's; None for "".

        Raises InvalidNameError if it is not the name of a Glue database, and InputError if ``url`` is not in S3.
        """
        is_in_s3 = scheme_of(url) is S3
        chosen = os.environ.get(VARIABLE, "") if database is None and is_in_s3 else database
        if not chosen:
            return None
        if not isinstance(chosen, str) or not _DATABASE.fullmatch(chosen):
            raise InvalidNameError(f"Glue database {chosen!r}: lower-case letters, digits and _, at most 255 of them")
        if not is_in_s3:
            raise InputError(f"Glue shows publications in S3 alone, and this database is at {url}")
        return cls(chosen)

    def register(
        self, table: str, directory: PublicationDirectory, number: int, metadata: TableMetadata, runtime: Runtime
    ) -> str:
        """Makes the table in Glue name this metadata, or a later one: 1 GetTable, and one request if it does not yet.

        Returns the table's name in Glue, as ``database.table``. After an error, the next publication registers it.

        Raises:
            NotFoundError: there is no such Glue database.
            TableExistsError: it has a table of this name that is not a publication of dolmen's database.
        """
        service = _service(self.database)
        for _ in attempts(runtime, GLUE_REGISTRATION):
            known = self._get(service, table)
            entry = _Registration(table, directory, number, metadata)
            try:
                if known is None:
                    service.ask("create_table", DatabaseName=self.database, TableInput=entry.input({}))
                elif entry.is_later_than(known, f"{self.database}.{table}"):
                    service.ask(
                        "update_table",
                        DatabaseName=self.database,
                        TableInput=entry.input(known),
                        VersionId=known["VersionId"],
                        SkipArchive=True,  # Glue keeps old versions of its tables otherwise, up to a limit
                    )
            except ConflictError:
                continue
            except NotFoundError as error:
                if known is None:
                    raise NotFoundError(f"there is no Glue database {self.database!r}: create it first") from error
                continue  # somebody dropped the table
            return f"{self.database}.{table}"
        raise ConflictError(f"Glue table {self.database}.{table}: others changed it again and again")

    def _get(self, service: AwsService, table: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = service.ask("get_table", DatabaseName=self.database, Name=table)["Table"]
        except NotFoundError:
            return None
        return found


@dataclass(frozen=True)
class _Registration:
    """Metadata of a publication, as a table in Glue names it."""

    table: str
    directory: PublicationDirectory
    number: int
    metadata: TableMetadata

    def is_later_than(self, known: Mapping[str, Any], name: str) -> bool:
        """Whether Glue's entry is to be replaced. Raises TableExistsError if that is not one of this database."""
        parameters = known.get("Parameters") or {}
        path = parameters.get(_LOCATION, "")
        if parameters.get(_TYPE, "").upper() != "ICEBERG" or not self.directory.is_of_database(path):
            raise TableExistsError(
                f"Glue has a table {name} that is no publication of this database: choose another Glue database, "
                "or drop that table"
            )
        if not path.startswith(f"{self.directory.location}/"):  # of a table that had this name before
            version = parameters.get(_VERSION, "")
            return not re.fullmatch(r"\d{1,18}", version, re.ASCII) or int(version) < self.metadata.current.version
        number = self.directory.number(path)
        # Another writer may have made it name anything. A later number counts if there is such metadata.
        return number < self.number or (number > self.number and not self.directory.has(number))

    def input(self, known: Mapping[str, Any]) -> dict[str, Any]:
        before = known.get("Parameters") or {}
        parameters = {
            **before,
            _TYPE: "ICEBERG",
            _LOCATION: self.directory.metadata_path(self.number),
            _VERSION: str(self.metadata.current.version),
        }
        if _LOCATION in before:
            parameters[_PREVIOUS] = before[_LOCATION]
        fields = self.metadata.schemas[self.metadata.current_schema]["fields"]
        return {
            **{name: known[name] for name in _KEPT if known.get(name)},  # Glue takes no empty ones
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


def hive_type(found: Any) -> str:
    """A type in Iceberg's JSON as Hive writes it, and so Glue."""
    if isinstance(found, str):
        if found.startswith("fixed["):
            return "binary"
        return _HIVE.get(found, found.replace(" ", ""))
    if found["type"] == "list":
        return f"array<{hive_type(found['element'])}>"
    if found["type"] == "map":
        return f"map<{hive_type(found['key'])},{hive_type(found['value'])}>"
    fields = (f"{field['name']}:{hive_type(field['type'])}" for field in found["fields"])
    return f"struct<{','.join(fields)}>"


def _service(database: str) -> AwsService:
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith(("AWS_", "HOME"))))
    return _shared(database, environment, os.getpid())


@lru_cache(maxsize=4)
def _shared(database: str, environment: tuple[tuple[str, str], ...], process: int) -> AwsService:
    """The arguments are the cache's key: making a client is slow, and a forked process needs sockets of its own."""
    return AwsService("glue", f"Glue database {database}", _CONFIG, translate=_translate)


def _translate(code: str, text: str) -> Error | None:
    if code in ("AlreadyExistsException", "ConcurrentModificationException"):
        return ConflictError(text)
    if code == "EntityNotFoundException":
        return NotFoundError(text)
    if code in ("OperationTimeoutException", "ResourceNotReadyException"):
        return StoreUnavailableError(f"Glue refuses for the moment: {text}")
    return None
