"""Jobs on an application of EMR Serverless, and their settings from the functions' environment variables.

A start with the token of an earlier one is answered with the earlier run: botocore may repeat a request whose answer
was lost. A request waits for at most 15 seconds: the callers are functions whose time is meant for other work, and the
next one asks again.

Jobs are scripts beside the archive of their Python packages (``scripts/spark-package.py``), which Spark unpacks on
every machine as ``environment``. Region, endpoint and credentials are the ordinary AWS configuration. The settings say
what is handed over, and where jobs run:

==================================  ===================================================================================
``DOLMEN_SPARK_APPLICATION``        id of the application on EMR Serverless; empty: nothing is ever handed over
``DOLMEN_SPARK_ROLE``               ARN of the role that jobs run as
``DOLMEN_SPARK_JOBS``               where ``scripts/spark-package.py`` has put the jobs: ``s3://bucket/prefix/<digest>``
``DOLMEN_SPARK_PARAMETERS``         more parameters for spark-submit, such as ``--conf spark.executor.memory=8g``
``DOLMEN_SPARK_TIMEOUT_MINUTES``    after so long a job is cancelled; 720 by default
``DOLMEN_HANDED_URL``               where drops are noted for a job to ingest; required where there is an application
``DOLMEN_HANDOVER_BYTES``           a dropped file that is larger goes to a job; empty: none does for its size
``DOLMEN_HANDOVER_BACKLOG``         while more messages than this wait, all drops go to a job; empty: none do for that
``DOLMEN_HANDOVER_COMPACT_BYTES``   a table with more than this to compact goes to a job; 32 GiB by default
==================================  ===================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from dolmen.base.runtime import Runtime, cached_property
from dolmen.base.units import GIB
from dolmen.errors import InputError, NotFoundError
from dolmen.service.handover.jobs import JobRun, SparkJob
from dolmen.store.s3.aws_service import AwsService

DEFAULT_TIMEOUT_MINUTES = 720
DEFAULT_COMPACT_BYTES = 32 * GIB
"""The bytes that a function compacts in a round, about; see ``dolmen.service.handover.due_jobs``."""
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
"""Variables that jobs get, too, so that a file becomes the same rows, or the same reject, as in a function."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of jobs. See the module's documentation.

    Args:
        environment: variables of the function that its jobs get too.
    """

    application: str
    role: str
    jobs_url: str
    handover_url: str
    parameters: str = ""
    timeout_minutes: int = DEFAULT_TIMEOUT_MINUTES
    drop_bytes: int | None = None
    backlog: int | None = None
    compact_bytes: int = DEFAULT_COMPACT_BYTES
    environment: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> JobSettings | None:
        """Reads settings from environment variables; None without an application.

        Raises:
            InputError: one is missing or wrong; names it.
        """
        application = environment.get("DOLMEN_SPARK_APPLICATION", "")
        if not application:
            return None
        if not _APPLICATION.fullmatch(application):
            raise InputError(
                f"DOLMEN_SPARK_APPLICATION is {application!r}: an application's id, such as 00f1r2a3b4c5d6e7"
            )
        role = _require(environment, "DOLMEN_SPARK_ROLE", "the ARN of the role that jobs run as")
        if not _ROLE.fullmatch(role):
            raise InputError(f"DOLMEN_SPARK_ROLE is {role!r}: the ARN of a role, as arn:aws:iam::<account>:role/<name>")
        return cls(
            application,
            role,
            _url(environment, "DOLMEN_SPARK_JOBS", "where scripts/spark-package.py has put the jobs"),
            _url(environment, "DOLMEN_HANDED_URL", "where drops are noted that a job is to ingest"),
            environment.get("DOLMEN_SPARK_PARAMETERS", "").strip(),
            _count(environment, "DOLMEN_SPARK_TIMEOUT_MINUTES", 5) or DEFAULT_TIMEOUT_MINUTES,
            _count(environment, "DOLMEN_HANDOVER_BYTES", 1),
            _count(environment, "DOLMEN_HANDOVER_BACKLOG", 1),
            _count(environment, "DOLMEN_HANDOVER_COMPACT_BYTES", 1) or DEFAULT_COMPACT_BYTES,
            tuple((name, environment[name]) for name in _PASSED_ON if environment.get(name)),
        )


def _require(environment: Mapping[str, str], name: str, what: str) -> str:
    text = environment.get(name, "")
    if not text:
        raise InputError(f"{name} is not set, though there is DOLMEN_SPARK_APPLICATION: {what}")
    return text


def _url(environment: Mapping[str, str], name: str, what: str) -> str:
    text = _require(environment, name, what).rstrip("/")
    if not re.fullmatch(r"[a-z0-9]+:///?[^\s/]\S*", text):  # they become words of a command line
        raise InputError(f"{name} is {text!r}: a URL, as s3://bucket/prefix: {what}")
    return text


def _count(environment: Mapping[str, str], name: str, least: int) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise InputError(f"{name} is {text!r}: a whole number, {least} or more")
    return int(text)


ENVIRONMENT = "environment"
ARCHIVE = "environment.tar.gz"
MAX_ATTEMPTS = 2
"""How often the service starts a run: it starts a lost driver again by itself."""
_QUEUED_MINUTES = 720
"""How long a run may wait before it begins."""
_CONFIG = {
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "connect_timeout": 2,
    "read_timeout": 5,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EmrServerless:
    """The job service of an application.

    Args:
        settings: which application, and how its jobs run.
    """

    def __init__(self, settings: JobSettings, runtime: Runtime) -> None:
        self._settings, self._runtime = settings, runtime

    @cached_property
    def _service(self) -> AwsService:
        about = f"EMR Serverless, application {self._settings.application}"
        return AwsService("emr-serverless", about, _CONFIG)

    def runs(self) -> list[JobRun]:
        """See ``JobService``. Older runs than those listed have ended: none lasts so long."""
        lasts = timedelta(minutes=self._settings.timeout_minutes + _QUEUED_MINUTES, days=1)
        since = _EPOCH + timedelta(microseconds=self._runtime.clock_us()) - lasts
        found: list[JobRun] = []
        more: dict[str, str] = {}
        while True:
            answer = self._ask("list_job_runs", createdAtAfter=since, maxResults=50, **more)
            found += (_run_of(run, "id") for run in answer["jobRuns"])
            if not answer.get("nextToken"):
                return found
            more = {"nextToken": answer["nextToken"]}

    def start(self, job: SparkJob, token: str) -> str:
        """See ``JobService``. The request's settings go into the token: one token with two requests is refused."""
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
        return str(self._ask("start_job_run", clientToken=whole, **request)["jobRunId"])

    def run(self, id_: str) -> JobRun | None:
        """See ``JobService``."""
        try:
            return _run_of(self._ask("get_job_run", jobRunId=id_)["jobRun"], "jobRunId")
        except NotFoundError:
            return None

    def _ask(self, operation: str, **request: Any) -> Any:
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


def _run_of(told: Any, id_member: str) -> JobRun:
    created, updated = ((told[name] - _EPOCH) // timedelta(microseconds=1) for name in ("createdAt", "updatedAt"))
    return JobRun(told[id_member], told.get("name") or "", told["state"], created, updated)
