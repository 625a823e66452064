"""template.yaml: what no emulator enforces is asserted on the template itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dolmen.maintenance.compaction_plan import CompactionOptions
from dolmen.maintenance.deadline import MARGIN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
BATCHING_WINDOW_MAX_SECONDS = 60


class CloudFormationLoader(yaml.SafeLoader):
    """Reads ``!Ref X`` as ``{"Ref": "X"}`` and ``!Sub X`` as ``{"Fn::Sub": "X"}``."""


def _function(loader: CloudFormationLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt":
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


CloudFormationLoader.add_multi_constructor("!", _function)

TEMPLATE = yaml.load((ROOT / "template.yaml").read_text(), CloudFormationLoader)
PARAMETERS: dict[str, Any] = TEMPLATE["Parameters"]
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
GLOBALS: dict[str, Any] = TEMPLATE["Globals"]["Function"]

QUEUES = {
    "IngestFunction": ("IngestQueue", "IngestDeadLetters"),
    "DeleteFunction": ("DeleteQueue", "DeleteDeadLetters"),
}
SCHEDULES = {
    "CompactFunction": ("CompactRate", "CompactDeadLetters"),
    "GcFunction": ("GcRate", "GcDeadLetters"),
}
FUNCTIONS = {
    "IngestFunction": ("functions/ingest", "IngestRole"),
    "DeleteFunction": ("functions/delete", "DeleteRole"),
    "CompactFunction": ("functions/compact", "CompactRole"),
    "GcFunction": ("functions/gc", "GcRole"),
}
BUCKETS = ["DatabaseBucket", "LandingBucket"]
DATABASE_OBJECTS = {"Fn::Sub": "${DatabaseBucket.Arn}/${DatabasePrefix}/*"}
LANDING = "arn:${AWS::Partition}:s3:::${LandingBucketName}"
READ_AND_PUT = {"s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"}


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = RESOURCES[name]["Properties"]
    return found


def of_type(type_: str) -> list[str]:
    return [name for name, resource in RESOURCES.items() if resource["Type"] == type_]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def statements(policies: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for policy in policies:
        yield from policy["PolicyDocument"]["Statement"]


def allowed(role: str) -> dict[str, set[str]]:
    """What a role may do: statement id -> actions."""
    found = list(statements(properties(role)["Policies"]))
    assert all(statement["Effect"] == "Allow" for statement in found)
    return {statement["Sid"]: set(as_list(statement["Action"])) for statement in found}


def resources_of(role: str, sid: str) -> list[Any]:
    (statement,) = (found for found in statements(properties(role)["Policies"]) if found["Sid"] == sid)
    return as_list(statement["Resource"])


def find_sam() -> str | None:
    beside = [ROOT / ".venv-sam" / "bin" / "sam", Path(sys.executable).parent / "sam"]
    return next((str(path) for path in beside if path.exists()), None) or shutil.which("sam")


# ---- the whole ------------------------------------------------------------------------------------------------------


def test_sam_validates_and_lints_the_template(tmp_path: Path) -> None:
    sam = find_sam()
    if sam is None:
        pytest.skip("the SAM command line is not here: make setup")
    result = subprocess.run(
        [sam, "validate", "--lint", "--region", "us-east-1"],
        cwd=ROOT,
        env={**os.environ, "SAM_CLI_TELEMETRY": "0", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "is a valid SAM Template" in result.stdout


def references(value: Any) -> Iterator[str]:
    """Names of what a part of the template refers to, resources and parameters alike."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "Ref":
                yield item
            elif key == "Fn::GetAtt":
                yield item[0]
            elif key == "Fn::Sub":
                yield from (name.split(".")[0] for name in re.findall(r"\$\{([^}!]+)\}", item))
            elif key == "DependsOn":
                yield from as_list(item)
            else:
                yield from references(item)


def test_no_resource_depends_on_itself_over_others() -> None:
    needs = {
        name: {other for other in references(resource) if other in RESOURCES} for name, resource in RESOURCES.items()
    }
    while needs:
        free = {name for name, others in needs.items() if not others}
        assert free, f"a circle among {sorted(needs)}"
        needs = {name: others - free for name, others in needs.items() if name not in free}


