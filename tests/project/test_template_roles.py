"""template.yaml: what each function may do, and nothing more; and what people may be given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from support.template import DATABASE, KEY, LANDING, Stack, all_choices, arn, as_list, deployed, sub

STACK = deployed()
ROLES = ["IngestRole", "DeleteRole", "CompactRole", "GcRole"]
FOR_PEOPLE = ["ReadPolicy", "DropPolicy", "RequestDeletesPolicy", "OperatePolicy"]

READ_AND_PUT = {"s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"}
TAKE = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}
LOG = {"logs:CreateLogStream", "logs:PutLogEvents"}
DATABASE_OBJECTS = sub(f"{DATABASE}/${{DatabasePrefix}}/*")
DROPS = sub(f"{LANDING}/${{LandingPrefix}}*")
REJECTS = sub(f"{LANDING}/rejected/*")
COLLECTED = [
    sub(f"{DATABASE}/${{DatabasePrefix}}/{folder}/*")
    for folder in ("data", "tombstone", "segment", "manifest", "intent", "iceberg")
]
HANDED = sub(f"{LANDING}/handed/*")


def test_ingest_reads_and_tags_drops_commits_and_rejects_and_no_more() -> None:
    assert STACK.allowed("IngestRole") == {
        "ReadDrops": {"s3:GetObject", "s3:GetObjectVersion"},
        "TagDrops": {
            "s3:GetObjectTagging",
            "s3:GetObjectVersionTagging",
            "s3:PutObjectTagging",
            "s3:PutObjectVersionTagging",
        },
        "Reject": READ_AND_PUT,
        "Commit": READ_AND_PUT,
        "TellAbsentFromDenied": {"s3:ListBucket"},
        "TellAbsentDropsFromDenied": {"s3:ListBucket"},
        "TakeMessages": TAKE,
        "SendAnew": {"sqs:SendMessage", "sqs:ChangeMessageVisibility"},
        "GiveUp": {"sqs:SendMessage"},
        "Log": LOG,
    }
    assert STACK.resources_of("IngestRole", "ReadDrops") == [DROPS]
    assert STACK.resources_of("IngestRole", "TagDrops") == [DROPS]
    assert STACK.resources_of("IngestRole", "Reject") == [REJECTS]
    assert STACK.resources_of("IngestRole", "Commit") == [DATABASE_OBJECTS]
    assert STACK.resources_of("IngestRole", "TakeMessages") == [arn("IngestQueue")]
    assert STACK.resources_of("IngestRole", "SendAnew") == [arn("IngestQueue")]
    assert STACK.resources_of("IngestRole", "GiveUp") == [arn("IngestDeadLetters")]
    assert STACK.resources_of("IngestRole", "TellAbsentFromDenied") == [sub(DATABASE)]
    assert STACK.resources_of("IngestRole", "TellAbsentDropsFromDenied") == [sub(LANDING)]


def test_delete_commits_and_no_more() -> None:
    assert STACK.allowed("DeleteRole") == {
        "Commit": READ_AND_PUT,
        "TellAbsentFromDenied": {"s3:ListBucket"},
        "TakeMessages": TAKE,
        "SendAnew": {"sqs:SendMessage", "sqs:ChangeMessageVisibility"},
        "GiveUp": {"sqs:SendMessage"},
        "Log": LOG,
    }
    assert STACK.resources_of("DeleteRole", "Commit") == [DATABASE_OBJECTS]
    assert STACK.resources_of("DeleteRole", "TakeMessages") == [arn("DeleteQueue")]
    assert STACK.resources_of("DeleteRole", "SendAnew") == [arn("DeleteQueue")]
    assert STACK.resources_of("DeleteRole", "GiveUp") == [arn("DeleteDeadLetters")]


def test_compact_commits_and_no_more() -> None:
    assert STACK.allowed("CompactRole") == {
        "Commit": READ_AND_PUT,
        "TellAbsentFromDenied": {"s3:ListBucket"},
        "TellFailures": {"sqs:SendMessage"},
        "Log": LOG,
    }
    assert STACK.resources_of("CompactRole", "Commit") == [DATABASE_OBJECTS]
    assert STACK.resources_of("CompactRole", "TellAbsentFromDenied") == [sub(DATABASE)]


def test_where_glue_is_named_delete_and_compact_register_publications_there_and_nothing_else() -> None:
    stack = deployed(GlueDatabase="lake")
    register = {"glue:GetTable", "glue:CreateTable", "glue:UpdateTable"}
    place = "arn:${AWS::Partition}:glue:${AWS::Region}:${AWS::AccountId}:"
    for role in ROLES:
        granted_more = {**stack.allowed(role)}
        if role in ("DeleteRole", "CompactRole"):
            assert granted_more.pop("RegisterPublications") == register
            assert stack.resources_of(role, "RegisterPublications") == [
                sub(f"{place}catalog"),
                sub(f"{place}database/${{GlueDatabase}}"),
                sub(f"{place}table/${{GlueDatabase}}/*"),
            ]
        assert granted_more == STACK.allowed(role)
        variables = stack.properties(role.replace("Role", "Function"))["Environment"]["Variables"]
        assert ("DOLMEN_GLUE_DATABASE" in variables) == (role in ("DeleteRole", "CompactRole"))


def test_gc_alone_deletes_objects_and_only_those_of_the_database() -> None:
    assert STACK.allowed("GcRole") == {
        "Commit": READ_AND_PUT,
        "Collect": {"s3:DeleteObject"},
        "CountOldVersions": {"s3:ListBucketVersions"},
        "CountOutside": {"s3:ListBucket"},
        "TellAbsentFromDenied": {"s3:ListBucket"},
        "TellFailures": {"sqs:SendMessage"},
        "Log": LOG,
    }
    assert STACK.resources_of("GcRole", "Commit") == [DATABASE_OBJECTS]
    assert STACK.resources_of("GcRole", "Collect") == COLLECTED
    assert STACK.resources_of("GcRole", "TellAbsentFromDenied") == [sub(DATABASE)]
    assert STACK.resources_of("GcRole", "CountOldVersions") == [sub(DATABASE)]
    assert STACK.resources_of("GcRole", "CountOutside") == [sub("arn:${AWS::Partition}:s3:::${LandingBucketName}")]
    counted = STACK.statements("GcRole")["CountOutside"]["Condition"]
    assert counted == {"StringLike": {"s3:prefix": [sub("${LandingPrefix}*"), "rejected/*", "handed/*"]}}


def granted(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement that allows somebody something, with the name of what it stands in."""
    for role in stack.of_type("AWS::IAM::Role"):
        yield from ((role, statement) for statement in stack.statements(role).values())
    for policy in stack.of_type("AWS::IAM::ManagedPolicy"):
        yield from ((policy, one) for one in stack.properties(policy)["PolicyDocument"]["Statement"])


