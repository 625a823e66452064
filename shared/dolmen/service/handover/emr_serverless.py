"""Spark jobs on an application of EMR Serverless, and their settings from the functions' environment variables.

The name of a job says what it is for. ``ensure_running`` starts a run unless one of this name is alive. It relies on
two promises of the service: two starts with one token are one run, and a run can be looked up after its start. The list
of runs may lag behind. So the token is a digest of the job and of its last run that has ended. Callers that see the
same list start the same run. A caller whose list lags presents a used token, gets the run of that token, sees that it
has ended, and continues from there. A longer lag costs a run that finds nothing to do, but no row is lost or doubled:
applied ids prevent that. After a failed run, the next one waits a quarter of an hour, and longer while runs fail.

A request waits for at most 15 seconds: the callers are functions whose time is meant for other work, and the next one
tries again.

Jobs are scripts beside the archive of their Python packages (``scripts/spark-package.py``), which Spark unpacks on
every machine as ``environment``. Region, endpoint and credentials are the ordinary AWS configuration. The settings
(docs/configuration.md) say which work is handed over, and where jobs run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from itertools import takewhile
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from dolmen.base.runtime import Runtime, cached_property
from dolmen.base.units import DAY_US, GIB, MINUTE_US, SECOND_US, since_epoch, utc
from dolmen.errors import Error, InputError, NotFoundError, StoreUnavailableError
from dolmen.ingest.redaction import error_fields
from dolmen.store.s3.aws_service import AwsService

ALIVE = frozenset({"SUBMITTED", "PENDING", "SCHEDULED", "QUEUED", "RUNNING", "CANCELLING"})
FAILED = frozenset({"FAILED", "CANCELLED"})

_FIRST_WAIT_US = 15 * MINUTE_US
_LONGEST_WAIT_US = DAY_US
_NEW_US = 10 * SECOND_US  # a younger run was started by this call, or by one at the same time; clocks differ by less
_MOST_LINKS = 20  # the most runs that the list of runs may lack


class SparkJob(Struct, frozen=True):
    """A script to run on Spark: a file below the URL of the jobs. At most one run of its name is alive at a time."""

    name: str
    script: str
    arguments: tuple[str, ...]


class JobRun(Struct, frozen=True):
    """A run of a job. Its state has the name that EMR Serverless uses; its times are by the service's clock."""

    id: str
    name: str
    state: str
    created_us: int
    updated_us: int

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.state in ALIVE

    @property
    def has_failed(self) -> bool:
        """Whether it ended without success."""
        return self.state in FAILED


class JobService(Protocol):
    """A service that runs jobs."""

    def runs(self) -> list[JobRun]:
        """All runs of the last days, alive or ended, in any order; the newest may be missing."""

    def start(self, job: SparkJob, token: str) -> str:
        """Starts a run, unless this token has started one already, and returns its id. The call may be repeated."""

    def run(self, id_: str) -> JobRun | None:
        """The current state of a run; None if the service does not know it yet."""


class EnsureResult(Struct, frozen=True):
    """The result of ``ensure_running``."""

    outcome: Literal["started", "alive", "held"]  # ``held``: runs have failed, and the next one must wait
    run: str  # id of the run; for ``held``, of the last one
    wait_seconds: float = 0  # for ``held``, the time until the next run may start


def ensure_running(service: JobService, job: SparkJob, now_us: int) -> EnsureResult:
    """Starts a run of a job unless one is alive. After an Error, it may not have been started: try again later."""
    runs = sorted((run for run in service.runs() if run.name == job.name), key=lambda run: (run.created_us, run.id))
    for run in reversed(runs):
        if run.is_alive:
            return EnsureResult("alive", run.id)
    # Without a last run the day is used: a service need not remember tokens for longer.
    last_id = runs[-1].id if runs else utc(now_us).date().isoformat()
    for _ in range(_MOST_LINKS):
        wait_us = _wait_us(runs, now_us)
        if wait_us > 0:
            return EnsureResult("held", runs[-1].id, wait_us / 1e6)
        id_ = service.start(job, token_of(job, last_id))
        newest = service.run(id_)
        if newest is None or newest.created_us >= now_us - _NEW_US:
            return EnsureResult("started", id_)
        if newest.is_alive:
            return EnsureResult("alive", id_)
        runs, last_id = [*runs, newest], id_
    raise StoreUnavailableError(f"{job.name}: the last {_MOST_LINKS} runs have ended, and the list of runs shows none")


class JobAttempt(Struct, frozen=True):
    """A job that was requested for a table, or for all: with the result, or the error."""

    job: SparkJob
    table: str | None
    result: EnsureResult | None
    error: Error | None

    @property
    def is_running(self) -> bool:
        """Whether a run is alive."""
        return self.result is not None and self.result.outcome != "held"


