"""Fixtures for all areas: a real S3 server, a fresh place in it for each test, and a proxy that counts and breaks."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.core
import pytest

from support.minio import Minio, find_minio
from support.ministack import Ministack, boto3_client, endpoint_environment
from support.proxy import Proxy
from support.sharing_out import pytest_xdist_auto_num_workers, pytest_xdist_make_scheduler  # noqa: F401 - pytest's hooks
from support.spark_jars import find_jars
from support.spark_jvm import SHORT_LIVED_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["support.lanes", "support.no_skips"]

_buckets = itertools.count()

# One seed for all random tests of a run. It is drawn here, before there are other processes, which inherit it: each of
# them collects the tests, and they must find the same ones.
SEED = os.environ.setdefault("DOLMEN_TEST_SEED", str(random.SystemRandom().randrange(1, 2**32)))

# The JVMs of tests live for seconds or minutes, on few rows: what makes code fast in the long run takes them longer
# than all that they do. Every way of starting one reads these, spark-submit too.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_options, SHORT_LIVED_JVM)

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so all that they start. Some send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing here multiplies matrices. The library for it, which comes with numpy, otherwise starts a thread for each core
# in each process that a test starts, and these threads are busy for a tenth of a second before they sleep.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# How long a machine takes says nothing of what is tested: it may have other work.
hypothesis.settings.register_profile("dolmen", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("dolmen")

# All that is collected stays, so Python's collector would look through it in vain, over and over: that is a fifth of
# what it takes to collect these tests, which each process does. (One that only shares them out goes on without.)
gc.disable()

# Tests that look at tables in a terminal say how wide it is. A process that shares out tests has the width of another.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real S3 server (SQS, EventBridge and Lambda too), for the whole session."""
    server = Ministack.start(tmp_path_factory.mktemp("ministack"))
    try:
        server.self_test()
        yield server.endpoint
    finally:
        server.stop()


@pytest.fixture(scope="session")
def s3_endpoint(request: pytest.FixtureRequest) -> str:
    """Where S3 is for the tests that need no more than S3: ministack, or what DOLMEN_TEST_S3_ENDPOINT names.

    Any other server must take the key "test" with the secret "testtest".
    """
    return os.environ.get("DOLMEN_TEST_S3_ENDPOINT") or str(request.getfixturevalue("ministack"))


def pytest_configure() -> None:
    """Lets Hypothesis draw from the run's seed too, as ``--hypothesis-seed`` would."""
    hypothesis.core.global_force_seed = int(SEED)


def pytest_collection_finish() -> None:
    """Takes what was collected, thousands of tests, out of what Python's collector looks at again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header() -> list[str]:
    """Says what the tests run on that need what not every machine has, or that they are left out, and why."""
    binary, no_minio = find_minio()
    jars, no_jars = find_jars()
    iceberg, no_iceberg = find_jars("iceberg")
    return [
        f"Random tests: DOLMEN_TEST_SEED={SEED}",
        f"MinIO: {binary}" if binary else f"MinIO: its tests are LEFT OUT. {no_minio}",
        f"Spark on S3: {jars}" if jars else f"Spark on S3: the tests of its own readers are LEFT OUT. {no_jars}",
        f"Spark on Iceberg: {iceberg}" if iceberg else f"Spark on Iceberg: its tests are LEFT OUT. {no_iceberg}",
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says the seed of a run that failed, once more: a process that died did not print it."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.line(f"Random tests: DOLMEN_TEST_SEED={SEED}")


_internal_errors: list[str] = []


def pytest_internalerror(excrepr: object) -> None:
    """Keeps an error of pytest itself. One in a process of ``-n`` is followed by others, which say less."""
    _internal_errors.append(str(excrepr))


def pytest_unconfigure() -> None:
    """Shows the first error of pytest itself last, where a log that was cut off still has it."""
    if _internal_errors:
        print(f"\nThe first internal error of pytest:\n{_internal_errors[0]}", file=sys.stderr)


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a MinIO server for the whole session. A test that kills one has its own."""
    server = Minio(tmp_path_factory.mktemp("minio"))
    try:
        yield server.endpoint
    finally:
        server.kill()


@pytest.fixture
def minio_url(minio: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As ``s3_url``, on MinIO."""
    return _fresh(minio, monkeypatch)


@cache
def s3_client(endpoint: str) -> Any:
    return boto3_client("s3", endpoint)


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """``s3://bucket/prefix`` in a fresh bucket; the AWS_* environment leads there, also for child processes."""
    return _fresh(s3_endpoint, monkeypatch)


def _fresh(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in endpoint_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    bucket = f"test-{os.getpid()}-{next(_buckets)}"
    s3_client(endpoint).create_bucket(Bucket=bucket)
    return f"s3://{bucket}/some/prefix"


@pytest.fixture(scope="session")
def _proxy_process(s3_endpoint: str) -> Iterator[Proxy]:
    proxy = Proxy.start(s3_endpoint)
    try:
        yield proxy
    finally:
        proxy.stop()


@pytest.fixture
def proxy(_proxy_process: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Sends this test's S3 requests through the proxy, which has no rules yet and has seen nothing.

    ``s3_url`` names the place as before. Time-outs are those of production: a busy machine may take seconds to answer.
    """
    for name, value in endpoint_environment(_proxy_process.url).items():
        monkeypatch.setenv(name, value)
    _proxy_process.reset()
    yield _proxy_process
    _proxy_process.reset()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this process, shared by all areas: starting the JVM takes seconds."""
    from support.spark import require_java, start_session

    require_java()
    session = start_session(tmp_path_factory.mktemp("spark"))
    try:
        yield session
    finally:
        session.stop()
