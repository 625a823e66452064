"""Settings of the functions, from their environment variables, and the connections that they make.

docs/configuration.md describes the variables. ``dolmen.service.handover.emr_serverless`` has the settings of jobs; by
default, no work is handed over to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from dolmen.api.database import Database
from dolmen.api.database import open as open_database
from dolmen.base.runtime import Runtime, cached_property
from dolmen.commit.head import context_of
from dolmen.errors import InputError
from dolmen.ingest.landing import PREFIX, Landing
from dolmen.ingest.queues import Queue, SqsQueue, open_queue
from dolmen.service.handover.emr_serverless import EmrServerless, JobSettings, whole_number
from dolmen.store import open_store

if TYPE_CHECKING:  # they import all of maintenance, and the readers of files
    from dolmen.maintenance.round import Measures
    from dolmen.service.handover.handover_records import HandoverRecords


DeliveryQueues = tuple[SqsQueue, SqsQueue]  # the function's own queue, and its dead-letter queue


def open_queues(queue: str | None, dead_letters: str | None, runtime: Runtime) -> DeliveryQueues | None:
    """Both queues of a function; None unless both are given, and of SQS. Raises InputError for other URLs."""
    if queue is None or dead_letters is None:
        return None
    own, dead = (open_queue(url, runtime, expedited=True) for url in (queue, dead_letters))
    return (own, dead) if isinstance(own, SqsQueue) and isinstance(dead, SqsQueue) else None


class FunctionSettings(Struct, frozen=True):
    """The settings of a function: see docs/configuration.md. ``jobs`` is None if no work is handed over."""

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
            raise InputError("DOLMEN_DATABASE is not set: it names the database, s3://bucket/prefix or a directory")
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
            whole_number(environment, "DOLMEN_MAX_FILE_BYTES", 1),
            environment.get("DOLMEN_INGEST_QUEUE") or None,
            JobSettings.of(environment),
            environment.get("DOLMEN_DELETE_QUEUE") or None,
            environment.get("DOLMEN_DEAD_LETTERS") or None,
            tuple(environment.get("DOLMEN_OUTSIDE", "").split()),
        )

    def open(self) -> tuple[Database, Landing]:
        """Opens the database and the landing buckets. They share connections, which are slow to make."""
        runtime = Runtime(few_requests=True)
        database = open_database(self.database, runtime=runtime)
        handover_url = self.jobs.handover_url if self.jobs else None
        landing = Landing(database.url, self.landing_prefix, self.landing_url, self.rejected_url, runtime, handover_url)
        return database, landing


class FunctionResources:
    """The connections of a function, which each container makes once. All but the database are opened on first use."""

    def __init__(self, settings: FunctionSettings) -> None:
        self.settings = settings
        self.database, self.landing = settings.open()

    @cached_property
    def queues(self) -> DeliveryQueues | None:
        """The ingest function's own queue, and its dead letters."""
        return open_queues(self.settings.queue, self.settings.dead_letters, context_of(self.database).runtime)

    @cached_property
    def delete_queues(self) -> DeliveryQueues | None:
        """The delete function's own queue, and its dead letters."""
        return open_queues(self.settings.delete_queue, self.settings.dead_letters, context_of(self.database).runtime)

    @cached_property
    def backlog_queue(self) -> Queue | None:
        """The queue whose backlog decides whether all drops go to a job; None if no setting says so."""
        url, jobs = self.settings.queue, self.settings.jobs
        if url is None or jobs is None or jobs.backlog is None:
            return None
        return open_queue(url, context_of(self.database).runtime, expedited=True)

    @cached_property
    def job_service(self) -> EmrServerless:
        """The service that runs jobs. Only for functions that have settings for them."""
        assert self.settings.jobs is not None
        return EmrServerless(self.settings.jobs, context_of(self.database).runtime)

    @cached_property
    def handover_records(self) -> HandoverRecords:
        """The records of drops for jobs. Only for functions that have settings for jobs."""
        from dolmen.service.handover.handover_records import HandoverRecords

        assert self.settings.jobs is not None
        return HandoverRecords(open_store(self.settings.jobs.handover_url, context_of(self.database).runtime))


class FunctionLogger(Protocol):
    """A log whose methods take a text and named fields, as Powertools' do."""

    @property
    def debug(self) -> Callable[..., None]: ...

    @property
    def info(self) -> Callable[..., None]: ...

    @property
    def error(self) -> Callable[..., None]: ...


class Invocation(Struct, frozen=True):
    """One invocation of a function, without the types of Lambda, which repeats an asynchronous one under its id."""

    id: str
    remaining_ms: Callable[[], int]
    logger: FunctionLogger
    report: Callable[[Measures], None]

    def remaining_seconds(self) -> float:
        """The time left."""
        return self.remaining_ms() / 1000