def request_job(service: JobService, job: SparkJob, now_us: int, table: str | None = None) -> JobAttempt:
    """Calls ``ensure_running`` and returns its error: a job that is not started now is requested again later."""
    try:
        return JobAttempt(job, table, ensure_running(service, job, now_us), None)
    except Error as error:
        return JobAttempt(job, table, None, error)


def log_record(attempt: JobAttempt) -> tuple[Literal["info", "error"], str, dict[str, Any]]:
    """The log record of an attempt: its level, text, and fields."""
    fields: dict[str, Any] = {"job": attempt.job.name} | ({"table": attempt.table} if attempt.table else {})
    result = attempt.result
    if result is None:
        return "error", "job not started", fields | (error_fields(attempt.error) if attempt.error else {})
    fields["run"] = result.run
    if result.outcome == "held":
        return "error", "job held, as its last run failed", fields | {"wait_seconds": round(result.wait_seconds)}
    return "info", f"job {result.outcome}", fields


def metric_name(attempt: JobAttempt) -> str | None:
    """The CloudWatch metric that an attempt counts for; None when a run was already alive."""
    if attempt.result is None:
        return "JobStartsFailed"
    return {"started": "JobsStarted", "held": "JobsHeld", "alive": None}[attempt.result.outcome]


def token_of(job: SparkJob, last_id: str) -> str:
    """The token under which a job is started after the run ``last_id``: 64 characters."""
    return sha256(msgspec.json.encode([job.name, job.script, job.arguments, last_id])).hexdigest()


def load_job(database_url: str, handover_url: str) -> SparkJob:
    """Ingests all drops that are handed over."""
    arguments = ("--database", database_url, "--handed", handover_url)
    return SparkJob(f"dolmen-load-{_short_digest(*arguments)}", "load.py", arguments)


def compact_job(database_url: str, table: str) -> SparkJob:
    """Compacts a table."""
    arguments = ("--database", database_url, "--table", table)
    return SparkJob(f"dolmen-compact-{table}-{_short_digest(database_url)}", "compact.py", arguments)


def _short_digest(*texts: str) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()[:12]


def _wait_us(runs: Sequence[JobRun], now_us: int) -> int:
    """Microseconds until the next run may start; 0 or less = now. The pause grows while runs fail."""
    failures = sum(1 for _ in takewhile(lambda run: run.has_failed, reversed(runs)))
    if not failures:
        return 0
    pause_us = min(_LONGEST_WAIT_US, _FIRST_WAIT_US << min(failures - 1, 10))
    return runs[-1].updated_us + pause_us - now_us


DEFAULT_TIMEOUT_MINUTES = 720
DEFAULT_COMPACT_BYTES = 32 * GIB
"""About the bytes that a function compacts in a round; see ``dolmen.service.functions.scheduled_functions``."""
_APPLICATION = re.compile(r"[0-9a-z]{1,64}")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[^\s]{1,512}")
_PASSED_ON = (
    "DOLMEN_LANDING_PREFIX",
    "DOLMEN_REJECTED_URL",
    "DOLMEN_AUTO_CREATE",
    "DOLMEN_MAX_FILE_BYTES",
    "DOLMEN_BUCKET_OWNERS",
    "AWS_ENDPOINT_URL_S3",
)
"""Variables that jobs get too, so that a file becomes the same rows, or the same reject, as in a function."""


class JobSettings(Struct, frozen=True):
    """The settings of jobs: see docs/configuration.md. ``environment`` has variables that jobs get too."""

    application: str
    role: str
    jobs_url: str
    handover_url: str
    parameters: str = ""
    timeout_minutes: int = DEFAULT_TIMEOUT_MINUTES
    drop_bytes: int | None = None
    backlog: int | None = None
    compact_bytes: int = DEFAULT_COMPACT_BYTES
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> JobSettings | None:
        """Reads settings from environment variables; None without an application. Raises InputError."""
        application = environment.get("DOLMEN_SPARK_APPLICATION", "")
        if not application:
            return None
        if not _APPLICATION.fullmatch(application):
            raise InputError(f"DOLMEN_SPARK_APPLICATION is {application!r}: give an id, such as 00f1r2a3b4c5d6e7")
        role = _require(environment, "DOLMEN_SPARK_ROLE", "the ARN of the role that jobs run as")
        if not _ROLE.fullmatch(role):
            raise InputError(f"DOLMEN_SPARK_ROLE is {role!r}: give an ARN, such as arn:aws:iam::<account>:role/<name>")
        return cls(
            application,
            role,
            _url(environment, "DOLMEN_SPARK_JOBS", "where scripts/spark-package.py has put the jobs"),
            _url(environment, "DOLMEN_HANDED_URL", "where drops are recorded for a job"),
            environment.get("DOLMEN_SPARK_PARAMETERS", "").strip(),
            whole_number(environment, "DOLMEN_SPARK_TIMEOUT_MINUTES", 5) or DEFAULT_TIMEOUT_MINUTES,
            whole_number(environment, "DOLMEN_HANDOVER_BYTES", 1),
            whole_number(environment, "DOLMEN_HANDOVER_BACKLOG", 1),
            whole_number(environment, "DOLMEN_HANDOVER_COMPACT_BYTES", 1) or DEFAULT_COMPACT_BYTES,
            tuple((name, environment[name]) for name in _PASSED_ON if environment.get(name)),
        )