def test_whatever_is_chosen_nobody_but_gc_deletes_objects_of_the_database_or_configures_buckets() -> None:
    for choice in all_choices():
        deleting = {
            name: statement["Resource"]
            for name, statement in granted(deployed(**choice))
            for action in as_list(statement["Action"])
            if re.match(r"s3:(Delete|PutBucket|PutLifecycle|Bypass|\*)", action)
        }
        settling = {"SparkJobRole": HANDED} if choice["SparkJobs"] and "SparkJobRoleArn" not in choice else {}
        assert deleting == {"GcRole": COLLECTED, **settling}


EVERYWHERE = ("JoinVpc", "SeeMetrics", "SeeTraces", "Trace")


def test_whatever_is_chosen_nobody_may_do_anything_or_something_everywhere() -> None:
    for choice in all_choices():
        for name, statement in granted(deployed(**choice)):
            assert not any("*" in action for action in as_list(statement["Action"])), name
            # Network interfaces are made before they have a name; metrics and traces can't be narrowed down.
            assert "*" not in as_list(statement["Resource"]) or statement["Sid"] in EVERYWHERE, name


def test_these_are_all_roles_and_only_lambda_takes_those_of_the_functions() -> None:
    assert STACK.of_type("AWS::IAM::Role") == [*ROLES, "ScheduleRole"]
    for role in ROLES:
        assert STACK.properties(role)["ManagedPolicyArns"] == [{"Ref": "FunctionPolicy"}]
        (trust,) = STACK.properties(role)["AssumeRolePolicyDocument"]["Statement"]
        assert trust == {
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }


def test_the_schedules_start_their_functions_and_no_more() -> None:
    (trust,) = STACK.properties("ScheduleRole")["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    assert STACK.allowed("ScheduleRole") == {
        "StartRounds": {"lambda:InvokeFunction"},
        "TellFailures": {"sqs:SendMessage"},
    }
    assert STACK.resources_of("ScheduleRole", "StartRounds") == [arn("CompactFunction"), arn("GcFunction")]
    assert STACK.resources_of("ScheduleRole", "TellFailures") == [arn("CompactDeadLetters"), arn("GcDeadLetters")]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_uses_the_database_key_when_there_is_one_and_only_ingest_that_of_the_landing(role: str) -> None:
    use = {"kms:GenerateDataKey", "kms:Decrypt"}
    stack = deployed(DatabaseKmsKeyArn=KEY, LandingKmsKeyArn=KEY)
    added = {sid: actions for sid, actions in stack.allowed(role).items() if sid not in STACK.allowed(role)}
    assert added == {"UseDatabaseKey": use} | ({"UseLandingKey": use} if role == "IngestRole" else {})
    assert stack.resources_of(role, "UseDatabaseKey") == [{"Ref": "DatabaseKmsKeyArn"}]
    if role == "IngestRole":
        assert stack.resources_of(role, "UseLandingKey") == [{"Ref": "LandingKmsKeyArn"}]
    assert deployed(LandingKmsKeyArn=KEY).allowed("GcRole") == STACK.allowed("GcRole")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_join_a_vpc_only_where_there_is_one(role: str) -> None:
    stack = deployed(SubnetIds="subnet-1")
    added = {sid: actions for sid, actions in stack.allowed(role).items() if sid not in STACK.allowed(role)}
    # As AWS's own policy AWSLambdaVPCAccessExecutionRole has them.
    interfaces = {"CreateNetworkInterface", "DescribeNetworkInterfaces", "DeleteNetworkInterface", "DescribeSubnets"}
    addresses = {"AssignPrivateIpAddresses", "UnassignPrivateIpAddresses"}
    assert added == {"JoinVpc": {f"ec2:{name}" for name in interfaces | addresses}}


# ---- for people and other programs ----------------------------------------------------------------------------------


def policy(name: str, stack: Stack = STACK) -> dict[str, dict[str, Any]]:
    return {one["Sid"]: one for one in stack.properties(name)["PolicyDocument"]["Statement"]}


def test_these_policies_can_be_attached_and_have_no_fixed_names() -> None:
    assert STACK.of_type("AWS::IAM::ManagedPolicy") == ["FunctionPolicy", *FOR_PEOPLE]
    for name in FOR_PEOPLE:
        assert "ManagedPolicyName" not in STACK.properties(name)  # CAPABILITY_IAM is enough
        assert {statement["Effect"] for statement in policy(name).values()} == {"Allow"}


def test_a_reader_only_reads() -> None:
    statements = policy("ReadPolicy", deployed(DatabaseKmsKeyArn=KEY))
    assert {sid: one["Action"] for sid, one in statements.items()} == {
        "Read": "s3:GetObject",
        "TellAbsentFromDenied": "s3:ListBucket",
        "UseDatabaseKey": "kms:Decrypt",
    }
    assert statements["Read"]["Resource"] == DATABASE_OBJECTS


def test_who_drops_files_reads_nothing() -> None:
    statements = policy("DropPolicy")
    assert set(statements) == {"Drop"}
    assert set(statements["Drop"]["Action"]) == {"s3:PutObject", "s3:AbortMultipartUpload"}
    assert statements["Drop"]["Resource"] == DROPS


def test_who_requests_deletes_only_sends() -> None:
    statements = policy("RequestDeletesPolicy")
    assert set(statements) == {"Send", "SeeHowManyFailed"}
    assert statements["SeeHowManyFailed"]["Action"] == "sqs:GetQueueAttributes"
    assert statements["SeeHowManyFailed"]["Resource"] == arn("DeleteDeadLetters")
    assert set(statements["Send"]["Action"]) == {"sqs:SendMessage", "sqs:GetQueueAttributes"}
    assert statements["Send"]["Resource"] == arn("DeleteQueue")


