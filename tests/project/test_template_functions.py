"""template.yaml: the functions, their schedules, what they are told, and their layers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dolmen.ingest.formats.source_file import MAX_BYTES
from dolmen.maintenance.compact.compaction_plan import CompactionOptions
from dolmen.maintenance.round import MARGIN_SECONDS
from support.built import LAYERS, RUNTIME
from support.template import KEY, PARAMETERS, TEMPLATE, arn, deployed, sub

ROOT = Path(__file__).resolve().parents[2]
STACK = deployed()
FUNCTIONS = {
    "IngestFunction": ("functions/ingest", "IngestRole"),
    "DeleteFunction": ("functions/delete", "DeleteRole"),
    "CompactFunction": ("functions/compact", "CompactRole"),
    "GcFunction": ("functions/gc", "GcRole"),
}
SCHEDULES = {
    "CompactFunction": ("CompactRate", "CompactDeadLetters"),
    "GcFunction": ("GcRate", "GcDeadLetters"),
}


def test_these_are_all_functions() -> None:
    assert STACK.of_type("AWS::Serverless::Function") == list(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_a_folder_with_a_handler(function: str) -> None:
    folder, _ = FUNCTIONS[function]
    assert STACK.properties(function)["CodeUri"] == folder
    assert STACK.functions["Handler"] == "app.lambda_handler"
    assert re.search(r"^def lambda_handler\(", (ROOT / folder / "app.py").read_text(), re.MULTILINE)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_has_its_own_role_and_nothing_added_to_it(function: str) -> None:
    _, role = FUNCTIONS[function]
    assert STACK.properties(function)["Role"] == arn(role)
    assert "Policies" not in STACK.properties(function)
    assert "Policies" not in STACK.functions


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_keeps_its_logs_for_a_set_time(function: str) -> None:
    logs = STACK.properties(function)["LoggingConfig"]["LogGroup"]["Ref"]
    assert STACK.properties(logs)["RetentionInDays"] == {"Ref": "LogRetentionDays"}
    assert deployed(MessagesKmsKeyArn=KEY).properties(logs)["KmsKeyId"] == {"Ref": "MessagesKmsKeyArn"}


def test_ingest_and_delete_have_one_size_and_background_work_another() -> None:
    assert STACK.functions["MemorySize"] == {"Ref": "MemorySize"}
    for function in FUNCTIONS:
        own = STACK.properties(function).get("MemorySize")
        assert own == ({"Ref": "MaintenanceMemorySize"} if function in SCHEDULES else None)


# ---- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", SCHEDULES)
def test_a_schedule_calls_the_function_at_its_own_rate_with_an_event_it_takes(function: str) -> None:
    rate, _ = SCHEDULES[function]
    (event,) = STACK.properties(function)["Events"].values()
    assert event["Type"] == "ScheduleV2"
    schedule = event["Properties"]
    assert schedule["ScheduleExpression"] == {"Ref": rate}
    assert schedule["State"] == {"Ref": "Schedules"}
    assert schedule["OmitName"] is True  # two stacks in one account
    assert schedule["RoleArn"] == arn("ScheduleRole")  # the one that SAM makes could not use the key of a queue
    assert json.loads(schedule["Input"]) == {}


@pytest.mark.parametrize("function", SCHEDULES)
def test_a_round_that_fails_or_never_starts_ends_in_a_dead_letter_queue(function: str) -> None:
    _, dead_letters = SCHEDULES[function]
    assert STACK.properties(function)["DeadLetterQueue"] == {"Type": "SQS", "TargetArn": arn(dead_letters)}
    assert STACK.properties(function)["EventInvokeConfig"]["MaximumRetryAttempts"] == 0
    (event,) = STACK.properties(function)["Events"].values()
    assert event["Properties"]["DeadLetterConfig"] == {"Arn": arn(dead_letters)}
    _, role = FUNCTIONS[function]
    assert STACK.resources_of(role, "TellFailures") == [arn(dead_letters)]


@pytest.mark.parametrize("function", SCHEDULES)
def test_a_round_has_time_for_more_than_its_margin(function: str) -> None:
    assert STACK.properties(function)["Timeout"] >= 10 * MARGIN_SECONDS


# ---- what they are told ---------------------------------------------------------------------------------------------


def test_the_functions_are_told_where_the_database_is_and_how_to_log() -> None:
    variables = STACK.functions["Environment"]["Variables"]
    assert variables["DOLMEN_DATABASE"] == sub("s3://${DatabaseBucketName}/${DatabasePrefix}")
    assert variables["DOLMEN_AUTO_CREATE"] == {"Ref": "AutoCreate"}
    fits = {"Fn::FindInMap": ["VisibilityTimeout", {"Ref": "IngestTimeout"}, "FileBytes"]}
    assert variables["DOLMEN_MAX_FILE_BYTES"] == fits
    for timeout, mapped in TEMPLATE["Mappings"]["VisibilityTimeout"].items():
        assert int(mapped["FileBytes"]) / 30e6 < int(timeout) / 2
    told = deployed(MaxFileBytes="7").functions["Environment"]["Variables"]
    assert told["DOLMEN_MAX_FILE_BYTES"] == {"Ref": "MaxFileBytes"}
    jobs = deployed(SparkJobs="code/dolmen/0123").functions["Environment"]["Variables"]
    assert int(jobs["DOLMEN_MAX_FILE_BYTES"]) == MAX_BYTES
    assert variables["AWS_ENDPOINT_URL_S3"] == {"Ref": "S3Endpoint"}
    assert variables["POWERTOOLS_LOG_LEVEL"] == {"Ref": "LogLevel"}
    assert variables["POWERTOOLS_METRICS_NAMESPACE"] == {"Ref": "AWS::StackName"}


def test_lambda_and_the_code_trace_together_and_not_by_default() -> None:
    for tracing, mode, disabled in (("DISABLED", "PassThrough", "true"), ("ENABLED", "Active", "false")):
        functions = deployed(Tracing=tracing).functions
        assert functions["Tracing"] == mode
        assert functions["Environment"]["Variables"]["POWERTOOLS_TRACE_DISABLED"] == disabled
    assert PARAMETERS["Tracing"]["Default"] == "DISABLED"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_service_a_function_reports_as_is_the_one_in_its_code(function: str) -> None:
    folder, _ = FUNCTIONS[function]
    service = STACK.properties(function)["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"]
    code = (ROOT / folder / "app.py").read_text()
    assert set(re.findall(r'service="(\w+)"', code)) == {service}


def test_the_functions_are_told_nothing_that_the_code_does_not_read() -> None:
    code = "".join(path.read_text() for path in (ROOT / "shared").rglob("*.py"))
    for name in STACK.functions["Environment"]["Variables"]:
        assert name.startswith(("POWERTOOLS_", "AWS_")) or f'"{name}"' in code, name


def test_there_is_room_for_what_is_cached_and_for_what_is_sorted() -> None:
    variables = STACK.functions["Environment"]["Variables"]
    assert variables["DOLMEN_CACHE_DIR"] == "/tmp"
    assert int(variables["DOLMEN_CACHE_BYTES"]) <= (512 << 20) // 2
    assert STACK.properties("CompactFunction")["EphemeralStorage"]["Size"] << 20 > 4 * CompactionOptions().group_bytes


def test_the_functions_run_in_a_vpc_only_when_subnets_are_named() -> None:
    assert "VpcConfig" not in STACK.functions
    assert deployed(SubnetIds="subnet-1,subnet-2").functions["VpcConfig"] == {
        "SubnetIds": {"Ref": "SubnetIds"},
        "SecurityGroupIds": {"Ref": "SecurityGroupIds"},
    }


# ---- layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", LAYERS)
def test_a_function_gets_the_dependencies_of_its_architecture_and_the_core(architecture: str) -> None:
    stack = deployed(Architecture=architecture)
    assert stack.functions["Architectures"] == [{"Ref": "Architecture"}]
    assert stack.functions["Layers"] == [{"Ref": LAYERS[architecture]}, {"Ref": "CoreLayer"}]
    assert set(stack.of_type("AWS::Serverless::LayerVersion")) == {LAYERS[architecture], "CoreLayer"}
    assert stack.properties(LAYERS[architecture])["CompatibleArchitectures"] == [architecture]
    assert architecture in stack.properties("CoreLayer")["CompatibleArchitectures"]


@pytest.mark.parametrize("layer", [*LAYERS.values(), "CoreLayer"])
def test_a_layer_is_built_by_its_makefile_for_the_functions_python(layer: str) -> None:
    stack = deployed(Architecture="arm64" if layer == LAYERS["arm64"] else "x86_64")
    machine = {"BuildArchitecture": "arm64"} if layer == LAYERS["arm64"] else {}  # or SAM takes it for x86_64's
    assert stack.resources[layer]["Metadata"] == {"BuildMethod": "makefile", **machine}
    assert stack.properties(layer)["CompatibleRuntimes"] == [stack.functions["Runtime"]]
    assert stack.properties(layer)["RetentionPolicy"] == "Retain"  # what a roll-back goes back to
    makefile = (ROOT / stack.properties(layer)["ContentUri"] / "Makefile").read_text()
    assert f"build-{layer}:" in makefile
    assert f"RUNTIME_PYTHON := {RUNTIME}\n" in makefile


def test_one_python_is_meant_by_runtime_layers_and_lock() -> None:
    assert STACK.functions["Runtime"] == f"python{RUNTIME}"
    assert f"locks/layer.txt --python-version {RUNTIME} " in (ROOT / "locks" / "update.sh").read_text()
