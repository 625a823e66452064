"""Settings of the functions, from their environment variables.

============================  =========================================================================================
``DOLMEN_DATABASE``           the database: ``s3://bucket/prefix`` or a directory; required
``DOLMEN_LANDING_PREFIX``     what the keys of dropped files start with; ``landing/`` by default, empty for all
``DOLMEN_LANDING_URL``        a store that stands for every landing bucket: ``file:///directory`` on one machine
``DOLMEN_REJECTED_URL``       where rejects go; ``s3://<the drop's bucket>/rejected`` by default
``DOLMEN_AUTO_CREATE``        ``1`` creates a table that does not exist from the first file dropped for it
``DOLMEN_MAX_FILE_BYTES``     bytes that a file may hold once it is unpacked, before it is a reject; 64 GiB by default
``DOLMEN_OUTSIDE``            URLs of places, with spaces between them, whose objects gc tells in receipts of erasures
``DOLMEN_INGEST_QUEUE``       URL of the queue that ingest takes its messages from: its backlog may be handed over
``DOLMEN_DELETE_QUEUE``       URL of the queue that delete takes its messages from
``DOLMEN_DEAD_LETTERS``       URL of the function's dead-letter queue; with it, and its own queue, both of SQS, the
                              function sends messages anew and gives them up itself
                              (``dolmen.service.functions.deliveries``)
============================  =========================================================================================

The settings of jobs are in ``dolmen.service.handover.job_settings``; by default, no work is handed over to them.

A store's own settings (``AWS_ENDPOINT_URL_S3``, ``DOLMEN_S3_READ_TIMEOUT``, ...) are documented there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base.runtime import Runtime
from dolmen.errors import InputError
from dolmen.ingest.landing import PREFIX, Landing
from dolmen.service.handover.job_settings import JobSettings


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """The settings of a function. See the module's documentation.

    Args:
        queue: URL of the queue of drops: ``DOLMEN_INGEST_QUEUE``.
        delete_queue: URL of the queue of delete requests: ``DOLMEN_DELETE_QUEUE``.
        jobs: None where no work is handed over.
        outside: places whose objects receipts of erasures tell: ``DOLMEN_OUTSIDE``.
    """

    database: str
    landing_prefix: str = PREFIX
    landing_url: str | None = None
    rejected_url: str | None = None
    auto_create: bool = False
    max_file_bytes: int | None = None
    queue: str | None = None
    jobs: JobSettings | None = None
    delete_queue: str | None = None
    dead_letters: str | None = None
    outside: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> FunctionSettings:
        """Reads settings from environment variables. Raises InputError, which names the variable that is wrong."""
        database = environment.get("DOLMEN_DATABASE", "")
        if not database:
            raise InputError("DOLMEN_DATABASE is not set: it names the database, as s3://bucket/prefix or a directory")
        prefix = environment.get("DOLMEN_LANDING_PREFIX", PREFIX).strip("/")
        auto_create = environment.get("DOLMEN_AUTO_CREATE", "0").lower()
        if auto_create not in ("0", "1", "false", "true", ""):
            raise InputError(f"DOLMEN_AUTO_CREATE is {auto_create!r}: 0 or 1")
        return cls(
            database,
            f"{prefix}/" if prefix else "",
            environment.get("DOLMEN_LANDING_URL") or None,
            environment.get("DOLMEN_REJECTED_URL") or None,
            auto_create in ("1", "true"),
            _bytes(environment, "DOLMEN_MAX_FILE_BYTES"),
            environment.get("DOLMEN_INGEST_QUEUE") or None,
            JobSettings.of(environment),
            environment.get("DOLMEN_DELETE_QUEUE") or None,
            environment.get("DOLMEN_DEAD_LETTERS") or None,
            tuple(environment.get("DOLMEN_OUTSIDE", "").split()),
        )

    def open(self) -> tuple[Database, Landing]:
        """Opens the database and the landing place. They share connections, which are slow to make."""
        runtime = Runtime(few_requests=True)
        database = open_database(self.database, runtime=runtime)
        handover_url = self.jobs.handover_url if self.jobs else None
        landing = Landing(database.url, self.landing_prefix, self.landing_url, self.rejected_url, runtime, handover_url)
        return database, landing


def _bytes(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise InputError(f"{name} is {text!r}: a number of bytes, 1 or more")
    return int(text)
