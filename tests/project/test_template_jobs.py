"""template.yaml: the application for jobs, what starts them, and what they may do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.template import DATABASE, GIVEN, KEY, LANDING, PARAMETERS, TEMPLATE, Stack, arn, deployed, sub

NONE = deployed()
OURS = deployed(SparkJobs=GIVEN["SparkJobs"])
THEIRS = deployed(**{name: GIVEN[name] for name in ("SparkJobs", "SparkApplicationId", "SparkJobRoleArn")})
STARTERS = ["IngestRole", "CompactRole"]
APPLICATION = "arn:${AWS::Partition}:emr-serverless:${AWS::Region}:${AWS::AccountId}:/applications/${Id}"


def added(role: str, stack: Stack) -> dict[str, set[str]]:
    return {sid: actions for sid, actions in stack.allowed(role).items() if sid not in NONE.allowed(role)}


def test_by_default_there_are_no_jobs_and_nobody_may_start_any() -> None:
    assert NONE.of_type("AWS::EMRServerless::Application") == []
    assert "SparkJobRole" not in NONE.resources
    assert "HandedAgeAlarm" not in NONE.resources
    assert not any("emr" in json.dumps(NONE.statements(role)) for role in (*STARTERS, "DeleteRole", "GcRole"))
    for function in ("IngestFunction", "CompactFunction"):
        variables = NONE.properties(function)["Environment"]["Variables"]
        assert variables["DOLMEN_SPARK_APPLICATION"] == {"Ref": "SparkApplicationId"}
    assert PARAMETERS["SparkApplicationId"]["Default"] == ""


def test_the_application_starts_and_stops_by_itself_and_has_limits() -> None:
    application = OURS.properties("SparkApplication")
    assert application["Type"] == "Spark"
    assert application["AutoStartConfiguration"] == {"Enabled": True}
    assert application["AutoStopConfiguration"] == {"Enabled": True, "IdleTimeoutMinutes": 5}
    assert "InitialCapacity" not in application  # which would cost without jobs
    # More memory than workers of so many processors can have: 8 GB for each at most.
    assert application["MaximumCapacity"] == {
        "Cpu": sub("${SparkMaximumVcpus} vCPU"),
        "Memory": sub("${SparkMaximumVcpus}0 GB"),
    }
    assert application["Architecture"] == "ARM64"
    other = deployed(SparkJobs=GIVEN["SparkJobs"], Architecture="x86_64")
    assert other.properties("SparkApplication")["Architecture"] == "X86_64"
    within = deployed(SparkJobs=GIVEN["SparkJobs"], SubnetIds="subnet-1").properties("SparkApplication")
    assert within["NetworkConfiguration"]["SubnetIds"] == {"Ref": "SubnetIds"}


@pytest.mark.parametrize("stack", [OURS, THEIRS], ids=["made", "given"])
def test_the_functions_are_told_where_jobs_run(stack: Stack) -> None:
    made = stack is OURS
    for function in ("IngestFunction", "CompactFunction"):
        told = stack.properties(function)["Environment"]["Variables"]
        assert told["DOLMEN_SPARK_APPLICATION"] == {"Ref": "SparkApplication" if made else "SparkApplicationId"}
        assert told["DOLMEN_SPARK_ROLE"] == (arn("SparkJobRole") if made else {"Ref": "SparkJobRoleArn"})
        assert told["DOLMEN_SPARK_JOBS"] == sub("s3://${SparkJobs}")
        assert told["DOLMEN_HANDED_URL"] == sub("s3://${LandingBucketName}/handed")
    assert stack.properties("IngestFunction")["Environment"]["Variables"]["DOLMEN_INGEST_QUEUE"] == {
        "Ref": "IngestQueue"
    }
    assert "HandedAgeAlarm" in stack.resources


@pytest.mark.parametrize("stack", [OURS, THEIRS], ids=["made", "given"])
@pytest.mark.parametrize("role", STARTERS)
def test_who_starts_jobs_may_do_so_on_that_application_and_pass_that_role_to_it_alone(role: str, stack: Stack) -> None:
    more = (
        {"HandOver": {"s3:GetObject", "s3:PutObject"}} if role == "IngestRole" else {"SeeHandedOver": {"s3:ListBucket"}}
    )
    assert added(role, stack) == {
        "StartJobs": {"emr-serverless:StartJobRun", "emr-serverless:ListJobRuns"},
        "SeeJobs": {"emr-serverless:GetJobRun", "emr-serverless:TagResource"},
        "PassJobRole": {"iam:PassRole"},
        **more,
    }
    id_ = {"Id": {"Ref": "SparkApplication" if stack is OURS else "SparkApplicationId"}}
    assert stack.statements(role)["StartJobs"]["Resource"] == {"Fn::Sub": [APPLICATION, id_]}
    assert stack.statements(role)["SeeJobs"]["Resource"] == {"Fn::Sub": [f"{APPLICATION}/jobruns/*", id_]}
    statement = stack.statements(role)["PassJobRole"]
    assert statement["Resource"] == (arn("SparkJobRole") if stack is OURS else {"Ref": "SparkJobRoleArn"})
    assert statement["Condition"] == {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}}
    if role == "IngestRole":
        assert stack.resources_of(role, "HandOver") == [sub(f"{LANDING}/handed/*")]
    else:
        assert stack.statements(role)["SeeHandedOver"]["Condition"] == {"StringLike": {"s3:prefix": "handed/*"}}


@pytest.mark.parametrize("role", ["DeleteRole", "GcRole"])
def test_nobody_else_may(role: str) -> None:
    assert added(role, OURS) == added(role, THEIRS) == {}


def test_jobs_read_drops_and_commit_rows_and_delete_nothing_but_records() -> None:
    assert OURS.of_type("AWS::IAM::Role") == [*NONE.of_type("AWS::IAM::Role"), "SparkJobRole"]
    (trust,) = OURS.properties("SparkJobRole")["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    allowed = OURS.allowed("SparkJobRole")
    ingest = NONE.allowed("IngestRole")
    assert allowed == {
        **{sid: ingest[sid] for sid in ("ReadDrops", "TagDrops", "Reject", "Commit")},
        "ReadJobs": {"s3:GetObject"},
        "FindJobs": {"s3:ListBucket"},
        "SettleHandedOver": {"s3:GetObject", "s3:DeleteObject"},
        "ListBuckets": {"s3:ListBucket"},
    }
    for sid in ("ReadDrops", "TagDrops", "Reject", "Commit"):
        assert OURS.resources_of("SparkJobRole", sid) == NONE.resources_of("IngestRole", sid)
    assert OURS.resources_of("SparkJobRole", "ReadJobs") == [sub("arn:${AWS::Partition}:s3:::${SparkJobs}/*")]
    assert OURS.resources_of("SparkJobRole", "ListBuckets") == [sub(DATABASE), sub(LANDING)]
    keys = deployed(DatabaseKmsKeyArn=KEY, LandingKmsKeyArn=KEY, SparkJobs=GIVEN["SparkJobs"])
    assert set(keys.allowed("SparkJobRole")) == {*allowed, "UseDatabaseKey", "UseLandingKey"}


def holds(rule: dict[str, Any], values: dict[str, str]) -> bool:
    """Whether CloudFormation would go on with these parameters."""

    def decide(expression: Any) -> Any:
        match expression:
            case {"Ref": name}:
                return values.get(name, PARAMETERS[name].get("Default", ""))
            case {"Fn::Equals": [left, right]}:
                return decide(left) == decide(right)
            case {"Fn::Not": [inner]}:
                return not decide(inner)
        return expression

    return not decide(rule["RuleCondition"]) or all(decide(one["Assert"]) for one in rule["Assertions"])


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        ({}, True),
        ({"SparkJobs": GIVEN["SparkJobs"]}, True),
        (GIVEN, True),
        ({name: value for name, value in GIVEN.items() if name != "SparkApplicationId"}, False),
        ({name: value for name, value in GIVEN.items() if name != "SparkJobRoleArn"}, False),
        ({name: value for name, value in GIVEN.items() if name != "SparkJobs"}, False),
    ],
)
def test_half_of_what_jobs_need_is_refused_before_anything_is_made(values: dict[str, str], taken: bool) -> None:
    assert all(holds(rule, values) for rule in TEMPLATE["Rules"].values()) == taken


def test_what_was_handed_over_and_waits_too_long_rings() -> None:
    alarm = OURS.properties("HandedAgeAlarm")
    assert (alarm["MetricName"], alarm["Statistic"]) == ("HandedAgeSeconds", "Maximum")
    assert alarm["Dimensions"] == [{"Name": "service", "Value": "compact"}]
    assert alarm["Threshold"] == 6 * 3600
    assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": "AlarmTopic"}]