def test_every_parameter_is_used_and_asked_for_in_a_group() -> None:
    used = set(references({key: TEMPLATE[key] for key in ("Globals", "Resources", "Outputs", "Conditions")}))
    assert set(PARAMETERS) <= used
    grouped = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert sorted(name for group in grouped for name in group["Parameters"]) == sorted(PARAMETERS)


def test_the_outputs_say_where_things_are() -> None:
    wanted = {"DatabaseUri", "LandingUri", "RejectedUri", "IngestQueueUrl", "IngestDeadLettersUrl", "DeleteQueueUrl"}
    wanted |= {"DeleteDeadLettersUrl", "CompactDeadLettersUrl", "GcDeadLettersUrl"}
    wanted |= {"CoreLayerArn", "DependenciesLayerArn"}
    assert wanted <= set(TEMPLATE["Outputs"])


# ---- buckets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_is_encrypted_private_and_survives_its_stack(bucket: str) -> None:
    assert RESOURCES[bucket]["DeletionPolicy"] == RESOURCES[bucket]["UpdateReplacePolicy"] == "Retain"
    (rule,) = properties(bucket)["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    block = properties(bucket)["PublicAccessBlockConfiguration"]
    assert block == dict.fromkeys(
        ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True
    )
    assert properties(bucket)["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_aborts_unfinished_uploads(bucket: str) -> None:
    rules = properties(bucket)["LifecycleConfiguration"]["Rules"]
    (abort,) = (rule for rule in rules if "AbortIncompleteMultipartUpload" in rule)
    assert abort["Status"] == "Enabled"
    assert "Prefix" not in abort
    assert "Filter" not in abort
    assert 1 <= abort["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] <= 7


@pytest.mark.parametrize("bucket", BUCKETS)
def test_nothing_but_the_landing_buckets_old_versions_ever_expires(bucket: str) -> None:
    for rule in properties(bucket)["LifecycleConfiguration"]["Rules"]:
        actions = set(rule) - {"Id", "Status"}
        assert actions <= {"AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration"}
        assert bucket == "LandingBucket" or actions == {"AbortIncompleteMultipartUpload"}


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_is_reached_by_tls_only(bucket: str) -> None:
    policy = properties(f"{bucket}Policy")
    assert policy["Bucket"] == {"Ref": bucket}
    (deny,) = policy["PolicyDocument"]["Statement"]
    assert (deny["Effect"], deny["Principal"], deny["Action"]) == ("Deny", "*", "s3:*")
    assert deny["Resource"] == [{"Fn::GetAtt": [bucket, "Arn"]}, {"Fn::Sub": f"${{{bucket}.Arn}}/*"}]
    assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_there_are_no_other_buckets() -> None:
    assert of_type("AWS::S3::Bucket") == BUCKETS


# ---- from the landing bucket to the queue ---------------------------------------------------------------------------


def test_drops_are_announced_to_the_ingest_queue_and_rejects_are_not() -> None:
    (announcement,) = properties("LandingBucket")["NotificationConfiguration"]["QueueConfigurations"]
    assert announcement["Event"] == "s3:ObjectCreated:*"
    assert announcement["Queue"] == {"Fn::GetAtt": ["IngestQueue", "Arn"]}
    (rule,) = announcement["Filter"]["S3Key"]["Rules"]
    assert rule == {"Name": "prefix", "Value": "landing/"}
    environment = GLOBALS["Environment"]["Variables"]
    assert environment["DOLMEN_LANDING_PREFIX"] == "landing/"
    assert environment["DOLMEN_REJECTED_URL"] == {"Fn::Sub": "s3://${LandingBucketName}/rejected"}


def test_an_announced_version_can_still_be_read_after_it_was_overwritten() -> None:
    assert properties("LandingBucket")["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "s3:GetObjectVersion" in allowed("IngestRole")["ReadDrops"]


def test_the_queue_admits_the_landing_bucket_of_this_account_before_the_bucket_asks() -> None:
    assert RESOURCES["LandingBucket"]["DependsOn"] == "IngestQueuePolicy"
    assert "LandingBucket" not in set(references(RESOURCES["IngestQueuePolicy"]))
    policy = properties("IngestQueuePolicy")
    assert policy["Queues"] == [{"Ref": "IngestQueue"}]
    (allow,) = (statement for statement in policy["PolicyDocument"]["Statement"] if statement["Effect"] == "Allow")
    assert allow["Principal"] == {"Service": "s3.amazonaws.com"}
    assert allow["Action"] == "sqs:SendMessage"
    assert allow["Condition"] == {
        "ArnEquals": {"aws:SourceArn": {"Fn::Sub": LANDING}},
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
    }


# ---- queues ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue", "dead_letters"), list(QUEUES.values()))
def test_a_poison_message_ends_in_the_dead_letter_queue_which_keeps_it_longest(queue: str, dead_letters: str) -> None:
    redrive = properties(queue)["RedrivePolicy"]
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": [dead_letters, "Arn"]}
    assert 3 <= redrive["maxReceiveCount"] <= 10
    assert properties(dead_letters)["MessageRetentionPeriod"] == 14 * 24 * 3600
    assert properties(queue)["MessageRetentionPeriod"] <= 4 * 24 * 3600


@pytest.mark.parametrize("queue", of_type("AWS::SQS::Queue"))
def test_a_queue_is_encrypted(queue: str) -> None:
    assert properties(queue)["SqsManagedSseEnabled"] is True


@pytest.mark.parametrize("queue", ["IngestQueue", "DeleteQueue"])
def test_a_queue_is_reached_by_tls_only(queue: str) -> None:
    found = properties(f"{queue}Policy")["PolicyDocument"]["Statement"]
    (deny,) = (statement for statement in found if statement["Effect"] == "Deny")
    assert deny["Principal"] == "*"
    assert deny["Action"] == "sqs:*"
    assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


@pytest.mark.parametrize("function", QUEUES)
def test_a_message_stays_hidden_for_six_time_outs_and_the_batching_window(function: str) -> None:
    queue, _ = QUEUES[function]
    timeout = properties(function)["Timeout"]["Ref"]
    assert properties(queue)["VisibilityTimeout"] == {
        "Fn::FindInMap": ["VisibilityTimeout", {"Ref": timeout}, "Seconds"]
    }
    (event,) = properties(function)["Events"].values()
    assert event["Properties"]["MaximumBatchingWindowInSeconds"] <= BATCHING_WINDOW_MAX_SECONDS
    visibility = TEMPLATE["Mappings"]["VisibilityTimeout"]
    assert sorted(map(int, visibility)) == PARAMETERS[timeout]["AllowedValues"]
    for seconds, mapped in visibility.items():
        assert mapped["Seconds"] >= 6 * int(seconds) + BATCHING_WINDOW_MAX_SECONDS


# ---- functions ------------------------------------------------------------------------------------------------------


def test_these_are_all_functions() -> None:
    assert of_type("AWS::Serverless::Function") == list(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_a_folder_with_a_handler(function: str) -> None:
    folder, _ = FUNCTIONS[function]
    assert properties(function)["CodeUri"] == folder
    assert GLOBALS["Handler"] == "app.lambda_handler"
    assert re.search(r"^def lambda_handler\(", (ROOT / folder / "app.py").read_text(), re.MULTILINE)


@pytest.mark.parametrize("function", QUEUES)
def test_a_function_takes_batches_and_hands_back_what_failed(function: str) -> None:
    queue, _ = QUEUES[function]
    (event,) = properties(function)["Events"].values()
    assert event["Type"] == "SQS"
    source = event["Properties"]
    assert source["Queue"] == {"Fn::GetAtt": [queue, "Arn"]}
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["BatchSize"] >= 100  # many events, one commit
    assert source["MaximumBatchingWindowInSeconds"] >= 1  # asked for by batches of more than ten


@pytest.mark.parametrize("function", QUEUES)
def test_how_many_functions_run_at_once_is_bounded(function: str) -> None:
    (event,) = properties(function)["Events"].values()
    name, parameter, key = event["Properties"]["ScalingConfig"]["MaximumConcurrency"]["Fn::FindInMap"]
    choices = TEMPLATE["Mappings"][name]
    assert {int(value): chosen[key] for value, chosen in choices.items()} == {
        int(value): int(value) for value in choices
    }
    assert PARAMETERS[parameter["Ref"]]["AllowedValues"] == [int(value) for value in choices]


@pytest.mark.parametrize("function", SCHEDULES)
def test_a_schedule_calls_the_function_at_its_own_rate_with_an_event_it_takes(function: str) -> None:
    rate, _ = SCHEDULES[function]
    (event,) = properties(function)["Events"].values()
    assert event["Type"] == "ScheduleV2"
    schedule = event["Properties"]
    assert schedule["ScheduleExpression"] == {"Ref": rate}
    assert re.fullmatch(PARAMETERS[rate]["AllowedPattern"], PARAMETERS[rate]["Default"])
    assert schedule["State"] == {"Ref": "Schedules"}
    assert schedule["OmitName"] is True  # two stacks in one account
    assert "RoleArn" not in schedule  # SAM makes one that may call this function, and fill this queue
    assert json.loads(schedule["Input"]) == {}


@pytest.mark.parametrize("function", SCHEDULES)
def test_a_round_that_fails_or_never_starts_ends_in_a_dead_letter_queue(function: str) -> None:
    _, dead_letters = SCHEDULES[function]
    arn = {"Fn::GetAtt": [dead_letters, "Arn"]}
    assert properties(function)["DeadLetterQueue"] == {"Type": "SQS", "TargetArn": arn}
    assert properties(function)["EventInvokeConfig"]["MaximumRetryAttempts"] == 0
    (event,) = properties(function)["Events"].values()
    assert event["Properties"]["DeadLetterConfig"] == {"Arn": arn}
    assert properties(dead_letters)["MessageRetentionPeriod"] == 14 * 24 * 3600
    _, role = FUNCTIONS[function]
    assert resources_of(role, "TellFailures") == [arn]


@pytest.mark.parametrize("function", SCHEDULES)
def test_a_round_has_time_for_more_than_its_margin(function: str) -> None:
    timeout = properties(function)["Timeout"]["Ref"]
    assert min(PARAMETERS[timeout]["AllowedValues"]) >= 10 * MARGIN_SECONDS


def test_there_is_room_for_what_is_cached_and_for_what_is_sorted() -> None:
    variables = GLOBALS["Environment"]["Variables"]
    assert variables["DOLMEN_CACHE_DIR"] == "/tmp"
    assert int(variables["DOLMEN_CACHE_BYTES"]) <= (512 << 20) // 2
    assert properties("CompactFunction")["EphemeralStorage"]["Size"] << 20 > 4 * CompactionOptions().group_bytes


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_keeps_its_logs_for_a_set_time(function: str) -> None:
    logs = properties(function)["LoggingConfig"]["LogGroup"]["Ref"]
    assert properties(logs)["RetentionInDays"] == {"Ref": "LogRetentionDays"}


def test_the_functions_are_told_where_the_database_is_and_how_to_log() -> None:
    variables = GLOBALS["Environment"]["Variables"]
    assert variables["DOLMEN_DATABASE"] == {"Fn::Sub": "s3://${DatabaseBucket}/${DatabasePrefix}"}
    assert variables["POWERTOOLS_LOG_LEVEL"] == {"Ref": "LogLevel"}
    assert variables["POWERTOOLS_METRICS_NAMESPACE"] == {"Ref": "MetricsNamespace"}
    for function in FUNCTIONS:
        assert "POWERTOOLS_SERVICE_NAME" in properties(function)["Environment"]["Variables"]


def test_the_functions_are_told_nothing_that_the_code_does_not_read() -> None:
    code = "".join(path.read_text() for path in (ROOT / "shared").rglob("*.py"))
    for name in GLOBALS["Environment"]["Variables"]:
        assert name.startswith("POWERTOOLS_") or f'"{name}"' in code, name


# ---- what each may do -----------------------------------------------------------------------------------------------


def test_ingest_reads_drops_commits_and_rejects_and_no_more() -> None:
    assert allowed("IngestRole") == {
        "ReadDrops": {"s3:GetObject", "s3:GetObjectVersion"},
        "Reject": READ_AND_PUT,
        "Commit": READ_AND_PUT,
        "TellAbsentFromDenied": {"s3:ListBucket"},
        "TakeMessages": {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"},
        "Log": {"logs:CreateLogStream", "logs:PutLogEvents"},
    }
    assert resources_of("IngestRole", "ReadDrops") == [{"Fn::Sub": f"{LANDING}/landing/*"}]
    assert resources_of("IngestRole", "Reject") == [{"Fn::Sub": f"{LANDING}/rejected/*"}]
    assert resources_of("IngestRole", "Commit") == [DATABASE_OBJECTS]
    assert resources_of("IngestRole", "TakeMessages") == [{"Fn::GetAtt": ["IngestQueue", "Arn"]}]


def test_delete_commits_and_no_more() -> None:
    assert allowed("DeleteRole") == {
        "Commit": READ_AND_PUT,
        "TellAbsentFromDenied": {"s3:ListBucket"},
        "TakeMessages": {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"},
        "Log": {"logs:CreateLogStream", "logs:PutLogEvents"},
    }
    assert resources_of("DeleteRole", "Commit") == [DATABASE_OBJECTS]
    assert resources_of("DeleteRole", "TakeMessages") == [{"Fn::GetAtt": ["DeleteQueue", "Arn"]}]


def test_compact_commits_and_no_more() -> None:
    assert allowed("CompactRole") == {
        "Commit": READ_AND_PUT,
        "TellAbsentFromDenied": {"s3:ListBucket"},
        "TellFailures": {"sqs:SendMessage"},
        "Log": {"logs:CreateLogStream", "logs:PutLogEvents"},
    }
    assert resources_of("CompactRole", "Commit") == [DATABASE_OBJECTS]
    assert resources_of("CompactRole", "TellAbsentFromDenied") == [{"Fn::GetAtt": ["DatabaseBucket", "Arn"]}]


def test_gc_alone_deletes_objects_and_only_those_of_the_database() -> None:
    assert allowed("GcRole") == {
        "Commit": READ_AND_PUT,
        "Collect": {"s3:DeleteObject"},
        "FindOrphans": {"s3:ListBucket"},
        "TellFailures": {"sqs:SendMessage"},
        "Log": {"logs:CreateLogStream", "logs:PutLogEvents"},
    }
    assert resources_of("GcRole", "Commit") == resources_of("GcRole", "Collect") == [DATABASE_OBJECTS]
    assert resources_of("GcRole", "FindOrphans") == [{"Fn::GetAtt": ["DatabaseBucket", "Arn"]}]
    deleting = [
        role
        for role in of_type("AWS::IAM::Role")
        for actions in allowed(role).values()
        if any(action.startswith("s3:Delete") for action in actions)
    ]
    assert deleting == ["GcRole"]


@pytest.mark.parametrize("role", of_type("AWS::IAM::Role"))
def test_no_role_may_do_anything_everywhere(role: str) -> None:
    assert "ManagedPolicyArns" not in properties(role)
    (trust,) = properties(role)["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}
    for statement in statements(properties(role)["Policies"]):
        for action in as_list(statement["Action"]):
            assert "*" not in action
        assert "*" not in as_list(statement["Resource"])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_has_its_own_role_and_nothing_added_to_it(function: str) -> None:
    _, role = FUNCTIONS[function]
    assert properties(function)["Role"] == {"Fn::GetAtt": [role, "Arn"]}
    assert "Policies" not in properties(function)
    assert "Policies" not in GLOBALS


# ---- layers ---------------------------------------------------------------------------------------------------------


def test_a_function_gets_the_dependencies_of_its_architecture_and_the_core() -> None:
    assert GLOBALS["Architectures"] == [{"Ref": "Architecture"}]
    assert PARAMETERS["Architecture"]["AllowedValues"] == ["x86_64", "arm64"]
    dependencies, core = GLOBALS["Layers"]
    assert dependencies == {"Fn::If": ["IsArm64", {"Ref": "DependenciesArm64Layer"}, {"Ref": "DependenciesX8664Layer"}]}
    assert core == {"Ref": "CoreLayer"}
    for layer, condition, architecture in [
        ("DependenciesArm64Layer", "IsArm64", "arm64"),
        ("DependenciesX8664Layer", "IsX8664", "x86_64"),
    ]:
        assert RESOURCES[layer]["Condition"] == condition
        assert properties(layer)["CompatibleArchitectures"] == [architecture]


@pytest.mark.parametrize("layer", of_type("AWS::Serverless::LayerVersion"))
def test_a_layer_is_built_by_its_makefile_for_the_functions_python(layer: str) -> None:
    assert RESOURCES[layer]["Metadata"]["BuildMethod"] == "makefile"
    assert properties(layer)["CompatibleRuntimes"] == [GLOBALS["Runtime"]]
    makefile = (ROOT / properties(layer)["ContentUri"] / "Makefile").read_text()
    assert f"build-{layer}:" in makefile


def test_one_python_is_meant_by_runtime_layer_and_lock() -> None:
    python = GLOBALS["Runtime"].removeprefix("python")
    assert f"RUNTIME_PYTHON := {python}\n" in (ROOT / "layers" / "dependencies" / "Makefile").read_text()
    assert f"locks/layer.txt --python-version {python} " in (ROOT / "locks" / "update.sh").read_text()


def test_the_core_layer_holds_the_package_without_what_no_function_runs(tmp_path: Path) -> None:
    make = ["make", "--silent", "-C", str(tmp_path), "--makefile", str(ROOT / "layers" / "core" / "Makefile")]
    subprocess.run([*make, "build-CoreLayer", f"ARTIFACTS_DIR={tmp_path / 'layer'}"], check=True)
    package = tmp_path / "layer" / "python" / "dolmen"
    assert (package / "py.typed").exists()
    assert {path.name for path in package.iterdir()} >= {
        "__init__.py",
        "format",
        "store",
        "commit",
        "ingest",
        "maintenance",
    }
    assert not (package / "cli").exists()
    assert not (package / "testing").exists()
    assert {path.suffix for path in package.rglob("*") if path.is_file()} == {".py", ".pyc", ".typed"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_loads_from_the_core_layer(tmp_path: Path, function: str) -> None:
    make = ["make", "--silent", "-C", str(tmp_path), "--makefile", str(ROOT / "layers" / "core" / "Makefile")]
    subprocess.run([*make, "build-CoreLayer", f"ARTIFACTS_DIR={tmp_path}"], check=True)
    source = "import app, dolmen; print(dolmen.__file__)"
    folder, _ = FUNCTIONS[function]
    loaded = subprocess.run(
        [sys.executable, "-B", "-c", source],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / folder), str(tmp_path / "python")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.startswith(str(tmp_path))


# ---- deploying ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["default", "prod", "local"])
def test_samconfig_has_the_section_and_sets_only_what_the_template_takes(section: str) -> None:
    deploy = tomllib.loads((ROOT / "samconfig.toml").read_text())[section]["deploy"]["parameters"]
    assert deploy["capabilities"] == "CAPABILITY_IAM"
    for override in deploy.get("parameter_overrides", []):
        name, value = override.split("=", 1)
        parameter = PARAMETERS[name]
        assert value in map(str, parameter.get("AllowedValues", [value]))
        if "AllowedPattern" in parameter:
            assert re.fullmatch(parameter["AllowedPattern"], value)
        if "MaxValue" in parameter:
            assert parameter["MinValue"] <= int(value) <= parameter["MaxValue"]
