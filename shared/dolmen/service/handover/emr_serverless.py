"""Jobs on an application of EMR Serverless.

A start with the token of an earlier one is answered with the earlier run: botocore may repeat a request whose answer
was lost. A request waits for at most 15 seconds: the callers are functions whose time is meant for other work, and the
next one asks again.

Jobs are scripts beside the archive of their Python packages (``scripts/spark-package.py``), which Spark unpacks on
every machine as ``environment``. Region, endpoint and credentials are the ordinary AWS configuration.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from dolmen.base.cached import cached_property
from dolmen.base.runtime import Runtime
from dolmen.errors import NotFoundError
from dolmen.service.handover.job_settings import JobSettings
from dolmen.service.handover.jobs import JobRun, SparkJob
from dolmen.store.s3.aws_service import AwsService

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
