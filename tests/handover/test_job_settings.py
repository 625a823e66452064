"""The settings of jobs: read from the environment, refused by name, and handed on to EMR Serverless."""

from __future__ import annotations

import pytest

from dolmen.errors import InputError
from dolmen.service.functions.function_settings import FunctionSettings
from dolmen.service.handover.emr_serverless import DEFAULT_COMPACT_BYTES, JobSettings, spark_submit_parameters
from support.emr_serverless import ROLE
from support.template import TEMPLATE

COMPLETE = {
    "DOLMEN_DATABASE": "s3://data/dolmen",
    "DOLMEN_SPARK_APPLICATION": "00f1r2a3b4c5d6e7",
    "DOLMEN_SPARK_ROLE": ROLE,
    "DOLMEN_SPARK_JOBS": "s3://code/dolmen/0123/",
    "DOLMEN_HANDED_URL": "s3://drops/handed/",
}


def test_without_an_application_there_are_none_whatever_else_is_set() -> None:
    assert JobSettings.of({}) is None
    assert JobSettings.of({**COMPLETE, "DOLMEN_SPARK_APPLICATION": ""}) is None
    assert FunctionSettings.of({**COMPLETE, "DOLMEN_SPARK_APPLICATION": ""}).jobs is None


def test_defaults_hand_over_compactions_only() -> None:
    settings = JobSettings.of(COMPLETE)
    assert settings == JobSettings("00f1r2a3b4c5d6e7", ROLE, "s3://code/dolmen/0123", "s3://drops/handed")
    assert settings is not None
    assert (settings.drop_bytes, settings.backlog, settings.compact_bytes) == (None, None, DEFAULT_COMPACT_BYTES)
    assert FunctionSettings.of({**COMPLETE, "DOLMEN_HANDOVER_BYTES": ""}).jobs == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DOLMEN_SPARK_APPLICATION", "My Application"),
        ("DOLMEN_SPARK_ROLE", ""),
        ("DOLMEN_SPARK_ROLE", "jobs"),
        ("DOLMEN_SPARK_JOBS", ""),
        ("DOLMEN_SPARK_JOBS", "s3://"),
        ("DOLMEN_SPARK_JOBS", "s3://code/with a blank"),
        ("DOLMEN_HANDED_URL", ""),
        ("DOLMEN_SPARK_TIMEOUT_MINUTES", "4"),
        ("DOLMEN_HANDOVER_BYTES", "0"),
        ("DOLMEN_HANDOVER_BYTES", "1e9"),
        ("DOLMEN_HANDOVER_BACKLOG", "-1"),
        ("DOLMEN_HANDOVER_COMPACT_BYTES", "32GB"),
    ],
)
def test_one_that_is_wrong_is_named(name: str, value: str) -> None:
    with pytest.raises(InputError, match=name):
        FunctionSettings.of({**COMPLETE, name: value})


def test_a_job_gets_its_packages_and_what_the_functions_are_told_about_files() -> None:
    told = {
        "DOLMEN_LANDING_PREFIX": "in/",
        "DOLMEN_REJECTED_URL": "s3://drops/rejected",
        "DOLMEN_AUTO_CREATE": "1",
        "DOLMEN_MAX_FILE_BYTES": "1000",
        "DOLMEN_BUCKET_OWNERS": "data=111122223333,drops=444455556666",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000",
    }
    extra = "--conf spark.executor.memory=8g"
    settings = JobSettings.of({**COMPLETE, **told, "DOLMEN_CACHE_DIR": "/tmp", "DOLMEN_SPARK_PARAMETERS": extra})
    assert settings is not None
    words = spark_submit_parameters(settings).split()
    assert set(words[::2]) == {"--conf"}
    options = dict(word.split("=", 1) for word in words[1::2])
    assert options.pop("spark.archives") == "s3://code/dolmen/0123/environment.tar.gz#environment"
    assert options.pop("spark.executor.memory") == "8g"
    python = {"PYSPARK_PYTHON": "./environment/bin/python"}
    driver = told | python | {"PYSPARK_DRIVER_PYTHON": "./environment/bin/python"}
    wanted = {f"spark.emr-serverless.driverEnv.{name}": value for name, value in driver.items()}
    assert options == wanted | {f"spark.executorEnv.{name}": value for name, value in (told | python).items()}


def test_the_stack_sets_all_of_them_but_the_timeout_and_only_where_jobs_are_started() -> None:
    both = {"DOLMEN_SPARK_PARAMETERS", *COMPLETE} - {"DOLMEN_DATABASE"}
    dead, glue = "DOLMEN_DEAD_LETTERS", "DOLMEN_GLUE_DATABASE"
    told = {
        "IngestFunction": both | {"DOLMEN_HANDOVER_BYTES", "DOLMEN_HANDOVER_BACKLOG"} | {"DOLMEN_INGEST_QUEUE", dead},
        "CompactFunction": both | {"DOLMEN_HANDOVER_COMPACT_BYTES", glue},
        "DeleteFunction": {"DOLMEN_DELETE_QUEUE", dead, glue},
        "GcFunction": {"DOLMEN_OUTSIDE"},
    }
    for function, names in told.items():
        variables = set(TEMPLATE["Resources"][function]["Properties"]["Environment"]["Variables"])
        assert variables - {"POWERTOOLS_SERVICE_NAME"} == names