def test_an_operator_may_redrive_dead_letters_into_the_queues_they_came_from() -> None:
    statements = policy("OperatePolicy")
    assert "sqs:StartMessageMoveTask" in statements["Redrive"]["Action"]
    dead_letters = [arn(f"{name}DeadLetters") for name in ("Ingest", "Delete", "Compact", "Gc")]
    assert statements["Redrive"]["Resource"] == dead_letters
    assert statements["Send"]["Resource"] == [arn("IngestQueue"), arn("DeleteQueue")]
    assert statements["SeeDropsAndRejects"]["Resource"] == statements["DropAgain"]["Resource"] == [DROPS, REJECTS]
    assert statements["ListBuckets"]["Action"] == ["s3:ListBucket", "s3:ListBucketVersions"]
    assert statements["ListBuckets"]["Resource"] == [sub(DATABASE), sub(LANDING)]
    assert statements["Commit"]["Resource"] == DATABASE_OBJECTS
    assert all(
        action.split(":")[1].startswith(("Get", "List", "Describe")) for action in statements["SeeMetrics"]["Action"]
    )
    [logs] = as_list(statements["ReadLogs"]["Resource"])
    for name in ("Ingest", "Delete", "Compact", "Gc"):
        group = STACK.properties(f"{name}Logs")["LogGroupName"]["Fn::Sub"]
        assert fnmatchcase(group, logs["Fn::Sub"].partition("log-group:")[2])


@pytest.mark.parametrize("name", [*ROLES, "ScheduleRole", "RequestDeletesPolicy", "OperatePolicy"])
def test_who_sends_or_receives_messages_uses_their_key_through_the_queues_alone(name: str) -> None:
    stack = deployed(MessagesKmsKeyArn=KEY)
    before, after = (policy(name, one) if name.endswith("Policy") else one.statements(name) for one in (STACK, stack))
    assert after.keys() - before.keys() == {"UseMessagesKey"}
    assert after["UseMessagesKey"] == {
        "Sid": "UseMessagesKey",
        "Effect": "Allow",
        "Action": ["kms:GenerateDataKey", "kms:Decrypt"],
        "Resource": {"Ref": "MessagesKmsKeyArn"},
        "Condition": {"StringEquals": {"kms:ViaService": sub("sqs.${AWS::Region}.${AWS::URLSuffix}")}},
    }


def test_nobody_else_uses_the_key_of_the_messages() -> None:
    using = {name for name, one in granted(deployed(MessagesKmsKeyArn=KEY)) if one["Sid"] == "UseMessagesKey"}
    assert using == {"FunctionPolicy", *ROLES, "ScheduleRole", "RequestDeletesPolicy", "OperatePolicy"}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_sends_traces_and_an_operator_sees_them_only_where_the_stack_traces(role: str) -> None:
    stack = deployed(Tracing="ENABLED")
    added = {sid: actions for sid, actions in stack.allowed(role).items() if sid not in STACK.allowed(role)}
    assert added == {"Trace": {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}}
    assert policy("OperatePolicy", stack).keys() - policy("OperatePolicy").keys() == {"SeeTraces"}


def test_keys_of_buckets_are_used_through_s3_alone() -> None:
    stack = deployed(DatabaseKmsKeyArn=KEY, LandingKmsKeyArn=KEY)
    using = [statement for _, statement in granted(stack) if "kms:Decrypt" in as_list(statement["Action"])]
    assert len(using) > 8
    for statement in using:
        assert statement["Condition"] == {"StringLike": {"kms:ViaService": sub("s3.*.${AWS::URLSuffix}")}}


def test_a_boundary_that_an_organization_asks_for_bounds_every_role() -> None:
    boundary = "arn:aws:iam::111122223333:policy/boundary"
    stack = deployed(PermissionsBoundaryArn=boundary, SparkJobs="code/dolmen/0123")
    bounded = [stack.properties(role) for role in stack.of_type("AWS::IAM::Role")]
    assert len(bounded) == 6
    for properties in bounded:
        assert properties["PermissionsBoundary"] == {"Ref": "PermissionsBoundaryArn"}
    assert all("PermissionsBoundary" not in STACK.properties(role) for role in ROLES)


@pytest.mark.parametrize("name", [*ROLES, "SparkJobRole", "ReadPolicy", "OperatePolicy"])
def test_adopted_files_may_be_read_and_nothing_else(name: str) -> None:
    stack = deployed(AdoptedFilesArn="arn:aws:s3:::lake/events/*", SparkJobs="jobs/dolmen")
    if name.endswith("Policy"):
        allowed = {sid: set(as_list(one["Action"])) for sid, one in policy(name, stack).items()}
    else:
        allowed = stack.allowed(name)
    assert {sid: actions for sid, actions in allowed.items() if "Adopted" in sid} == {
        "ReadAdoptedFiles": {"s3:GetObject"},
        "TellAbsentAdoptedFilesFromDenied": {"s3:ListBucket"},
    }
