"""Jobs that the functions start: one run at a time, however many callers request it, and how often.

The name of a job says what it is for. ``ensure_running`` starts one unless a run of this name is alive. It relies on
two promises of the service: two starts with one token are one run, and a run can be looked up after its start. The list
of runs may lag behind. So the token is a digest of the job and of its last run that has ended. Callers that see the
same list start the same run. A caller whose list lags presents a used token, gets the run of that token, sees that it
has ended, and continues from there. A longer lag costs a run that finds nothing to do, but no row is lost or doubled:
applied ids prevent that.

After a failed run, the next one is started a quarter of an hour later, and later still while runs fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, Protocol

import msgspec

from dolmen.base.units import DAY_US, MINUTE_US, SECOND_US, utc
from dolmen.errors import Error, StoreUnavailableError
from dolmen.ingest.redaction import error_fields

ALIVE = frozenset({"SUBMITTED", "PENDING", "SCHEDULED", "QUEUED", "RUNNING", "CANCELLING"})
FAILED = frozenset({"FAILED", "CANCELLED"})

_FIRST_WAIT_US = 15 * MINUTE_US
_LONGEST_WAIT_US = DAY_US
_NEW_US = 10 * SECOND_US
"""A run that is no older is the caller's own (or that of one who called at the same time); clocks differ by less."""
_MOST_LINKS = 20


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A script that is to run on Spark.

    Args:
        name: names its purpose; at most one run of a name is alive at a time.
        script: its file below the URL of the jobs, such as ``load.py``.
        arguments: arguments of the script.
    """

    name: str
    script: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobRun:
    """A run of a job, as the service describes it.

    Args:
        state: as EMR Serverless names them.
        created_us, updated_us: microseconds since the epoch, by the service's clock.
    """

    id: str
    name: str
    state: str
    created_us: int
    updated_us: int

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.state in ALIVE

    @property
    def failed(self) -> bool:
        """Whether it ended without success."""
        return self.state in FAILED


class JobService(Protocol):
    """A service that runs jobs."""

    def runs(self) -> list[JobRun]:
        """All runs of the last days, alive or ended, in any order; the newest may not be there yet.

        Raises:
            AccessDeniedError, NotFoundError, StoreUnavailableError: it cannot be told.
        """

    def start(self, job: SparkJob, token: str) -> str:
        """Starts a run, unless this token has started one already, and returns its id: of the one or the other.

        Raises:
            InputError, AccessDeniedError, NotFoundError: refused.
            StoreUnavailableError: it may have been started; the same call may be made again.
        """

    def run(self, id_: str) -> JobRun | None:
        """A run, as it is now; None if nobody knows of it yet.

        Raises:
            AccessDeniedError, StoreUnavailableError: it cannot be told.
        """


@dataclass(frozen=True, slots=True)
class EnsureResult:
    """The result of ``ensure_running``.

    Args:
        outcome: ``started``; ``alive``: one was running, or about to; ``held``: runs have failed, and the next one is
            not to be started yet.
        run: id of the run; for ``held``, of the last one.
        wait_seconds: for ``held``, seconds until the next run may be started.
    """

    outcome: Literal["started", "alive", "held"]
    run: str
    wait_seconds: float = 0


def ensure_running(service: JobService, job: SparkJob, now_us: int) -> EnsureResult:
    """Starts a run of a job unless one is alive; see the module's documentation.

    Args:
        now_us: microseconds since the epoch.

    Raises:
        AccessDeniedError, InputError, NotFoundError, StoreUnavailableError: it may not have been started. The caller
            asks again, later.
    """
    runs = sorted((run for run in service.runs() if run.name == job.name), key=lambda run: (run.created_us, run.id))
    for run in reversed(runs):
        if run.alive:
            return EnsureResult("alive", run.id)
    # Without a last run the day is used: a service need not remember tokens for longer, nor be asked about all of them.
    before = runs[-1].id if runs else utc(now_us).date().isoformat()
    for _ in range(_MOST_LINKS):
        wait_us = _wait_us(runs, now_us)
        if wait_us > 0:
            return EnsureResult("held", runs[-1].id, wait_us / 1e6)
        id_ = service.start(job, token_of(job, before))
        found = service.run(id_)
        if found is None or found.created_us >= now_us - _NEW_US:
            return EnsureResult("started", id_)
        if found.alive:
            return EnsureResult("alive", id_)
        runs, before = [*runs, found], id_
    raise StoreUnavailableError(f"{job.name}: the last {_MOST_LINKS} runs have ended, and the list of runs shows none")


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """A job that was asked for: with ``result``, or the ``error``.

    Args:
        table: the table that it is for; None for all tables.
    """

    job: SparkJob
    table: str | None
    result: EnsureResult | None
    error: Error | None

    @property
    def is_running(self) -> bool:
        """Whether a run is known to be alive."""
        return self.result is not None and self.result.outcome != "held"


def request_job(service: JobService, job: SparkJob, now_us: int, table: str | None = None) -> JobAttempt:
    """Calls ``ensure_running`` and keeps its error: a job that is not started now is asked for again later."""
    try:
        return JobAttempt(job, table, ensure_running(service, job, now_us), None)
    except Error as error:
        return JobAttempt(job, table, None, error)


def log_record(attempt: JobAttempt) -> tuple[Literal["info", "error"], str, dict[str, Any]]:
    """The log record of an attempt: its level, text, and named facts."""
    facts: dict[str, Any] = {"job": attempt.job.name} | ({"table": attempt.table} if attempt.table else {})
    result = attempt.result
    if result is None:
        return "error", "job not started", facts | (error_fields(attempt.error) if attempt.error else {})
    facts["run"] = result.run
    if result.outcome == "held":
        return "error", "job held, as its last run failed", facts | {"wait_seconds": round(result.wait_seconds)}
    return "info", f"job {result.outcome}", facts


def metric_name(attempt: JobAttempt) -> str | None:
    """The CloudWatch metric that an attempt counts for; None when a run was already alive."""
    if attempt.result is None:
        return "JobStartsFailed"
    return {"started": "JobsStarted", "held": "JobsHeld", "alive": None}[attempt.result.outcome]


def token_of(job: SparkJob, before: str) -> str:
    """The token under which a job is started after the run ``before``: 64 characters."""
    return sha256(msgspec.json.encode([job.name, job.script, job.arguments, before])).hexdigest()


def load_job(database_url: str, handover_url: str) -> SparkJob:
    """Ingests all drops that are handed over."""
    arguments = ("--database", database_url, "--handed", handover_url)
    return SparkJob(f"dolmen-load-{_short_digest(*arguments)}", "load.py", arguments)


def compact_job(database_url: str, table: str) -> SparkJob:
    """Compacts a table."""
    return SparkJob(
        f"dolmen-compact-{table}-{_short_digest(database_url)}",
        "compact.py",
        ("--database", database_url, "--table", table),
    )


def _short_digest(*texts: str) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()[:12]


def _wait_us(runs: Sequence[JobRun], now_us: int) -> int:
    """Microseconds until the next run may be started; 0 or less = now. It grows while runs fail."""
    failures = 0
    for run in reversed(runs):
        if not run.failed:
            break
        failures += 1
    if not failures:
        return 0
    pause_us = min(_LONGEST_WAIT_US, _FIRST_WAIT_US << min(failures - 1, 10))
    return runs[-1].updated_us + pause_us - now_us
