"""Settings of jobs, from the functions' environment variables: what is handed over, and where jobs run.

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

from dolmen.base.units import GIB
from dolmen.errors import InputError

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