def _require(environment: Mapping[str, str], name: str, what: str) -> str:
    text = environment.get(name, "")
    if not text:
        raise InputError(f"{name} is not set, although DOLMEN_SPARK_APPLICATION is: {what}")
    return text


def _url(environment: Mapping[str, str], name: str, what: str) -> str:
    text = _require(environment, name, what).rstrip("/")
    if not re.fullmatch(r"[a-z0-9]+:///?[^\s/]\S*", text):  # they become words of a command line
        raise InputError(f"{name} is {text!r}: give a URL, such as s3://bucket/prefix: {what}")
    return text


def whole_number(environment: Mapping[str, str], name: str, least: int) -> int | None:
    """A number in an environment variable; None if it is not set. Raises InputError, which names it."""
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise InputError(f"{name} is {text!r}: give a whole number, {least} or more")
    return int(text)


ENVIRONMENT = "environment"
ARCHIVE = "environment.tar.gz"
MAX_ATTEMPTS = 2  # how often the service starts a run: it starts a lost driver again by itself
_QUEUED_MINUTES = 720  # how long a run may wait before it begins
_CONFIG = {"retries": {"mode": "standard", "total_max_attempts": 2}, "connect_timeout": 2, "read_timeout": 5}


class EmrServerless:
    """The job service of an application."""

    def __init__(self, settings: JobSettings, runtime: Runtime) -> None:
        self._settings, self._runtime = settings, runtime

    @cached_property
    def _service(self) -> AwsService:
        about = f"EMR Serverless, application {self._settings.application}"
        return AwsService("emr-serverless", about, _CONFIG)

    def runs(self) -> list[JobRun]:
        """All older runs have ended: no run lasts longer than the time that is listed."""
        longest = timedelta(minutes=self._settings.timeout_minutes + _QUEUED_MINUTES, days=1)
        since = utc(self._runtime.clock_us()) - longest
        found: list[JobRun] = []
        more: dict[str, str] = {}
        while True:
            response = self._request("list_job_runs", createdAtAfter=since, maxResults=50, **more)
            found += (_run_of(run, "id") for run in response["jobRuns"])
            if not response.get("nextToken"):
                return found
            more = {"nextToken": response["nextToken"]}

    def start(self, job: SparkJob, token: str) -> str:
        """The request's settings go into the token: one token with two requests is refused."""
        settings = self._settings
        request = {
            "name": job.name,
            "executionRoleArn": settings.role,
            "jobDriver": {
                "sparkSubmit": {
                    "entryPoint": f"{settings.jobs_url}/{job.script}",
                    "entryPointArguments": list(job.arguments),
                    "sparkSubmitParameters": spark_submit_parameters(settings),
                }
            },
            "executionTimeoutMinutes": settings.timeout_minutes,
            "retryPolicy": {"maxAttempts": MAX_ATTEMPTS},
            "tags": {"dolmen": job.script.removesuffix(".py")},
        }
        whole = sha256(msgspec.json.encode([token, request])).hexdigest()
        return str(self._request("start_job_run", clientToken=whole, **request)["jobRunId"])

    def run(self, id_: str) -> JobRun | None:
        """See ``JobService``."""
        try:
            return _run_of(self._request("get_job_run", jobRunId=id_)["jobRun"], "jobRunId")
        except NotFoundError:
            return None

    def _request(self, operation: str, **request: Any) -> Any:
        return self._service.ask(operation, applicationId=self._settings.application, **request)


def spark_submit_parameters(settings: JobSettings) -> str:
    """The options of spark-submit: the packages, on the driver and on all others, and the functions' own settings."""
    python = f"./{ENVIRONMENT}/bin/python"
    driver = {"PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": python, **dict(settings.environment)}
    options = {
        "spark.archives": f"{settings.jobs_url}/{ARCHIVE}#{ENVIRONMENT}",
        **{f"spark.emr-serverless.driverEnv.{name}": value for name, value in driver.items()},
        **{f"spark.executorEnv.{name}": value for name, value in driver.items() if name != "PYSPARK_DRIVER_PYTHON"},
    }
    return " ".join([*(f"--conf {name}={value}" for name, value in options.items()), settings.parameters]).strip()


def _run_of(run: Any, id_member: str) -> JobRun:
    created_us, updated_us = since_epoch(run["createdAt"]), since_epoch(run["updatedAt"])
    return JobRun(run[id_member], run.get("name") or "", run["state"], created_us, updated_us)
